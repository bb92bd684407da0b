"""Many keys, a free one beside a busy one, and unused ones: `uv run benchmarks/keyed.py`.

A thousand requests wait for the busy key, which grants 10 per second. The free key is asked for
every 2 ms, and the added latency is its latency with the busy key less that without it.

Then each key is used once, one after the other: the seconds, and in another run the memory at its
peak, and after some seconds with next to no requests (tracemalloc). Peers without keys are used as
a dict of limiters.
"""

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, cast

import ours
from measure import Report, apart, arguments, machine, show

__all__ = ["report"]

# Imports inside functions: a process loads only its own contestant.
RATE = 10
# Half seconds of almost no requests, in which to tidy up: at least, and while memory shrinks.
LEAST_IDLE, IDLE = 4, 60
Enter = Callable[[str], Awaitable[object]]


def own() -> Enter | None:
    """KeyedRateLimiter: children on demand, forgotten when their state has expired."""
    limiter = ours.keyed_limiter(RATE, 10)
    if limiter is None:
        return None

    async def enter(key: str) -> None:
        async with limiter.throttle(key):
            pass

    return enter


def aiolimiter() -> Enter:
    """A dict of limiters, as its users have it."""
    from collections import defaultdict

    from aiolimiter import AsyncLimiter

    limiters: defaultdict[str, AsyncLimiter] = defaultdict(lambda: AsyncLimiter(RATE, 1))

    async def enter(key: str) -> None:
        async with limiters[key]:
            pass

    return enter


def pyrate_limiter() -> Enter:
    """The factory of a bucket per name, from its page."""
    from pyrate_limiter import (
        AbstractBucket,
        BucketFactory,
        Duration,
        InMemoryBucket,
        Limiter,
        MonotonicClock,
        Rate,
        RateItem,
    )

    class PerNameFactory(BucketFactory):
        def __init__(self) -> None:
            self.clock, self.named = MonotonicClock(), dict[str, AbstractBucket]()

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            return RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: RateItem) -> AbstractBucket:
            if item.name not in self.named:
                rates = [Rate(RATE, Duration.SECOND)]
                create = cast("Any", super()).create
                self.named[item.name] = create(InMemoryBucket, rates)
            return self.named[item.name]

    return Limiter(PerNameFactory()).try_acquire_async


def limits() -> Enter:
    """Keys are identifiers; sleeps until `reset_time`, as its page says."""
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(cast("Any", MemoryStorage()))
    item = RateLimitItemPerSecond(RATE)

    async def enter(key: str) -> None:
        while not await limiter.hit(item, key):
            stats = await limiter.get_window_stats(item, key)
            await asyncio.sleep(max(0.0, stats.reset_time - time.time()))

    return enter


def throttled() -> Enter:
    """Keys are arguments; its store forgets all but the last 1,024, spent or not."""
    from throttled.asyncio import MemoryStore, Throttled

    return Throttled(timeout=3600, quota=f"{RATE}/s burst {RATE}", store=MemoryStore()).limit


KEYED: dict[str, Callable[[], Enter | None]] = {
    "KeyedRateLimiter": own,
    "aiolimiter, a dict": aiolimiter,
    "pyrate-limiter": pyrate_limiter,
    "limits": limits,
    "throttled-py": throttled,
}


def latency(name: str, times: int) -> tuple[float, float] | None:
    """Return the seconds, median and worst, that a busy key adds to a free one."""

    async def asked(enter: Enter, free: str) -> list[float]:
        taken: list[float] = []
        for number in range(times):
            begun = time.perf_counter()
            await enter(f"{free}{number}")
            taken.append(time.perf_counter() - begun)
            await asyncio.sleep(0.002)
        return taken

    async def measured() -> tuple[float, float] | None:
        enter = KEYED[name]()
        if enter is None:
            return None
        alone = await asked(enter, "alone")
        tasks = [asyncio.ensure_future(enter("busy")) for _ in range(1000)]
        await asyncio.sleep(0.01)
        beside = await asked(enter, "beside")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        usual = statistics.median(alone)
        return statistics.median(beside) - usual, max(beside) - max(alone)

    return asyncio.run(measured())


def once_each(name: str, keys: int) -> float | None:
    """Use so many keys once; return the seconds."""

    async def measured() -> float | None:
        enter = KEYED[name]()
        if enter is None:
            return None
        begun = time.perf_counter()
        for number in range(keys):
            await enter(f"key {number}")
            if number % 1000 == 0:
                await asyncio.sleep(0)
        return time.perf_counter() - begun

    return asyncio.run(measured())


def memory(name: str, keys: int) -> tuple[float, float] | None:
    """Use so many keys once; return the peak MB, and the MB some seconds later."""

    async def measured() -> tuple[float, float] | None:
        enter = KEYED[name]()
        if enter is None:
            return None
        await enter("first")
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(keys):
            await enter(f"key {number}")
            if number % 1000 == 0:
                await asyncio.sleep(0)
        peak = tracemalloc.get_traced_memory()[1]
        await asyncio.sleep(1.2)
        after = peak
        for number in range(IDLE):
            await enter(f"last {number}")
            await asyncio.sleep(0.5)
            gc.collect()
            last, after = after, tracemalloc.get_traced_memory()[0]
            if number >= LEAST_IDLE and after > 0.99 * last:
                break  # memory shrinks no more
        return (peak - before) / 1e6, (after - before) / 1e6

    return asyncio.run(measured())


def report(times: int = 200, keys: int = 250_000, patience: float = 10.0) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("Many keys")
    rows = [["free key beside a busy one", "added, median", "added, worst"]]
    for name in KEYED:
        added = apart(patience, latency, name, times)
        if name != "KeyedRateLimiter":
            results = (
                [f"{1e3 * one:.3f} ms" for one in added] if added else [f"> {patience:g} s"] * 2
            )
            rows.append([name, *results])
        elif added:
            rows.append([name, *(f"{1e3 * one:.3f} ms" for one in added)])
            found.want("free key beside a busy one, added", 1e3 * added[0], 1, " ms")
            found.want("the same, worst", 1e3 * added[1], 1, " ms")
    found.add("A thousand requests wait for the busy key.", rows)

    rows = [["", "seconds", "keys/s", "MB at the most", "MB when idle", "bytes a key"]]
    for name in KEYED:
        seconds = apart(20 * patience, once_each, name, keys)
        taken = apart(20 * patience, memory, name, keys)
        speed = [f"> {20 * patience:g}", "-"]
        if seconds is not None:
            speed = [f"{seconds:.1f}", f"{keys / seconds:,.0f}"]
        space = ["-"] * 3
        if taken is not None:
            space = [f"{taken[0]:.1f}", f"{taken[1]:.1f}", f"{taken[1] * 1e6 / keys:.1f}"]
        rows.append([name, *speed, *space])
        if name == "KeyedRateLimiter":
            what = f"{keys:,} keys used once"
            found.want(what, 20 * patience if seconds is None else seconds, keys / 12_500, " s")
            if taken is not None:
                found.want(f"{what}, left when idle", taken[1] * 1e6 / keys, 48, " bytes a key")
    found.add(f"{keys:,} keys, each used once.", rows)
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(
        __doc__,
        times=(200, "entries of the free key"),
        keys=(250_000, "keys that are used once"),
    )
    print(machine())
    show(report(options.times, options.keys))


if __name__ == "__main__":
    main()
