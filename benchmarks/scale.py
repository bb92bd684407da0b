"""Many processes on one store: `uv run benchmarks/scale.py`.

A round trip to Valkey takes 2 ms. A process is simulated by a client, a store and a limiter of its
own on one event loop, which makes the same calls. Grants are counted by the server's clock.

First 8 and 200 processes share one key, each with more demand than its part. Then 200 processes
have 10,000 keys, each of them shared by two. [In production](../../guides/production.md) estimates
larger numbers.
"""

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from counting import Counting
from delay import delayed
from measure import Report, arguments, jain, show
from redis.asyncio import Redis
from server import valkey

from aiothrottle import KeyedRateLimiter, LeakyBucket, Rate, RateLimiter, SlidingWindowLog
from aiothrottle.stores import Key
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import greatest_count

__all__ = ["report"]

ROUND_TRIP = 0.002
# Processes, tokens per second, tasks of each process; the limit is that of one second.
SHARED = ((8, 10, 2), (200, 10, 2), (200, 1000, 10))
# Keys, and the seconds from one token of a key to the next.
KEYS, INTERVAL = 10_000, 20.0
# Seconds by which `LeakyBucket` makes up for a late timer.
MADE_UP = 0.002
# Seconds for connections and first calls, which are not counted.
WARM_UP = 3.0
PROBE = SlidingWindowLog(1)

Limiter: TypeAlias = RateLimiter | KeyedRateLimiter
Work: TypeAlias = Callable[[RedisStore], tuple[Limiter, list[Coroutine[Any, Any, None]]]]
"""The limiter and the tasks of one process, for its store."""


class Counted(Counting, RedisStore):
    """A store of Redis that counts."""

    async def now(self, key: Key) -> float:
        """Return the time of the server's clock."""
        return (await self.peek(key, PROBE)).now


@dataclass
class Result:
    """What the processes took within some seconds, and what it cost."""

    seconds: float
    calls: int
    cpu: float
    #: Of each process, for each key, the instants of the tokens.
    taken: list[dict[Key, list[float]]]

    def counts(self) -> list[int]:
        """Return how many tokens each process took."""
        return [sum(map(len, keys.values())) for keys in self.taken]

    def by_key(self) -> dict[Key, list[float]]:
        """Return the instants of each key, of all processes."""
        together: dict[Key, list[float]] = defaultdict(list)
        for keys in self.taken:
            for key, instants in keys.items():
                together[key] += instants
        return together


async def run(port: int, works: Sequence[Work], warm_up: float, seconds: float) -> Result:
    """Run one process for each of the works; count after they have warmed up."""
    async with AsyncExitStack() as stack:
        stores = [
            Counted(await stack.enter_async_context(Redis(port=port)), timeout=10) for _ in works
        ]
        made = [work(store) for work, store in zip(works, stores, strict=True)]
        tasks = [asyncio.create_task(each) for _, asking in made for each in asking]
        # A pass over the objects of 200 processes takes longer than a reservation may be used late.
        gc.disable()
        await asyncio.sleep(warm_up)
        calls, cpu = sum(store.calls for store in stores), time.process_time()
        begin = await stores[0].now("clock")
        await asyncio.sleep(seconds)
        end = await stores[0].now("clock")
        calls = sum(store.calls for store in stores) - calls
        cpu = time.process_time() - cpu
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(limiter.aclose() for limiter, _ in made))
        gc.enable()
    taken = [
        {
            key: [instant for instant in instants if begin <= instant < end]
            for key, instants in store.taken.items()
        }
        for store in stores
    ]
    return Result(end - begin, calls, cpu, taken)


def on_one_key(rate: int, tasks: int) -> Work:
    """Return the work of a process whose tasks ask for one key all the time."""

    def work(store: RedisStore) -> tuple[Limiter, list[Coroutine[Any, Any, None]]]:
        # By the server's clock no guard is needed.
        limiter = RateLimiter(f"{rate}/s", guard=0.0, store=store, key=f"{rate}/s")

        async def ask() -> None:
            while True:
                async with limiter.throttle():
                    pass

        return limiter, [ask() for _ in range(tasks)]

    return work


def on_many_keys(process: int, processes: int, keys: int) -> Work:
    """Return the work of a process with a task for each of its keys; two processes share a key."""
    mine = [key for key in range(keys) if (process - key) % processes in {0, 1}]

    def work(store: RedisStore) -> tuple[Limiter, list[Coroutine[Any, Any, None]]]:
        limiter = KeyedRateLimiter(
            algorithm=LeakyBucket(Rate(1, INTERVAL)), store=store, key="host"
        )

        async def ask(key: int) -> None:
            # Not all at once: then their next tokens would be ready all at once, too.
            await asyncio.sleep(key / keys * INTERVAL)
            while True:
                async with limiter.throttle(str(key)):
                    pass

        return limiter, [ask(key) for key in mine]

    return work


def show_one_key(report: Report, port: int, seconds: float) -> None:
    """Add the table and the targets of one key."""
    head = ["processes", "rate", "used", "most in any second", "Jain", "calls/s", "calls/grant"]
    rows = [[*head, "us of CPU a grant"]]
    for processes, rate, tasks in SHARED:
        result = asyncio.run(run(port, [on_one_key(rate, tasks)] * processes, WARM_UP, seconds))
        counts = result.counts()
        total = sum(counts)
        (instants,) = result.by_key().values()
        used, fair = total / (rate * result.seconds), jain(counts)
        most = greatest_count(sorted(instants), 1.0)
        calls = [f"{result.calls / result.seconds:,.0f}", f"{result.calls / total:.2f}"]
        row = [str(processes), f"{rate:,}/s", f"{used:.1%}", f"{most:,}", f"{fair:.3f}", *calls]
        rows.append([*row, f"{1e6 * result.cpu / total:,.0f}"])
        what = f"{processes} processes at {rate:,}/s"
        report.want_share(f"{what}: used of the limit", used, 0.95)
        report.want(f"{what}: most in any second", most, rate, "")
        report.want(f"{what}: calls per grant", result.calls / total, 2.0, "")
        if processes == SHARED[0][0]:
            report.want_share(f"{what}: Jain's fairness", fair, 0.95)
    report.add(f"One key, a round trip of {1000 * ROUND_TRIP:g} ms, {seconds:g} s.", rows)


def show_many_keys(report: Report, port: int, keys: int, processes: int) -> None:
    """Add the table and the targets of many keys."""
    works = [on_many_keys(process, processes, keys) for process in range(processes)]
    result = asyncio.run(run(port, works, WARM_UP + INTERVAL, INTERVAL))
    total = sum(result.counts())
    used = total * INTERVAL / (keys * result.seconds)
    closest = min(
        (
            later - instant
            for instants in result.by_key().values()
            for instant, later in pairwise(sorted(instants))
        ),
        default=INTERVAL,
    )
    head = ["processes", "keys", "rate of each", "used", "closest two of a key", "calls/s"]
    row = [str(processes), f"{keys:,}", f"1 in {INTERVAL:g} s", f"{used:.1%}", f"{closest:.3f} s"]
    calls = [f"{result.calls / result.seconds:,.0f}", f"{result.calls / total:.2f}"]
    cpu = f"{1e6 * result.cpu / total:,.0f}"
    caption = f"Many keys, each shared by two processes, {INTERVAL:g} s."
    report.add(caption, [[*head, "calls/grant", "us of CPU a grant"], [*row, *calls, cpu]])
    report.want_share(f"{keys:,} keys: used of the limits", used, 0.95)
    report.want_least(f"{keys:,} keys: closest two of a key", closest, INTERVAL - MADE_UP, " s")
    report.want(f"{keys:,} keys: calls per grant", result.calls / total, 2.0, "")


def report(*, seconds: float = 20.0, keys: int = KEYS, processes: int = 200) -> Report:
    """Measure everything."""
    found = Report("Many processes on one store")
    with valkey() as port, delayed(port, ROUND_TRIP) as far:
        show_one_key(found, far, seconds)
        show_many_keys(found, far, keys, processes)
    return found


if __name__ == "__main__":
    options = arguments(
        __doc__,
        seconds=(20.0, "seconds of each measurement"),
        keys=(KEYS, "keys"),
        processes=(200, "processes that share them"),
    )
    show(report(seconds=options.seconds, keys=options.keys, processes=options.processes))
