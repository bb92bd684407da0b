"""A store that is far away: as much of the limit is used as of a near one, and never more."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aiothrottle import LeakyBucket, RateLimiter, SlidingWindowLog, TokenBucket
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key, MemoryStore
from aiothrottle.testing import greatest_count
from tests.stores.test_shared import others
from tests.virtually import now, virtual, visits


class Far(MemoryStore):
    """A store to which each way takes half of the round trip."""

    def __init__(self, round_trip: float) -> None:
        super().__init__(clock=now)
        self.way = round_trip / 2
        self.calls = 0
        self.furthest = 0.0
        #: The instants that are taken and not refunded.
        self.instants: list[float] = []

    async def reserve(
        self, key: Key, algorithm: Algorithm[Any], costs: Sequence[float], *, horizon: float = 0.0
    ) -> Answer:
        self.calls += 1
        await asyncio.sleep(self.way)
        answer = await super().reserve(key, algorithm, costs, horizon=horizon)
        for cost, instant in zip(costs, answer.instants, strict=False):
            self.instants += [instant] * int(cost)
            self.furthest = max(self.furthest, instant - answer.now)
        await asyncio.sleep(self.way)
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        self.calls += 1
        await asyncio.sleep(self.way)
        await super().refund(key, algorithm, cost, instant)
        for _ in range(round(cost)):
            self.instants.remove(instant)
        await asyncio.sleep(self.way)


async def share(
    limiters: Sequence[RateLimiter], workers: int, seconds: float, *, stay: float = 0.0
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


ROUND_TRIPS = [0.0, 0.05, 0.1, 0.2]


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize(("rate", "workers"), [(10, 30), (100, 10), (100, 30), (1000, 30)])
@virtual
async def test_far_store_uses_the_whole_limit(
    round_trip: float, processes: int, rate: int, workers: int
) -> None:
    store = Far(round_trip)
    limiters = [RateLimiter(f"{rate}/s", store=store, key="k") for _ in range(processes)]
    granted = await share(limiters, workers, seconds=8.0)
    assert used(granted, rate, 2.0, 7.0) >= 0.95
    await asyncio.sleep(1.0)  # what nobody uses is on its way back
    assert greatest_count(store.instants, 1.0) <= rate
    assert len(store.instants) == len(granted), "nothing is left reserved"
    assert not others()


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, TokenBucket, LeakyBucket])
@pytest.mark.parametrize("processes", [1, 4])
@virtual
async def test_far_tokens_are_used_at_most_twenty_ms_late(
    algorithm: type[Algorithm[Any]], processes: int
) -> None:
    store = Far(0.2)
    limiters = [
        RateLimiter("100/s", algorithm=algorithm, store=store, key="k") for _ in range(processes)
    ]
    granted = await share(limiters, 30, seconds=5.0)
    assert used(granted, 100, 2.0, 5.0) >= 0.95
    await asyncio.sleep(1.0)
    late = [at - instant for at, instant in zip(granted, sorted(store.instants), strict=True)]
    assert min(late) >= 0.1 - 1e-9, "the way of the answer"
    assert max(late) <= 0.1 + 0.02 + 1e-9


@virtual
async def test_far_prefetch_goes_back_when_the_demand_ends() -> None:
    store = Far(0.2)
    limiter = RateLimiter("100/s", store=store, key="k")
    granted = await share([limiter], 10, seconds=5.0)
    assert store.calls < 0.1 * len(granted)
    assert limiter._engine.bucket.state.ready, "tokens were prefetched for tasks that come back"
    # A call is under way; the first unused one gets too old within a round trip; then they go back,
    # all at once.
    await asyncio.sleep(0.2 + 0.2 + 0.02 + 0.2 + 0.01)
    assert len(store.instants) == len(granted)
    assert not limiter._engine.bucket.state.ready


@virtual
async def test_far_crowd_that_does_not_come_back_prefetches_nothing() -> None:
    store = Far(0.2)
    limiter = RateLimiter("100/s", store=store, key="k")
    await asyncio.gather(*visits(limiter, 300))
    assert len(store.instants) == 300
    assert not limiter._engine.bucket.state.returned
    assert store.calls < 15


@virtual
async def test_max_reservation_bounds_what_a_far_store_reserves() -> None:
    store = Far(0.1)
    limiter = RateLimiter("100/s", store=store, key="k", max_reservation=0.15)
    granted = await share([limiter], 30, seconds=5.0)
    assert store.furthest <= 0.15
    assert used(granted, 100, 2.0, 5.0) >= 0.95


@virtual
async def test_cancelled_far_waiters_lose_nothing() -> None:
    store = Far(0.2)
    limiter = RateLimiter("100/s", store=store, key="k")
    sharing = asyncio.create_task(share([limiter], 50, seconds=100.0))
    await asyncio.sleep(3.13)
    sharing.cancel()
    await asyncio.gather(sharing, return_exceptions=True)
    await asyncio.sleep(1.0)
    assert len(store.instants) == limiter.statistics().granted
    assert not others()


@virtual
async def test_slots_do_not_keep_a_far_store_from_the_limit() -> None:
    store = Far(0.05)
    limiter = RateLimiter("100/s", concurrency_limit=5, store=store, key="k")
    granted = await share([limiter], 30, seconds=8.0, stay=0.01)
    assert used(granted, 100, 2.0, 7.0) >= 0.95
    await asyncio.sleep(1.0)
    assert len(store.instants) == len(granted)
    assert not others()


@virtual
async def test_far_heavy_requests_use_the_whole_limit() -> None:
    store = Far(0.1)
    limiter = RateLimiter("100/s", store=store, key="k")
    granted: list[float] = []

    async def work() -> None:
        while now() < 8.0:
            async with limiter.throttle(5):
                granted.append(now())

    await asyncio.gather(*(work() for _ in range(3)))
    assert used(granted, 20, 2.0, 7.0) >= 0.95
    await asyncio.sleep(1.0)
    assert len(store.instants) == 5 * len(granted)
    assert greatest_count(store.instants, 1.0) <= 100


@virtual
async def test_round_trip_that_grows_and_shrinks_is_followed() -> None:
    store = Far(0.0)
    limiter = RateLimiter("100/s", store=store, key="k")
    sharing = asyncio.create_task(share([limiter], 30, seconds=30.0))
    await asyncio.sleep(5.0)
    store.way = 0.1
    await asyncio.sleep(10.0)
    assert limiter._engine.shared._reserver.batching.way == 20  # type: ignore[union-attr]
    store.way = 0.0
    granted = await sharing
    assert used(granted, 100, 10.0, 15.0) >= 0.95
    assert used(granted, 100, 20.0, 29.0) >= 0.95
    assert limiter._engine.shared._reserver.batching.way == 0  # type: ignore[union-attr]
    await asyncio.sleep(1.0)
    assert len(store.instants) == len(granted)
