"""What servers say about their limits, and what limiters and sessions make of it."""

import asyncio
import math
from typing import Any, cast

import pytest

from aiothrottle import (
    AdaptiveConcurrency,
    Cooldown,
    KeyedRateLimiter,
    Rate,
    RateLimiter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle._http.quotas import ServerQuotas
from aiothrottle.aiohttp import Retry
from aiothrottle.headers import ServerLimits
from aiothrottle.permit import make_permit
from tests.virtually import now, turns, virtual

ONCE = Retry(attempts=1)


# ---- a limiter that is told ----------------------------------------------------------------------


@virtual
async def test_what_is_left_may_be_used_up_and_then_the_limiter_waits_for_the_new_quota() -> None:
    limiter = RateLimiter("100/s")
    permit = await limiter.acquire()
    permit.update_quota(3, reset_after=30)
    begun = now()
    for expected in (0, 0, 0, 30):
        async with limiter.throttle():
            assert now() - begun == pytest.approx(expected)
    assert limiter.statistics().quota_remaining is None


@virtual
async def test_spread_evenly_it_lasts_until_then() -> None:
    limiter = RateLimiter("100/s")
    permit = await limiter.acquire()
    permit.update_quota(3, reset_after=30, evenly=True)
    begun = now()
    for expected in (0, 10, 20, 30):
        async with limiter.throttle():
            assert now() - begun == pytest.approx(expected, abs=0.01)


@virtual
async def test_what_was_sent_since_is_taken_off() -> None:
    limiter = RateLimiter("100/s")
    permits = [await limiter.acquire() for _ in range(3)]
    permits[0].update_quota(5, reset_after=30)
    assert limiter.statistics().quota_remaining == 3
    for _ in range(2):
        await asyncio.sleep(1)
        permits.append(await limiter.acquire())
    assert limiter.statistics().quota_remaining == 1
    permits[3].update_quota(2, reset_after=28)  # one was sent after this one
    permits[2].update_quota(5, reset_after=28)  # overtaken by the others
    assert limiter.statistics().quota_remaining == 1
    permits[4].update_quota(0, reset_after=28)
    assert (await limiter.peek()).retry_after == 28


@virtual
async def test_who_waits_goes_at_once_when_the_server_has_begun_to_count_anew() -> None:
    limiter = RateLimiter("100/s")
    permits = [await limiter.acquire() for _ in range(2)]
    permits[0].update_quota(0, reset_after=30)
    waiter = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(1)
    permits[1].update_quota(5, reset_after=100)
    await waiter
    assert now() == 1


@virtual
async def test_the_own_rate_holds_beside_it_and_can_be_changed() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=5)
    permit = await limiter.acquire()
    permit.update_quota(1000, reset_after=100)
    assert await limiter.try_acquire()
    assert (await limiter.try_acquire()).retry_after == 1
    limiter.update(rate_limit="3/s")
    assert await limiter.try_acquire()
    assert not await limiter.try_acquire()
    assert limiter.statistics().quota_remaining == 998


@pytest.mark.parametrize("after_turns", range(6))
@virtual
async def test_what_is_said_between_grant_and_start_counts(after_turns: int) -> None:
    limiter = RateLimiter("2/s")
    permit = await limiter.acquire(2)
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(2)]
    await asyncio.sleep(1)
    await turns(after_turns)
    started = sum(waiter.done() for waiter in waiting)
    permit.update_quota(started, reset_after=9)  # as many as went, of whom the server has not heard
    await asyncio.gather(*waiting)
    assert now() == (1 if started == 2 else 10)


@virtual
async def test_those_who_wait_are_told_too() -> None:
    limiter = RateLimiter("2/s")
    permit, _other = await limiter.acquire(), await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0.5)
    permit.update_quota(1, reset_after=9.5)  # one was sent since
    await waiter
    assert now() == 10


@virtual
async def test_a_key_is_not_forgotten_before_its_server_counts_anew() -> None:
    limiter = KeyedRateLimiter("100/s")
    async with limiter.throttle("host") as permit:
        pass
    permit.update_quota(0, reset_after=300)
    await asyncio.sleep(250)
    assert "host" in limiter
    assert not await limiter.peek("host")
    await asyncio.sleep(150)
    assert "host" not in limiter


@pytest.mark.parametrize(
    ("left", "reset_after", "error", "named"),
    [
        (-1, 1, ValueError, "remaining"),
        (math.nan, 1, ValueError, "remaining"),
        ("3", 1, TypeError, "remaining"),
        (1, math.inf, ValueError, "reset_after"),
        (1, True, TypeError, "reset_after"),
    ],
)
@pytest.mark.filterwarnings("ignore:<Permit of .* never entered:RuntimeWarning")
@virtual
async def test_nonsense_is_refused_and_changes_nothing(
    left: object, reset_after: object, error: type[Exception], named: str
) -> None:
    limiter = RateLimiter("100/s")
    permit = await limiter.acquire()
    with pytest.raises(error, match=named):
        cast("Any", permit).update_quota(left, reset_after)
    assert limiter.statistics().quota_remaining is None
    with pytest.raises(RuntimeError, match="not held"):
        make_permit(limiter._engine, 1.0, 0.0).update_quota(1, 1)


# ---- a limiter that follows ------------------------------------------------------------------


@virtual
async def test_until_the_server_has_said_something_one_request_is_under_way() -> None:
    limiter = RateLimiter("server", concurrency_limit=10)
    assert limiter.follows_server
    first = await limiter.acquire()
    assert not await limiter.try_acquire()
    limiter.follow("4/s")
    rest = [await limiter.acquire() for _ in range(3)]
    assert (await limiter.try_acquire()).retry_after == 1  # the first one counts too
    assert limiter.statistics().in_flight == len([first, *rest]) == 4
    assert limiter._engine.semaphore.limit == 10


@virtual
async def test_it_follows_when_the_rate_changes_and_keeps_what_was_spent() -> None:
    limiter = RateLimiter("server", algorithm=TokenBucket, burst=50, guard=1)
    limiter.follow("10/s")
    algorithm = limiter._engine.bucket.algorithm
    assert algorithm == TokenBucket(Rate(10, 2), burst=10)
    limiter.follow("10/s")
    assert limiter._engine.bucket.algorithm is algorithm
    limiter.follow("2/s", "100/min")
    async with limiter.throttle(), limiter.throttle():
        assert not await limiter.try_acquire()


@virtual
async def test_slots_that_adapt_wait_for_the_first_word_and_are_not_reset_by_others() -> None:
    limiter = RateLimiter("server", concurrency_limit=AdaptiveConcurrency(8, minimum=1, maximum=64))
    for _ in range(3):
        async with limiter.throttle() as permit:
            assert not await limiter.try_acquire()
        permit.report_success()
    limiter.follow("5000/s")
    async with limiter.throttle() as permit:
        assert limiter.statistics().concurrency_limit == 8
    permit.report_throttled()
    cut = limiter.statistics().concurrency_limit
    assert cut is not None
    assert cut < 8
    limiter.follow("5000/s")
    limiter.follow("4000/s")
    assert limiter.statistics().concurrency_limit == cut


async def test_one_with_a_rate_of_its_own_follows_nobody() -> None:
    limiter = RateLimiter("10/s")
    with pytest.raises(ValueError, match="rate of its own"):
        limiter.follow("20/s")
    following = RateLimiter("server", concurrency_limit=5)
    following.update(rate_limit="1/s")
    assert not following.follows_server
    assert following._engine.semaphore.limit == 5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"burst": "1"}, TypeError),
        ({"burst": 0}, ValueError),
        ({"guard": -1}, ValueError),
        ({"guard": "Auto"}, TypeError),
        ({"algorithm": WaitUntil(1, 2, 3)}, ValueError),
        ({"algorithm": SlidingWindowLog("20/s")}, ValueError),
        ({"algorithm": Cooldown}, TypeError),
    ],
)
def test_what_goes_with_it_is_checked_at_once(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        RateLimiter("server", **options)


# ---- an integration that reports quotas ----------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        ServerLimits(remaining=0.0, reset_after=60.0, unit="tokens"),
        ServerLimits(remaining=0.0),
        ServerLimits(limit=1e30, window=1.0),
        ServerLimits(limit=5.0, window=1e9),
        ServerLimits(throttled=True, retry_after=1.0, remaining=0.0, reset_after=60.0),
    ],
)
async def test_what_says_nothing_about_requests_changes_nothing(limits: ServerLimits) -> None:
    for limiter in (RateLimiter(100), RateLimiter("server", concurrency_limit=9)):
        permit = await limiter.acquire()
        ServerQuotas("at once", (), 120).apply(limiter, permit, limits)
        assert limiter.statistics().quota_remaining is None
        assert not limiter._engine.server_rates
