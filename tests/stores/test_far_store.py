"""A store that is far away: as much of the limit is used as of a near one, and never more."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aiothrottle import LeakyBucket, RateLimiter, SlidingWindowLog, TokenBucket
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores.batching import Batching
from aiothrottle.testing import greatest_count
from tests.support.virtually import now, visit, visits
from tests.support.watching import Watched, others


class Far(Watched):
    def __init__(self, round_trip: float) -> None:
        super().__init__()
        self.move(round_trip)

    def move(self, round_trip: float) -> None:
        self.way = self.latency = round_trip / 2


async def share(
    limiters: Sequence[RateLimiter], workers: int, seconds: float, stay: float = 0.0
) -> list[float]:
    """Have so many workers of each limiter ask for so long; return when they were granted."""
    granted: list[float] = []

    async def work(limiter: RateLimiter) -> None:
        while now() < seconds:
            async with limiter.throttle():
                granted.append(now())
                if stay:
                    await asyncio.sleep(stay)

    await asyncio.gather(*(work(limiter) for limiter in limiters for _ in range(workers)))
    return granted


def used(granted: Sequence[float], rate: float, begin: float, end: float) -> float:
    return sum(begin <= at < end for at in granted) / (rate * (end - begin))


@pytest.mark.parametrize(
    ("round_trip", "processes", "rate", "workers", "options"),
    [
        (0.0, 4, 100, 30, {}),
        *((0.1, processes, rate, 10, {}) for processes in (1, 4) for rate in (10, 100)),
        *((0.2, 1, rate, 30, {}) for rate in (100, 1000)),
        (0.05, 4, 1000, 30, {}),
        (0.05, 1, 100, 30, {"concurrency_limit": 5}),
        (0.1, 1, 100, 30, {"max_reservation": 0.15}),
    ],
)
async def test_far_store_uses_the_whole_limit(
    round_trip: float, processes: int, rate: int, workers: int, options: dict[str, float]
) -> None:
    store = Far(round_trip)
    limits: dict[str, Any] = {"store": store, "key": "k", **options}
    limiters = [RateLimiter(f"{rate}/s", **limits) for _ in range(processes)]
    stay = 0.01 if "concurrency_limit" in options else 0.0
    granted = await share(limiters, workers, seconds=6.0, stay=stay)
    assert used(granted, rate, 2.0, 5.0) >= 0.95
    await asyncio.sleep(1.0)  # what nobody uses is on its way back
    assert greatest_count(store.taken(), 1.0) <= rate
    assert len(store.taken()) == len(granted), "nothing is left reserved"
    assert max(store.horizons) <= options.get("max_reservation", 60.0)
    assert not others()


def test_call_of_a_far_store_is_bounded() -> None:
    batching = Batching.of(SlidingWindowLog("100000/s"), None, round_trip=1.0)
    assert batching.room(0.0) == batching.room(1000.0) == 1024


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, TokenBucket, LeakyBucket])
async def test_far_tokens_are_used_at_most_twenty_ms_late(algorithm: type[Algorithm[Any]]) -> None:
    store = Far(0.2)
    limits: dict[str, Any] = {"algorithm": algorithm, "store": store, "key": "k"}
    limiters = [RateLimiter("100/s", **limits) for _ in range(4)]
    granted = await share(limiters, 30, seconds=4.0)
    assert used(granted, 100, 2.0, 4.0) >= 0.95
    await asyncio.sleep(1.0)
    late = [at - instant for at, instant in zip(granted, store.taken(), strict=True)]
    assert min(late) >= 0.1 - 1e-9, "the way of the answer"
    assert max(late) <= 0.1 + 0.02 + 1e-9


async def test_far_prefetch_is_for_tasks_that_come_back() -> None:
    store = Far(0.2)
    limiter = RateLimiter("100/s", algorithm=TokenBucket, store=store, key="k")
    granted = await share([limiter], 10, seconds=5.0)
    assert store.calls.total() < 0.1 * len(granted)
    assert len(store.taken()) > len(granted), "tokens were prefetched for tasks that come back"
    # A call is under way; the first unused one gets too old within a round trip; then they go back,
    # all at once.
    await asyncio.sleep(0.2 + 0.2 + 0.02 + 0.2 + 0.01)
    assert len(store.taken()) == len(granted)
    store = Far(0.2)
    await asyncio.gather(*visits(RateLimiter("100/s", store=store, key="k"), 300))
    await asyncio.sleep(1.0)
    assert len(store.instants) == 300
    assert not store.refunds
    assert store.calls.total() < 15


async def test_first_requests_prefetch_nothing() -> None:
    store = Far(0.01)
    limiter = RateLimiter("3/min", store=store, key="k")
    for _ in range(2):
        await visit(limiter)
        await asyncio.sleep(1)
    assert store.costs == [[1], [1]]


@pytest.mark.parametrize("cost", [1, 3, 5])
async def test_reservations_of_light_waiters_do_not_starve_one_ahead_of_them(cost: float) -> None:
    rates: list[Any] = ["20/s", "30/min"]  # the tokens of one call come two seconds apart
    limiter = RateLimiter(rates, algorithm=LeakyBucket, guard=0.0, store=Far(0.2), key="x")
    await visit(limiter)
    light = visits(limiter, 6)
    await asyncio.sleep(2.0)
    async with asyncio.timeout(60.0):
        first, second, *others = await asyncio.gather(visit(limiter, cost, priority=1), *light)
    assert max(first, second) < min(others)  # one of them was about to start
