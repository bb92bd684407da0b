"""The demo, unchanged: a real server, three real crawls, and the report on them."""

import dataclasses
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from yarl import URL

from aiothrottle.cli.demo.crawl import Run, Terms
from aiothrottle.cli.demo.run import _panel, run_demo
from aiothrottle.cli.picture import Panel
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.testing import Audit, RecordedRequest, greatest_count

pytestmark = pytest.mark.slow

# All pages fit into one period.
QUICK = Terms(rate=Rate(100), pages=40)
# Three loads. The guard is large: on a busy machine requests bunch up.
THREE_LOADS = Terms(rate=Rate(20, 0.2), pages=60, concurrency=3, guard=1.0)


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of each row of numbers by its name."""
    lines = (line.split("   ") for line in table.splitlines() if "   " in line)
    cells = ([cell.strip() for cell in line if cell.strip()] for line in lines)
    return {name: numbers for name, *numbers in cells}


def test_demo_shows_three_complete_crawls(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(QUICK) == 0
    printed, progress = capsys.readouterr()
    assert progress == ""
    table = rows(printed)
    for name in ("no limiter", "semaphore of 8", "aiothrottle"):
        pages, seconds, sent, throttled, *_ = table[name]
        assert pages == "40"
        assert float(seconds.removesuffix(" s")) > 0
        assert int(sent) == 40 + int(throttled)
    assert table["the limit"] == ["100", "8"]
    assert "no request was throttled" in printed


def test_only_the_throttled_crawl_keeps_the_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_demo(THREE_LOADS) == 0
    table = rows(capsys.readouterr().out)
    assert int(table["no limiter"][3]) > 0
    pages, _, sent, throttled, most_in_a_period, most_at_once, used = table["aiothrottle"]
    assert (pages, sent, throttled) == ("60", "60", "0")
    assert int(most_in_a_period) <= 20
    assert 1 < int(most_at_once) <= 3
    assert 0 < float(used.removesuffix("%")) <= 100


def test_crawl_with_a_throttled_request_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    terms = Terms(rate=Rate(10, 0.5), pages=12)
    assert run_demo(terms, limiter=RateLimiter(concurrency_limit=8)) == 1
    printed, complaint = capsys.readouterr()
    assert rows(printed)["aiothrottle"][0] == "12"
    assert complaint.startswith("\naiothrottle's crawl failed: ")
    assert "requests were throttled" in complaint
    assert "no request was throttled" not in printed


def test_incomplete_crawl_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Terms, "patience", 0.5)
    limiter = RateLimiter()
    limiter.pause(60)
    assert run_demo(QUICK, limiter=limiter) == 1
    printed, complaint = capsys.readouterr()
    assert rows(printed)["aiothrottle"][0] == "0"
    assert "40 of 40 pages are missing" in complaint


@pytest.mark.parametrize(
    ("pages", "seconds"),
    [
        (1, 0.1),  # one page
        (3, 0.1),  # at once
        (4, 0.2),  # one after the others
        (10, 0.4),  # a full load: 4 turns
        (11, 1.1),  # and one more page a second later
        (20, 1.4),
        (21, 2.1),
    ],
)
def test_least_time_counts_periods_and_concurrency(pages: int, seconds: float) -> None:
    terms = Terms(rate=Rate(10), concurrency=3, page_time=0.1)
    assert terms.least_time(pages) == pytest.approx(seconds)


def test_used_share_is_least_time_over_time() -> None:
    run = Run("a crawl", Terms(rate=Rate(10), concurrency=10, page_time=0.0), seconds=4.0)
    assert run.share == 0.0
    run.found = {URL(f"http://a/{number}") for number in range(21)}
    assert run.share == 0.5


# ---- the picture -----------------------------------------------------------------------------


def crawl_of(*arrivals: float, throttled: tuple[float, ...] = ()) -> Panel:
    """Make a crawl that began at 100 s and took 3 s; arrivals are seconds after its start."""
    run = Run("a crawl", Terms(rate=Rate(10, 1.0)), started_at=100.0, seconds=3.0, audit=Audit())
    for instant in sorted(arrivals + throttled):
        request = RecordedRequest(100.0 + instant, "GET", "/", refused=instant in throttled)
        run.audit.requests.append(request)
    return _panel(run)


def test_bars_count_every_arrival_once() -> None:
    panel = crawl_of(0.0, 0.25, 0.75, 2.5, throttled=(0.5, 2.625))
    panel = dataclasses.replace(panel, rate=Rate(10, 5.0))
    assert panel.width == 0.5
    assert panel.bars(throttled=False) == [2, 1, 0, 0, 0, 1, 0]
    assert panel.bars(throttled=True) == [0, 1, 0, 0, 0, 1, 0]


def test_number_of_bars_is_bounded() -> None:
    panel = dataclasses.replace(crawl_of(0.0, 2999.0), seconds=3000.0)
    assert len(panel.bars(throttled=False)) == 401
    assert sum(panel.bars(throttled=False)) == 2


def test_line_is_the_count_of_the_last_period() -> None:
    panel = crawl_of(0.0, 0.5, 1.0, throttled=(2.5,))
    assert panel.rolling_count() == (
        [0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 2.5],
        [0, 1, 2, 1, 2, 1, 0, 1],
    )
    assert max(panel.rolling_count()[1]) == greatest_count([0.0, 0.5, 1.0, 2.5], 1.0)


def test_png_suffix_writes_a_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "crawls.png"
    assert run_demo(QUICK, picture) == 0
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    assert f"The picture is in {picture}." in capsys.readouterr().out


def test_svg_names_the_crawls(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "crawls.svg"
    assert run_demo(QUICK, picture) == 0
    content = picture.read_text(encoding="utf-8")
    assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    # The letters are drawn as paths; their text stands next to them as comments.
    for name in ("no limiter", "semaphore of 8", "aiothrottle"):
        assert f"<!-- {name}: 40 pages in" in content


def test_unwritable_picture_fails_after_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert run_demo(QUICK, tmp_path / "nowhere" / "crawls.png") == 1
    printed, complaint = capsys.readouterr()
    assert "aiothrottle" in rows(printed)
    assert "The picture cannot be written" in complaint
