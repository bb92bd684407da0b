"""`aiothrottle probe`: its notice, its requests, and its results."""

import asyncio
import io
import itertools
import os
import re
import signal
import sys
import time

import pytest
from aiohttp import web

from aiothrottle import Rate
from aiothrottle.cli import main
from aiothrottle.cli.suggestion import (
    Advice,
    Sighting,
    reported,
    seen,
    usual_guard,
)
from aiothrottle.headers import Policy, ServerLimits
from tests.background import background, start
from tests.serving import Handler


def saying(status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, headers=named)

    return handle


class Person(io.StringIO):
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


# ---- the requests ----------------------------------------------------------------------------


def test_request_is_stated_before_it_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    handler = saying(
        RateLimit_Policy='"burst";q=10;w=1, "day";q=5000;w=86400', RateLimit='"burst";r=9;t=1'
    )
    with background(handler=handler) as server:
        assert main(["probe", str(server.url), "--yes"]) == 0
        assert server.audit.sent == 1
        printed, messages = capsys.readouterr()
        assert messages == f"This sends one GET request to {server.url}.\n"
    assert printed == (
        "Status 200.\n"
        "It reports:\n"
        "  limit           quota    window   remaining   reset in\n"
        "  burst     10 requests       1 s           9        1 s\n"
        "  day     5000 requests   86400 s\n"
        "\n"
        "Use:\n"
        '  RateLimiter(["10/s", "5000/d"], guard=0.05)\n'
    )


def test_nothing_is_sent_without_terminal_or_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with background() as server, pytest.raises(SystemExit) as ended:
        main(["probe", str(server.url)])
    assert ended.value.code == 2
    assert server.audit.sent == 0
    assert "give --yes" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "sent"), [("y\n", 1), ("YES\n", 1), ("\n", 0), ("", 0)])
def test_user_is_asked_for_consent(
    answer: str, sent: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Person(answer))
    with background() as server:
        assert main(["probe", str(server.url)]) == 1 - sent
        assert server.audit.sent == sent
    printed, messages = capsys.readouterr()
    assert "Go on?" not in printed  # which may be a file
    assert "Go on? [y/N]" in messages
    assert ("Nothing was sent." in messages) is not sent


@pytest.mark.slow
def test_printed_limiter_was_tried_at_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    with background("20/s") as server:
        assert main(["probe", str(server.url), "--yes", "--find-limit"]) == 0
        assert server.audit.sent <= 2001
    printed, messages = capsys.readouterr()
    assert "up to 2000 more, one after the other" in messages
    assert "It admitted 20 requests in " in printed
    assert "With the limiter below it throttled none of " in printed
    found = re.search(r'RateLimiter\("(\d+)/s", ', printed.splitlines()[-1])
    assert found is not None
    assert 15 <= int(found[1]) <= 21  # the guard makes 20 of 21


@pytest.mark.parametrize("status", [403, 503])
def test_bare_403_and_503_throttle_if_the_page_was_admitted(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = itertools.chain([200] * 5, itertools.repeat(status))

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=next(answers))

    with background(handler=handle) as server:
        options = ["--find-limit", "--max-requests", "5"]
        assert main(["probe", str(server.url), "--yes", *options]) == 0
        assert server.audit.sent == 6
    printed = capsys.readouterr().out
    assert "It admitted 5 requests in " in printed
    assert "then throttled one (no Retry-After)." in printed
    assert ("retry=Retry(throttled_statuses={403, 429, 503})." in printed) is (status == 403)
    assert "give more --max-requests" in printed


def test_page_that_is_always_forbidden_is_not_throttled(capsys: pytest.CaptureFixture[str]) -> None:
    with background(handler=saying(403)) as server:
        options = ["--find-limit", "--max-requests", "5"]
        assert main(["probe", str(server.url), "--yes", *options]) == 0
    assert "It throttled none of 6 requests" in capsys.readouterr().out


def test_server_that_asks_for_a_long_wait_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with background("5/min") as server:
        assert main(["probe", str(server.url), "--yes", "--find-limit"]) == 0
        assert server.audit.sent == 6
    printed = capsys.readouterr().out
    assert "The rate was not searched, as that wait is too long." in printed
    assert printed.endswith('RateLimiter("5/min", guard=0.05)\n')


def test_limit_that_is_not_found_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with background() as server:
        options = ["--find-limit", "--max-requests", "10", "--concurrency", "3"]
        assert main(["probe", str(server.url), "--yes", *options]) == 0
        assert server.audit.sent == 11
        assert server.audit.greatest_concurrency <= 3
    printed = capsys.readouterr().out
    assert "It throttled none of 11 requests" in printed
    assert "No limit is known" in printed


def test_throttling_server_gets_no_more_requests(capsys: pytest.CaptureFixture[str]) -> None:
    with background(handler=saying(429, Retry_After="30")) as server:
        assert main(["probe", str(server.url), "--yes", "--find-limit"]) == 0
        assert server.audit.sent == 1
    printed = capsys.readouterr().out
    assert "It throttles requests now, for 30 s.\n" in printed
    assert "The limit was not searched: try again later.\n" in printed


def test_dropped_connection_is_not_retried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    async def cut(request: web.Request) -> web.Response:
        asked.append(request.path)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with background(handler=cut) as server:
        assert main(["probe", str(server.url), "--yes"]) == 1
    assert len(asked) == 1
    assert "disconnected" in capsys.readouterr().err


def test_error_names_the_responses_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    answers = itertools.chain([200] * 3, itertools.repeat(None))

    async def handle(request: web.Request) -> web.Response:
        status = next(answers)
        if status is None:
            assert request.transport is not None
            request.transport.close()
        return web.Response()

    with background(handler=handle) as server:
        assert main(["probe", str(server.url), "--yes", "--find-limit"]) == 1
    printed, messages = capsys.readouterr()
    assert printed == "Status 200.\nIt reports no limit.\n"
    assert messages.endswith("aiothrottle probe: Server disconnected after 3 responses\n")


def test_late_response_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async def late(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    with background(handler=late) as server:
        assert main(["probe", str(server.url), "--yes", "--max-time", "0.2"]) == 1
    assert "aiothrottle probe: no response within 0.2 s\n" in capsys.readouterr().err


def test_closed_output_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = os.fdopen(writing, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", output)
    with background() as server:
        assert main(["probe", str(server.url), "--yes"]) == 141
    output.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.slow
def test_ctrl_c_leaves_no_traceback() -> None:
    answers = itertools.chain([200] * 4, itertools.repeat(429))

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=next(answers))

    with (
        background(handler=handle) as server,
        start("probe", "--yes", "--find-limit", str(server.url)) as probe,
    ):
        while server.audit.sent < 5:
            time.sleep(0.01)
        probe.send_signal(signal.SIGINT)
        printed, messages = probe.communicate(timeout=60)
    assert probe.returncode == 130
    assert messages.endswith("\nInterrupted.\n")
    assert "Traceback" not in printed + messages


@pytest.mark.parametrize("columns", [60, 80])
def test_own_texts_fit_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(["probe", "--help"])
    written = capsys.readouterr().out
    with background() as server:
        options = ["--find-limit", "--max-requests", "2"]
        assert main(["probe", str(server.url), "--yes", *options]) == 0
    written += capsys.readouterr().err
    assert max(map(len, written.splitlines())) <= 80


def test_refused_connection_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with background() as server:
        url = str(server.url).replace("//", "//me:secret@")
    assert main(["probe", url, "--yes"]) == 1
    printed, messages = capsys.readouterr()
    assert printed == ""
    assert "aiothrottle probe: Cannot connect to host" in messages
    assert "secret" not in messages


def test_server_text_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    policy = '"\x9b2J\u202e";q=10;w=1'
    with background(handler=saying(302, RateLimit_Policy=policy, Location="\x9b2J")) as server:
        assert main(["probe", str(server.url), "--yes"]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: URL"),
        (
            ["ftp://example.org"],
            "'ftp://example.org' is no URL: it does not begin with http:// or https://",
        ),
        ([""], "'' is empty"),
        (["me:secret@example.org"], "'***@example.org' is no URL"),
        (["http://a/", "--max-requests", "0"], "must be a whole number from 1 to 10000"),
        (["http://a/", "--max-requests", "9"], "are for --find-limit: give it as well"),
        (["http://a/", "--concurrency", "2"], "are for --find-limit: give it as well"),
    ],
)
def test_invalid_options_are_rejected(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["probe", *arguments])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


# ---- the suggestion --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "rates"),
    [
        (ServerLimits(), []),
        (ServerLimits(limit=100, window=60), [Rate(100, 60)]),
        (ServerLimits(limit=100, remaining=3, reset_after=41), [Rate(100, 60)]),
        (ServerLimits(limit=100), []),
        (ServerLimits(limit=0, window=60), []),
        (ServerLimits(limit=9000, window=60, unit="tokens"), []),
        (
            ServerLimits(
                policies=(
                    Policy("requests", 500, 60),
                    Policy("tokens", 10_000, 60),
                    Policy("bytes", 10_000, 60, unit="content-bytes"),
                )
            ),
            [Rate(500, 60)],
        ),
    ],
)
def test_reported_limit_of_requests_is_a_rate(limits: ServerLimits, rates: list[Rate]) -> None:
    assert list(reported(limits)) == rates
    certain = rates if limits.window or limits.policies else []
    assert list(reported(limits, estimated=False)) == certain


@pytest.mark.parametrize(
    ("sighting", "rate"),
    [
        (Sighting(20, 0.1, 1.0, throttled=True), Rate(20, 1)),
        (Sighting(20, 0.7, 1.0, throttled=True), Rate(20, 1)),
        (Sighting(100, 12.3, 48.0, throttled=True), Rate(100, 60)),
        (Sighting(100, 12.3, 7.5, throttled=True), Rate(100, 19.8)),
        (Sighting(100, 12.3, None, throttled=True), None),
        (Sighting(100, 12.3, None, throttled=False), None),
        (Sighting(0, 0.1, 1.0, throttled=True), None),
    ],
)
def test_observed_limit_with_retry_after_is_a_rate(sighting: Sighting, rate: Rate | None) -> None:
    found = seen(sighting)
    if rate is None:
        assert found is None
    else:
        assert found is not None
        assert found.limit == rate.limit
        assert found.period == pytest.approx(rate.period)


@pytest.mark.parametrize(
    "advice",
    [
        Advice((Rate(10),)),
        Advice((Rate(10),), burst=1),
        Advice((Rate(10), Rate(500, 60), Rate(3, 0.25), Rate(7, 1234.5)), burst=2),
    ],
)
def test_suggested_line_is_python_that_makes_a_limiter(advice: Advice) -> None:
    from aiothrottle import RateLimiter

    assert isinstance(eval(advice.line(), {"RateLimiter": RateLimiter}), RateLimiter)
    assert isinstance(advice.limiter(8), RateLimiter)


def test_guard_costs_at_most_a_twentieth() -> None:
    assert usual_guard([]) == usual_guard([Rate(5, 60)]) == 0.05
    assert usual_guard([Rate(5, 60), Rate(1, 0.1)]) == pytest.approx(0.005)
