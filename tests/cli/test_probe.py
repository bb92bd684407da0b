"""`aiothrottle probe`: its notice, its requests, and its results."""

import asyncio
import io
import re
import sys

import pytest
from aiohttp import web

from aiothrottle import Rate, RateLimiter
from aiothrottle.cli import search
from aiothrottle.cli.advice import Advice, Sighting, reported, seen, usual_guard
from aiothrottle.headers import Policy, ServerLimits
from tests.cli.conftest import Command, Serve
from tests.cli.handlers import Seen, always, in_turn, noting
from tests.support.background import background
from tests.support.serving import hang_up, hang_up_in_a_header, speak_no_http

# ---- one request -----------------------------------------------------------------------------


def test_request_is_stated_before_it_is_sent(command: Command, serve: Serve) -> None:
    policy = '"burst";q=10;w=1, "day";q=5000;w=86400'
    server = serve(always(RateLimit_Policy=policy, RateLimit='"burst";r=9;t=1'))
    ended = command("probe", server.url, "--yes")
    assert (ended.status, server.audit.sent) == (0, 1)
    assert ended.messages == f"This sends one GET request to {server.url}.\n"
    assert ended.printed == (
        "Status 200.\n"
        "It reports:\n"
        "  limit           quota    window   remaining   reset in\n"
        "  burst     10 requests       1 s           9        1 s\n"
        "  day     5000 requests   86400 s\n"
        "\n"
        "Use:\n"
        '  RateLimiter(["10/s", "5000/d"], guard=0.05)\n'
    )
    url = str(server.url).replace("//", "//me:secret@")
    document = command("probe", url, "--yes", "--json").document
    burst, day = document["reported"]
    assert (burst["name"], burst["quota"], burst["window"]) == ("burst", 10, 1)
    assert (burst["remaining"], burst["reset_after"], burst["unit"]) == (9, 1, None)
    assert (day["name"], day["remaining"]) == ("day", None)
    assert (document["url"], document["status"]) == (url.replace("me:secret", "***"), 200)
    rates = [{"limit": 10, "period": 1}, {"limit": 5000, "period": 86400}]
    python = 'RateLimiter(["10/s", "5000/d"], guard=0.05)'
    limiter = {"rates": rates, "burst": None, "guard": 0.05, "python": python}
    assert (document["limiter"], document["throttled"]) == (limiter, False)
    for name in ("location", "profile", "retry_after", "burst", "tried"):
        assert document[name] is None


def test_header_that_is_repeated_is_sent_each_time(command: Command, serve: Serve) -> None:
    seen = list[Seen]()
    server = serve(noting(seen))
    assert command("probe", server.url, "--yes", "-H", "X: 1", "-H", "X: 2").status == 0
    assert [it for it in seen[0].headers.items() if it[0] == "X"] == [("X", "1"), ("X", "2")]


class Person(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_consent_is_needed(monkeypatch: pytest.MonkeyPatch, command: Command, serve: Serve) -> None:
    server = serve()
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = command("probe", server.url)
    assert (ended.status, server.audit.sent) == (2, 0)
    assert "give --yes" in ended.messages
    for answer, status in {"y\n": 0, "YES\n": 0, "\n": 1, "": 1}.items():
        server.audit.clear()
        monkeypatch.setattr(sys, "stdin", Person(answer))
        ended = command("probe", server.url)
        assert (ended.status, server.audit.sent) == (status, 1 - status)
        assert "Go on?" not in ended.printed  # which may be a file
        assert "Go on? [y/N]" in ended.messages
        assert ("Nothing was sent." in ended.messages) is bool(status)


def test_missing_response_is_reported(command: Command, serve: Serve) -> None:
    with background() as gone:
        unreachable = gone.url
    broken, late = serve(hang_up), serve(always(after=60))
    for url, problem in {
        broken.url: "Server disconnected",
        serve(hang_up_in_a_header).url: "Server disconnected",
        serve(speak_no_http).url: "the answer is no valid HTTP: ",
        late.url: "no response within 0.2 s",
        unreachable: "Cannot connect to host",
    }.items():
        secret = str(url).replace("//", "//me:secret@")
        ended = command("probe", secret, "--yes", "--json", "--max-time", "0.2")
        assert (ended.status, ended.printed) == (1, "")
        assert f"aiothrottle probe: {problem}" in ended.messages
        assert "\\n" not in ended.messages
        assert "secret" not in ended.messages
    assert (broken.audit.sent, late.audit.sent) == (1, 1), "it is not retried"


def test_body_that_arrives_in_pieces_is_read_to_its_end(command: Command, serve: Serve) -> None:
    async def throttle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in (b'{"message": "slow down", ', b'"retry_after": 7.5}'):
            await asyncio.sleep(0.05)
            await response.write(piece)
        return response

    document = command("probe", serve(throttle).url, "--yes", "--json").document
    assert document["retry_after"] == 7.5


def test_server_text_cannot_move_the_cursor(command: Command, serve: Serve) -> None:
    policy = '"\x9b2J\u202e";q=10;w=1'
    url = serve(always(302, RateLimit_Policy=policy, Location="\x9b2J")).url
    ended = command("probe", url, "--yes")
    assert "It redirects to " in ended.printed
    assert ended.printed.replace("\n", "").isprintable()


# ---- the limit -------------------------------------------------------------------------------

FIND = ["--yes", "--find-limit"]


def test_printed_limiter_was_tried_at_the_server(
    command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_REST", 0.2)
    monkeypatch.setattr(search, "_TRY_SECONDS", 1.2)
    url = serve(always(RateLimit_Policy='"all";q=20;w=1'), rate="20/s").url
    ended = command("probe", url, *FIND)
    assert "up to 2000 more, one after the other" in ended.messages
    assert "It admitted 20 requests in " in ended.printed
    # What the server may have admitted by its rate meanwhile is no burst.
    assert re.search(r"It admits about 20/s, bursts of (1\d|20)\.\n", ended.printed)
    assert re.search(r"With the limiter below it throttled none of \d+ requests", ended.printed)
    assert ended.printed.endswith('RateLimiter("20/s", guard=0.05)\n')


@pytest.mark.parametrize("status", [403, 503])
def test_bare_403_and_503_throttle_if_the_page_was_admitted(
    status: int, command: Command, serve: Serve
) -> None:
    server = serve(in_turn(*[always()] * 5, then=always(status)))
    ended = command("probe", server.url, *FIND, "--max-requests", "5")
    assert (ended.status, server.audit.sent) == (0, 6)
    assert "It admitted 5 requests in " in ended.printed
    assert "then throttled one (no Retry-After)." in ended.printed
    retry = "retry=Retry(throttled_statuses={403, 429, 503})."
    assert (retry in ended.printed) is (status == 403)
    assert "give more --max-requests" in ended.printed
    ended = command("probe", server.url, *FIND, "--max-requests", "5")
    assert "It throttled none of 6 requests" in ended.printed


def test_server_that_asks_for_a_long_wait_is_left_alone(command: Command, serve: Serve) -> None:
    server = serve(rate="5/min")
    ended = command("probe", server.url, *FIND)
    assert server.audit.sent == 6
    assert "The rate was not searched, as that wait is too long." in ended.printed
    guess = (
        'Not tried, but what was admitted at first suggests:\n  RateLimiter("5/min", guard=0.05)'
    )
    assert ended.printed.endswith(f"{guess}\n")
    document = command("probe", serve(rate="5/min").url, *FIND, "--json").document
    assert (document["burst"]["admitted"], document["burst"]["throttled"]) == (5, True)
    assert 50 < document["burst"]["retry_after"] <= 60
    assert document["tried"] is None
    assert document["limiter"]["rates"] == [{"limit": 5, "period": 60.0}]


def test_requests_at_once_may_be_what_is_limited(command: Command, serve: Serve) -> None:
    server = serve(in_turn(*[always()] * 4, then=always(429, Retry_After="60")))
    printed = command("probe", server.url, *FIND, "--concurrency", "10").printed
    assert re.search(r"4 requests in .* s, then throttled 7, with 10 at once \(Retry", printed)
    assert "If it throttles none with --concurrency 1, it limits only requests at once." in printed


def test_burst_is_no_advice_if_every_rate_was_throttled(
    command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_REST", 0.01)
    monkeypatch.setattr(search, "_SLOWEST", 1e6)
    server = serve(in_turn(*[always(), always(429, Retry_After="0")] * 50))
    ended = command("probe", server.url, *FIND)
    assert "It admitted 1 request in " in ended.printed
    assert "No rate was found that it does not throttle.\n" in ended.printed
    assert "No limit is known" in ended.printed


def test_search_that_finds_nothing_is_reported(command: Command, serve: Serve) -> None:
    server = serve()
    ended = command("probe", server.url, *FIND, "--max-requests", "10", "--concurrency", "3")
    assert server.audit.sent == 11
    assert server.audit.greatest_concurrency <= 3
    assert "It throttled none of 11 requests" in ended.printed
    assert "No limit is known" in ended.printed
    server = serve(always(429, Retry_After="30"))
    ended = command("probe", server.url, *FIND)
    assert server.audit.sent == 1
    assert "It throttles requests now, for 30 s.\n" in ended.printed
    assert "The limit was not searched: try again later.\n" in ended.printed


# ---- the suggestion --------------------------------------------------------------------------

TOKENS = Policy("tokens", 10_000, 60)
BYTES = Policy("bytes", 10_000, 60, unit="content-bytes")


def test_reported_or_observed_limit_is_a_rate() -> None:
    for limits, rates in [
        (ServerLimits(), []),
        (ServerLimits(limit=100, window=60), [Rate(100, 60)]),
        (ServerLimits(limit=100, remaining=3, reset_after=41), [Rate(100, 60)]),
        (ServerLimits(limit=100), []),
        (ServerLimits(limit=0, window=60), []),
        (ServerLimits(limit=9000, window=60, unit="tokens"), []),
        (ServerLimits(policies=(Policy("requests", 500, 60), TOKENS, BYTES)), [Rate(500, 60)]),
    ]:
        assert list(reported(limits)) == rates
        certain = rates if limits.window or limits.policies else []
        assert list(reported(limits, estimated=False)) == certain
    # Requests that were admitted, in seconds, before one was throttled with a Retry-After.
    for admitted, seconds, retry_after, rate in [
        (20, 0.7, 1.0, Rate(20, 1)),
        (100, 12.3, 48.0, Rate(100, 60)),
        (100, 12.3, 7.5, Rate(100, 19.8)),
        (100, 12.3, None, None),
        (0, 0.1, 1.0, None),
    ]:
        found = seen(Sighting(admitted, seconds, retry_after, throttled=True))
        assert (found and found.limit) == (rate and rate.limit)
        assert (found and found.period) == (rate and pytest.approx(rate.period))
        assert seen(Sighting(admitted, seconds, retry_after, throttled=False)) is None


def test_suggested_line_is_python_that_makes_a_limiter() -> None:
    rates = (Rate(10), Rate(500, 60), Rate(3, 0.25), Rate(7, 1234.5))
    for advice in (Advice((Rate(10),), burst=1), Advice(rates, burst=2)):
        assert isinstance(eval(advice.python, {"RateLimiter": RateLimiter}), RateLimiter)
        assert isinstance(advice.limiter(8), RateLimiter)
    # The guard costs at most a twentieth.
    assert usual_guard([]) == usual_guard([Rate(5, 60)]) == 0.05
    assert usual_guard([Rate(5, 60), Rate(1, 0.1)]) == pytest.approx(0.005)
