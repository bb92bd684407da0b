"""The commands on a terminal: rows that are redrawn, fit, and leave no trace at the end."""

import asyncio
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web

from tests.background import COMMAND, ENVIRONMENT, STRICT, background, start

if sys.platform == "win32":
    pytest.skip("terminals are others there", allow_module_level=True)

from tests.screen import CTRL_C, Screen, at_terminal

pytestmark = pytest.mark.slow

WIDTHS = [40, 60, 120]
COLOUR = re.compile(r"\x1b\[[0-9;]*[34][0-9;]*m")


async def slowly(_: web.Request) -> web.Response:
    await asyncio.sleep(0.05)
    return web.Response()


def fits(screen: Screen, columns: int) -> bool:
    """Return whether each row leaves room for the echo of Ctrl-C."""
    return all(len(row) <= columns - 3 for row in screen.rows)


# ---- fetch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", WIDTHS)
def test_fetch_shows_rate_latency_throttled_and_pause(columns: int) -> None:
    with background("20/s", refusal="429-seconds", handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(60)]
        fetch = ["fetch", *urls, "--rate", "40/s"]
        with at_terminal(*fetch, columns=columns, stdout=subprocess.DEVNULL) as screen:
            screen.wait(lambda: " throttled" in screen.written and "paused for" in screen.written)
            assert screen.cursor_is_hidden
            screen.wait(lambda: any(" done" in row for row in screen.rows))
            assert fits(screen, columns), screen.rows
            assert screen.finish() == 0
    for text in (" done", " of 40/s", "latency p50 ", "paused for 0:0", " left", " %"):
        assert text in screen.written
    assert not screen.cursor_is_hidden
    shown = "\n".join(screen.rows)
    assert "━" not in shown
    assert " left" not in shown
    assert shown.startswith("60 URLs in")
    assert screen.rows[-1] == ""


def test_unknown_length_shows_neither_bar_nor_time_left(tmp_path: Path) -> None:
    with (
        background(handler=slowly) as server,
        at_terminal("fetch", "-", "-o", str(tmp_path / "out"), columns=60) as screen,
    ):
        screen.press("".join(f"{server.url}{n}\n" for n in range(5)).encode())
        screen.wait(lambda: "latency" in screen.written)
        screen.press(b"\x04")
        assert screen.finish() == 0
    assert "5 fetched" in screen.written
    assert "━" not in screen.written
    assert " left" not in screen.written


def test_display_stays_off_when_records_are_on_the_terminal() -> None:
    with background("10/s", handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(20)]
        with at_terminal("fetch", *urls, "--rate", "8/s", columns=200) as screen:
            assert screen.finish() == 0
    assert "\x1b" not in screen.written
    lines = screen.written.splitlines()
    found = [json.loads(line)["url"] for line in lines if line.startswith("{")]
    assert sorted(found) == sorted(urls)
    assert lines[20].startswith("20 URLs in")


def test_display_never_reaches_standard_output(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with (
        background("20/s", refusal="429-seconds", handler=slowly) as server,
        out.open("wb") as file,
    ):
        urls = [f"{server.url}{number}" for number in range(40)]
        with at_terminal("fetch", *urls, columns=60, stdout=file.fileno()) as screen:
            assert screen.finish() == 0
    assert "throttled" in screen.written
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 40


def test_summary_is_broken_at_spaces(tmp_path: Path) -> None:
    with background() as server:
        fetch = ["fetch", str(server.url), "-o", str(tmp_path / "out")]
        with at_terminal(*fetch, columns=40) as screen:
            assert screen.finish() == 0
    assert screen.rows[1] == "1 request, 0 throttled by the server; a"
    assert screen.rows[2].startswith("URL waited 0.")
    assert re.fullmatch(r"Latency: p50 [\d.]+ ms, p95 [\d.]+ m?s\.", screen.rows[3])


@pytest.mark.parametrize("columns", WIDTHS)
def test_failures_stand_above_the_rows(tmp_path: Path, columns: int) -> None:
    async def fail(_: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response(status=404)

    with background(handler=fail) as server:
        urls = [f"{server.url}{number}" for number in range(4)]
        fetch = ["fetch", *urls, "-o", str(tmp_path / "out"), "--concurrency", "1"]
        with at_terminal(*fetch, columns=columns) as screen:
            screen.wait(lambda: any("2 failed" in row for row in screen.rows))
            assert screen.rows[0] == f"{urls[0]}: status 404"
            assert screen.rows[1] == f"{urls[1]}: status 404"
            assert screen.finish() == 1
    assert screen.rows[:4] == [f"{url}: status 404" for url in urls]
    assert screen.rows[4].startswith("4 URLs in")


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_no_color_shows_the_rows_without_colours(variables: dict[str, str]) -> None:
    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(20)]
        fetch = ["fetch", *urls, "--concurrency", "2"]
        nowhere = subprocess.DEVNULL
        with at_terminal(*fetch, columns=60, stdout=nowhere, variables=variables) as screen:
            assert screen.finish() == 0
    assert " done" in screen.written
    assert bool(COLOUR.search(screen.written)) is not bool(variables)


def test_dumb_terminal_gets_no_control_characters(tmp_path: Path) -> None:
    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(20)]
        fetch = ["fetch", *urls, "-o", str(tmp_path / "out"), "--concurrency", "2"]
        with at_terminal(*fetch, columns=60, variables={"TERM": "dumb"}) as screen:
            assert screen.finish() == 0
    assert "\x1b" not in screen.written
    assert screen.rows[0].startswith("20 URLs in")


# ---- without a terminal, without rich ----------------------------------------------------------

# Lines come more often than every ten seconds, and the modules are named at the end.
OFTEN = (
    "from aiothrottle.cli.fetch import report; report._LOG = 0.4; "
    "import atexit; atexit.register(lambda: print("
    "'loaded:', *sorted(n for n in sys.modules if n in {'rich', 'rich.live', 'shtab'}), "
    "file=sys.stderr)); "
)


def with_prelude(prelude: str) -> str:
    return COMMAND.replace("import signal, sys; ", f"import signal, sys; {prelude}", 1)


def test_plain_lines_come_at_intervals_without_rich_loaded(tmp_path: Path) -> None:
    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(40)]
        command = ["fetch", *urls, "-o", str(tmp_path / "out"), "--concurrency", "2"]
        ended = subprocess.run(
            [sys.executable, *STRICT, "-c", with_prelude(OFTEN), *command],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
        )
    lines = ended.stderr.splitlines()
    assert lines[-1] == "loaded:"
    progress = [line for line in lines if " done  " in line]
    assert 2 <= len(progress) <= 4
    assert re.fullmatch(
        r"\d+ %  \d+ done  \d+\.\d/s  latency p50 [\d.]+ ms, p95 [\d.]+ m?s  0:\d\d left",
        progress[-1],
    )


def test_terminal_without_rich_gets_plain_lines(tmp_path: Path) -> None:
    missing = with_prelude(f"sys.modules['rich'] = None; {OFTEN}")
    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(30)]
        command = ["fetch", *urls, "-o", str(tmp_path / "out"), "--concurrency", "2"]
        with at_terminal(*command, columns=200, code=missing) as screen:
            assert screen.finish() == 0
    assert "\x1b" not in screen.written
    assert " done  " in screen.rows[0]


def test_package_and_help_load_no_rich() -> None:
    code = (
        "import sys, aiothrottle\n"
        "from aiothrottle.cli import main\n"
        "try: main(['fetch', '--help'])\n"
        "except SystemExit: assert 'rich' not in sys.modules and 'shtab' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL
    )


# ---- Ctrl-C ------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [30, 60, 200])
@pytest.mark.parametrize("at", ["once", "progress"])
def test_ctrl_c_leaves_no_trace_on_the_screen(tmp_path: Path, columns: int, at: str) -> None:
    async def slowly(_: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response()

    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(50)]
        fetch = ["fetch", *urls, "-o", str(tmp_path / "out"), "--rate", "2/min"]
        with at_terminal(*fetch, columns=columns) as screen:
            while server.audit.sent < 2:
                time.sleep(0.01)
            if at == "progress":
                screen.wait(lambda: "done" in screen.written)
            screen.press(CTRL_C)
            assert screen.finish() == 130
    assert "^C" in screen.written, "the terminal has echoed it"
    shown = "\n".join(screen.rows)
    assert "^C" not in shown
    assert "2 fetched, 0" in shown
    assert not screen.cursor_is_hidden


def test_ctrl_c_twice_leaves_no_trace(tmp_path: Path) -> None:
    with background("1/d", refusal="silence") as server:
        urls = [f"{server.url}{number}" for number in range(5)]
        with at_terminal("fetch", *urls, "-o", str(tmp_path / "out"), columns=60) as screen:
            while server.audit.sent < 5:
                time.sleep(0.01)
            screen.press(CTRL_C)
            screen.wait(lambda: "press Ctrl-C again to abort." in screen.written)
            written = len(screen.written)
            screen.wait(lambda: "done" in screen.written[written:])
            screen.press(CTRL_C)
            assert screen.finish() == 130
    assert screen.written.count("^C") == 2
    assert not [row for row in screen.rows if "^C" in row]
    assert not screen.cursor_is_hidden


def test_ctrl_c_leaves_no_trace_of_the_demo() -> None:
    with at_terminal("demo", "--rate", "1/min", columns=60) as screen:
        screen.wait(lambda: "no limiter: " in screen.written)
        screen.press(CTRL_C)
        assert screen.finish() == 130
    assert "^C" in screen.written
    assert not [row for row in screen.rows if "^C" in row or " of 300 pages" in row]
    assert screen.rows[-2:] == ["Interrupted.", ""]
    assert not screen.cursor_is_hidden


# ---- the other commands ------------------------------------------------------------------------


@pytest.mark.parametrize("columns", WIDTHS)
def test_demo_leaves_no_row_of_its_progress(columns: int) -> None:
    quick = ["demo", "--pages", "40", "--rate", "100/s"]
    with at_terminal(*quick, columns=columns) as screen:
        assert screen.finish() == 0
    for name in ("no limiter", "semaphore of 8", "aiothrottle"):
        assert f"{name}: 0 of 40 pages" in screen.written
    assert " of 100/s" in screen.written
    assert not [row for row in screen.rows if " of 40 p" in row or "━" in row]
    assert not screen.cursor_is_hidden


def test_probe_shows_the_steps_of_its_search() -> None:
    answers = itertools.chain([200] * 4, itertools.repeat(429))

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=next(answers))

    with background(handler=handle) as server:
        probe = ["probe", str(server.url), "--yes", "--find-limit", "--max-requests", "5"]
        with at_terminal(*probe, columns=60) as screen:
            assert screen.finish() == 0
    assert "5 requests; waiting 2 s" in screen.written
    assert not [row for row in screen.rows if "waiting" in row]
    assert not screen.cursor_is_hidden


def test_pipe_shows_no_progress_of_the_demo() -> None:
    with start("demo", "--pages", "20", "--rate", "100/s") as demo:
        _, messages = demo.communicate(timeout=60)
    assert messages == ""


# ---- the results -------------------------------------------------------------------------------

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
QUICK_DEMO = ["demo", "--pages", "40", "--rate", "100/s"]
QUICK_SIMULATION = ["simulate", "--seconds", "5", "--algorithm", "token-bucket", "--guard", "0.05"]


def printed_lines(screen: Screen) -> list[str]:
    """Return the lines as they were written, not as the terminal wrapped them."""
    lines = ESCAPES.sub("", screen.written).split("\r\n")
    return [line.rpartition("\r")[2] for line in lines]


@pytest.mark.parametrize("columns", [30, *WIDTHS])
@pytest.mark.parametrize("command", [QUICK_DEMO, QUICK_SIMULATION])
def test_results_are_no_wider_than_the_terminal(command: list[str], columns: int) -> None:
    with at_terminal(*command, columns=columns) as screen:
        assert screen.finish() == 0
    lines = printed_lines(screen)
    assert max(map(len, lines)) <= columns
    assert any("throttled" in line for line in lines)
    assert any("used" in line for line in lines)


@pytest.mark.parametrize("columns", WIDTHS)
def test_reported_limits_are_no_wider_than_the_terminal(columns: int) -> None:
    async def handle(_: web.Request) -> web.Response:
        policy = '"a-burst-with-a-name";q=10;w=1, "day";q=5000;w=86400'
        headers = {"RateLimit-Policy": policy, "RateLimit": '"a-burst-with-a-name";r=9;t=1'}
        return web.Response(headers=headers)

    with (
        background(handler=handle) as server,
        at_terminal("probe", str(server.url), "--yes", columns=columns) as screen,
    ):
        assert screen.finish() == 0
    lines = printed_lines(screen)
    *others, code = [line for line in lines if line]
    assert code == '  RateLimiter(["10/s", "5000/d"], guard=0.05)', "to be copied in one piece"
    assert max(map(len, others[1:])) <= columns
    assert any("a-burst-with-a-name" in line for line in others)
    assert any("5000 requests" in line for line in others)
