"""``--json``: one document on the standard output, with the documented fields."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle.cli import main
from aiothrottle.cli.demo.crawl import Terms
from aiothrottle.cli.demo.run import run_demo
from aiothrottle.rate import Rate
from tests.background import background, start

REPORTING = {"RateLimit-Policy": '"burst";q=10;w=1', "RateLimit": '"burst";r=9;t=1'}


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_demo_prints_its_crawls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--pages", "40", "--rate", "100/s", "--json"]) == 0
    document = printed(capsys)
    assert document["server"] == {
        "rate": {"limit": 100, "period": 1.0},
        "concurrency": 8,
        "pages": 40,
    }
    assert document["guard"] == 0.02
    assert document["least_seconds"] == pytest.approx(0.025)
    assert document["problem"] is None
    assert [crawl["name"] for crawl in document["crawls"]] == [
        "no limiter",
        "semaphore of 8",
        "aiothrottle",
    ]
    ours = document["crawls"][-1]
    assert (ours["pages"], ours["sent"], ours["throttled"]) == (40, 40, 0)
    assert 0 < ours["used"] <= 1
    assert 0 < ours["most_in_period"] <= 100
    assert 0 < ours["most_at_once"] <= 8
    assert ours["seconds"] > 0


def test_simulation_prints_its_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seconds", "10", "--algorithm", "token-bucket", "--algorithm", "none"]
    assert main(["simulate", *options, "--guard", "0", "--json"]) == 0
    document = printed(capsys)
    outcomes = document.pop("outcomes")
    assert document == {
        "server": {
            "rate": {"limit": 20, "period": 1.0},
            "algorithm": "sliding-window-log",
            "burst": None,
        },
        "clients": 1,
        "latency": 0.05,
        "jitter": 0.01,
        "seconds": 10.0,
        "seed": 0,
    }
    bucket, none = outcomes
    assert bucket["name"] == "token-bucket, guard 0 s"
    assert none["name"] == "no limiter"
    assert none["throttled"] > bucket["throttled"] > 0
    assert bucket.keys() == {
        "name",
        "sent",
        "throttled",
        "used",
        "wait_mean",
        "wait_p50",
        "wait_p99",
        "most_in_period",
        "fairness",
        "given_up",
    }


def test_wait_of_no_request_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is sent in a thousandth of a second, and JSON has no NaN."""
    options = ["--demand", "0.001", "--guard", "0", "--seconds", "0.001"]
    assert main(["simulate", *options, "--json"]) == 0
    (outcome,) = printed(capsys)["outcomes"]
    assert (outcome["sent"], outcome["wait_mean"], outcome["wait_p99"]) == (0, None, None)


def test_picture_is_announced_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "simulated.svg"
    command = ["simulate", "--seconds", "5", "--guard", "0", "--plot", str(picture)]
    assert main([*command, "--json"]) == 0
    out, messages = capsys.readouterr()
    assert json.loads(out)["seconds"] == 5
    assert messages == f"The picture is in {picture}.\n"


def test_probe_prints_what_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(headers=REPORTING)

    with background(handler=handle) as server:
        url = str(server.url)
        assert main(["probe", url.replace("//", "//me:secret@"), "--yes", "--json"]) == 0
    assert printed(capsys) == {
        "url": url.replace("//", "//***@"),
        "status": 200,
        "location": None,
        "profile": None,
        "throttled": False,
        "retry_after": None,
        "reported": [
            {
                "name": "burst",
                "unit": None,
                "quota": 10,
                "window": 1,
                "remaining": 9,
                "reset_after": 1,
            }
        ],
        "burst": None,
        "tried": None,
        "limiter": {
            "rates": [{"limit": 10, "period": 1}],
            "burst": None,
            "guard": 0.05,
            "python": 'RateLimiter("10/s", guard=0.05)',
        },
    }


def test_probe_prints_the_burst_that_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    with background("5/min", refusal="429-seconds") as server:
        assert main(["probe", str(server.url), "--yes", "--find-limit", "--json"]) == 0
    document = printed(capsys)
    assert document["burst"]["admitted"] == 5
    assert document["burst"]["throttled"] is True
    assert 50 < document["burst"]["retry_after"] <= 60
    assert document["tried"] is None, "a minute is too long to wait"
    assert document["limiter"]["rates"] == [{"limit": 5, "period": 60.0}]


def test_probe_without_response_prints_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    with background() as server:
        url = str(server.url)
    assert main(["probe", url, "--yes", "--json"]) == 1
    out, messages = capsys.readouterr()
    assert out == ""
    assert "aiothrottle probe: Cannot connect" in messages


def test_failed_demo_prints_its_problem(capsys: pytest.CaptureFixture[str]) -> None:
    terms = Terms(rate=Rate(10, 0.5), pages=12)
    assert run_demo(terms, limiter=RateLimiter(concurrency_limit=8), as_json=True) == 1
    assert "requests were throttled" in printed(capsys)["problem"]


def test_fetch_prints_records_without_an_option() -> None:
    """Its standard output is JSON lines already."""

    async def slowly(_: web.Request) -> web.Response:
        await asyncio.sleep(0.05)
        return web.Response(status=404)

    with background(handler=slowly) as server:
        urls = [f"{server.url}{number}" for number in range(20)]
        with start("fetch", *urls) as fetch:
            out, messages = fetch.communicate(timeout=60)
    assert len([json.loads(line) for line in out.splitlines()]) == 20
    assert "20 failed" in messages
