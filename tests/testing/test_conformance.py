"""Specifies the behaviour that the test suites of other limiters require, written anew.

Each test names the suite whose behaviour it describes. `tests/limiter/test_common_defects.py` has
the cases that those suites omit.
"""

import asyncio

import pytest

from aiothrottle import CostTooHigh, FixedWindow, Rate, RateLimiter, ThrottleTimeout, TokenBucket
from tests.virtually import now, turns, virtual


# mjpieters/aiolimiter, tests/test_aiolimiter.py: has capacity up to the limit, and then waits.
@virtual
async def test_capacity_is_granted_at_once_then_the_rate() -> None:
    limiter, instants = RateLimiter(Rate(10, 5), algorithm=TokenBucket), list[float]()
    for _ in range(14):
        (await limiter.acquire()).release()
        instants.append(now())
    assert instants == pytest.approx([0.0] * 10 + [0.5, 1.0, 1.5, 2.0])


# mjpieters/aiolimiter: more than the capacity at once is an error.
@virtual
async def test_cost_above_the_capacity_is_an_error() -> None:
    limiter = RateLimiter(Rate(10, 60), algorithm=TokenBucket)
    with pytest.raises(CostTooHigh):
        await limiter.acquire(11)
    await limiter.acquire(10)
    assert now() == 0.0


# mjpieters/aiolimiter, test_task_cancelled: the waiter behind a cancelled one is still granted.
@virtual
async def test_waiter_behind_a_cancelled_one_takes_its_place() -> None:
    limiter = RateLimiter(1)
    await limiter.acquire()
    first, second = (asyncio.create_task(limiter.acquire()) for _ in range(2))
    await turns(2)
    first.cancel()
    await second
    assert now() == 1.0


# bharel/asynciolimiter, tests/test_limiter.py: after a stall of the CPU the lost time is not
# made up for by more than the limit.
@virtual
async def test_long_stall_grants_at_most_the_burst() -> None:
    limiter, instants = RateLimiter(10, algorithm=TokenBucket(burst=3)), list[float]()
    await asyncio.sleep(3600)
    for _ in range(6):
        await limiter.acquire()
        instants.append(now() - 3600)
    assert instants == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.3])


# vutran1710/PyrateLimiter, test_blocking_timeouts.py: try, wait with a timeout, wait for ever.
@virtual
async def test_try_timeout_and_endless_wait_differ() -> None:
    limiter = RateLimiter(1)
    assert await limiter.try_acquire()
    assert not await limiter.try_acquire()
    with pytest.raises(ThrottleTimeout) as caught:
        await limiter.acquire(timeout=0.5)
    assert (now(), caught.value.retry_after) == (0.0, 1.0)
    await limiter.acquire(timeout=1.5)
    assert now() == 1.0
    await limiter.acquire()
    assert now() == 2.0


# vutran1710/PyrateLimiter, test_multi_bucket.py: of several rates the strictest counts.
@virtual
async def test_exhausted_rate_of_several_decides() -> None:
    limiter, instants = RateLimiter(["2/s", "3/min"]), list[float]()
    for _ in range(4):
        await limiter.acquire()
        instants.append(now())
    assert instants == [0.0, 0.0, 1.0, 60.0]


# alisaifee/limits, tests/test_strategy.py: a window with costs, and what it reports.
@virtual
async def test_window_reports_remaining_and_reset() -> None:
    limiter = RateLimiter("10/s", algorithm=FixedWindow)
    await asyncio.sleep(5.25)
    decision = await limiter.try_acquire(6)
    assert (decision.remaining, decision.reset_after) == (4, 0.75)
    assert not await limiter.try_acquire(5)
    assert await limiter.try_acquire(4)
    assert (await limiter.peek()).retry_after == 0.75
    await asyncio.sleep(0.75)
    assert (await limiter.peek()).remaining == 10


# ZhuoZhuoCrayon/throttled-py, tests/rate_limiter/parametrizes.py: cost to limited and remaining.
@pytest.mark.parametrize(
    ("costs", "allowed", "remaining"),
    [
        ([0], [True], 10),
        ([1], [True], 9),
        ([10], [True], 0),
        ([5, 6], [True, False], 5),
        ([10, 0], [True, True], 0),
        ([4, 4, 4, 2], [True, True, False, True], 0),
    ],
)
@virtual
async def test_table_of_costs(costs: list[int], allowed: list[bool], remaining: int) -> None:
    limiter = RateLimiter(Rate(10, 60), algorithm=TokenBucket)
    assert [bool(await limiter.try_acquire(cost)) for cost in costs] == allowed
    assert (await limiter.peek()).remaining == pytest.approx(remaining)


# feuerstein-org/steindamm, tests/token_bucket: how long a run takes, over a grid of rates.
@pytest.mark.parametrize("rate", [1, 5, 50])
@pytest.mark.parametrize("burst", [1, 4])
@pytest.mark.parametrize("count", [1, 9])
@virtual
async def test_run_takes_the_time_of_its_excess(rate: int, burst: int, count: int) -> None:
    limiter = RateLimiter(rate, algorithm=TokenBucket(burst=burst))
    await asyncio.gather(*(limiter.acquire() for _ in range(count)))
    assert now() == pytest.approx(max(0, count - burst) / rate)
