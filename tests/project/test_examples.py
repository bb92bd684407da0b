"""Every example, run as a reader would run it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

import aiothrottle
from aiothrottle.testing import RateLimitedServer, linked_pages
from tests.llm.fake_api import FakeOpenAI
from tests.servers import Valkey, need, why_no_valkey

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
CRAWL_SITE = str(EXAMPLES / "crawl_site.py")
CRAWL_WEB = str(EXAMPLES / "crawl_web.py")
PYTHON = [sys.executable, "-W", "error", "-X", "dev"]
# The package under test, installed or not, is the one that the examples use.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(aiothrottle.__file__).parent.parent)}

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
    "openai_batch.py": ['{"id": 99, "answer": "1, 2, 3"}', "100 requests", "0 throttled"],
    "worker_queue.py": ["40 tasks ended with status 200", "40 requests"],
    "workers.py": ["worker 3: 30 pages", "120 requests"],
    "s3_copy.py": ["100 objects copied, 103 requests", "100 objects in the target"],
    "sitemap_crawler.py": ["/about", "/5", "14 requests"],
    "throttle_anything.py": ["api_client.py has", "the sum of the squares is 140"],
}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_runs_without_arguments(example: str) -> None:
    if example in {"fastapi_service.py", "workers.py"}:
        need("valkey", why_no_valkey())
    for package in NEEDS.get(example, []):
        pytest.importorskip(package)
    ended = subprocess.run(
        [*PYTHON, str(EXAMPLES / example)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
    for trouble in ("Traceback", "Warning", "Exception ignored"):
        assert trouble not in ended.stderr
    printed = without_throttled(ended.stdout + ended.stderr)
    if example == "fastapi_service.py":
        numbers = re.findall(r"\d+(?= answered| asked| requests)", printed)
        answered, retried, upstream = map(int, numbers)
        assert answered == upstream >= 10
        assert answered + retried == 50
    for words in EXPECTED.get(example, []):
        assert words in printed


def without_throttled(printed: str) -> str:
    """Subtract the requests that a server has throttled, as a busy machine may be late."""
    throttled = sum(map(int, re.findall(r"(\d+) throttled", printed)))
    return re.sub(r"\d+(?= requests)", lambda number: str(int(number[0]) - throttled), printed)


def test_listed_example_exists() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} >= {*EXPECTED, *NEEDS}


@pytest.mark.parametrize(
    ("example", "arguments", "variable"),
    [
        ("fastapi_service.py", ["https://example.org"], "REDIS_URL to"),
        ("github_sync.py", ["aio-libs/yarl"], "GITHUB_TOKEN to"),
        ("openai_batch.py", ["prompts.jsonl"], "OPENAI_API_KEY to"),
        ("s3_copy.py", ["s3://a/", "s3://b/"], "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to"),
    ],
)
def test_real_api_needs_a_variable(example: str, arguments: list[str], variable: str) -> None:
    for package in NEEDS.get(example, []):
        pytest.importorskip(package)
    # boto looks in files and on the network, too.
    others = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    keys = ("OPENAI_API_KEY", "GITHUB_TOKEN", "REDIS_URL", "AWS_ACCESS_KEY_ID", "AWS_PROFILE")
    ended = subprocess.run(
        [*PYTHON, str(EXAMPLES / example), *arguments],
        env={name: it for name, it in ENVIRONMENT.items() if name not in keys} | others,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert f"set {variable}" in " ".join(ended.stderr.split())


# ---- openai_batch.py -------------------------------------------------------------------------


async def test_openai_batch_reads_a_file(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"no. {number}", "prompt": "Say hello."}) for number in range(3)]
    prompts.write_text("\n".join(lines))
    fake = FakeOpenAI(failures=(400, 500))  # one is an error, the other one is retried
    async with fake.serve() as url:
        batch = await asyncio.create_subprocess_exec(
            *(*PYTHON, str(EXAMPLES / "openai_batch.py"), str(prompts)),
            env=ENVIRONMENT | {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{url}/v1"},
            stdout=PIPE,
        )
        printed, _ = await batch.communicate()
    answers = [json.loads(line) for line in printed.splitlines()]
    assert {answer["id"] for answer in answers} == {"no. 0", "no. 1", "no. 2"}
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


# ---- sitemap_crawler.py ----------------------------------------------------------------------


async def test_sitemap_crawler_obeys_robots_txt() -> None:
    async def site(request: web.Request) -> web.Response:
        origin = request.url.origin()
        match request.path:
            case "/robots.txt":
                rules = f"User-agent: *\nCrawl-delay: 1\nDisallow: /no\nSitemap: {origin}/map"
                return web.Response(text=rules)
            case "/map":
                pages = [f"{origin}/yes", f"{origin}/no", "http://other.invalid/", f"{origin}/yes"]
                text = "".join(f"<url><loc>{page}</loc></url>" for page in pages)
                namespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
                return web.Response(text=f'<urlset xmlns="{namespace}">{text}</urlset>')
            case _:
                raise web.HTTPNotFound

    async with RateLimitedServer(handler=site) as server:
        crawler = await asyncio.create_subprocess_exec(
            *(*PYTHON, str(EXAMPLES / "sitemap_crawler.py"), str(server.url)),
            env=ENVIRONMENT,
            stdout=PIPE,
        )
        printed, _ = await crawler.communicate()
    requests = server.audit.requests
    assert [request.path for request in requests] == ["/robots.txt", "/map", "/yes"]
    # A server sees requests later than they were sent, by varying times.
    assert all(later.arrived_at - earlier.arrived_at > 0.8 for earlier, later in pairwise(requests))
    assert json.loads(printed) == {"url": f"{server.url}yes", "status": 404, "bytes": 14}


# ---- worker_queue.py -------------------------------------------------------------------------


async def test_workers_of_a_queue_share_a_limit() -> None:
    pytest.importorskip("taskiq_redis")
    valkey = Valkey()
    environment = ENVIRONMENT | {"REDIS_URL": f"redis://127.0.0.1:{valkey.port}"}
    options = ["--app-dir", str(EXAMPLES), "--workers", "2", "--max-async-tasks", "5"]
    try:
        async with RateLimitedServer() as server:
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "taskiq", "worker", *options, "worker_queue:broker"),
                env=environment,
                stderr=PIPE,
            )
            assert worker.stderr is not None
            listening = 0
            while listening < 2:
                line = await worker.stderr.readline()
                assert line, "the workers ended"
                listening += b"Listening started" in line
            queue = await asyncio.create_subprocess_exec(
                *(*PYTHON, str(EXAMPLES / "worker_queue.py"), str(server.url)),
                env=environment,
                stdout=PIPE,
            )
            printed, _ = await queue.communicate()
            worker.terminate()
            _, messages = await worker.communicate()
    finally:
        valkey.stop()
    assert printed.decode() == "40 tasks ended with status 200\n", messages.decode()
    assert server.audit.sent == 40
    # 20 on an idle machine; two limits would admit all 40.
    assert server.audit.greatest_count(1.0) <= 25


# ---- crawl_site.py ---------------------------------------------------------------------------


async def crawl(server: RateLimitedServer, *options: str) -> tuple[list[dict[str, object]], str]:
    """Crawl a server of this process; return the lines and the messages on stderr."""
    crawler = await asyncio.create_subprocess_exec(
        *PYTHON, CRAWL_SITE, str(server.url), *options, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE
    )
    printed, messages = await crawler.communicate()
    assert crawler.returncode == 0, messages.decode()
    return [json.loads(line) for line in printed.splitlines()], messages.decode()


async def test_crawler_writes_each_page_as_json() -> None:
    async with RateLimitedServer("100/s", concurrency_limit=4, handler=linked_pages(15)) as server:
        lines, messages = await crawl(server, "--rate", "100", "--concurrency", "4")
    assert {line["url"] for line in lines} == {
        str(server.url.with_path(f"/{number or ''}")) for number in range(15)
    }
    assert {line["title"] for line in lines} == {f"Page {number}" for number in range(15)}
    for line in lines:
        assert set(line) == {"url", "status", "title", "links", "seconds"}
        assert line["status"] == 200
        assert isinstance(line["links"], list)
        assert line["links"]
    assert "15 pages of" in messages


async def test_crawler_stops_at_the_bound() -> None:
    async with RateLimitedServer(handler=linked_pages(15)) as server:
        lines, _ = await crawl(server, "--rate", "100", "--pages", "4")
    assert len(lines) == 4


async def test_crawler_is_polite_and_stays_on_the_site() -> None:
    agents: set[str] = set()

    async def site(request: web.Request) -> web.Response:
        agents.add(request.headers["User-Agent"])
        match request.path:
            case "/robots.txt":
                return web.Response(text="User-agent: *\nDisallow: /private\n")
            case "/moved":
                raise web.HTTPFound("/new")
            case "/picture":
                return web.Response(body=b"<a href='/not-a-link'>", content_type="image/png")
            case "/":
                links = "/private/x /moved#top /picture http://other.invalid/ mailto:a@b http://["
                text = "".join(f"<a href='{link}'>x</a>" for link in links.split())
                text = f"<title>Over\nhere </title>{text}<svg><title>A picture</title></svg>"
                return web.Response(text=text, content_type="text/html")
            case "/new":
                return web.Response(text="plain")
            case _:
                raise web.HTTPNotFound

    async with RateLimitedServer(handler=site) as server:
        lines, _ = await crawl(server, "--rate", "100", "--contact", "me@example.org")
    asked = [request.path for request in server.audit.requests]
    assert asked[0] == "/robots.txt"
    assert sorted(asked) == ["/", "/moved", "/new", "/picture", "/robots.txt"]
    by_path = {str(line["url"]).removeprefix(str(server.url)): line for line in lines}
    assert by_path[""]["title"] == "Over\nhere"
    assert by_path["moved"]["status"] == 302
    assert by_path["moved"]["links"] == [f"{server.url}new"]
    assert by_path["picture"]["links"] == []
    assert agents == {"aiothrottle-crawl-site/1.0 (me@example.org)"}


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_crawler_skips_a_site_without_readable_rules(status: int) -> None:
    async def site(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async with RateLimitedServer(handler=site) as server:
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
        command = [*PYTHON, "-c", code, CRAWL_SITE, str(server.url)]
        crawler = await asyncio.create_subprocess_exec(
            *command, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE
        )
        assert crawler.stdout is not None
        line = await crawler.stdout.readline()
        crawler.send_signal(signal.SIGINT)
        _, messages = await crawler.communicate()
    assert json.loads(line)["title"] == "Page 0"
    assert crawler.returncode == 130
    assert b"Traceback" not in messages


# ---- crawl_web.py ----------------------------------------------------------------------------


async def test_crawler_of_many_hosts_fetches_a_list(tmp_path: Path) -> None:
    async with (
        RateLimitedServer("20/s", concurrency_limit=2) as one,
        RateLimitedServer("20/s", concurrency_limit=2) as two,
    ):
        urls = [str(server.url / str(page)) for page in range(10) for server in (one, two)]
        urls.append("http://127.0.0.1:9/nobody")
        addresses = tmp_path / "addresses.txt"
        addresses.write_text("\n".join(["", *urls]))
        options = [str(addresses), "--per-host", "20", "--total", "1000"]
        crawler = await asyncio.create_subprocess_exec(
            *PYTHON, CRAWL_WEB, *options, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE
        )
        printed, messages = await crawler.communicate()
    assert crawler.returncode == 0, messages.decode()
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {line["url"]: line["status"] for line in lines} == {
        url: None if "nobody" in url else 200 for url in urls
    }
    for server in (one, two):
        assert server.audit.greatest_concurrency <= 2


@pytest.mark.parametrize(
    ("options", "problem"), [(["--per-host", "0"], "0"), (["no such file"], "no such file")]
)
async def test_crawler_of_many_hosts_rejects_nonsense(options: list[str], problem: str) -> None:
    ended = await asyncio.create_subprocess_exec(
        *PYTHON, CRAWL_WEB, *options, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE
    )
    _, complaint = await ended.communicate()
    assert ended.returncode == 2
    assert problem in complaint.decode()
    assert "Traceback" not in complaint.decode()
