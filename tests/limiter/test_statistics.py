"""Specifies the statistics of a limiter: its counters and its current state."""

import asyncio
import random
import statistics
from dataclasses import fields, replace
from typing import Any

import pytest

from aiothrottle import LimiterClosed, QueueFull, RateLimiter, ThrottleTimeout, TokenBucket
from tests.virtually import turns, virtual


async def visit(limiter: RateLimiter, stay: float = 0.0, *, timeout: float | None = None) -> None:
    async with limiter.throttle(timeout=timeout):
        await asyncio.sleep(stay)


def visits(limiter: RateLimiter, count: int, stay: float = 0.0) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(visit(limiter, stay)) for _ in range(count)]


def about(seconds: float) -> Any:  # noqa: ANN401 - the type of pytest.approx
    """Allow for the classes of the histogram."""
    return pytest.approx(seconds, rel=0.1)


def test_new_limiter_has_zero_statistics() -> None:
    stats = RateLimiter("10/s", concurrency_limit=2).statistics()
    assert stats.quota_remaining is None
    assert (stats.rate_limit, stats.concurrency_limit, stats.guard) == (None, 2, 0.0)
    assert stats.burst == 10
    assert stats.resources == {}
    of_numbers = [field.name for field in fields(stats) if field.name != "resources"]
    stats = replace(
        stats,
        quota_remaining=0,
        rate_limit=0,
        concurrency_limit=0,
        guard=0,
        burst=0,
        store_up=False,
    )
    assert {name: getattr(stats, name) for name in of_numbers} == dict.fromkeys(of_numbers, 0)


@virtual
async def test_wait_of_no_time_counts_as_none() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    held = await limiter.acquire()
    tasks = visits(limiter, 2)
    await turns()
    held.release()
    await asyncio.gather(*tasks)
    assert limiter.statistics().waited_total == 0


@virtual
async def test_statistics_follow_grants_and_releases() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=2)
    tasks = visits(limiter, 7, stay=0.25)
    await asyncio.sleep(0.125)
    stats = limiter.statistics()
    assert (stats.granted, stats.in_flight, stats.waiting) == (2, 2, 5)
    assert (stats.utilisation, stats.waited_total, stats.waited_max) == (1, 0, 0)
    await asyncio.sleep(1)
    stats = limiter.statistics()
    assert (stats.granted, stats.in_flight, stats.waiting) == (4, 2, 3)
    assert (stats.waited_total, stats.waited_max) == (2, 1)
    await asyncio.gather(*tasks)
    stats = limiter.statistics()
    assert (stats.granted, stats.in_flight, stats.waiting) == (7, 0, 0)
    assert (stats.waited_total, stats.waited_max) == (2 + 4 + 3, 3)
    assert stats.rejected == 0
    assert stats.utilisation == 0.5
    await asyncio.sleep(1)
    assert limiter.statistics().utilisation == 0


@virtual
async def test_all_kinds_of_rejections_are_counted() -> None:
    limiter = RateLimiter("1/s", max_queue=1)
    await visit(limiter)
    assert not await limiter.try_acquire()
    assert limiter.statistics().rejected == 1
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, timeout=0.5)
    assert limiter.statistics().rejected == 2
    waiting = visits(limiter, 1)
    await turns()
    with pytest.raises(QueueFull):
        await visit(limiter)
    assert limiter.statistics().rejected == 3
    # A cancelled waiter, a peek and a request after the close are not rejections.
    waiting[0].cancel()
    await turns()
    await limiter.peek()
    await limiter.aclose()
    with pytest.raises(LimiterClosed):
        await visit(limiter)
    stats = limiter.statistics()
    assert (stats.rejected, stats.granted, stats.waiting) == (3, 1, 0)


@virtual
async def test_try_acquire_counts_but_record_does_not() -> None:
    limiter = RateLimiter("9/s", concurrency_limit=9)
    permit = await limiter.acquire()
    decision = await limiter.try_acquire()
    await limiter.record(3)
    stats = limiter.statistics()
    assert (stats.granted, stats.in_flight) == (2, 2)
    assert stats.utilisation == pytest.approx(5 / 9)
    permit.release()
    assert decision.permit is not None
    decision.permit.release()
    assert limiter.statistics().in_flight == 0


@virtual
async def test_percentiles_count_requests_that_did_not_wait() -> None:
    limiter = RateLimiter("90/100s")
    await asyncio.gather(*visits(limiter, 100))
    stats = limiter.statistics()
    assert (stats.waited_p50, stats.waited_p90) == (0, 0)
    assert stats.waited_p99 == about(100)
    assert stats.waited_max == 100
    assert stats.waited_total == 1000


@pytest.mark.parametrize("longest", [0.001, 1.0, 3600.0, 1e6])
@virtual
async def test_percentiles_are_off_by_a_tenth_at_most(longest: float) -> None:
    limiter, chance, waits = RateLimiter(concurrency_limit=1), random.Random(7), list[float]()
    for _ in range(500):
        permit = await limiter.acquire()
        (waiter,) = visits(limiter, 1)
        await turns(2)
        waits += [0.0, longest * chance.random() ** 3]
        await asyncio.sleep(waits[-1])
        permit.release()
        await waiter
    stats = limiter.statistics()
    assert stats.granted == 1000
    assert stats.waited_total == pytest.approx(sum(waits))
    assert stats.waited_max == pytest.approx(max(waits))
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    assert stats.waited_p50 == pytest.approx(0, abs=longest / 1000)
    assert stats.waited_p90 == pytest.approx(cuts[89], rel=0.15)
    assert stats.waited_p99 == pytest.approx(cuts[98], rel=0.15)


@virtual
async def test_paused_for_counts_down() -> None:
    limiter = RateLimiter("10/s")
    await visit(limiter)
    limiter.pause(10)
    assert limiter.statistics().paused_for == 10
    await asyncio.sleep(4)
    assert limiter.statistics().paused_for == 6
    await asyncio.sleep(10)
    assert limiter.statistics().paused_for == 0


@virtual
async def test_utilisation_is_the_used_share_of_the_limit() -> None:
    window, bucket = RateLimiter("10/s"), RateLimiter("10/s", algorithm=TokenBucket)
    for limiter, later in ((window, 0.8), (bucket, 0.3)):
        async with limiter.throttle(8) as permit:
            assert limiter.statistics().utilisation == pytest.approx(0.8)
            await asyncio.sleep(0.5)
            assert limiter.statistics().utilisation == pytest.approx(later)
            permit.settle(1000)
        assert limiter.statistics().utilisation == 1  # in debt, but at most 1
    assert RateLimiter().statistics().utilisation == 0


@virtual
async def test_thousands_of_grants_are_counted_exactly() -> None:
    limiter = RateLimiter(concurrency_limit=10)
    for count in range(1, 5001):
        async with limiter.throttle():
            pass
        if count % 500 == 0:
            assert limiter.statistics().granted == count
    stats = limiter.statistics()
    assert (stats.granted, stats.waited_p99, stats.in_flight) == (5000, 0, 0)


@virtual
async def test_reading_statistics_changes_nothing() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=1)
    tasks = visits(limiter, 5, stay=0.125)
    while not all(task.done() for task in tasks):
        stats = limiter.statistics()
        assert stats == limiter.statistics()
        assert stats.granted + stats.waiting <= 5
        await asyncio.sleep(0.0625)
    assert asyncio.get_running_loop().time() == pytest.approx(2.125, abs=0.07)
