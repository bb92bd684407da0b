"""`aiothrottle demo` and `aiothrottle simulate`: their tables, documents and pictures."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from aiothrottle import Rate, RateLimiter
from aiothrottle.cli import demo
from aiothrottle.cli.demo import COMMAND, Terms
from aiothrottle.cli.output import Panel
from tests.cli.conftest import Command


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of each row by its name: of a demo, or of a simulation."""
    lines = [line.strip("|").replace("|", "   ") for line in table.splitlines()]
    cells = ([cell.strip() for cell in line.split("   ") if cell.strip()] for line in lines)
    return {row[0]: row[1:] for row in cells if len(row) > 1}


# ---- the demo --------------------------------------------------------------------------------


def test_demo_shows_three_complete_crawls(capsys: pytest.CaptureFixture[str]) -> None:
    # Two loads. The guard is large: on a busy machine requests bunch up.
    assert COMMAND.run(None, Terms(rate=Rate(20, 0.4), pages=40, concurrency=3, guard=0.4)) == 0
    printed, messages = capsys.readouterr()
    assert messages == ""
    assert "20 requests in any 0.4 s, 3 at once" in printed
    assert "no request was throttled" in printed
    table = rows(printed)
    for name in ("no limiter", "semaphore of 3", "aiothrottle"):
        pages, seconds, sent, throttled, *_ = table[name]
        assert (pages, int(sent)) == ("40", 40 + int(throttled))
        assert float(seconds.removesuffix(" s")) > 0
    assert int(table["no limiter"][3]) > 0
    _, _, _, throttled, most_in_a_period, most_at_once, used = table["aiothrottle"]
    assert int(throttled) == 0
    assert int(most_in_a_period) <= 20
    assert 1 < int(most_at_once) <= 3
    assert 0 < float(used.removesuffix("%")) <= 100
    assert table["the limit"] == ["20", "3"]


def test_demo_prints_a_document(command: Command) -> None:
    ended = command("demo", "--pages", "40", "--rate", "100/s", "--json")  # all in one period
    document = ended.document
    server = {"rate": {"limit": 100, "period": 1.0}, "concurrency": 8, "pages": 40}
    assert document["server"] == server
    assert (document["guard"], document["problem"]) == (0.02, None)
    assert document["least_seconds"] == pytest.approx(0.025)
    names = [crawl["name"] for crawl in document["crawls"]]
    assert names == ["no limiter", "semaphore of 8", "aiothrottle"]
    ours = document["crawls"][-1]
    assert (ours["pages"], ours["sent"], ours["throttled"]) == (40, 40, 0)
    assert ours["used"] == pytest.approx(document["least_seconds"] / ours["seconds"])


@pytest.mark.parametrize("as_json", [True, False])
def test_failed_crawl_has_its_problem(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Terms, "patience", 0.4)
    terms = Terms(rate=Rate(10, 0.2), pages=12, json=as_json)
    # Pages that are throttled are asked for again after a second.

    def without_rate(*_: object, **__: object) -> RateLimiter:
        return RateLimiter(concurrency_limit=8)

    monkeypatch.setattr(demo, "RateLimiter", without_rate)
    assert COMMAND.run(None, terms) == 1
    printed, complaint = capsys.readouterr()
    assert complaint.startswith("\naiothrottle's crawl failed: ")
    for problem in ("of 12 pages are missing", "requests were throttled"):
        assert problem in complaint
        assert (problem in printed) is as_json
    assert "no request was throttled" not in printed


def test_least_time_counts_periods_and_concurrency() -> None:
    terms = Terms(rate=Rate(10), concurrency=3, page_time=0.1)
    # At once, one after the others, a full load of 4 turns, and more a second later.
    seconds = {1: 0.1, 3: 0.1, 4: 0.2, 10: 0.4, 11: 1.1, 21: 2.1}
    assert {it: terms.least_time(it) for it in seconds} == pytest.approx(seconds)


# ---- the simulation --------------------------------------------------------------------------


def test_simulation_prints_what_was_asked_for(command: Command) -> None:
    printed = command("simulate", "--seconds", "10").printed
    assert printed.startswith("A sliding window log of 20 in 1 s, 1 client, jitter 0.01 s, 10 s\n")
    exact, guarded = (rows(printed)[f"sliding-window-log, guard {it} s"] for it in (0, 0.05))
    assert float(exact[1].removesuffix(" %")) > 0
    assert guarded[1] == "0.00 %"
    # Several periods are simulated.
    printed = command("simulate", "--rate", "10/min", "--guard", "0").printed
    assert printed.startswith("A sliding window log of 10 in 60 s, 1 client, jitter 0.01 s, 300 s")
    server = "--rate 50/500ms --server-algorithm token-bucket --server-burst 5"
    clients = "--clients 2 --client-rate 10/s --burst 3 --demand 5 --seconds 10 --guard 0"
    others = "--jitter 0 --latency 0.01 --seed 3 --retry-after exact"
    printed = command("simulate", *f"{server} {clients} {others}".split()).printed
    assert printed.startswith("A token bucket holding 5 of 50 in 0.5 s, 2 clients, jitter 0 s")
    (sent, throttled, *_) = rows(printed)["sliding-window-log, guard 0 s"]
    assert 50 < int(sent) < 150, "two clients, five a second, ten seconds"
    assert throttled == "0.00 %"


def test_simulation_compares_algorithms_and_prints_no_nan(command: Command) -> None:
    names = "sliding-window-log token-bucket leaky-bucket fixed-window sliding-window-counter"
    algorithms = [*names.split(), "none"]
    options = [f"--algorithm={name}" for name in algorithms]
    document = command("simulate", "--seconds=10", *options, "--guard=0.02", "--json").document
    outcomes, server = document.pop("outcomes"), document.pop("server")
    rate = {"limit": 20, "period": 1.0}
    assert server == {"rate": rate, "algorithm": "sliding-window-log", "burst": None}
    values = {"clients": 1, "latency": 0.05, "jitter": 0.01, "seconds": 10.0, "seed": 0}
    assert document == values
    shown = [f"{name}, guard 0.02 s" for name in algorithms[:-1]]
    assert [outcome["name"] for outcome in outcomes] == [*shown, "no limiter"]
    assert outcomes[-1]["throttled"] > outcomes[0]["throttled"]
    numbers = "sent throttled used wait_mean wait_p50 wait_p99 most_in_period fairness given_up"
    assert outcomes[0].keys() == {"name", *numbers.split()}
    # Nothing is sent in a thousandth of a second, and JSON has no NaN.
    ended = command("simulate", "--demand=0.001", "--guard=0", "--seconds=0.001", "--json")
    (outcome,) = ended.document["outcomes"]
    assert (outcome["sent"], outcome["wait_mean"], outcome["wait_p99"]) == (0, None, None)


# ---- the picture -----------------------------------------------------------------------------


def test_picture_has_bars_for_all_arrivals_and_counts_the_last_period() -> None:
    edges = Panel("a crawl", [], 3.0, Rate(10, 5.0)).edges
    assert edges == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    edges = Panel("a crawl", [], 3000.0, Rate(10)).edges
    assert len(edges) == 402
    assert edges[-1] > 3000.0
    requests = [(0.0, False), (0.5, False), (1.0, False), (2.5, True)]
    instants, counts = Panel("a crawl", requests, 3.0, Rate(10)).rolling_count()
    assert instants == [0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 2.5]
    assert counts == [0, 1, 2, 1, 2, 1, 0, 1]


def test_pictures_are_drawn(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("matplotlib")
    png, svg = tmp_path / "CRAWLS.PNG", tmp_path / "simulated.svg"
    ended = command("demo", "--pages", "9", "--plot", png, "--json")
    assert ended.messages == f"The picture is in {png}.\n"
    assert ended.document["crawls"]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.read_bytes().endswith(b"IEND\xaeB`\x82")
    ended = command("simulate", "--seconds=5", "--guard=0.5", "--algorithm=none", "--plot", svg)
    assert ended.printed.endswith(f"The picture is in {svg}.\n")
    content = svg.read_text(encoding="utf-8")
    assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    # The letters are drawn as paths; their text stands next to them as comments.
    assert "<!-- no limiter: " in content
    ended = command("simulate", "--seconds=5", "--guard=0", "--plot", tmp_path / f"{'x' * 300}.png")
    assert ended.status == 1
    assert "throttled" in ended.printed
    assert "The picture cannot be written" in ended.messages
