"""The commands on a terminal: one last line, and no trace of it at the end."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web

from tests.background import background

if sys.platform == "win32":
    pytest.skip("terminals are others there", allow_module_level=True)

from tests.screen import CTRL_C, at_terminal, rows_of


def test_screen_of_these_tests_wraps_like_a_terminal() -> None:
    assert rows_of("abc\rx\ny", 3) == ["xbc", "y"]
    assert rows_of("abcd\rx", 3) == ["abc", "x"]
    assert rows_of("abc\r   \r", 3) == [""]


@pytest.mark.parametrize("columns", [30, 60, 200])
def test_demo_leaves_no_row_of_its_progress(columns: int) -> None:
    quick = ["demo", "--pages", "40", "--rate", "100/s"]
    with at_terminal(*quick, columns=columns) as screen:
        assert screen.finish() == 0
    assert "no limiter: 0 of 40 pages" in screen.written
    assert not [row for row in screen.rows if " of 40 p" in row]


def test_progress_fits_the_terminal_though_records_go_elsewhere() -> None:
    async def slowly(_: web.Request) -> web.Response:
        await asyncio.sleep(0.05)
        return web.Response()

    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(40)]
        fetch = ["fetch", *urls, "--concurrency", "1"]
        with at_terminal(*fetch, columns=30, stdout=subprocess.DEVNULL) as screen:
            screen.wait(lambda: screen.written.count("[") >= 6)
            assert len([row for row in screen.rows if row]) == 1, screen.rows
            assert screen.finish() == 0
    assert not [row for row in screen.rows if "[" in row]


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
                screen.wait(lambda: "[" in screen.written)
            screen.press(CTRL_C)
            assert screen.finish() == 130
    assert "^C" in screen.written, "the terminal has echoed it"
    shown = "\n".join(screen.rows)
    assert "^C" not in shown
    assert "2 fetched, 0" in shown


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


def test_ctrl_c_leaves_no_trace_of_the_demo() -> None:
    with at_terminal("demo", "--rate", "1/min", columns=60) as screen:
        screen.wait(lambda: "no limiter: " in screen.written)
        screen.press(CTRL_C)
        assert screen.finish() == 130
    assert "^C" in screen.written
    assert not [row for row in screen.rows if "^C" in row or " of 300 pages" in row]
    assert screen.rows[-2:] == ["Interrupted.", ""]
