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
from aiothrottle import KeyedRateLimiter, RateLimiter, StoreUnavailable
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from aiothrottle.stores import MemoryStore
from tests.support.virtually import virtual, visit

PACKAGE = Path(aiothrottle.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Names that run text or bytes, as code or as a command, and modules that do.
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}
MODULES = {"pickle", "marshal", "shelve", "yaml", "dill", "code", "subprocess", "ctypes", "runpy"}
# Names that would change the verification of a server, beside the argument `ssl`.
TLS = {"verify", "check_hostname", "verify_mode", "verify_ssl", "_create_unverified_context"}


def unsafe(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name) as called):
                if name in CALLS and ast.unparse(called) != "re.compile":
                    found.add(name)
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names} & MODULES
            case ast.ImportFrom(module=str(module)):
                found |= {module.partition(".")[0]} & MODULES
            case ast.keyword(arg="ssl"):
                found.add("ssl=")
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name):
                found |= {name} & TLS
            case _:
                pass
    return found


def test_no_module_runs_text_or_touches_tls() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    found = {path: names for path, it in sources.items() if (names := unsafe(it))}
    # The option --insecure, which the user has to give.
    assert all(path.is_relative_to(PACKAGE / "cli") for path in found)
    assert [*found.values()] == [{"ssl="}]
    running = ("eval(x)", "import pickle", "from yaml import load", "os.system('ls')")
    touching = ("get(url, ssl=False)", "Client(verify=False)", "it.check_hostname = False")
    assert all(map(unsafe, (*running, *touching))), "the walk finds nothing"


class Asked(aiohttp.TCPConnector):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.settings: list[object] = []

    async def connect(self, req: Any, *_: object, **__: object) -> Any:
        self.settings.append(req.ssl)
        raise aiohttp.ClientConnectionError


@pytest.mark.parametrize("make_session", [ThrottledSession, throttled_session])
async def test_session_passes_tls_settings_on(make_session: Any) -> None:
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


def assert_plain_lines(messages: list[str], count: int) -> None:
    assert len(messages) == count
    for message in messages:
        assert message.isprintable()
        assert len(message) < 800
        assert "all is lost" in message


@virtual
async def test_key_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    keyed = KeyedRateLimiter(10)
    for key in (FORGED, ("tuple", FORGED), FORGED * 10_000):
        keyed.pause(key, 30.0)
    await asyncio.sleep(0)
    assert_plain_lines(caplog.messages, 3)


class Broken(MemoryStore):
    reason = FORGED

    async def reserve(self, *_: object, **__: object) -> Any:
        raise StoreUnavailable(self.reason)


@virtual
async def test_store_error_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for reason in (FORGED, FORGED * 10_000):
        store = Broken()
        store.reason = reason
        limiter = RateLimiter(1, store=store, key="k", on_store_error="open")
        await visit(limiter)
        await limiter.aclose()
    assert_plain_lines(caplog.messages, 2)
