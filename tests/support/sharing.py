"""Processes that share slots, simulated in one process by several limiters."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.stores import Claim, Granted, Key, MemoryStore
from tests.support.virtually import now


def _parts(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


class Shared(MemoryStore):
    """The store that all processes reach. It wakes all listeners when anything has come free."""

    def __init__(self) -> None:
        super().__init__(clock=now)
        self.wakes: dict[str, Callable[[], None]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._tables

    def parts(self, key: Key) -> dict[str, int]:
        table = self._tables.get(_parts(key))
        return {owner: part.held for owner, part in table.owners.items()} if table else {}

    async def claim(self, key: Key, claim: Claim) -> Granted:
        before, tickets = self.parts(key), self.tickets(key)
        granted = await super().claim(key, claim)
        after, left = self.parts(key), self.tickets(key) + granted.granted
        if sum(after.values()) - granted.granted < sum(before.values()) or left < tickets:
            for wake in list(self.wakes.values()):
                asyncio.get_running_loop().call_soon(wake)
        return granted

    def tickets(self, key: Key) -> int:
        table = self._tables.get(_parts(key))
        return len(table.queue) if table else 0


class Link(MemoryStore):
    def __init__(self, shared: Shared, *, wakes: bool = True) -> None:
        super().__init__(clock=now)
        self.shared = shared
        self.wakes = wakes
        self.claims: list[Claim] = []
        self.error: Exception | None = None
        #: While it is cleared, calls hang.
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.latency = 0.0
        self.under_way = self.most_under_way = 0

    async def claim(self, key: Key, claim: Claim) -> Granted:
        self.claims.append(claim)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.latency / 2)
            await self.may_answer.wait()
            if self.error is not None:
                raise self.error
            granted = await self.shared.claim(key, claim)
            await asyncio.sleep(self.latency / 2)
            return granted
        finally:
            self.under_way -= 1

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:
        if self.wakes:
            self.shared.wakes[owner] = wake
        return self.wakes

    def unlisten(self, owner: str) -> None:
        self.shared.wakes.pop(owner, None)

    def free(self, limit: int) -> int:
        return limit - sum(self.shared.parts("x").values())


def share(
    link: Link, limit: int = 3, *, lease: float = 3.0, per_process: Any = None, **options: Any
) -> RateLimiter:
    slots = SharedConcurrency(limit, lease, per_process)
    return RateLimiter(concurrency_limit=slots, store=link, key="x", **options)
