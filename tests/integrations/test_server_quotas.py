"""What a limiter makes of a quota or a rate that a server reports."""

import asyncio
from typing import Any

import pytest

from aiothrottle import (
    AdaptiveConcurrency,
    Cooldown,
    KeyedRateLimiter,
    RateLimiter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from tests.integrations.scripted import Script
from tests.support.virtually import now, turns, virtual

# ---- reported quotas ---------------------------------------------------------------------------


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
async def test_key_is_kept_until_the_reset() -> None:
    limiter = KeyedRateLimiter("100/s")
    async with limiter.throttle("host") as permit:
        pass
    permit.update_quota(0, reset_after=300)
    del permit
    await asyncio.sleep(250)
    assert "host" in limiter
    assert not await limiter.peek("host")
    await asyncio.sleep(150)
    assert "host" not in limiter


# ---- a limiter that follows the server's rate --------------------------------------------------


@virtual
async def test_changed_rate_keeps_the_spent_tokens() -> None:
    limiter = RateLimiter("server", algorithm=TokenBucket, burst=50, guard=1)
    for _ in range(2):
        limiter.follow("10/s")
        # The burst is the rate's, and a second is longer by the guard.
        await limiter.try_acquire(10)
        assert (await limiter.try_acquire()).retry_after == pytest.approx(0.2)
    await asyncio.sleep(100)
    limiter.follow("2/s", "100/min")
    async with limiter.throttle(), limiter.throttle():
        assert not await limiter.try_acquire()


@virtual
async def test_adaptive_slots_start_with_the_first_report() -> None:
    limiter = RateLimiter("server", concurrency_limit=AdaptiveConcurrency(4, 1, 16))
    async with limiter.throttle():
        assert not await limiter.try_acquire()  # one at a time
        limiter.follow("100/s")
        permits = [await limiter.try_acquire() for _ in range(4)]
    assert [bool(permit) for permit in permits] == [True, True, True, False]
    assert limiter.statistics().concurrency_limit == 4


def test_options_of_a_following_limiter_are_validated() -> None:
    wrong: list[tuple[str, object, type[Exception]]] = [
        *(("burst", "1", TypeError), ("burst", 0, ValueError), ("guard", -1, ValueError)),
        *(("guard", "Auto", TypeError), ("algorithm", WaitUntil(1, 2, 3), ValueError)),
        *(("algorithm", SlidingWindowLog("20/s"), ValueError), ("algorithm", Cooldown, TypeError)),
    ]
    for name, value, error in wrong:
        options: dict[str, Any] = {name: value}
        with pytest.raises(error):
            RateLimiter("server", **options)


@pytest.mark.parametrize(
    ("headers", "follows"),
    [
        ({"RateLimit-Policy": "1000000;w=1"}, True),
        ({"RateLimit-Policy": "1000001;w=1"}, False),
        ({"RateLimit-Policy": "9" * 30 + ";w=1"}, False),
        ({"RateLimit-Policy": "0;w=1"}, False),
        ({"RateLimit-Remaining": "0"}, False),
        # Plausible, although no limiter here has tokens.
        ({"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "60s"}, True),
        # The limit is known, its window is not.
        ({"RateLimit-Limit": "9", "RateLimit-Remaining": "5", "RateLimit-Reset": "60"}, True),
        ({"RateLimit-Remaining": "5", "RateLimit-Reset": "60"}, True),
    ],
    ids=str,
)
@virtual
async def test_implausible_limits_change_nothing(headers: dict[str, str], follows: bool) -> None:
    following, known = RateLimiter("server", concurrency_limit=9), RateLimiter(100)
    for limiter in (following, known):
        async with Script((200, headers)).client(limiter) as client:
            await client.get("http://a/")
    async with following.throttle():
        await asyncio.sleep(1)
        assert bool(await following.try_acquire()) == follows
    expected = 5 if "RateLimit-Reset" in headers else None
    assert known.statistics().quota_remaining == expected
