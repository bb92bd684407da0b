"""Specifies settle(): the difference to the real cost is refunded or charged afterwards."""

import asyncio
import itertools

import pytest

from aiothrottle import FixedWindow, RateLimiter, SlidingWindowCounter, TokenBucket, algorithms
from tests.limiter.common import queued, remaining, together
from tests.support.virtually import now, turns, visit, visits


async def test_refund_goes_to_the_waiters() -> None:
    limiter = RateLimiter("10/min")
    permit = await limiter.acquire(8)
    (waiting,) = visits(limiter, 1, 6)
    await asyncio.sleep(20)
    permit.settle(5)
    await asyncio.sleep(10)
    assert not waiting.done()
    permit.settle(4)
    assert await waiting == 30
    assert (permit.cost, await remaining(limiter)) == (4, 0)


async def test_refund_finds_its_instant_by_a_moving_clock() -> None:
    limiter = RateLimiter("100/h", concurrency_limit=3, clock=itertools.count().__next__)
    held = [await limiter.acquire() for _ in range(3)]
    waiting = [asyncio.create_task(limiter.acquire(cost)) for cost in (1, 1, 2)]
    await turns()
    for permit in held:
        permit.settle(0)
        permit.release()  # the waiters are granted in one turn
    for permit in await asyncio.gather(*waiting):
        permit.settle(0)
    assert limiter.statistics().utilisation == 0


async def test_debt_delays_the_next_request() -> None:
    for limiter, debt in (
        (RateLimiter("10/s"), 1.0),  # one window, however much too full
        (RateLimiter("10/s", algorithm=FixedWindow), 1.0),
        (RateLimiter("10/s", algorithm=SlidingWindowCounter(buckets=10)), 1.0),
        (RateLimiter("10/s", algorithm=TokenBucket), 1.6),  # 15 too many, and the next request
        (RateLimiter(algorithm=algorithms.Cooldown(10, 1)), 1.6),
        (RateLimiter(algorithm=TokenBucket("10/s", burst=1)), 2.5),
        (RateLimiter("10/s", algorithm=algorithms.LeakyBucket), 2.498),  # up to 2 ms early
        (RateLimiter(["10/s", "20/min"]), 60.0),
    ):
        await asyncio.sleep(100 - now() % 100)  # until a window begins
        began = now()
        async with limiter.throttle() as permit:
            permit.settle(25)
        assert permit.cost == 25
        assert (await limiter.peek()).retry_after == pytest.approx(debt), limiter
        assert await visit(limiter) - began == pytest.approx(debt), limiter


async def test_debt_delays_current_waiters_and_has_no_bound() -> None:
    limiter = RateLimiter("2/s", algorithm=TokenBucket)
    permit = await limiter.acquire(2)
    waiting = await queued(limiter, 2)
    permit.settle(4)
    assert await together(*waiting) == [1.5, 2.0]
    permit.settle(2e6)
    assert (await limiter.peek()).retry_after == 999_998.5


@pytest.mark.filterwarnings("ignore:<Permit of .* never entered:RuntimeWarning")
@pytest.mark.parametrize("child", [False, True])
async def test_permit_that_was_never_held_cannot_be_settled_or_reported(child: bool) -> None:
    limit = RateLimiter("10/s", concurrency_limit=1)
    limiter = RateLimiter("10/s", parent=limit) if child else limit
    held = await limiter.acquire()
    early, waits, cancelled = (limiter.throttle() for _ in range(3))
    waiter, victim = (asyncio.create_task(each.__aenter__()) for each in (waits, cancelled))
    await turns()
    victim.cancel()
    await turns()
    for permit in (early, waits, cancelled):
        with pytest.raises(RuntimeError, match="never held"):
            permit.settle(5)
        with pytest.raises(RuntimeError, match="not held yet"):
            permit.report_throttled()
        assert permit.cost == 1
    assert repr(cancelled) == "<Permit of 1, not acquired>"
    held.release()
    (await waiter).release()
    waits.settle(3)
    assert await remaining(limiter) == await remaining(limit) == 6
