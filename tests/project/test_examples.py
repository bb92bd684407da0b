"""Every example, run as a reader would run it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer, linked_pages
from tests.cli.handlers import Seen, always, by_path, noting, to
from tests.llm.fake_api import FakeOpenAI
from tests.support.background import ENVIRONMENT, STRICT
from tests.support.servers import Valkey, need, why_no_valkey

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = [sys.executable, *STRICT]

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


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start all examples at once: they mostly wait, while the first tests run."""
    started = {
        path.name: subprocess.Popen(
            [*PYTHON, str(path)],
            env=ENVIRONMENT,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            start_new_session=True,
        )
        for path in EXAMPLES.glob("*.py")
        if is_runnable(path.name)
    }
    yield started
    for process in started.values():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)  # with its workers, which have its pipes
        process.communicate()


async def started(*command: object, **variables: str) -> Process:
    words = map(str, command)
    environment = ENVIRONMENT | variables
    return await asyncio.create_subprocess_exec(*words, env=environment, stdout=PIPE, stderr=PIPE)


async def ended(example: str, *arguments: object, **variables: str) -> tuple[int, str, str]:
    """Run an example, and return its exit status, its output and its messages."""
    process = await started(*PYTHON, EXAMPLES / example, *arguments, **variables)
    printed, messages = await process.communicate()
    return process.returncode or 0, printed.decode(), messages.decode()


def lines_of(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_listed_example_exists() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} >= {*EXPECTED, *NEEDS}


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("fastapi_service.py https://example.org", "REDIS_URL to"),
        ("github_sync.py aio-libs/yarl", "GITHUB_TOKEN to"),
        ("openai_batch.py prompts.jsonl", "OPENAI_API_KEY to"),
        ("s3_copy.py s3://a/ s3://b/", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to"),
    ],
)
async def test_real_api_needs_a_variable(
    line: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, *arguments = line.split()
    for package in NEEDS.get(example, []):
        pytest.importorskip(package)
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "REDIS_URL", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    # boto looks in files and on the network, too.
    others = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    status, _, messages = await ended(example, *arguments, **others)
    assert status == 2
    assert "Traceback" not in messages
    assert f"set {variable}" in " ".join(messages.split())


async def test_openai_batch_reads_a_file(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    prompts, names = tmp_path / "prompts.jsonl", [f"no. {number}" for number in range(3)]
    prompts.write_text("\n".join(json.dumps({"id": it, "prompt": "Say hello."}) for it in names))
    fake = FakeOpenAI(failures=(400, 500))  # one is an error, the other one is retried
    async with fake.serve() as url:
        variables = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{url}/v1"}
        _, printed, _ = await ended("openai_batch.py", prompts, **variables)
    answers = lines_of(printed)
    assert {answer["id"] for answer in answers} == {*names}
    assert sorted("error" in answer for answer in answers) == [False, False, True]
    assert fake.requests == 4


# ---- progress.ipynb --------------------------------------------------------------------------

NOTEBOOK = EXAMPLES / "progress.ipynb"


def test_notebook_runs_with_a_progress_bar() -> None:
    for package in ("ipykernel", "tqdm"):
        pytest.importorskip(package)
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(env=ENVIRONMENT)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "60 of 60 requests succeeded" in printed
    assert "60/60" in printed  # the bar


def test_notebook_is_committed_without_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


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
    for options, problem in ((["--per-host", "0"], "0"), (["no such file"], "no such file")):
        status, _, complaint = await ended("crawl_web.py", *options)
        assert status == 2
        assert problem in complaint
        assert "Traceback" not in complaint


# ---- worker_queue.py -------------------------------------------------------------------------


async def test_workers_of_a_queue_share_a_limit(own_valkey: Valkey) -> None:
    pytest.importorskip("taskiq_redis")
    store = {"REDIS_URL": f"redis://127.0.0.1:{own_valkey.port}"}
    options = ["--app-dir", EXAMPLES, "--workers", "2", "--max-async-tasks", "5"]
    taskiq = [sys.executable, "-m", "taskiq", "worker"]
    async with RateLimitedServer() as server:
        worker = await started(*taskiq, *options, "worker_queue:broker", **store)
        assert worker.stderr is not None
        listening = 0
        while listening < 2:
            line = await worker.stderr.readline()
            assert line, "the workers ended"
            listening += b"Listening started" in line
        _, printed, _ = await ended("worker_queue.py", server.url, **store)
        worker.terminate()
        _, messages = await worker.communicate()
    assert printed == "40 tasks ended with status 200\n", messages.decode()
    assert server.audit.sent == 40
    # 20 on an idle machine; two limits would admit all 40.
    assert server.audit.greatest_count(1.0) <= 25


# ---- all, without arguments ----------------------------------------------------------------------


def without_throttled(printed: str) -> str:
    """Subtract the few requests that a server has throttled, as a busy machine may be late."""
    throttled = sum(map(int, re.findall(r"(\d+) throttled", printed)))
    assert throttled <= 10
    return re.sub(r"\d+(?= requests)", lambda number: str(int(number[0]) - throttled), printed)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_runs_without_arguments(
    example: str, running: dict[str, subprocess.Popen[str]]
) -> None:
    for package in NEEDS.get(example, []):
        pytest.importorskip(package)
    if example not in running:
        need("valkey", why_no_valkey())
    output, errors = running[example].communicate()
    assert running[example].returncode == 0, errors
    assert output
    for trouble in ("Traceback", "Warning", "Exception ignored"):
        assert trouble not in errors
    printed = without_throttled(output + errors)
    if example == "fastapi_service.py":
        numbers = re.findall(r"\d+(?= answered| asked| requests)", printed)
        answered, retried, upstream = map(int, numbers)
        assert answered == upstream >= 10
        assert answered + retried == 50
    for words in EXPECTED.get(example, []):
        assert words in printed
