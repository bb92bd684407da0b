"""A store in memory that records its calls, and the background tasks of limiters on a store."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aiothrottle import RateLimiter, SlidingWindowLog
from aiothrottle.stores import Answer, Key, MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.support.virtually import now


class Watched(MemoryStore):
    """A store that records its calls, and answers after `latency`, or when `may_answer` is set.

    A reservation is decided `way` seconds after its call.
    """

    def __init__(self, *, latency: float = 0.0, way: float = 0.0) -> None:
        super().__init__(clock=now)
        self.latency = latency
        self.way = way
        self.calls = Counter[str]()
        self.costs: list[list[float]] = []
        self.asked_at: list[float] = []
        self.horizons: list[float] = []
        self.refunds: list[tuple[float, float]] = []
        self.instants: list[float] = []
        self.keys: set[Key] = set()
        self.open = self.most_open = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    async def answer(self, method: str, key: Key) -> None:
        self.calls[method] += 1
        self.keys.add(key)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.latency / 2)
            await self.may_answer.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.open -= 1

    async def reserve(
        self, key: Key, algorithm: Any, costs: Sequence[float], **options: Any
    ) -> Answer:
        self.costs.append(list(costs))
        self.asked_at.append(now())
        self.horizons.append(options.get("max_reservation", 0.0))
        if self.way:
            await asyncio.sleep(self.way)
        answer = await super().reserve(key, algorithm, costs, **options)
        self.instants += answer.instants
        await self.answer("reserve", key)
        await asyncio.sleep(self.latency / 2)
        return answer

    async def refund(self, key: Key, algorithm: Any, cost: float, instant: float) -> None:
        await self.answer("refund", key)
        self.refunds.append((instant, cost))
        await super().refund(key, algorithm, cost, instant)

    async def peek(self, key: Key, algorithm: Any, cost: float = 1.0) -> Answer:
        await self.answer("peek", key)
        return await super().peek(key, algorithm, cost)

    async def record(self, key: Key, algorithm: Any, cost: float = 1.0) -> Answer:
        await self.answer("record", key)
        return await super().record(key, algorithm, cost)

    def taken(self) -> list[float]:
        """Return the instants that were not refunded."""
        instants = list(self.instants)
        for instant, refunded in self.refunds:
            for _ in range(round(refunded)):
                instants.remove(instant)
        return sorted(instants)

    async def remaining(self, rate: str) -> float:
        return (await MemoryStore.peek(self, "k", SlidingWindowLog(rate))).remaining


def watched(
    rate: Any = None, *, latency: float = 0.0, **options: Any
) -> tuple[Watched, RateLimiter]:
    store = Watched(latency=latency)
    return store, RateLimiter(rate, store=store, key="k", **options)


def own_tasks() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("aiothrottle")]


def others() -> set[str]:
    return {task.get_name() for task in own_tasks()}


async def rest() -> None:
    for _ in range(1000):
        if not others():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{others()} did not end")


def sweep() -> None:
    """Cancel all tasks of the package, as code does that is about to close the loop."""
    for task in own_tasks():
        task.cancel()


def stand_still(seconds: float) -> None:
    """Let virtual time pass within this turn of the loop, as for a process that is suspended."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._set_time(loop.time() + seconds)
