"""One limit through Redis: `uv run benchmarks/stores.py`.

Tasks of one process ask for one key of a Valkey on loopback, far below its rate: the result is the
cost of a request. One task is compared with a bare call of a script, the least that a limiter of
your own would need. For a task that asks again at once, tokens are prefetched. A task that pauses
in between needs one call per request; that costs more than the bare call, as a cancelled request
must lose nothing, and as the script knows costs, several limits and resent calls.

Then processes share 2,000 per second, each with more demand than its part, and sixteen processes
share 20 per second. Their grants are counted by the server's clock.

Acquires per second need an otherwise idle machine; the CPU time is the client's.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeAlias

from counting import Counting
from measure import Chart, Report, arguments, jain, show
from redis.asyncio import Redis
from server import valkey
from shared_peers import CONTESTANTS, Take

from aiothrottle import RateLimiter
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import greatest_count

__all__ = ["calls_so_far", "jain", "report", "share"]

BARE = "bare EVALSHA"
# Ours, and the bare call of a script for the same algorithm that one task is compared with.
OURS = {
    "SlidingWindowLog": "window by hand",
    "TokenBucket": "bucket by hand",
    "SlidingWindowLog, prefetch": "window by hand",
}


Results: TypeAlias = dict[str, tuple[float, float, float]]
"""For each contestant: acquires per second, calls per acquire, and us of CPU per acquire."""


# ---- tasks of one process ------------------------------------------------------------------------


async def take_all(take: Take, tasks: int, seconds: float) -> tuple[int, float, float]:
    """Have so many tasks take repeatedly; 0 is one task that rests for two turns in between.

    Return the number taken, the number per second, and us of CPU each.
    """
    loop = asyncio.get_running_loop()
    taken, running = 0, True

    def stop() -> None:
        nonlocal running
        running = False

    async def work() -> None:
        nonlocal taken
        while running:
            await take()
            taken += 1
            if not tasks:
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    begun, cpu = time.perf_counter(), time.process_time()
    loop.call_later(seconds, stop)
    await asyncio.gather(*(work() for _ in range(max(1, tasks))))
    cpu = time.process_time() - cpu
    return taken, taken / (time.perf_counter() - begun), 1e6 * cpu / taken


async def calls_so_far(client: Any) -> int:  # noqa: ANN401 - the driver's types are half unknown
    """Count the scripts and commands sent by clients, except our own INFO."""
    stats = await client.info("commandstats")
    # A script's own commands are counted too; only the clients' are wanted.
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


async def tasks_of_one_process(
    port: int, sizes: Sequence[int], rounds: int, seconds: float
) -> dict[int, Results]:
    """Measure every contestant, for each number of tasks."""
    found: dict[int, Results] = {}
    async with AsyncExitStack() as stack, Redis(port=port) as client:
        takers = {
            name: await stack.enter_async_context(make(port)) for name, make in CONTESTANTS.items()
        }
        for size in sizes:
            rates: dict[str, list[float]] = {name: [] for name in takers}
            cpus: dict[str, list[float]] = {name: [] for name in takers}
            calls = dict.fromkeys(takers, 0.0)
            for turn in range(rounds + 1):
                for name, take in takers.items():
                    before = await calls_so_far(client)
                    taken, rate, cpu = await take_all(take, size, seconds)
                    if turn:  # the first turn makes connections, and specialises the code
                        rates[name].append(rate)
                        cpus[name].append(cpu)
                        calls[name] += (await calls_so_far(client) - before) / taken / rounds
            found[size] = {
                name: (median(rates[name]), calls[name], median(cpus[name])) for name in takers
            }
    return found


def show_tasks(report: Report, found: dict[int, Results]) -> None:
    """Add the tables, the targets and the chart."""
    drawn: dict[str, dict[str, float]] = {}
    for size, rates in found.items():
        not_peers = {BARE, *OURS, *OURS.values()}
        best = max(rate for name, (rate, _, _) in rates.items() if name not in not_peers)
        rows = [["", "acquires/s", "x bare", "x best peer", "calls per acquire", "us of CPU"]]
        for name, (rate, calls, cpu) in rates.items():
            times = [f"{rate / rates[BARE][0]:.2f}", f"{rate / best:.2f}"]
            rows.append([name, f"{rate:,.0f}", *times, f"{calls:.4f}", f"{cpu:.1f}"])
        title = f"{size:,} task{'s' * (size > 1)} on one key."
        report.add(title if size else "1 task that rests for two turns of the loop between.", rows)
        label = f"{size:,} task{'s' * (size > 1)}" if size else "1 task that rests between"
        drawn[label] = {name: rate for name, (rate, _, _) in rates.items()}
        for name, by_hand in OURS.items():
            rate, calls, _ = rates[name]
            if size == 1:
                time_of_one = rates[by_hand][0] / rate
                report.want(f"{name}, one task: time beside a bare call", time_of_one, 1.15)
            elif size > 1:
                least = 20 if size >= 1000 else 8
                report.want_least(
                    f"{name}, {size:,} tasks, beside the best peer", rate / best, least
                )
            if size >= 1000:
                report.want(f"{name}, {size:,} tasks: calls per acquire", calls, 0.01, "")
    caption = (
        "Acquires per second, by the number of tasks: the first columns of the tables, as bars."
    )
    yardsticks = {BARE, *OURS.values()}
    report.chart = Chart("stores", caption, "acquires per second", drawn, OURS, yardsticks)


# ---- processes that share ------------------------------------------------------------------------


class Counted(Counting, RedisStore):
    """A store of Redis that counts."""


async def _work(
    port: int, key: str, rate: int, *, processes: int, seconds: float, tasks: int
) -> tuple[int, list[float]]:
    async with Redis(port=port) as client:
        store = Counted(client, timeout=10)
        await client.incr(f"{key} ready")
        while int(await client.get(f"{key} ready") or 0) < processes:  # noqa: ASYNC110 - of others
            await asyncio.sleep(0.02)
        end = asyncio.get_running_loop().time() + seconds
        granted = 0
        # By the server's clock no guard is needed.
        async with RateLimiter(f"{rate}/s", guard=0.0, store=store, key=key) as limiter:

            async def work() -> None:
                nonlocal granted
                while asyncio.get_running_loop().time() < end:
                    async with limiter.throttle():
                        granted += 1

            await asyncio.gather(*(work() for _ in range(tasks)))
        return granted, store.taken[key]


def work(port: int, key: str, rate: int, **options: Any) -> tuple[int, list[float]]:  # noqa: ANN401 - numbers
    """Run as one of the processes; return the grants, and their instants by the server's clock."""
    return asyncio.run(_work(port, key, rate, **options))


def share(
    port: int, processes: int, rate: int, seconds: float, *, tasks: int, key: str = ""
) -> tuple[list[int], list[list[float]]]:
    """Share a limit among processes."""
    key = f"{processes} of {rate} {key}"
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        load: dict[str, Any] = {"processes": processes, "seconds": seconds, "tasks": tasks}
        running = [pool.submit(work, port, key, rate, **load) for _ in range(processes)]
        granted, instants = zip(*(each.result() for each in running), strict=True)
    return list(granted), list(instants)


def granted_within(instants: Sequence[Sequence[float]], seconds: float) -> list[int]:
    """Count the grants of each process within so many whole seconds, while all still ask.

    A window grants a burst each second: the count begins half a second after the first one.
    """
    begin = min(min(each, default=math.inf) for each in instants) + 0.5
    return [sum(begin <= instant < begin + seconds for instant in each) for each in instants]


def show_shares(report: Report, port: int, seconds: int) -> None:
    """Add the table and targets of 2,000/s shared by 2, 4 and 8 processes."""
    rate = 2000
    rows = [["processes", "used of the limit", "most in any second", "Jain"]]
    for processes in (2, 4, 8):
        _, instants = share(port, processes, rate, seconds + 2, tasks=2 * rate // processes)
        everything = sorted(instant for each in instants for instant in each)
        counts = granted_within(instants, seconds)
        used, most = sum(counts) / (rate * seconds), greatest_count(everything, 1.0)
        rows.append([str(processes), f"{used:.2%}", f"{most:,}", f"{jain(counts):.4f}"])
        report.want_share(f"{processes} processes: used of 2,000/s", used, 0.98)
        report.want(f"{processes} processes: most in any second", most, rate, "")
        report.want_share(f"{processes} processes: Jain's fairness", jain(counts), 0.95)
    report.add(f"2,000/s shared, for {seconds} s.", rows)


async def _calls(port: int) -> int:
    async with Redis(port=port) as client:
        return await calls_so_far(client)


def show_slow(report: Report, port: int, seconds: int) -> None:
    """Add the calls per grant of sixteen processes that share 20/s."""
    rate, processes = 20, 16
    before = asyncio.run(_calls(port))
    # They ask for a second longer than is counted; requests that still wait then are granted too.
    granted, instants = share(port, processes, rate, seconds + 1, tasks=5)
    calls = asyncio.run(_calls(port)) - before
    within = granted_within(instants, seconds)
    head = ["processes", f"granted in {seconds} s", "per second", "Jain"]
    row = [str(processes), str(sum(within)), f"{sum(within) / seconds:.1f}", f"{jain(within):.3f}"]
    head += ["granted in all", "calls", "calls per grant"]
    row += [str(sum(granted)), str(calls), f"{calls / sum(granted):.2f}"]
    report.add(f"20/s shared by 16 processes, for {seconds} s.", [head, row])
    report.want("16 processes at 20/s: calls per grant", calls / sum(granted), 1.5, "")


def report(*, rounds: int = 5, seconds: float = 0.5, shared: int = 5) -> Report:
    """Measure everything."""
    found = Report("A store")
    with valkey() as port:
        show_tasks(
            found, asyncio.run(tasks_of_one_process(port, (0, 1, 100, 1000), rounds, seconds))
        )
        show_shares(found, port, shared)
        show_slow(found, port, 2 * shared)
    return found


if __name__ == "__main__":
    options = arguments(
        __doc__,
        rounds=(5, "interleaved rounds"),
        seconds=(0.5, "seconds of each contestant in a round"),
        shared=(5, "whole seconds of the shared limit"),
    )
    show(report(rounds=options.rounds, seconds=options.seconds, shared=options.shared))
