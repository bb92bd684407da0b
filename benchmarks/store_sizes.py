"""The cost of a decision and a record in a Valkey: `uv run benchmarks/store_sizes.py`.

The time is the server's own count for a call, the least of several rounds, beside a bare EVALSHA
that increments a number. A key is one user's record of 100 per hour, half of which is spent; the
answers that the server keeps for five seconds are not counted. All keys exist, a million by
default: the script makes a thousand of them, and the server copies those.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from measure import Report, arguments, show
from redis.asyncio import Redis
from server import valkey

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.redis_scripts import RECORD, Requests
from aiothrottle.stores.store import Step

__all__ = ["report"]

ROUNDS, CALLS = 7, 200
MADE, AT_ONCE = 1000, 10_000
# Copies the records of the first keys to the others.
COPY = """
for number = ARGV[1], ARGV[2] do
  local made, key = string.format(ARGV[4], number % ARGV[3]), string.format(ARGV[4], number)
  redis.call('COPY', made, key)
  redis.call('COPY', made .. ':0', key .. ':0')
end
"""
PLENTY = "100000/s"
ALGORITHMS: dict[str, Algorithm[Any]] = {
    "SlidingWindowLog": SlidingWindowLog(PLENTY),
    "TokenBucket": TokenBucket(PLENTY),
    "LeakyBucket": LeakyBucket(PLENTY),
    "FixedWindow": FixedWindow(PLENTY),
    "SlidingWindowCounter": SlidingWindowCounter(PLENTY),
    "WaitUntil": WaitUntil(0.00001, 1, 10),
    "Cooldown": Cooldown(100000, 1),
    "two of them": AllOf(SlidingWindowLog(PLENTY), TokenBucket(PLENTY)),
}
# A common limit: a hundred per hour, of which half is spent.
USUAL: dict[str, Algorithm[Any]] = {
    "SlidingWindowLog": SlidingWindowLog("100/h"),
    "TokenBucket": TokenBucket("100/h"),
    "LeakyBucket": LeakyBucket("100/h"),
    "FixedWindow": FixedWindow("100/h"),
    "SlidingWindowCounter": SlidingWindowCounter("100/h"),
    "WaitUntil": WaitUntil(36, 3600, 3600),
    "Cooldown": Cooldown(100, 3600),
}
Client: TypeAlias = Any  # the driver's own types are half unknown
Call: TypeAlias = Callable[[], Awaitable[object]]


async def server_time(client: Client, call: Call) -> float:
    """Return the microseconds that the server spends on a script call."""
    least = float("inf")
    for _ in range(ROUNDS):
        await client.config_resetstat()
        for _ in range(CALLS):
            await call()
        stats = await client.info("commandstats")
        least = min(least, float(stats["cmdstat_evalsha"]["usec_per_call"]))
    return least


async def decisions(found: Report, client: Client) -> None:
    """Add what a decision costs the server."""
    bare = await client.script_load("return redis.call('INCR', KEYS[1])")
    store = RedisStore(client, timeout=5)
    calls: dict[str, Call] = {"bare EVALSHA": lambda: client.evalsha(bare, 1, "bare")}
    for name, algorithm in ALGORITHMS.items():
        calls[name] = partial(store.reserve, name, algorithm, [1.0])
    rows = [["one decision", "server us"]]
    rows += [[name, f"{await server_time(client, call):.1f}"] for name, call in calls.items()]
    for algorithm in (SlidingWindowLog("1000000/s"), TokenBucket("1000000/s")):
        line = partial(store.reserve, f"line {algorithm}", algorithm, [1.0] * 1000)
        us = await server_time(client, line)
        rows.append([f"{type(algorithm).__name__}, 1,000 in a call, each", f"{us / 1000:.1f}"])
    found.add("What the server spends on a decision.", rows)


async def window_lengths(found: Report, client: Client) -> None:
    """Add what a decision costs the server, by the length of the window."""
    store = RedisStore(client, timeout=5)
    rows = [["SlidingWindowLog of", "server us"]]
    times: list[float] = []
    for limit in (10, 100, 1000, 10_000, 100_000):
        window = SlidingWindowLog(f"{limit}/h")
        for _ in range(limit // 10):
            await store.record(str(limit), window, 0.5)
            await store.reserve(str(limit), window, [1.0] * 9)
        times.append(await server_time(client, partial(store.reserve, str(limit), window, [1.0])))
        rows.append([f"{limit:,}", f"{times[-1]:.1f}"])
    found.add("By the length of the window, nearly full.", rows)
    found.want("window of 100,000: time beside one of 10", times[-1] / times[0], 1.5)


async def memory(found: Report, client: Client, keys: int) -> None:
    """Add the bytes that a key takes."""
    rows = [["half of 100/h is spent", "bytes a key", "MB"]]
    script: Any = client.register_script(RECORD)
    for name, algorithm in USUAL.items():
        await client.execute_command("FLUSHALL", "SYNC")
        requests = Requests("size", 1.0)
        before = (await client.info("memory"))["used_memory"]
        pipe, answers = client.pipeline(transaction=False), list[str]()
        for number in range(MADE):
            # Only a window keeps an entry per request.
            costs = [1.0] * 50 if isinstance(algorithm, SlidingWindowLog) else [50.0]
            step = Step("reserve", costs, 3600.0)
            request = requests.make(("user", f"{number:07}"), algorithm, step)
            assert request is not None
            answers.append(request.keys[1])
            await script(request.keys, request.args, client=pipe)
        await pipe.execute()
        await client.delete(*answers)
        names = requests.name(("user", "NUMBER")).replace("NUMBER", "%07d")
        for first in range(MADE, keys, AT_ONCE):
            await client.eval(COPY, 0, first, min(first + AT_ONCE, keys) - 1, MADE, names)
        there = await client.dbsize()
        expected = keys * (2 if isinstance(algorithm, SlidingWindowLog) else 1)
        assert there == expected, f"{there:,} keys, not {expected:,}"
        used = (await client.info("memory"))["used_memory"] - before
        rows.append([name, f"{used / keys:,.0f}", f"{used / 1e6:,.0f}"])
    found.add(f"Memory, over {keys:,} keys.", rows)


def report(keys: int) -> Report:
    """Measure everything."""
    found = Report("Sizes")

    async def measure(port: int) -> None:
        async with Redis(port=port) as client:
            await decisions(found, client)
            await window_lengths(found, client)
            await memory(found, client, keys)

    with valkey() as port:
        asyncio.run(measure(port))
    return found


if __name__ == "__main__":
    show(report(arguments(__doc__, keys=(1_000_000, "keys")).keys))
