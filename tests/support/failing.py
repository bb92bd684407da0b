"""A store that fails on demand, for several processes that each have a client of it."""

import asyncio
from typing import Any

from aiothrottle import StoreUnavailable
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Claim, Key, MemoryStore, SlotStore
from tests.support.virtually import now

PROCESSES = "aiothrottle.processes"


class Server(MemoryStore):
    """The server that all clients reach, while it is up."""

    def __init__(self) -> None:
        super().__init__(clock=now)
        #: "up"; "refuses" (connections); "stalls" (a second, and does nothing); "drops" (does it,
        #: and stalls); "reads" (and writes nothing); "full" (writes nothing, and raises only if it
        #: has to).
        self.mode = "up"
        self.latency = 0.0
        #: The time and method of each call, except for the count of processes.
        self.asked: list[tuple[float, str]] = []
        self.recorded: list[float] = []

    def methods(self, since: float = 0.0) -> list[str]:
        return [method for at, method in self.asked if at >= since]


class Client(SlotStore):
    """The store of one process. It cannot wake the waiters for a slot."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        server = self.server
        mode = server.mode
        if arguments[0] != PROCESSES:
            server.asked.append((now(), method))
        await asyncio.sleep(server.latency / 2)
        is_read = method == "peek" or (mode == "full" and method == "refund" and not arguments[2])
        if mode == "refuses" or (mode in {"reads", "full"} and not is_read):
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

    async def reserve(self, *call: Any, **options: Any) -> Any:
        return await self.ask("reserve", *call, **options)

    async def refund(self, *call: Any, **options: Any) -> None:
        await self.ask("refund", *call, **options)

    async def peek(self, *call: Any, **options: Any) -> Any:
        return await self.ask("peek", *call, **options)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Any:
        answer = await self.ask("record", key, algorithm, cost)
        if key != PROCESSES:
            self.server.recorded.append(cost)
        return answer

    async def claim(self, key: Key, claim: Claim) -> Any:
        return await self.ask("claim", key, claim)

    async def clear(self, key: Key) -> None:
        await self.server.clear(key)
