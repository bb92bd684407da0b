"""Many busy keys at once, over one client of Redis: `uv run benchmarks/many_keys.py`.

A `KeyedRateLimiter` over `RedisStore(Redis())`, on a Valkey over loopback. Each key has a task of
its own, and a limit that is never reached. Each key is asked for once with no state (cold), once
more (warm), by `try_acquire`, and then repeatedly. Errors must be 0.

Decisions per second need an otherwise idle machine; the CPU time is the client's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from measure import Report, arguments, show
from redis.asyncio import Redis
from server import valkey

from aiothrottle import KeyedRateLimiter, StoreUnavailable
from aiothrottle.stores.redis import RedisStore

__all__ = ["report"]

PLENTY = "1000000/s"
SIZES = (100, 1_000, 10_000)


class Found(NamedTuple):
    """The result of one way to ask."""

    keys: int
    what: str
    decisions: int
    errors: int
    seconds: float
    cpu: float
    calls: int
    connections: int

    @property
    def rate(self) -> float:
        """Decisions per second."""
        return self.decisions / self.seconds

    def row(self) -> list[str]:
        """Return it as a row of the table."""
        return [
            *(f"{self.keys:,}", self.what, f"{self.errors:,}", f"{self.rate:,.0f}"),
            *(f"{self.calls / self.decisions:.2f}", f"{1e6 * self.cpu / self.decisions:.0f}"),
            str(self.connections),
        ]


async def statistics(client: Any) -> tuple[int, int]:  # noqa: ANN401 - the driver's types are half unknown
    """Return how many scripts the server has run for clients, and connections it has accepted."""
    info = await client.info("commandstats") | await client.info("stats")
    calls = sum(info.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))
    return calls, info["total_connections_received"]


async def measure(port: int, keys: int, seconds: float) -> list[Found]:
    """Measure each way to ask, with so many keys."""
    found: list[Found] = []
    async with (
        Redis(port=port) as watcher,
        Redis(port=port) as client,
        KeyedRateLimiter(PLENTY, store=RedisStore(client), key=f"{keys}") as limiter,
    ):
        _, at_first = await statistics(watcher)
        end = 0.0

        async def visit(key: str) -> None:
            async with limiter.throttle(key):
                pass

        async def ask(key: str) -> None:
            await limiter.try_acquire(key)

        for what, call in (
            ("throttle, cold", visit),
            ("throttle, warm", visit),
            ("try_acquire", ask),
            (f"throttle, for {seconds:g} s", visit),
        ):
            if "for" in what:
                end = time.perf_counter() + seconds
            before, _ = await statistics(watcher)
            begun, cpu = time.perf_counter(), time.process_time()
            asked = await asyncio.gather(*(busy(call, f"key {n}", end) for n in range(keys)))
            took, cpu = time.perf_counter() - begun, time.process_time() - cpu
            calls, connections = await statistics(watcher)
            decisions, errors = map(sum, zip(*asked, strict=True))
            counted = (calls - before, connections - at_first)
            found.append(Found(keys, what, decisions, errors, took, cpu, *counted))
    return found


async def busy(call: Callable[[str], Awaitable[None]], key: str, end: float) -> tuple[int, int]:
    """Ask for the key until the end, at least once; return the calls and the errors."""
    asked = errors = 0
    while not asked or time.perf_counter() < end:
        asked += 1
        try:
            await call(key)
        except StoreUnavailable:
            errors += 1
    return asked, errors


def report(*, sizes: Sequence[int] = SIZES, seconds: float = 5.0) -> Report:
    """Measure everything."""
    report = Report("Many keys in a store")
    rows = [["keys", "asked", "errors", "decisions/s", "calls each", "us of CPU", "connections"]]
    with valkey() as port:
        for keys in sizes:
            found = asyncio.run(measure(port, keys, seconds))
            rows += [each.row() for each in found]
            errors = sum(each.errors for each in found)
            report.want(f"{keys:,} keys: errors", errors, 0, "")
            if keys == max(sizes):
                report.want_least(f"{keys:,} busy keys: decisions/s", found[-1].rate, 5000, "")
                report.want(f"{keys:,} keys: connections", found[-1].connections, 5, "")
    report.add("A task for each key, over `RedisStore(Redis())`.", rows)
    return report


if __name__ == "__main__":
    options = arguments(
        __doc__,
        keys=(SIZES[-1], "keys, at the most"),
        seconds=(5.0, "seconds of the last way to ask"),
    )
    show(
        report(
            sizes=[*(size for size in SIZES if size < options.keys), options.keys],
            seconds=options.seconds,
        )
    )
