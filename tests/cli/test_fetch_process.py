"""`aiothrottle fetch` as a process: signals, pipes, sudden death, long lists."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web
from yarl import URL

from aiothrottle.testing import RateLimitedServer
from tests.background import COMMAND, ENVIRONMENT, background, start

if sys.platform != "win32":
    import pty
    import resource

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals are others there"),
    pytest.mark.slow,
]


async def slowly(_: web.Request) -> web.Response:
    await asyncio.sleep(0.5)
    return web.Response(text="at last")


def listed(folder: Path, server: RateLimitedServer, count: int) -> Path:
    urls = folder / "urls.txt"
    urls.write_text("".join(f"{server.url}{number}\n" for number in range(count)))
    return urls


def urls_of(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_bytes().splitlines()]


def until_sent(server: RateLimitedServer, count: int) -> None:
    while server.audit.sent < count:
        time.sleep(0.01)


def test_ctrl_c_finishes_and_writes_requests_in_flight(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with background(handler=slowly) as server:
        urls = listed(tmp_path, server, 100)
        with start("fetch", "-i", str(urls), "-o", str(out), "--rate", "5/min") as fetch:
            until_sent(server, 5)
            fetch.send_signal(signal.SIGINT)
            _, messages = fetch.communicate(timeout=60)
        assert fetch.returncode == 130
        assert server.audit.sent == 5
    assert len(urls_of(out)) == 5
    assert "Finishing 5 in flight; press Ctrl-C again to abort." in messages
    assert "5 fetched, 0 failed" in messages
    assert messages.endswith("Interrupted: the same with --resume fetches the rest.\n")


def test_ctrl_c_waits_for_the_body_of_a_final_response(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    async def fail(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        await asyncio.sleep(0.5)
        await response.write(b"broken")
        return response

    with background(handler=fail) as server:
        # A POST is not retried after a 500, as the server may have begun.
        with start("fetch", str(server.url), "-d", "x", "-o", str(out)) as fetch:
            until_sent(server, 1)
            fetch.send_signal(signal.SIGINT)
            _, messages = fetch.communicate(timeout=60)
        assert fetch.returncode == 130
    assert "Finishing 1 in flight" in messages
    (line,) = out.read_bytes().splitlines()
    assert (json.loads(line)["status"], json.loads(line)["body"]) == (500, "broken")


def test_ctrl_c_follows_no_redirect(tmp_path: Path) -> None:
    async def move(_: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response(status=307, headers={"Location": "/b"})

    with background(handler=move) as server:
        run = ["fetch", f"{server.url}a", "-L", "-o", str(tmp_path / "out.jsonl")]
        with start(*run) as fetch:
            until_sent(server, 1)
            fetch.send_signal(signal.SIGINT)
            fetch.communicate(timeout=60)
        assert fetch.returncode == 130
        assert server.audit.sent == 1


def test_sigterm_finishes_and_writes_like_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with background(handler=slowly) as server:
        with start("fetch", str(server.url), "-o", str(out)) as fetch:
            until_sent(server, 1)
            fetch.terminate()
            fetch.communicate(timeout=60)
        assert fetch.returncode == 143
    assert urls_of(out) == [str(server.url)]


def test_live_page_shows_and_ends_with_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--dashboard", "--per-host", "5/min", "--per-host-concurrency", "5"]
    with background(handler=slowly) as server:
        urls = listed(tmp_path, server, 100)
        with start("fetch", "-i", str(urls), "-o", str(out), *options) as fetch:
            assert fetch.stderr is not None
            messages = fetch.stderr.readline()
            assert messages.startswith("Live page: http://127.0.0.1:")
            until_sent(server, 5)
            with urllib.request.urlopen(f"{messages.split()[-1]}events") as page:
                assert page.readline() == b"event: history\n"
                assert page.readline().startswith(b"data: [")
                page.readline()
                state = json.loads(page.readline().removeprefix(b"data: "))
                fetch.send_signal(signal.SIGINT)
                rest = page.read()
            fetch.communicate(timeout=60)
        assert fetch.returncode == 130
    assert state["facts"].keys() == {"URLs done", "failed", "of the list"}
    total, each = state["limiters"]
    assert (total["name"], total["granted"], total["slots"]) == ("all requests", 5, 10)
    assert (each["name"], each["granted"]) == ("each host", 5)
    assert [key["name"] for key in each["keys"]] == [server.url.authority]
    assert rest.endswith(b"event: end\ndata:\n\n")
    assert len(urls_of(out)) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds another process")
def test_live_page_is_served_despite_many_connections() -> None:
    """With 256 file descriptors, in place of 900 connections and the usual 1024."""
    with (
        background("1/d", refusal="silence") as server,
        contextlib.ExitStack() as stack,
        start("fetch", f"{server.url}", f"{server.url}b", "--dashboard") as fetch,
    ):
        try:
            assert fetch.stderr is not None
            url = str(fetch.stderr.readline().split()[-1])
            resource.prlimit(fetch.pid, resource.RLIMIT_NOFILE, (256, 256))
            port = URL(url).port
            for _ in range(300):
                half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                half.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            with urllib.request.urlopen(url, timeout=4) as page:
                assert page.status == 200
            with urllib.request.urlopen(f"{url}events", timeout=4) as page:
                assert page.readline() == b"event: history\n"
        finally:
            fetch.kill()
        assert fetch.stderr.read() == ""


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with background("1/d", refusal="silence") as server:
        urls = listed(tmp_path, server, 10)
        with start("fetch", "-i", str(urls), "-o", str(out)) as fetch:
            until_sent(server, 10)
            fetch.send_signal(signal.SIGINT)
            assert fetch.stderr is not None
            assert "press Ctrl-C again to abort" in fetch.stderr.readline()
            assert fetch.poll() is None, "nine are never answered"
            fetch.send_signal(signal.SIGINT)
            _, messages = fetch.communicate(timeout=60)
        assert fetch.returncode == 130
    assert len(urls_of(out)) == 1
    assert "Traceback" not in messages


def test_ctrl_c_ignores_a_silent_pipe() -> None:
    with background() as server, start("fetch", "-") as fetch:
        assert fetch.stdin is not None
        assert fetch.stdout is not None
        fetch.stdin.write(f"{server.url}\n")
        fetch.stdin.flush()
        assert json.loads(fetch.stdout.readline())["status"] == 200, "before the pipe is closed"
        fetch.send_signal(signal.SIGINT)
        assert fetch.wait(5) == 130
        fetch.stdin.write(f"{server.url}\n")
        _, messages = fetch.communicate()
    assert "Traceback" not in messages
    assert "Fatal" not in messages


def test_closed_pipe_ends_the_run() -> None:
    with background() as server, start("fetch", "-") as fetch:
        assert fetch.stdin is not None
        assert fetch.stdout is not None
        fetch.stdin.write(f"{server.url}\n")
        fetch.stdin.flush()
        assert fetch.stdout.readline()
        fetch.stdout.close()
        fetch.stdin.write(f"{server.url}\n")
        fetch.stdin.flush()
        assert fetch.wait(10) == 141
        assert fetch.stderr is not None
        assert fetch.stderr.read() == ""


@pytest.mark.parametrize("options", [[], ["--verbose"], ["--dashboard"]])
def test_run_goes_on_when_nobody_reads_its_messages(options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    async def missing(_: web.Request) -> web.Response:
        return web.Response(status=404)

    with background(handler=missing) as server:
        urls = [f"{server.url}{number}" for number in range(9)]
        run = ["fetch", *urls, "-o", str(out), "--concurrency", "1", "--rate", "3/300ms", *options]
        with start(*run) as fetch:
            assert fetch.stderr is not None
            assert fetch.stderr.readline()
            fetch.stderr.close()
            assert fetch.wait(60) == 1
    found = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [(it["status"], it["error"]) for it in found] == [(404, None)] * 9


def test_slow_reader_delays_requests_and_loses_nothing() -> None:
    body = "x" * 50_000

    async def long(_: web.Request) -> web.Response:
        return web.Response(text=body)

    with background(handler=long) as server, start("fetch", "-", "--concurrency", "3") as fetch:
        assert fetch.stdin is not None
        assert fetch.stdout is not None
        fetch.stdin.write("".join(f"{server.url}{number}\n" for number in range(50)))
        fetch.stdin.close()
        time.sleep(1)
        assert server.audit.sent <= 1 + 3 + 3, "a pipe holds 64 KiB, and three are in memory"
        found = [json.loads(line) for line in fetch.stdout]
        assert fetch.wait(10) == 0
    assert {record["url"] for record in found} == {f"{server.url}{n}" for n in range(50)}
    assert all(record["body"] == body for record in found)


def test_ctrl_c_works_with_a_blocked_pipe() -> None:
    async def long(_: web.Request) -> web.Response:
        return web.Response(text="x" * 200_000)

    with background(handler=long) as server, start("fetch", str(server.url)) as fetch:
        assert fetch.stderr is not None
        until_sent(server, 1)
        time.sleep(0.5)
        fetch.send_signal(signal.SIGINT)
        assert "Finishing 1 in flight" in fetch.stderr.readline()
        printed, _ = fetch.communicate(timeout=60)
        assert fetch.returncode == 130
    assert json.loads(printed)["status"] == 200


def test_full_disk_ends_the_run() -> None:
    with background() as server, start("fetch", str(server.url), "-o", "/dev/full") as fetch:
        _, messages = fetch.communicate(timeout=60)
    assert fetch.returncode == 3
    assert messages == "aiothrottle fetch: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_resume_after_any_interruption_loses_nothing(
    tmp_path: Path, seed: int, number: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    total, at_once = 600, 8
    with background() as server:
        urls = listed(tmp_path, server, total)
        run = ["fetch", "-i", str(urls), "-o", str(out), "--resume", "--concurrency", str(at_once)]
        with start(*run) as fetch:
            until_sent(server, random.Random(seed).randrange(1, total - 100))
            fetch.send_signal(number)
            fetch.communicate(timeout=60)
        first = server.audit.sent
        assert first < total
        with start(*run) as fetch:
            _, messages = fetch.communicate(timeout=60)
        assert fetch.returncode == 0, messages
        sent = Counter(request.path for request in server.audit.requests)
    assert sorted(urls_of(out)) == sorted(urls.read_text().split())
    assert len(sent) == total
    # An answer that was not written is unknown to the next run.
    repeated = at_once if number is signal.SIGKILL else 0
    assert sum(sent.values()) <= total + repeated


# A process that has run another program is charged with its memory before that: so a small one
# in between.
MEASURED = f"""
import resource, subprocess, sys
ended = subprocess.run([sys.executable, "-c", {COMMAND!r}, *sys.argv[1:]])
print(ended.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--input-file", b"no url, and quite long, as some of them are"),
        (
            "--requests",
            b'{"url": "no url", "json": {"messages": [1, 2, 3]}, "headers": {"A": "b"}}',
        ),
    ],
)
def test_memory_does_not_grow_with_the_list(tmp_path: Path, option: str, line: bytes) -> None:
    """Invalid lines are handled like all others, but for the network."""
    out = tmp_path / "out.jsonl"
    peaks: list[int] = []
    for count in (10_000, 200_000):
        urls = tmp_path / "urls.txt"
        urls.write_bytes((line + b"\n") * count)
        out.unlink(missing_ok=True)
        ended = subprocess.run(
            [sys.executable, "-c", MEASURED, "fetch", option, urls, "-o", out, "-s"],
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            text=True,
        )
        status, peak = map(int, ended.stdout.split())
        assert status == 1
        assert out.read_bytes().count(b"\n") == count
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 4_000, "KiB"


def test_output_can_be_piped_in_a_shell() -> None:
    with background() as server:
        ended = subprocess.run(
            f"yes {server.url} | {sys.executable} -m aiothrottle fetch - -s | head -n 3",
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert len(ended.stdout.splitlines()) == 3
    assert ended.stderr == ""


def test_list_is_standard_input_without_arguments() -> None:
    with background() as server:
        with start("fetch") as fetch:
            printed, _ = fetch.communicate(f"{server.url}a\n{server.url}b\n", timeout=60)
        assert fetch.returncode == 0
        urls = {json.loads(line)["url"] for line in printed.splitlines()}
        assert urls == {f"{server.url}a", f"{server.url}b"}


def test_terminal_as_standard_input_is_no_list() -> None:
    terminal, other_end = pty.openpty()
    try:
        command = [sys.executable, "-m", "aiothrottle", "fetch"]
        ended = subprocess.run(
            command, stdin=other_end, capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        os.close(terminal)
        os.close(other_end)
    assert ended.returncode == 2
    assert "no URLs: give some, or a list by --input-file or on standard input" in ended.stderr


def test_closed_standard_input_is_an_error() -> None:
    ended = subprocess.run(
        f"{sys.executable} -m aiothrottle fetch <&-",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "standard input cannot be read: Bad file descriptor" in ended.stderr


def test_redirect_sends_no_secret_to_another_origin(tmp_path: Path) -> None:
    """Origins that differ only in their port, like an API and another service on its host."""
    seen: dict[str, tuple[str, dict[str, str], bytes]] = {}

    async def note(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen[request.path] = (request.method, headers, await request.read())
        return web.Response()

    out = tmp_path / "out.jsonl"
    with background(handler=note) as other:

        async def lead(request: web.Request) -> web.Response:
            location = f"{other.url}{request.path[1:]}"
            return web.Response(status=int(request.path[1:]), headers={"Location": location})

        with background(handler=lead) as server:
            urls = [f"{server.url}{status}" for status in (301, 302, 303, 307, 308)]
            secrets = ["X-Api-Key", "api-key", "Authorization", "Cookie", "X-Mine"]
            headers = [word for name in secrets for word in ("-H", f"{name}: secret")]
            run = ["fetch", *urls, "-L", "-o", str(out), *headers, "-H", "Accept: a/b", "-A", "me"]
            with start(*run, "-d", "secret") as fetch:
                _, messages = fetch.communicate(timeout=60)
    assert fetch.returncode == 1
    assert set(seen) == {"/301", "/302", "/303"}
    for method, received, body in seen.values():
        assert (method, body) == ("GET", b"")
        assert (received["accept"], received["user-agent"]) == ("a/b", "me")
        assert set(received) == {"accept", "accept-encoding", "host", "user-agent"}
    records = {record["url"]: record for record in map(json.loads, out.read_text().splitlines())}
    for url, status in zip(urls[3:], (307, 308), strict=True):
        place = str(other.url).rstrip("/")
        error = f"redirected ({status}) to {place}, another origin: the body is not sent there"
        assert (records[url]["status"], records[url]["error"]) == (status, error)
        assert f"{url}: {error}" in messages


def test_password_in_the_list_is_never_shown(tmp_path: Path) -> None:
    urls, out = tmp_path / "urls.txt", tmp_path / "out.jsonl"
    urls.write_text("me:Zq7Kx3@127.0.0.1\nhttp://me:Zq7/Kx3@127.0.0.1/\n")
    with start("fetch", "-i", str(urls), "-o", str(out)) as fetch:
        _, messages = fetch.communicate(timeout=60)
    assert fetch.returncode == 1
    assert urls_of(out) == ["***@127.0.0.1", "http://***@127.0.0.1/"]
    assert "***@127.0.0.1: " in messages
    for part in ("Zq7", "Kx3"):
        assert part not in out.read_text() + messages


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_index_that_is_a_link_is_rejected(
    tmp_path: Path, options: list[str], *, there: bool
) -> None:
    """Another user who can write to the folder could redirect the records to any file."""
    precious = tmp_path / "precious"
    if there:
        precious.touch()
    pages = tmp_path / "pages"
    pages.mkdir()
    index = pages / "index.jsonl"
    index.symlink_to(precious)
    with background() as server:
        run = ["fetch", str(server.url), "--output-dir", str(pages), *options]
        with start(*run) as fetch:
            _, messages = fetch.communicate(timeout=60)
        assert fetch.returncode == 2
        assert server.audit.sent == 0
    assert f"{index} is a symbolic link: remove it, or name another file by --output" in messages
    assert precious.exists() is there
    assert not there or precious.read_bytes() == b""


def test_named_output_may_be_a_link(tmp_path: Path) -> None:
    out, link = tmp_path / "out.jsonl", tmp_path / "link"
    link.symlink_to(out)
    with background() as server, start("fetch", str(server.url), "-o", str(link)) as fetch:
        fetch.communicate(timeout=60)
    assert fetch.returncode == 0
    assert len(urls_of(out)) == 1
