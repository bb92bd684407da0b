"""Specifies several rates at once, and a burst: all hold, and the wait is exact."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    Cooldown,
    CostTooHigh,
    FixedWindow,
    Rate,
    RateLimiter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.testing import greatest_count
from tests.virtually import now, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


async def grant_times(limiter: RateLimiter, count: int) -> list[float]:
    """Start so many requests at once, and return the times of their grants."""
    return await asyncio.gather(*(visit(limiter) for _ in range(count)))


@pytest.mark.parametrize(
    ("rates", "options", "expected"),
    [
        (["10/s", "2/10s"], {}, [0, 0, 10, 10, 20, 20, 30]),  # the first can never bind
        (["1/s", "100/2s"], {}, [0, 1, 2, 3, 4, 5, 6]),  # the second cannot
        (["2/s", "2/s"], {}, [0, 0, 1, 1, 2, 2, 3]),
        (["2/s"], {}, [0, 0, 1, 1, 2, 2, 3]),
        (["2/s", "3/10s"], {}, [0, 0, 1, 10, 10, 11, 20]),
        ([2, Rate(3, 10)], {}, [0, 0, 1, 10, 10, 11, 20]),
        (["3/s", "4/10s", "6/min"], {}, [0, 0, 0, 1, 10, 10, 60]),
        (["2/s", "3/10s"], {"guard": 0.5}, [0, 0, 1.5, 10.5, 10.5, 12, 21]),
        (["2/s", "4/min"], {"algorithm": TokenBucket}, [0, 0, 0.5, 1, 15, 30, 45]),
        (["2/s", "3/10s"], {"algorithm": FixedWindow}, [0, 0, 1, 10, 10, 11, 20]),
        ("4/s", {"burst": 1}, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5]),
        ("4/s", {"burst": 2}, [0, 0, 0.25, 0.5, 1, 1, 1.25]),
        ("4/s", {"burst": 4}, [0, 0, 0, 0, 1, 1, 1]),
        ("4/s", {"burst": 2, "algorithm": TokenBucket}, [0, 0, 0.25, 0.5, 0.75, 1, 1.25]),
        (["4/s", "6/min"], {"burst": 2}, [0, 0, 0.25, 0.5, 1, 1, 60]),
        ("1/4s", {"burst": 1}, [0, 4, 8, 12, 16, 20, 24]),
        ("0.5/s", {"burst": 1}, [0, 2, 4, 6, 8, 10, 12]),
    ],
)
@virtual
async def test_requests_start_as_soon_as_all_limits_allow(
    rates: Unchecked, options: dict[str, Unchecked], expected: list[float]
) -> None:
    starts = await grant_times(RateLimiter(rates, **options), 7)
    assert starts == pytest.approx(expected)
    await asyncio.sleep(1000)
    # The order in which the rates are given does not matter.
    if not isinstance(rates, str):
        backwards: Unchecked = [*reversed(rates)]
        again, began = RateLimiter(backwards, **options), now()
        assert [at - began for at in await grant_times(again, 7)] == pytest.approx(expected)


@virtual
async def test_no_limit_is_exceeded_and_none_is_wasted() -> None:
    starts = await grant_times(RateLimiter(["10/s", "500/min", "10000/day"]), 10_500)
    for limit, period in ((10, 1), (500, 60), (10_000, 86_400)):
        assert greatest_count(starts, period) == limit
    assert starts[9_999] == 19 * 60 + 49
    assert starts[10_000] == 86_400


@virtual
async def test_reported_wait_is_the_wait_needed() -> None:
    limiter = RateLimiter(["3/s", "5/10s", "12/min"])
    for _ in range(40):
        wait = (await limiter.peek()).retry_after
        began = now()
        if wait:
            await asyncio.sleep(wait * 0.999)
            assert not await limiter.try_acquire()
            await asyncio.sleep(wait - (now() - began))
        assert await limiter.try_acquire()


@virtual
async def test_cost_is_taken_from_all_limits_or_none() -> None:
    limiter = RateLimiter(["5/s", "8/min"])
    assert await limiter.try_acquire(5)
    await asyncio.sleep(1)
    for _ in range(20):
        assert not await limiter.try_acquire(4)  # fits the second, not the minute
    assert (await limiter.peek()).remaining == 3
    assert await limiter.try_acquire(3)
    assert (await limiter.peek()).remaining == 0
    await asyncio.sleep(1)
    assert (await limiter.peek()).retry_after == 58


@virtual
async def test_decision_combines_all_limits() -> None:
    limiter = RateLimiter(["5/s", "8/min"])
    decision = await limiter.try_acquire(4)
    assert (decision.limit, decision.remaining, decision.reset_after) == (5, 1, 60)
    rejected = await limiter.try_acquire(2)
    assert (rejected.remaining, rejected.retry_after, rejected.reset_after) == (1, 1, 60)


@pytest.mark.parametrize(
    ("limiter", "limit"),
    [
        (RateLimiter(["5/s", "8/min"]), 5),
        (RateLimiter(["50/s", "8/min"]), 8),
        (RateLimiter("10/s", burst=3), 3),
        (RateLimiter(["10/s", "2/min"], burst=3), 2),
    ],
)
def test_smallest_limit_bounds_the_cost(limiter: RateLimiter, limit: float) -> None:
    limiter.throttled(limit)
    with pytest.raises(CostTooHigh) as error:
        limiter.throttle(limit + 0.5)
    assert error.value.limit == limit


@pytest.mark.parametrize("burst", [1, 2, 3.5, 7, 10])
@virtual
async def test_burst_and_window_both_hold(
    burst: float,
) -> None:
    limiter = RateLimiter("10/s", burst=burst)
    starts = await grant_times(limiter, 50)
    assert greatest_count(starts, 1e-6) == int(burst)
    assert greatest_count(starts, 1) == 10
    for many in range(1, 10):
        for first, last in zip(starts, starts[many:], strict=False):
            assert many + 1 <= burst + (last - first) * 10 + 1e-6


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"rate_limit": []}, ValueError, "empty list"),
        ({"rate_limit": ["10/s", "x"]}, ValueError, "rate"),
        ({"rate_limit": ["10/s", None]}, TypeError, "rate"),
        ({"rate_limit": ["10/s", True]}, TypeError, "rate"),
        ({"rate_limit": {"10/s"}}, TypeError, "rate"),
        ({"rate_limit": "10/s", "burst": 11}, ValueError, "burst=11"),
        ({"rate_limit": ["10/s", "20/min"], "burst": 15}, ValueError, "burst=15"),
        ({"rate_limit": "10/s", "burst": 0}, ValueError, "burst"),
        ({"rate_limit": "10/s", "burst": 0.5}, ValueError, "burst"),
        ({"rate_limit": "10/s", "burst": -1}, ValueError, "burst"),
        ({"rate_limit": "10/s", "burst": float("nan")}, ValueError, "burst"),
        ({"rate_limit": "10/s", "burst": "5"}, TypeError, "burst"),
        ({"rate_limit": "10/s", "burst": True}, TypeError, "burst"),
        ({"burst": 5}, ValueError, "burst"),
        ({"rate_limit": ["1/s", "2/s"], "algorithm": SlidingWindowLog(5)}, ValueError, "two rates"),
        ({"rate_limit": "1/s", "algorithm": Cooldown(3, 60)}, ValueError, "rate"),
        ({"rate_limit": "1/s", "algorithm": WaitUntil(1, 5, 10)}, ValueError, "rate"),
    ],
)
def test_contradictions_raise_by_name(
    arguments: dict[str, Unchecked], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        RateLimiter(**arguments)


@virtual
async def test_costs_and_slots_work_with_several_rates() -> None:
    limiter = RateLimiter(["4/s", "10/min"], concurrency_limit=1)

    async def stay(cost: float) -> float:
        async with limiter.throttle(cost):
            began = now()
            await asyncio.sleep(0.5)
            return began

    starts = await asyncio.gather(*map(stay, (4, 1, 4, 1, 0.5)))
    assert starts == [0, 1, 2, 3, 60]
    assert list(itertools.accumulate((4, 1, 4, 1)))[-1] == 10


# --- A burst beside a rate ---


@pytest.mark.parametrize(
    ("limiter", "expected"),
    [
        (lambda: RateLimiter("4/s", burst=2), [0, 0, 0.25, 0.5, 1.0, 1.0, 1.25, 1.5]),
        (
            lambda: RateLimiter(["4/s", "6/min"], burst=2, algorithm=TokenBucket),
            [0, 0, 0.25, 0.5, 0.75, 1.0, 10, 20],
        ),
        (
            lambda: RateLimiter("4/s", burst=2, algorithm=TokenBucket),
            [0, 0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5],
        ),
    ],
    ids=["a window", "several buckets", "a bucket"],
)
@virtual
async def test_burst_beside_a_rate_adds_one_limit(
    limiter: Callable[[], RateLimiter], expected: list[float]
) -> None:
    assert await asyncio.gather(*visits(limiter(), 8)) == pytest.approx(expected)
