"""What a limiter makes of a quota or a rate that a server reports."""

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
from aiothrottle.permit import WatchedPermit
from tests.virtually import now, turns, virtual

ONCE = Retry(attempts=1)


# ---- reported quotas ---------------------------------------------------------------------------


@virtual
async def test_remaining_quota_is_used_up_until_the_reset() -> None:
    limiter = RateLimiter("100/s")
    permit = await limiter.acquire()
    permit.update_quota(3, reset_after=30)
    begun = now()
    for expected in (0, 0, 0, 30):
        async with limiter.throttle():
            assert now() - begun == pytest.approx(expected)
    assert limiter.statistics().quota_remaining is None


@virtual
async def test_even_use_lasts_until_the_reset() -> None:
    limiter = RateLimiter("100/s")
    permit = await limiter.acquire()
    permit.update_quota(3, reset_after=30, evenly=True)
    begun = now()
    for expected in (0, 10, 20, 30):
        async with limiter.throttle():
            assert now() - begun == pytest.approx(expected, abs=0.01)


@virtual
async def test_requests_sent_since_count_against_the_quota() -> None:
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
async def test_reset_grants_a_waiter_at_once() -> None:
    limiter = RateLimiter("100/s")
    permits = [await limiter.acquire() for _ in range(2)]
    permits[0].update_quota(0, reset_after=30)
    waiter = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(1)
    permits[1].update_quota(5, reset_after=100)
    await waiter
    assert now() == 1


@virtual
async def test_own_rate_holds_beside_the_quota() -> None:
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
async def test_quota_reported_between_grant_and_resume_counts(after_turns: int) -> None:
    limiter = RateLimiter("2/s")
    permit = await limiter.acquire(2)
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(2)]
    await asyncio.sleep(1)
    await turns(after_turns)
    started = sum(waiter.done() for waiter in waiting)
    permit.update_quota(started, reset_after=9)  # for the resumed requests alone
    await asyncio.gather(*waiting)
    assert now() == (1 if started == 2 else 10)


@virtual
async def test_reported_quota_applies_to_waiters() -> None:
    limiter = RateLimiter("2/s")
    permit, _other = await limiter.acquire(), await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0.5)
    permit.update_quota(1, reset_after=9.5)  # one was sent since
    await waiter
    assert now() == 10


@virtual
async def test_key_is_kept_until_the_reset() -> None:
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
    ("remaining", "reset_after", "error", "named"),
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
async def test_wrong_quota_raises_and_changes_nothing(
    remaining: object, reset_after: object, error: type[Exception], named: str
) -> None:
    limiter = RateLimiter("100/s")
    permit = await limiter.acquire()
    with pytest.raises(error, match=named):
        cast("Any", permit).update_quota(remaining, reset_after)
    assert limiter.statistics().quota_remaining is None
    with pytest.raises(RuntimeError, match="not held"):
        WatchedPermit(limiter._engine).update_quota(1, 1)


# ---- a limiter that follows the server's rate --------------------------------------------------


@virtual
async def test_one_request_is_in_flight_before_a_report() -> None:
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
async def test_changed_rate_keeps_the_spent_tokens() -> None:
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
async def test_adaptive_slots_start_with_the_first_report() -> None:
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


async def test_limiter_with_its_own_rate_follows_no_server() -> None:
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
def test_options_of_a_following_limiter_are_validated(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        RateLimiter("server", **options)


# ---- an integration that reports quotas --------------------------------------------------------


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
async def test_limits_of_other_units_change_nothing(limits: ServerLimits) -> None:
    for limiter in (RateLimiter(100), RateLimiter("server", concurrency_limit=9)):
        permit = await limiter.acquire()
        ServerQuotas("at once", (), 120).apply(limiter, permit, limits)
        assert limiter.statistics().quota_remaining is None
        assert not limiter._engine.limits.server_rates
