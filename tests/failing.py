"""A store that fails on demand, for several processes that each have a client of it."""

import asyncio
from collections.abc import Sequence
from typing import Any

from aiothrottle import StoreUnavailable
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key, MemoryStore, Store
from tests.virtually import now

__all__ = ["Client", "Server"]

PROCESSES = "aiothrottle.processes"


class Server(MemoryStore):
    """The server that all clients reach, while it is up."""

    def __init__(self) -> None:
        super().__init__(clock=now)
        #: "up"; "refuses" (connections); "stalls" (a second, and does nothing); "drops" (does it,
        #: and stalls); "reads" (and writes nothing).
        self.mode = "up"
        self.latency = 0.0
        #: The time and method of each call, except for the count of processes.
        self.asked: list[tuple[float, str]] = []
        self.recorded: list[float] = []

    def methods(self, since: float = 0.0) -> list[str]:
        return [method for at, method in self.asked if at >= since]


class Client(Store):
    """The store of one process."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def ask(self, method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        server = self.server
        mode = server.mode
        if arguments[0] != PROCESSES:
            server.asked.append((now(), method))
        await asyncio.sleep(server.latency / 2)
        if mode == "refuses" or (mode == "reads" and method != "peek"):
            raise StoreUnavailable("no") from ConnectionError()
        if mode == "stalls":
            await asyncio.sleep(1.0)
            raise StoreUnavailable("late") from TimeoutError()
        answer = await getattr(super(Server, server), method)(*arguments, **options)
        if mode == "drops":
            await asyncio.sleep(1.0)
            raise StoreUnavailable("late") from TimeoutError()
        await asyncio.sleep(server.latency / 2)
        return answer

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        answer: Answer = await self.ask("reserve", key, algorithm, costs, horizon=horizon)
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        await self.ask("refund", key, algorithm, cost, instant)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        answer: Answer = await self.ask("peek", key, algorithm, cost)
        return answer

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        answer: Answer = await self.ask("record", key, algorithm, cost)
        if key != PROCESSES:
            self.server.recorded.append(cost)
        return answer

    async def clear(self, key: Key) -> None:
        await self.server.clear(key)
