"""Processes that share a limit by compare and swap: `uv run benchmarks/swap_stores.py`.

Eight processes ask for one key all the time: in a file of SQLite, on memcached and on SecantusDB,
the substitute for MongoDB of the tests (group `mongodb-test`). A process is simulated by a client,
a store and a limiter of its own on one event loop, which makes the same calls. Grants are counted
by the store's clock. A server or a driver that is not installed is left out.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextlib import AbstractContextManager as Context
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from counting import Counting
from measure import Report, arguments, jain, show
from server import memcached, mongodb

from aiothrottle import RateLimiter
from aiothrottle.stores import SQLiteStore
from aiothrottle.testing import greatest_count

__all__ = ["report"]

PROCESSES = 8
# Tokens per second, tasks of each process, and the part of the limit to use.
SHARED = ((10, 2, 0.95), (2000, 4, 0.8))
# Seconds before those that are counted.
WARM_UP = 2.0

Place: TypeAlias = Any
"""The port of a server, or a folder."""
Open: TypeAlias = Callable[[Place], AbstractAsyncContextManager[Counting]]
"""Opens a store there, with a client of its own."""


@asynccontextmanager
async def open_sqlite(folder: str) -> AsyncGenerator[Counting]:
    """Open a store in a file."""

    class Counted(Counting, SQLiteStore):
        """A store of SQLite that counts."""

    store = Counted(Path(folder, "limits.db"), timeout=10)
    yield store
    await store.aclose()


@asynccontextmanager
async def open_memcached(port: int) -> AsyncGenerator[Counting]:
    """Open a store on memcached."""
    from emcache import MemcachedHostAddress, create_client  # may be missing

    from aiothrottle.stores.memcached import MemcachedStore  # needs emcache

    class Counted(Counting, MemcachedStore):
        """A store of memcached that counts."""

    client = await create_client([MemcachedHostAddress("127.0.0.1", port)], timeout=10.0)
    try:
        yield Counted(client)
    finally:
        await client.close()


@asynccontextmanager
async def open_mongodb(port: int) -> AsyncGenerator[Counting]:
    """Open a store on MongoDB."""
    from pymongo import AsyncMongoClient  # may be missing

    from aiothrottle.stores.mongo import MongoStore  # needs pymongo

    class Counted(Counting, MongoStore):
        """A store of MongoDB that counts."""

    async with AsyncMongoClient[dict[str, object]](port=port, retryWrites=False) as client:
        yield Counted(client, timeout=10)


async def share(
    place: Place, opened: Open, rate: int, tasks: int, seconds: float
) -> list[Counting]:
    """Let the processes ask for one key; return their stores."""
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(place)) for _ in range(PROCESSES)]
        key = f"{rate}/s"
        # By the server's clock no guard is needed.
        limiters = [RateLimiter(key, guard=0.0, store=store, key=key) for store in stores]

        async def ask(limiter: RateLimiter) -> None:
            while True:
                async with limiter.throttle():
                    pass

        asking = [asyncio.create_task(ask(limiter)) for limiter in limiters * tasks]
        done, _ = await asyncio.wait(asking, timeout=WARM_UP + seconds + 0.5)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for task in done:  # it failed
            task.result()
        for limiter in limiters:
            await limiter.aclose()
        return stores


def show_store(report: Report, name: str, place: Place, opened: Open, seconds: int) -> None:
    """Add the table and the targets of a store."""
    rows = [["limit", "used", "most in any second", "Jain", "calls per grant"]]
    for rate, tasks, wanted in SHARED:
        stores = asyncio.run(share(place, opened, rate, tasks, seconds))
        taken = [[it for each in store.taken.values() for it in each] for store in stores]
        begin = min(min(each) for each in taken) + WARM_UP
        counts = [sum(begin <= it < begin + seconds for it in each) for each in taken]
        used = sum(counts) / (rate * seconds)
        most = greatest_count(sorted(it for each in taken for it in each), 1.0)
        calls = sum(store.calls for store in stores) / sum(map(len, taken))
        fair, what = jain(counts), f"{name}, {rate:,}/s"
        rows.append([f"{rate:,}/s", f"{used:.1%}", f"{most:,}", f"{fair:.3f}", f"{calls:.2f}"])
        report.want_share(f"{what}: used of the limit", used, wanted)
        report.want(f"{what}: most in any second", most, rate, "")
        if rate == SHARED[0][0]:
            report.want_share(f"{what}: Jain's fairness", fair, 0.95)
    report.add(f"{name}, {PROCESSES} processes, {seconds} s.", rows)


def report(*, seconds: int = 20) -> Report:
    """Measure everything."""
    found = Report("Stores of compare and swap")
    servers: list[tuple[str, str, Callable[[], Context[Place]], Open]] = [
        ("SQLite", "sqlite3", TemporaryDirectory, open_sqlite),
        ("memcached", "emcache", memcached, open_memcached),
        ("SecantusDB", "pymongo", mongodb, open_mongodb),
    ]
    for name, driver, start, opened in servers:
        if find_spec(driver) is None:
            continue
        with start() as place:
            if place is not None:
                show_store(found, name, place, opened, seconds)
    return found


if __name__ == "__main__":
    options = arguments(__doc__, seconds=(20, "seconds that are counted"))
    show(report(seconds=options.seconds))
