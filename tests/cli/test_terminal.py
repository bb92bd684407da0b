"""The commands on a terminal: rows that are redrawn, fit, and leave no trace at the end."""

import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from aiothrottle.cli import main, search
from aiothrottle.cli.output import columns_of, fitted, paragraph
from tests.cli.conftest import Serve, records_of
from tests.cli.handlers import always, in_turn, urls_of

if sys.platform == "win32":
    pytest.skip("terminals are others there", allow_module_level=True)

from tests.support.screen import CTRL_C, Emulator, at_terminal, emulated

COLOUR = re.compile(r"\x1b\[[0-9;]*[34][0-9;]*m")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BAR, LEFT = "━", " left"

Show: TypeAlias = Callable[..., Emulator]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Return a function that runs a command with its messages, and its output, on a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LINES", "100")

    def run(*arguments: object, columns: int, status: int = 0) -> Emulator:
        with emulated(columns) as (stream, emulator), monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            patch.setenv("COLUMNS", str(columns))  # rich asks this process' own terminal
            if arguments[0] != "fetch":  # its records do not go through sys.stdout
                patch.setattr(sys, "stdout", stream)
            assert main([str(each) for each in arguments]) == status
        assert not emulator.cursor_is_hidden
        return emulator

    return run


def lines_of(screen: Emulator) -> list[str]:
    """Return the lines as they were written, not as the terminal wrapped them."""
    lines = ESCAPES.sub("", screen.written).split("\r\n")
    return [line.rpartition("\r")[2] for line in lines]


# ---- fetch -----------------------------------------------------------------------------------


def test_fetch_shows_rate_latency_throttled_and_pause(
    show: Show, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = urls_of(serve(always(after=0.05), rate="30/s"), 45)
    screen = show("fetch", *urls, "--rate", "40/s", columns=40)
    for text in (" done", " throttled", " of 40/s", "latency p50 ", "paused for ", LEFT, " %"):
        assert text in screen.written
    assert screen.widest, "the cursor was hidden"
    assert COLOUR.search(screen.written)
    shown = "\n".join(screen.rows)
    assert BAR not in shown
    assert LEFT not in shown
    assert shown.startswith("45 URLs in")
    assert screen.rows[-1] == ""
    # The display never reaches the standard output.
    assert len([json.loads(line) for line in capfd.readouterr().out.splitlines()]) == 45


def test_failures_stand_above_rows_that_leave_room(show: Show, serve: Serve, out: Path) -> None:
    urls = urls_of(serve(always(404, after=0.25)), 3)
    screen = show("fetch", *urls, "-o", out, "--concurrency", "1", columns=40, status=1)
    assert "2 failed" in screen.written
    assert 0 < screen.widest <= 40 - len("^C") - 1
    assert screen.rows[:3] == [f"{url}: status 404" for url in urls]
    # The summary is broken at spaces.
    summary = " ".join(screen.rows[3:])
    assert re.match(r"3 URLs in .* 3 requests, 0 throttled by the server; a URL waited", summary)
    assert re.search(r" Latency: p50 [\d.]+ ms, p95 [\d.]+ m?s\. ", summary)


def test_display_stays_off_when_records_are_on_the_terminal(serve: Serve) -> None:
    urls = urls_of(serve(always(after=0.02)), 20)
    with at_terminal("fetch", *urls, "--concurrency", "2", columns=200) as screen:
        assert screen.finish() == 0
    assert "\x1b" not in screen.written
    lines = screen.written.splitlines()
    assert sorted(json.loads(line)["url"] for line in lines[:20]) == sorted(urls)
    assert lines[20].startswith("20 URLs in")


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb", "no rich"])
def test_terminal_may_have_no_colours_or_no_rows(
    variable: str, show: Show, serve: Serve, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable == "no rich":
        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)
    else:
        monkeypatch.setenv(*variable.split("="))
    urls = urls_of(serve(always(after=0.05)), 3)
    screen = show("fetch", *urls, "-o", out, "--concurrency", "1", columns=60)
    assert not COLOUR.search(screen.written)
    assert (" done" in screen.written) is (variable == "NO_COLOR=1")
    assert ("\x1b" in screen.written) is (variable == "NO_COLOR=1")
    assert screen.rows[0].startswith("3 URLs in")


# ---- Ctrl-C ----------------------------------------------------------------------------------


def test_ctrl_c_twice_ends_at_once_and_leaves_no_trace(serve: Serve, out: Path) -> None:
    server = serve(rate="1/d", throttled_response="silence")
    run = ["fetch", *urls_of(server, 5), "-o", str(out), "--rate", "99/s"]
    with at_terminal(*run, columns=200) as screen:
        while server.audit.sent < 5:
            time.sleep(0.01)
        screen.press(CTRL_C)
        screen.wait(lambda: "press Ctrl-C again to abort." in screen.written)
        written = len(screen.written)
        screen.wait(lambda: "done" in screen.written[written:])
        assert screen.process.poll() is None, "four are never answered"
        screen.press(CTRL_C)
        assert screen.finish() == 130
    assert screen.written.count("^C") == 2, "the terminal has echoed it"
    assert not [row for row in screen.rows if "^C" in row or "Traceback" in row]
    assert not screen.cursor_is_hidden
    assert "1 fetched, 0" in "\n".join(screen.rows)
    assert len(records_of(out)) == 1


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


@pytest.mark.parametrize("columns", [30, 60])
def test_results_are_no_wider_than_the_terminal(columns: int, show: Show) -> None:
    demo = show("demo", "--pages", "40", "--rate", "100/s", columns=columns)
    for name in ("no limiter", "semaphore of 8", "aiothrottle"):
        assert f"{name}: 0 of 40 p" in demo.written
    assert not [row for row in demo.rows if " of 40 p" in row or BAR in row]
    options = ["--seconds=5", "--algorithm=token-bucket", "--guard=0.05"]
    for screen in (demo, show("simulate", *options, columns=columns)):
        lines = lines_of(screen)
        assert max(map(len, lines)) <= columns
        assert any("throttled" in line for line in lines)
        assert any("used" in line for line in lines)


def test_probe_shows_its_steps(show: Show, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_REST", 0.1)
    policy = '"a-burst-with-a-name";q=10;w=1, "day";q=5000;w=86400'
    reporting = always(RateLimit_Policy=policy, RateLimit='"a-burst-with-a-name";r=9;t=1')
    url = serve(in_turn(reporting, *[always()] * 3, then=always(429))).url
    screen = show("probe", url, "--yes", "--find-limit", "--max-requests", "5", columns=40)
    assert "5 requests; waiting 0.1 s" in screen.written
    assert not [row for row in screen.rows if "waiting" in row]
    lines = [line for line in lines_of(screen) if line]
    *others, code = lines[lines.index("Status 200.") :]
    assert code == '  RateLimiter(["10/s", "5000/d"], guard=0.05)', "to be copied in one piece"
    assert max(map(len, others)) <= 40
    assert any("a-burst-with-a-name" in line for line in others)
    assert any("5000 requests" in line for line in others)


# ---- tables ------------------------------------------------------------------------------------

ROWS = [
    ("", "pages found", "time", "most at once"),
    ("no limiter", "40", "0.62 s", "9"),
    ("a semaphore", "7", "10.00 s", ""),
]
# The first form that fits a width: a table, its columns as rows, blocks.
FORMS = {
    50: """
              pages found      time   most at once
no limiter             40    0.62 s              9
a semaphore             7   10.00 s
""",
    49: """
               no limiter   a semaphore
pages found            40             7
time               0.62 s       10.00 s
most at once            9
""",
    38: """
no limiter
  pages found   40
  time          0.62 s
  most at once  9
a semaphore
  pages found   7
  time          10.00 s
""",
}


def test_table_and_text_fit_the_width() -> None:
    for width, form in FORMS.items():
        assert "\n".join(["", *fitted(ROWS, width), ""]) == form
    assert fitted(ROWS, None) == fitted(ROWS, 50)
    text = "see http://a-host.example/path now"
    assert paragraph(text, 10) == "see\nhttp://a-host.example/path\nnow"
    assert paragraph(text, None) == text
    assert columns_of(io.StringIO()) is None
