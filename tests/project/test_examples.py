"""Every example, run as a reader would run it; those that need clients: tests/clients."""

import asyncio
import contextlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Generator, Iterable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer, linked_pages
from tests.cli.handlers import Seen, always, by_path, noting, to
from tests.support.background import ENVIRONMENT, STRICT
from tests.support.servers import need, why_no_valkey

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = [sys.executable, *STRICT]
#: The processes by the names of their examples.
Running: TypeAlias = dict[str, subprocess.Popen[str]]

# Packages besides those of the group `test`, without which an example is skipped.
NEEDS = {
    "fastapi_service.py": ["fastapi", "uvicorn"],
    "openai_batch.py": ["openai"],
    "s3_copy.py": ["aiobotocore"],
    "worker_queue.py": ["taskiq"],
}

# The words that the output must have, besides the checks of each example.
EXPECTED = {
    "api_client.py": ["250 books and 90 authors", "37 requests, 3 failed"],
    "crawl_site.py": ["20 pages of http://127.0.0.1", "21 requests"],
    "crawl_web.py": ["18 requests"],
    "fastapi_service.py": ["asked to retry"],
    "github_sync.py": ["250 issues, 250 changed", "250 issues, 1 changed", "54 requests"],
    "openai_batch.py": ['{"id": 99, "answer": "1, 2, 3"}', "100 requests"],
    "worker_queue.py": ["40 tasks ended with status 200", "40 requests"],
    "workers.py": ["worker 3: 30 pages", "120 requests"],
    "s3_copy.py": ["100 objects copied, 103 requests", "100 objects in the target"],
    "sitemap_crawler.py": ["/about", "/5", "14 requests"],
    "throttle_anything.py": ["api_client.py has", "the sum of the squares is 140"],
}


def is_runnable(example: str) -> bool:
    needs_store = example in {"fastapi_service.py", "workers.py"}
    return all(map(find_spec, NEEDS.get(example, []))) and not (needs_store and why_no_valkey())


@contextlib.contextmanager
def running_at_once(examples: Iterable[str]) -> Generator[Running, None, None]:
    """Start the examples, and end them: they mostly wait, while the first tests run."""
    started = {
        name: subprocess.Popen(
            [*PYTHON, str(EXAMPLES / name)],
            env=ENVIRONMENT,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            start_new_session=True,
        )
        for name in examples
        if is_runnable(name)
    }
    try:
        yield started
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)  # with its workers, which have its pipes
            process.communicate()


async def started(*command: object, **variables: str) -> Process:
    words = map(str, command)
    environment = ENVIRONMENT | variables
    return await asyncio.create_subprocess_exec(*words, env=environment, stdout=PIPE, stderr=PIPE)


async def ended(example: str, *arguments: object, **variables: str) -> tuple[int, str, str]:
    process = await started(*PYTHON, EXAMPLES / example, *arguments, **variables)
    printed, messages = await process.communicate()
    return process.returncode or 0, printed.decode(), messages.decode()


def lines_of(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def without_throttled(printed: str) -> str:
    """Subtract the few requests that a server has throttled, as a busy machine may be late."""
    throttled = sum(map(int, re.findall(r"(\d+) throttled", printed)))
    assert throttled <= 10
    return re.sub(r"\d+(?= requests)", lambda number: str(int(number[0]) - throttled), printed)


def check_output(example: str, running: Running) -> str:
    """Check what an example has printed without arguments, and return it."""
    if example not in running:
        need("valkey", why_no_valkey())
    output, errors = running[example].communicate()
    assert running[example].returncode == 0, errors
    assert output
    for trouble in ("Traceback", "Warning", "Exception ignored"):
        assert trouble not in errors
    printed = without_throttled(output + errors)
    for words in EXPECTED.get(example, []):
        assert words in printed
    return printed


OURS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in NEEDS)


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[Running]:
    with running_at_once(OURS) as examples:
        yield examples


def test_listed_example_exists() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} >= {*EXPECTED, *NEEDS}


@pytest.mark.parametrize(
    ("example", "arguments", "problem"),
    [
        ("github_sync.py", ["aio-libs/yarl"], "set GITHUB_TOKEN to"),
        ("crawl_web.py", ["--per-host", "0"], "rate must be finite and above zero, got 0.0"),
        ("crawl_web.py", ["no such file"], "no such file"),
    ],
)
def test_wrong_arguments_are_named(
    example: str,
    arguments: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", [example, *arguments])
    with pytest.raises(SystemExit) as ended:  # here: to start a process takes most of a second
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert ended.value.code == 2
    assert problem in " ".join(capsys.readouterr().err.split())


# ---- the crawlers ----------------------------------------------------------------------------


async def test_sitemap_crawler_obeys_robots_txt() -> None:
    async def site(request: web.Request) -> web.Response:
        origin = request.url.origin()
        if request.path == "/robots.txt":
            rules = f"User-agent: *\nCrawl-delay: 1\nDisallow: /no\nSitemap: {origin}/map"
            return web.Response(text=rules)
        if request.path == "/map":
            pages = [f"{origin}/yes", f"{origin}/no", "http://other.invalid/", f"{origin}/yes"]
            text = "".join(f"<url><loc>{page}</loc></url>" for page in pages)
            namespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
            return web.Response(text=f'<urlset xmlns="{namespace}">{text}</urlset>')
        raise web.HTTPNotFound

    async with RateLimitedServer(handler=site) as server:
        _, printed, _ = await ended("sitemap_crawler.py", server.url)
    requests = server.audit.requests
    assert [request.path for request in requests] == ["/robots.txt", "/map", "/yes"]
    # A server sees requests later than they were sent, by varying times.
    assert all(later.arrived_at - earlier.arrived_at > 0.8 for earlier, later in pairwise(requests))
    assert json.loads(printed) == {"url": f"{server.url}yes", "status": 404, "bytes": 14}


async def crawl(server: RateLimitedServer, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Crawl a server of this process; return the lines and the messages on stderr."""
    status, printed, messages = await ended("crawl_site.py", server.url, *options)
    assert status == 0, messages
    return lines_of(printed), messages


async def test_crawler_writes_each_page_as_json() -> None:
    async with RateLimitedServer("100/s", concurrency_limit=4, handler=linked_pages(15)) as server:
        options = ["--rate", "100", "--concurrency", "4", "--pages", "14"]
        lines, messages = await crawl(server, *options)
    pages = {str(server.url.with_path(f"/{n or ''}")): f"Page {n}" for n in range(15)}
    assert len({line["url"] for line in lines}) == len(lines) == 14  # of 15: the bound
    for line in lines:
        assert line.keys() == {"url", "status", "title", "links", "seconds"}
        assert (line["status"], line["title"]) == (200, pages[line["url"]])
        assert isinstance(line["links"], list)
        assert line["links"]
    assert "14 pages of" in messages


async def test_crawler_is_polite_and_stays_on_the_site() -> None:
    links = "/private/x /moved#top /picture http://other.invalid/ mailto:a@b http://["
    text = "".join(f"<a href='{link}'>x</a>" for link in links.split())
    page = f"<title>Over\nhere </title>{text}<svg><title>A picture</title></svg>"
    seen: list[Seen] = []
    site = {
        "robots.txt": always(body="User-agent: *\nDisallow: /private\n"),
        "moved": to("/new"),
        "picture": always(body=b"<a href='/not-a-link'>", Content_Type="image/png"),
        "": always(body=page.encode(), Content_Type="text/html"),
        "new": always(body="plain"),
    }
    async with RateLimitedServer(handler=noting(seen, by_path(site))) as server:
        lines, _ = await crawl(server, "--rate", "100", "--contact", "me@example.org")
    asked = [request.path for request in server.audit.requests]
    assert asked[0] == "/robots.txt"
    assert sorted(asked) == ["/", "/moved", "/new", "/picture", "/robots.txt"]
    by_url = {str(line["url"]).removeprefix(str(server.url)): line for line in lines}
    assert by_url[""]["title"] == "Over\nhere"
    assert (by_url["moved"]["status"], by_url["moved"]["links"]) == (302, [f"{server.url}new"])
    assert by_url["picture"]["links"] == []
    agents = {it.headers["User-Agent"] for it in seen}
    assert agents == {"aiothrottle-crawl-site/1.0 (me@example.org)"}


async def test_crawler_skips_a_site_without_readable_rules() -> None:
    async with RateLimitedServer(handler=always(403)) as server:
        lines, _ = await crawl(server)
    assert lines == []
    assert [request.path for request in server.audit.requests] == ["/robots.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="no other process can press Ctrl-C there")
async def test_ctrl_c_ends_the_crawler_cleanly() -> None:
    pages = linked_pages(15)

    async def site(request: web.Request) -> web.StreamResponse:
        if request.path not in {"/", "/robots.txt"}:
            await asyncio.get_running_loop().create_future()  # for ever
        return await pages(request)

    code = (
        # A shell that started the tests in the background has switched Ctrl-C off for all of them.
        "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    async with RateLimitedServer(handler=site) as server:
        crawler = await started(*PYTHON, "-c", code, EXAMPLES / "crawl_site.py", server.url)
        assert crawler.stdout is not None
        line = await crawler.stdout.readline()
        crawler.send_signal(signal.SIGINT)
        _, messages = await crawler.communicate()
    assert json.loads(line)["title"] == "Page 0"
    assert crawler.returncode == 130
    assert b"Traceback" not in messages


async def test_crawler_of_many_hosts_fetches_a_list(tmp_path: Path) -> None:
    async with (
        RateLimitedServer("20/s", concurrency_limit=2) as one,
        RateLimitedServer("20/s", concurrency_limit=2) as two,
    ):
        urls = [str(server.url / str(page)) for page in range(10) for server in (one, two)]
        urls.append("http://127.0.0.1:9/nobody")
        addresses = tmp_path / "addresses.txt"
        addresses.write_text("\n".join(["", *urls]))
        limits = ["--per-host", "20", "--total", "1000"]
        status, printed, messages = await ended("crawl_web.py", addresses, *limits)
    assert status == 0, messages
    found = {line["url"]: line["status"] for line in lines_of(printed)}
    assert found == {url: None if "nobody" in url else 200 for url in urls}
    for server in (one, two):
        assert server.audit.greatest_concurrency <= 2


# ---- all, without arguments ----------------------------------------------------------------------


@pytest.mark.parametrize("example", OURS)
def test_example_runs_without_arguments(example: str, running: Running) -> None:
    check_output(example, running)
