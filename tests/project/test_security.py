"""The claims of docs/project/security.md: no module runs text, or uses TLS or logs unsafely."""

import ast
import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import aiothrottle
from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.health import Health
from tests.virtually import virtual

SOURCES = sorted(Path(aiothrottle.__file__).parent.rglob("*.py"))

# Names that run text or bytes, as code or as a command, and modules that do.
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}
MODULES = {"pickle", "marshal", "shelve", "yaml", "dill", "code", "subprocess", "ctypes", "runpy"}
# Names that would change the verification of a server.
TLS = {"verify", "check_hostname", "verify_mode", "verify_ssl", "_create_unverified_context"}


def runs_text(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                found |= {called.id} & CALLS
            elif isinstance(called, ast.Attribute):
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                found |= {called.attr} & CALLS if owner != "re" else set()
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & MODULES
    return found


def changes_tls(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword | ast.Attribute):
            name = node.arg if isinstance(node, ast.keyword) else node.attr
            found |= {name or ""} & TLS
            if isinstance(node, ast.keyword) and name == "ssl":
                found.add("ssl=")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_module_runs_text_or_touches_tls(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert runs_text(source) == set()
    # The options --insecure and --cacert, which the user has to give.
    allowed = {"ssl="} if path.match("cli/fetch/run.py") else set[str]()
    assert changes_tls(source) == allowed


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "import pickle",
        "from yaml import load",
        "os.system('ls')",
        "import os, marshal.x",
    ],
)
def test_walk_finds_code_that_runs_text(source: str) -> None:
    assert runs_text(source)


@pytest.mark.parametrize(
    "source", ["get(url, ssl=False)", "Client(verify=False)", "context.check_hostname = False"]
)
def test_walk_finds_code_that_touches_tls(source: str) -> None:
    assert changes_tls(source)


class Asked(aiohttp.TCPConnector):
    """Records the TLS settings of requests, and connects to nobody."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.settings: list[object] = []

    async def connect(self, req: Any, *_: object, **__: object) -> Any:  # noqa: ANN401
        self.settings.append(req.ssl)
        raise aiohttp.ClientConnectionError


@pytest.mark.parametrize("make_session", [ThrottledSession, throttled_session])
async def test_session_passes_tls_settings_on(make_session: Any) -> None:  # noqa: ANN401
    context = ssl.create_default_context()
    connector = Asked()
    limiter = RateLimiter(concurrency_limit=1)
    async with make_session(limiter, retry=Retry(attempts=1), connector=connector) as session:
        for options in ({}, {"ssl": context}):
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get("https://example.org/", **options)
    assert connector.settings == [True, context]


# ---- the log -------------------------------------------------------------------------------------

FORGED = "a\nCRITICAL root: all is lost\x1b[2J\u2028\u202e"


def assert_one_plain_line(message: str, *, longest: int = 800) -> None:
    assert message.isprintable()
    assert len(message) < longest


@virtual
async def test_key_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    keyed = KeyedRateLimiter(10)
    for key in (FORGED, ("tuple", FORGED), FORGED * 10_000):
        keyed.pause(key, 30.0)
    await asyncio.sleep(0)
    assert len(caplog.messages) == 3
    for message in caplog.messages:
        assert_one_plain_line(message)
        assert "all is lost" in message


async def test_store_error_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    for reason in (FORGED, FORGED * 10_000):
        Health(MemoryStore()).begin_outage("local", reason)
    assert len(caplog.messages) == 2
    for message in caplog.messages:
        assert_one_plain_line(message)
