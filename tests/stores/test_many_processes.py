"""More processes than tokens of a second share one key: they queue, and are served in turn."""

import asyncio
from collections.abc import Sequence
from typing import Any

from aiothrottle import RateLimiter
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key, MemoryStore
from tests.virtually import now, virtual

PROCESSES, RATE = 64, 10
# Seconds in which each process has about ten tokens.
SECONDS = 64.0


class Near(MemoryStore):
    """The store of all processes, which notes its calls."""

    def __init__(self) -> None:
        super().__init__(clock=now)
        self.horizons: list[float] = []

    async def reserve(
        self, key: Key, algorithm: Algorithm[Any], costs: Sequence[float], *, horizon: float = 0.0
    ) -> Answer:
        self.horizons.append(horizon)
        await asyncio.sleep(0.0005)
        answer = await super().reserve(key, algorithm, costs, horizon=horizon)
        await asyncio.sleep(0.0005)
        return answer


async def granted(store: MemoryStore, **options: Any) -> list[int]:  # noqa: ANN401 - of a limiter
    """Have each process ask all the time; return how often each was granted."""
    counts = [0] * PROCESSES

    async def work(process: int, limiter: RateLimiter) -> None:
        while True:
            async with limiter.throttle():
                counts[process] += 1

    limiters = [RateLimiter(RATE, store=store, key="k", **options) for _ in counts]
    tasks = [asyncio.create_task(work(*each)) for each in enumerate(limiters)]
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for limiter in limiters:
        await limiter.aclose()
    return counts


@virtual
async def test_many_processes_are_granted_in_turn() -> None:
    store = Near()
    counts = await granted(store)
    assert sum(counts) >= RATE * (SECONDS - 1)
    assert max(counts) - min(counts) <= 3
    assert len(store.horizons) < 1.6 * sum(counts)


@virtual
async def test_given_max_reservation_is_never_exceeded() -> None:
    store = Near()
    await granted(store, max_reservation=2.0)
    assert set(store.horizons) == {2.0}


@virtual
async def test_process_left_alone_reserves_less_ahead() -> None:
    store = Near()
    async with RateLimiter(RATE, store=store, key="k") as limiter:

        async def work() -> None:
            while True:
                async with limiter.throttle():
                    pass

        alone = asyncio.create_task(work())
        await granted(store)
        assert store.horizons[-1] > 5.0
        await asyncio.sleep(30.0)
        assert store.horizons[-1] < 3.0
        alone.cancel()
