"""Limiters of several processes on a store that fails, in virtual time."""

import asyncio
from typing import Any

from aiothrottle import RateLimiter
from aiothrottle.stores.store import OnStoreError
from tests.support.failing import Client, Server
from tests.support.virtually import now

OUTAGES = ["refuses", "stalls", "drops"]


def limiter_on(
    server: Server, choice: OnStoreError, rate: Any = "20/s", **options: Any
) -> RateLimiter:
    """Make the limiter of a process of its own."""
    return RateLimiter(rate, store=Client(server), key="k", on_store_error=choice, **options)


def process(choice: OnStoreError, rate: Any = "20/s", **options: Any) -> tuple[Server, RateLimiter]:
    server = Server()
    return server, limiter_on(server, choice, rate, **options)


async def fall(limiter: RateLimiter, server: Server, mode: str = "refuses") -> None:
    server.mode = mode
    await limiter.peek()
    assert limiter.statistics().store_up is False


async def back(server: Server, seconds: float = 2.0) -> None:
    """Let the server answer again; in two seconds all limiters find out that need it."""
    server.mode = "up"
    await asyncio.sleep(seconds)


class Workers:
    """Processes that acquire as often as they can."""

    def __init__(self, *limiters: RateLimiter, tasks: int = 20) -> None:
        self.granted_at: list[float] = []
        self.tasks = [asyncio.create_task(self.work(limiter)) for limiter in limiters * tasks]

    async def work(self, limiter: RateLimiter) -> None:
        while True:
            async with limiter.throttle():
                self.granted_at.append(now())

    def count(self, begin: float, end: float) -> int:
        return sum(begin <= instant < end for instant in self.granted_at)
