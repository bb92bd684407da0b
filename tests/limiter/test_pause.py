"""Specifies pauses, of the program and of the server, and the reports that cause them."""

import asyncio
import functools
import math

import pytest

from aiothrottle import AdaptiveRate, KeyedRateLimiter, LimiterClosed, Permit, RateLimiter
from aiothrottle.testing import VirtualTimeLoop
from tests.limiter.common import Unchecked, send, starts, throttle_one, together
from tests.support.virtually import counts, now, visit, visits


async def test_pause_holds_newcomers_and_waiters() -> None:
    limiter = RateLimiter(1)
    waiting = visits(limiter, 2)
    await asyncio.sleep(0.5)
    for seconds in (10, 1, 0):  # never shortened
        limiter.pause(seconds)
    assert limiter.statistics().paused_for == 10
    rejected = await limiter.try_acquire()
    assert (rejected.allowed, rejected.remaining, rejected.retry_after) == (False, 0, 11.0)
    waiting += visits(limiter, 1)
    await asyncio.sleep(9)
    limiter.pause(3)  # extended
    assert await together(*waiting) == [0.0, 12.5, 13.5]
    assert limiter.statistics().paused_for == 0


@pytest.mark.parametrize("closes", [False, True])
async def test_granted_waiters_that_have_not_resumed_are_stopped(closes: bool) -> None:
    limiter = RateLimiter(3, concurrency_limit=3)
    await starts(limiter, 3)

    async def one() -> float:
        async with limiter.throttle():
            if closes:
                await limiter.aclose()
            elif now() == 1.0:
                limiter.pause(10)
            return now()

    # All three are granted in one turn; the first that resumes pauses or closes the limiter.
    outcomes = await asyncio.gather(one(), one(), one(), return_exceptions=True)
    late = LimiterClosed if closes else float
    assert [*map(type, outcomes)] == [float, late, late]
    assert closes or [*outcomes] == [1.0, 11.0, 11.0]
    assert counts(limiter) == (0, 0)


def test_pause_before_any_loop_holds_and_moves_to_its_clock() -> None:
    clock = 0.0
    limiter = RateLimiter(10, clock=lambda: clock)
    limiter.pause(2)
    assert "paused for 2 s" in repr(limiter)
    clock = 2.0
    assert "paused" not in repr(limiter)
    limiter, paused = RateLimiter(10), RateLimiter(10)
    limiter.pause(0)
    paused.pause(100)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(throttle_one(limiter)) >= 0.5  # a pause of no time hides no 429
        assert runner.run(visit(paused)) == pytest.approx(100, abs=5)


async def test_outcome_counts_once_and_concurrent_429s_extend_only_with_retry_after() -> None:
    limiter = RateLimiter(100)
    permits = [await limiter.acquire() for _ in range(5)]
    await asyncio.sleep(0.1)
    permits[0].release()
    for late in (1.0, 50.0):  # the second report of a request, and both after its release
        permits[0].report_throttled(late)
    permits[0].report_success()
    paused_for = limiter.statistics().paused_for
    assert 1.0 <= paused_for <= 1.1
    permits[1].report_throttled()
    permits[2].report_throttled(0.5)
    assert limiter.statistics().paused_for == paused_for
    permits[3].report_throttled(3.0)
    assert limiter.statistics().paused_for == 3.0
    assert await visit(limiter) == pytest.approx(3.1)


async def test_pause_without_retry_after_doubles_until_a_success() -> None:
    limiter = RateLimiter(1000, guard=0.0)
    for least in (0.5, 1, 2, 4, 8, 16, 30, 30):
        assert least <= await throttle_one(limiter) <= min(1.1 * least, least + 1)
    await send(limiter)
    assert 0.5 <= await throttle_one(limiter) <= 0.55


async def test_retry_after_that_proves_too_short_is_extended_until_a_success() -> None:
    limiter = RateLimiter(1000, guard=0.0)
    for least in (1, 1, 1, 1, 1, 1.25, 1.5625):  # a quarter of the pauses so far
        assert least <= await throttle_one(limiter, 1.0) <= 1.2 * least
    for least in (20, 20, 20, 20, 20, 25, 30, 30, 30):  # as without one
        assert least <= await throttle_one(limiter, 20.0) <= 31.0
    await send(limiter)
    assert await throttle_one(limiter, 1.0) <= 1.1


async def test_meaningless_retry_after_counts_as_none_and_a_long_one_is_cut() -> None:
    for none in (None, 0, -1.0, math.nan, -math.inf, 0.05):
        assert 0.5 <= await throttle_one(RateLimiter(100), none) <= 0.55
    for long in (math.inf, 1e300, 10**400, 3601):
        assert await throttle_one(RateLimiter(10), long) == 3600
        adaptive = RateLimiter(AdaptiveRate(10, 1, 100))
        assert await throttle_one(adaptive, long) == 3600
        assert adaptive.statistics().rate_limit == 5


# ---- Permit.report, for code without a session ---------------------------------------------------


async def reported(
    limiter: RateLimiter, status: int, headers: dict[str, str], **options: Unchecked
) -> Permit:
    async with limiter.throttle() as permit:
        permit.report(status, headers, **options)
    return permit


DISCORD = {"body": '{"retry_after": 7, "global": false, "message": "x"}', "profile": "discord.com"}


@pytest.mark.parametrize(
    ("status", "headers", "options", "seconds"),
    [
        (429, {}, {}, 0.5),  # a backoff
        (429, {"retry-after": "30"}, {}, 30.0),
        (429, {"RateLimit": '"a";r=0;t=7'}, {}, 7.0),  # the reset of a spent quota
        (429, {}, DISCORD, 7.0),
        (403, {"Retry-After": "3"}, {}, 3.0),
        (503, {"Retry-After": "3"}, {}, 3.0),
        (503, {}, {}, 0.0),  # one page of the server is broken
        (500, {"Retry-After": "3"}, {}, 0.0),
        (200, {"X-RateLimit-Remaining": "5"}, {}, 0.0),
        (429, {"Retry-After": "86400"}, {}, 3600.0),
    ],
)
async def test_status_headers_and_body_decide_the_pause(
    status: int, headers: dict[str, str], options: Unchecked, seconds: float
) -> None:
    limiter = RateLimiter("100/s")
    await reported(limiter, status, headers, **options)
    assert seconds <= limiter.statistics().paused_for <= 1.1 * seconds


async def test_first_report_counts_and_a_success_ends_the_trial() -> None:
    limiter = RateLimiter("100/s")
    async with limiter.throttle() as permit:
        limits = permit.report(429, {"retry-after": "30"})
    assert (limits.throttled, limits.wait) == (True, 30.0)
    permit.report(200, {})  # only the first report of the outcome counts
    assert limiter.statistics().throttled == 1
    permit = await limiter.acquire()
    assert 30 <= now() <= 31
    assert not await limiter.try_acquire()
    permit.report(404, {})
    assert (await limiter.try_acquire()).allowed


async def test_reported_quota_and_rates_are_followed() -> None:
    headers = {"RateLimit-Policy": '"a";q=50;w=10', "RateLimit": '"a";r=3;t=9'}
    follower, fixed = RateLimiter("server", concurrency_limit=3), RateLimiter("1000/s")
    adaptive = RateLimiter(AdaptiveRate(1, 1, 1000))
    for limiter in (follower, adaptive, fixed):
        await reported(limiter, 200, headers)
    assert (follower.statistics().rate_limit, adaptive.statistics().rate_limit) == (5.0, 4.85)
    began = now()
    grants = [await visit(fixed) for _ in range(4)]
    assert grants[-1] == pytest.approx(began + 9, abs=0.1)


async def test_wrong_report_is_an_error() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100))
    permit = limiter.throttle()
    with pytest.raises(RuntimeError, match="was not held yet: no response can have arrived"):
        permit.report(429, {"Retry-After": "1"})
    for report in (permit.report_throttled, permit.report_success):
        with pytest.raises(RuntimeError, match="not held yet"):
            report()
    async with permit:
        arguments: list[Unchecked] = [
            {"status": "429"},
            {"headers": 7},
            {"body": 7},
            {"profile": 7},
        ]
        for wrong in arguments:
            with pytest.raises(TypeError):
                functools.partial(permit.report, **{"status": 429, "headers": {}, **wrong})()
        after: list[Unchecked] = ["2", True]
        for wrong in after:
            with pytest.raises(TypeError, match="retry_after must be seconds or None"):
                permit.report_throttled(wrong)
    assert limiter.statistics().paused_for == 0.0


# ---- scope ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "headers", "everywhere"),
    [
        ({"scope": "limiter"}, {}, False),
        ({"scope": "all"}, {}, True),
        ({}, {}, False),
        ({}, {"X-RateLimit-Scope": "user"}, False),
        ({}, {"X-RateLimit-Scope": "global"}, True),
        ({}, {"X-RateLimit-Global": "true"}, True),
        ({"scope": "limiter"}, {"X-RateLimit-Scope": "global"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("retry_after", [{}, {"Retry-After": "20"}], ids=str)
async def test_scope_decides_whether_other_keys_pause(
    given: Unchecked, headers: dict[str, str], everywhere: bool, retry_after: dict[str, str]
) -> None:
    limiters = KeyedRateLimiter("100/s", parent=RateLimiter())
    permit = await reported(limiters["ann"], 429, {**headers, **retry_after}, **given)
    least = 20.0 if retry_after else 0.5
    assert permit.waited == 0.0
    waited = await visit(limiters["bob"])
    assert least <= waited <= 1.1 * least if everywhere else waited == 0.0
    assert least <= await visit(limiters["ann"])


async def test_all_needs_a_limiter_above_a_key() -> None:
    limiters, alone = KeyedRateLimiter("100/s"), RateLimiter("100/s")
    one_of = "scope must be one of 'limiter', 'all', got 'key'"
    async with limiters.throttle("ann") as permit:
        report = functools.partial(permit.report, 429, {})
        calls: list[Unchecked] = [permit.report_throttled, report]
        for call in calls:
            for scope, text in (
                ("all", r"parent, such as parent=RateLimiter\(\)"),
                ("key", one_of),
            ):
                with pytest.raises(ValueError, match=text):
                    call(scope=scope)
    assert limiters.total().throttled == 0
    async with alone.throttle() as permit:
        permit.report_throttled(math.nan, scope="all")
    assert alone.statistics().paused_for > 0
