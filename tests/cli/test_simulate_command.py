"""`aiothrottle simulate`: the table, the picture, and rejected options."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from aiothrottle.cli import main

QUICK = ["simulate", "--seconds", "10"]


def rows(printed: str) -> dict[str, list[str]]:
    lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines[2:]}


def test_guard_is_compared_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "A sliding window log of 20 in 1 s, 1 client, jitter 0.01 s, 10 s\n\n"
    )
    table = rows(printed)
    assert list(table) == ["sliding-window-log, guard 0 s", "sliding-window-log, guard 0.05 s"]
    exact, guarded = table.values()
    assert float(exact[1].removesuffix(" %")) > 0
    assert guarded[1] == "0.00 %"


def test_several_periods_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--rate", "10/min", "--guard", "0"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "A sliding window log of 10 in 60 s, 1 client, jitter 0.01 s, 300 s\n\n"
    )
    assert float(rows(printed)["sliding-window-log, guard 0 s"][1].removesuffix(" %")) > 0


def test_algorithms_are_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    algorithms = [
        "sliding-window-log",
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "sliding-window-counter",
    ]
    options = [
        option for algorithm in [*algorithms, "none"] for option in ("--algorithm", algorithm)
    ]
    assert main([*QUICK, *options, "--guard", "0.02"]) == 0
    table = rows(capsys.readouterr().out)
    assert list(table) == [
        *(f"{algorithm}, guard 0.02 s" for algorithm in algorithms),
        "no limiter",
    ]


def test_options_reach_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--rate", "50/500ms", "--server-algorithm", "token-bucket", "--server-burst", "5"]
    clients = ["--clients", "2", "--client-rate", "10/s", "--burst", "3", "--demand", "5"]
    others = ["--jitter", "0", "--latency", "0.01", "--seed", "3", "--retry-after", "exact"]
    assert main([*QUICK, *server, *clients, *others, "--guard", "0"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("A token bucket holding 5 of 50 in 0.5 s, 2 clients, jitter 0 s")
    (sent, throttled, *_) = rows(printed)["sliding-window-log, guard 0 s"]
    assert 50 < int(sent) < 150, "two clients, five a second, ten seconds"
    assert throttled == "0.00 %"


def test_independent_clients_are_throttled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*QUICK, "--clients", "3", "--guard", "0.05"]) == 0
    ((_, throttled, *_),) = rows(capsys.readouterr().out).values()
    assert float(throttled.removesuffix(" %")) > 20


def test_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "simulated.svg"
    assert (
        main(
            [
                *QUICK,
                "--algorithm",
                "none",
                "--algorithm",
                "sliding-window-log",
                "--plot",
                str(picture),
            ]
        )
        == 0
    )
    content = picture.read_text(encoding="utf-8")
    assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    for name in ("no limiter", "sliding-window-log, guard 0 s", "sliding-window-log, guard 0.05 s"):
        assert f"<!-- {name}: " in content
    assert f"The picture is in {picture}." in capsys.readouterr().out


def test_unwritable_picture_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main([*QUICK, "--plot", str(tmp_path / f"{'x' * 300}.png")]) == 1
    printed, messages = capsys.readouterr()
    assert rows(printed)
    assert "The picture cannot be written" in messages


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--algorithm", "guesswork"], "--algorithm: invalid choice: 'guesswork'"),
        (["--rate", "0.5"], "--rate: must be a rate of whole requests"),
        (["--server-burst", "5"], "--server-burst needs a token bucket: give --server-algorithm"),
        (["--workers", "3", "--demand", "5"], "--demand replaces the workers"),
        (["--burst", "50"], "burst=50.0 is more than the limit ever admits"),
        (["--burst", "0"], "--burst: must be a number above 0"),
        (["--clients", "0"], "--clients: must be a whole number"),
        (["--jitter", "-1"], "--jitter: must be a number of seconds, 0 or more"),
        (["--seconds", "0"], "--seconds: must be a number of seconds, above 0"),
        (["--plot", "a.gif"], "--plot: must be a file name in .png or .svg"),
    ],
)
def test_invalid_options_are_rejected(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    assert ended.value.code == 2
    printed, messages = capsys.readouterr()
    assert printed == ""
    assert complaint in messages
