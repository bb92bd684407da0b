"""Specifies behaviour that limiters are known to get wrong.

Every defect here was measured in a limiter that people use: benchmarks/ runs some of them side by
side with ours.
"""

import asyncio
import itertools
from typing import Any

import pytest

from aiothrottle import (
    CostTooHigh,
    FixedWindow,
    KeyedRateLimiter,
    Rate,
    RateLimiter,
    TokenBucket,
)
from aiothrottle.algorithms import Algorithm
from aiothrottle.testing.audit import greatest_count
from tests.asking import admit
from tests.virtually import now, virtual


async def grant_times(limiter: RateLimiter, size: int) -> list[float]:
    """Start so many requests at once; return the instants at which they were granted, in order."""
    instants: list[float] = []

    async def one() -> None:
        async with limiter.throttle():
            instants.append(now())

    await asyncio.gather(*(one() for _ in range(size)))
    return instants


@pytest.mark.parametrize("rate", [10, 100])
@virtual
async def test_no_window_exceeds_the_limit(rate: int) -> None:
    limiter = RateLimiter(rate)
    await asyncio.sleep(5)
    instants = await grant_times(limiter, 4 * rate)
    assert greatest_count(instants, 1.0) == rate
    assert instants[-1] - instants[0] == pytest.approx(3.0)


@virtual
async def test_heavy_request_is_not_starved_by_light_ones() -> None:
    limiter = RateLimiter("10/s", algorithm=TokenBucket)
    await limiter.acquire(10)

    async def light() -> None:
        while True:
            await limiter.acquire()

    flood = [asyncio.create_task(light()) for _ in range(2)]
    begun = now()
    heavy = asyncio.create_task(limiter.acquire(8))
    await heavy
    # Two light requests had come before it.
    assert now() - begun <= 1.0 + 1e-6
    for task in flood:
        task.cancel()


@virtual
async def test_new_rate_applies_to_waiters_at_once() -> None:
    limiter = RateLimiter(10, algorithm=TokenBucket(burst=1))
    await limiter.acquire()
    waiting = asyncio.create_task(grant_times(limiter, 10))
    await asyncio.sleep(0.001)
    limiter.update(rate_limit=100)
    assert (await waiting)[-1] < 0.15


def test_second_event_loop_is_served_like_the_first() -> None:
    limiter = RateLimiter(1000, concurrency_limit=1)

    async def main() -> int:
        return len(await grant_times(limiter, 5))

    assert [asyncio.run(main()) for _ in range(3)] == [5, 5, 5]


@virtual
async def test_slot_of_a_cancelled_waiter_is_not_lost() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    held = await limiter.acquire()
    first, second = (asyncio.create_task(limiter.acquire()) for _ in range(2))
    await asyncio.sleep(0.1)
    held.release()
    first.cancel()
    async with asyncio.timeout(0.001):
        await second


@virtual
async def test_free_key_never_waits_behind_a_busy_one() -> None:
    limiter = KeyedRateLimiter("1/min", algorithm=TokenBucket)
    waiting = [asyncio.create_task(limiter.acquire("busy")) for _ in range(10)]
    await asyncio.sleep(1)
    begun = now()
    await limiter.acquire("free")
    assert await limiter.try_acquire("another")
    assert now() == begun
    for task in waiting:
        task.cancel()


@virtual
async def test_each_key_has_a_bucket_of_its_own() -> None:
    limiter = KeyedRateLimiter("1/min")
    assert [bool(await limiter.try_acquire(key)) for key in ("a", "b", "a")] == [True, True, False]


@virtual
async def test_waits_have_no_slack_and_no_whole_seconds() -> None:
    limiter = RateLimiter("50/s", algorithm=TokenBucket(burst=1))
    for _ in range(11):
        await limiter.acquire()
    assert now() == pytest.approx(0.2)
    assert (await limiter.peek()).retry_after == pytest.approx(0.02)


@virtual
async def test_cost_that_never_fits_is_rejected_at_once() -> None:
    limiter = RateLimiter("10/s", algorithm=TokenBucket(burst=5))
    with pytest.raises(CostTooHigh):
        await limiter.acquire(6, timeout=2)
    assert now() == 0.0


@virtual
async def test_steady_rate_stays_steady_with_many_waiters() -> None:
    instants = await grant_times(RateLimiter("20/s", algorithm=TokenBucket(burst=1)), 40)
    gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    assert gaps == pytest.approx([0.05] * 39)


@pytest.mark.parametrize(
    "algorithm",
    [TokenBucket("200/s", burst=60), FixedWindow("200/s")],
    ids=lambda a: type(a).__name__,
)
def test_small_fast_bucket_is_kept_while_full(algorithm: Algorithm[Any]) -> None:
    """A store that rounds the time to live down to 0 s has no limit at all."""
    state = algorithm.start()
    admitted = sum(admit(algorithm, state, index * 0.07 / 400, 1) for index in range(400))
    assert admitted <= algorithm.capacity + 0.07 * 200
    assert algorithm.reset_after(state, 0.07) > 0.0


@virtual
async def test_rejected_request_spends_nothing() -> None:
    limiter = RateLimiter(Rate(10, 60), algorithm=FixedWindow)
    hits = [bool(await limiter.try_acquire(cost)) for cost in (8, 5, 1, 1, 1)]
    assert hits == [True, False, True, True, False]


@virtual
async def test_equal_requests_are_served_in_order_of_arrival() -> None:
    limiter, order = RateLimiter(1000, concurrency_limit=50), list[int]()

    async def one(name: int) -> None:
        async with limiter.throttle():
            order.append(name)
            await asyncio.sleep(0.01)

    await asyncio.gather(*map(one, range(5000)))
    assert order == list(range(5000))
