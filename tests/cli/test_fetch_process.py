"""`aiothrottle fetch` as a process: signals, pipes, sudden death, long lists."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.cli.conftest import Command, Serve, records_of
from tests.cli.handlers import always, urls_of
from tests.support.background import COMMAND, ENVIRONMENT, start

if sys.platform == "win32":
    pytest.skip("signals are others there", allow_module_level=True)


def until_sent(server: RateLimitedServer, count: int) -> None:
    while server.audit.sent < count:
        time.sleep(0.01)


def write(fetch: "subprocess.Popen[str]", line: object) -> None:
    assert fetch.stdin is not None
    fetch.stdin.write(f"{line}\n")
    fetch.stdin.flush()


def read(fetch: "subprocess.Popen[str]") -> str:
    assert fetch.stdout is not None
    return fetch.stdout.readline()


# ---- signals ---------------------------------------------------------------------------------


def test_signal_finishes_what_is_in_flight_and_follows_no_redirect(serve: Serve, out: Path) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        if request.path == "/moved":
            return web.Response(status=307, headers={"Location": "/elsewhere"})
        # A POST is not retried after a 500, as the server may have begun.
        response = web.StreamResponse(status=500 if request.path == "/final" else 200)
        await response.prepare(request)
        await asyncio.sleep(0.3)
        await response.write(b"whole")
        return response

    server = serve(respond)
    urls = urls_of(server, ["final", "moved", *map(str, range(98))])
    with start("fetch", *urls, "-L", "-X", "POST", "-o", str(out), "--rate", "5/min") as fetch:
        until_sent(server, 5)
        fetch.terminate()  # Ctrl-C does the same
        _, messages = fetch.communicate(timeout=60)
    assert (fetch.returncode, server.audit.sent) == (128 + signal.SIGTERM, 5)
    assert "Finishing 5 in flight; press Ctrl-C again to abort." in messages
    assert "3 fetched, 1 failed" in messages
    assert messages.endswith("Interrupted: the same with --resume fetches the rest.\n")
    found = {record["url"]: (record["status"], record["body"]) for record in records_of(out)}
    assert found == {urls[0]: (500, "whole"), **dict.fromkeys(urls[2:5], (200, "whole"))}


def test_verbose_run_says_that_it_was_aborted(serve: Serve, out: Path) -> None:
    server = serve(always(after=60))
    with start("fetch", str(server.url), "-o", str(out), "-v") as fetch:
        until_sent(server, 1)
        fetch.send_signal(signal.SIGINT)
        assert fetch.stderr is not None
        lines = iter(fetch.stderr.readline, "")
        assert any("again to abort" in line for line in lines)
        fetch.send_signal(signal.SIGINT)
        messages = "".join(lines)
        assert fetch.wait(10) == 130
    assert f" {server.url}: aborted after " in messages, messages
    assert "CancelledError" not in messages


def test_ctrl_c_ends_a_silent_or_blocked_pipe(serve: Serve) -> None:
    url = serve().url
    with start("fetch") as fetch:  # without arguments, the list is the standard input
        write(fetch, url)
        assert json.loads(read(fetch))["status"] == 200, "before the pipe is closed"
        fetch.send_signal(signal.SIGINT)
        assert fetch.wait(5) == 130
        _, messages = fetch.communicate()
    assert "Traceback" not in messages
    assert "Fatal" not in messages
    server = serve(always(body="x" * 200_000))
    with start("fetch", str(server.url)) as fetch:
        until_sent(server, 1)
        time.sleep(0.3)
        fetch.send_signal(signal.SIGINT)
        printed, messages = fetch.communicate(timeout=60)
    assert fetch.returncode == 130
    assert "Finishing 1 in flight" in messages
    assert json.loads(printed)["status"] == 200


@pytest.mark.parametrize(("number", "seed"), [(signal.SIGKILL, 0), (signal.SIGINT, 1)])
def test_resume_after_any_interruption_loses_nothing(
    number: signal.Signals, seed: int, serve: Serve, out: Path, command: Command
) -> None:
    total, at_once, server = 250, 8, serve()
    urls = urls_of(server, total)
    run = ["fetch", *urls, "-o", str(out), "--resume", "--concurrency", str(at_once)]
    with start(*run) as fetch:
        until_sent(server, random.Random(seed).randrange(1, total - 150))
        fetch.send_signal(number)
        fetch.communicate(timeout=60)
    assert server.audit.sent < total
    ended = command(*run)
    assert ended.status == 0, ended.messages
    sent = Counter(request.path for request in server.audit.requests)
    assert sorted(it["url"] for it in records_of(out)) == sorted(urls)
    assert len(sent) == total
    # An answer that was not written is unknown to the next run.
    repeated = at_once if number is signal.SIGKILL else 0
    assert sum(sent.values()) <= total + repeated


# ---- pipes -----------------------------------------------------------------------------------


def test_connections_may_be_more_than_the_soft_limit_of_files(serve: Serve, out: Path) -> None:
    options = ["--concurrency", "60", "--retry", "0", "-o", str(out)]
    command = [sys.executable, "-m", "aiothrottle", "fetch", *options]
    limited = ["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", *command]
    urls = urls_of(serve(always(after=0.5)), 60)
    assert subprocess.run([*limited, *urls], env=ENVIRONMENT, check=False).returncode == 0


def test_closed_pipe_ends_the_run(serve: Serve) -> None:
    url = serve().url
    with start("fetch", "-") as fetch:
        write(fetch, url)
        assert read(fetch)
        assert fetch.stdout is not None
        fetch.stdout.close()
        write(fetch, url)
        assert fetch.wait(10) == 141
        assert fetch.stderr is not None
        assert fetch.stderr.read() == ""


def test_named_pipe_has_a_reader_until_the_run_ends(serve: Serve, out: Path) -> None:
    url = serve().url
    os.mkfifo(out)
    with start("fetch", "-", "-o", str(out)) as fetch:
        write(fetch, url)
        with out.open() as pipe:
            assert json.loads(pipe.readline())["status"] == 200
        write(fetch, url)
        assert fetch.wait(10) == 141


def test_run_goes_on_when_nobody_reads_its_messages(serve: Serve, out: Path) -> None:
    options = ["--concurrency", "1", "--rate", "3/100ms", "--verbose", "--dashboard"]
    with start("fetch", *urls_of(serve(always(404)), 9), "-o", str(out), *options) as fetch:
        assert fetch.stderr is not None
        assert fetch.stderr.readline()
        fetch.stderr.close()
        assert fetch.wait(60) == 1
    assert [(it["status"], it["error"]) for it in records_of(out)] == [(404, None)] * 9


def test_slow_reader_delays_requests_and_loses_nothing(serve: Serve) -> None:
    body = "x" * 50_000
    server = serve(always(body=body))
    urls = urls_of(server, 50)
    with start("fetch", *urls, "--concurrency", "3") as fetch:
        until_sent(server, 3)
        time.sleep(0.3)
        assert server.audit.sent <= 1 + 3 + 3, "a pipe holds 64 KiB, and three are in memory"
        found = [json.loads(read(fetch)) for _ in urls]
        assert fetch.wait(10) == 0
    assert {record["url"]: record["body"] for record in found} == dict.fromkeys(urls, body)


# ---- the live page ---------------------------------------------------------------------------


def test_live_page_shows_and_ends_with_the_run(serve: Serve, out: Path) -> None:
    server = serve(always(after=0.3))
    options = ["--dashboard", "--per-host", "5/min", "--per-host-concurrency", "5"]
    with start("fetch", *urls_of(server, 100), "-o", str(out), *options) as fetch:
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
            assert page.read().endswith(b"event: end\ndata:\n\n")
        fetch.communicate(timeout=60)
    assert fetch.returncode == 130
    assert state["facts"].keys() == {"URLs done", "failed", "of the list"}
    total, each = state["limiters"]
    assert (total["name"], total["granted"], total["slots"]) == ("all requests", 5, 10)
    assert (each["name"], each["granted"]) == ("each host", 5)
    assert [key["name"] for key in each["keys"]] == [server.url.authority]
    assert len(records_of(out)) == 5


# ---- memory ----------------------------------------------------------------------------------

# A process that has run another program is charged with its memory before that: so a small one
# in between.
MEASURED = f"""
import resource, subprocess, sys
assert subprocess.call([sys.executable, "-c", {COMMAND!r}, *sys.argv[1:]]) == 1
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak(jobs: Path, out: Path, count: int) -> int:
    """Return the KiB that a run with so many invalid lines of a KB needs."""
    jobs.write_bytes(b'{"json": "%s"}\n' % (b"x" * 1000) * count)
    fetch = ["fetch", "--requests", str(jobs), "-o", str(out), "-s"]
    command = [sys.executable, "-c", MEASURED, *fetch]
    kib = int(subprocess.check_output(command, env=ENVIRONMENT))
    assert out.read_bytes().count(b"\n") == count
    out.unlink()
    return kib


def test_memory_does_not_grow_with_the_list(tmp_path: Path, out: Path) -> None:
    """Invalid lines are handled like all others, but for the network."""
    few, many = (peak(tmp_path / "jobs", out, count) for count in (1_000, 15_000))
    assert many < few + 4_000, "KiB, of a list of 15 MB"
