"""The cost of cancelling waiters, and its effect on others: `uv run benchmarks/cancelled.py`.

The limit of 5,000 per second has just been spent. Waiters queue, and every second one is cancelled
in one turn of the loop. CPU is the cost of one cancelled waiter until it is finished, its task
included. `the rest` is the time until the others are finished, and `x ideal` compares it with the
least that the limit allows. It is longer if cancelled waiters keep their places.

In the storm 50 workers demand more than 1,000 per second, with a burst of 100. In each millisecond
two of them are cancelled, at any point, also between a grant and its start. `used` and `excess`
are those of [Accuracy](accuracy.md).
"""

import asyncio
import gc
import random
import statistics
import time
from typing import NamedTuple

from accuracy import SIGHT
from contended import GATE, WINDOWED, make, spend
from measure import Report, apart, arguments, machine, show
from peers import PEERS

__all__ = ["report"]

MINE = ("SlidingWindowLog", "TokenBucket")
NAMES = (GATE, *MINE, *(name for name in PEERS if name != "aiometer"))
SIZES = (1_000, 10_000)
RATE, BURST = 5_000, 500
STORM_RATE, STORM_BURST, WORKERS = 1_000, 100, 50
PATIENCE = 8.0


class Left(NamedTuple):
    """CPU of one cancelled waiter; seconds that the others took, and the least possible."""

    cpu: float
    wall: float
    ideal: float


def leave(name: str, waiters: int) -> Left:
    """Cancel every second one of so many waiters, in this process."""

    async def measured() -> Left:
        contestant = make(name, RATE, BURST)
        begun = time.perf_counter()
        await spend(name, contestant, RATE, BURST)
        granted = 0

        def begin() -> None:
            nonlocal granted
            granted += 1

        tasks = [asyncio.create_task(contestant.once(begin)) for _ in range(waiters)]
        await asyncio.sleep(0)  # all are waiting
        leaving, staying = tasks[::2], tasks[1::2]
        came, at_once, cpu = time.perf_counter(), granted, time.process_time()
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        cpu = time.process_time() - cpu
        await asyncio.gather(*staying)
        wall = time.perf_counter() - (begun if name in WINDOWED else came)
        left = waiters - waiters // 2
        if name in WINDOWED:
            return Left(cpu / left, wall, float(-(-(waiters - left) // RATE)))
        credit = min(BURST, max(0.0, (came - begun) * RATE - at_once))
        return Left(cpu / left, wall, (granted - at_once - credit) / RATE)

    gc.collect()
    gc.freeze()
    return asyncio.run(measured())


def storm(name: str, seconds: float) -> tuple[float, float]:
    """Cancel all the time; return the share of the promise that was used, and the excess."""

    async def measured() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        contestant = make(name, STORM_RATE, STORM_BURST)
        assert contestant.promise is not None
        await contestant.repeat(1)
        await asyncio.sleep(1.1)  # the limit is whole again
        instants: list[float] = []
        tasks: dict[int, asyncio.Task[None]] = {}
        end = time.monotonic() + seconds
        lots = random.Random(7)

        async def work(number: int) -> None:
            while time.monotonic() < end:
                task = asyncio.create_task(
                    contestant.once(lambda: instants.append(time.monotonic()))
                )
                tasks[number] = task
                await asyncio.wait([task])

        def strike() -> None:
            for number in lots.sample(range(WORKERS), 2):
                tasks[number].cancel()
            if time.monotonic() < end:
                loop.call_later(0.001, strike)
            else:
                for task in tasks.values():
                    task.cancel()

        loop.call_later(0.01, strike)
        await asyncio.gather(*(work(number) for number in range(WORKERS)))
        until = instants[0] + seconds
        share = sum(instant < until for instant in instants) / contestant.promise.most(seconds)
        return share, contestant.promise.excess(instants)

    return asyncio.run(measured())


def half_cancelled(found: Report, rounds: int) -> None:
    """Cancel half of the waiters."""
    costs: dict[str, list[float]] = {name: [] for name in MINE}
    for size in SIZES:
        runs: dict[str, list[Left]] = {}
        for number in range(rounds):
            for name in NAMES if number == 0 else (GATE, *MINE):
                one = apart(size / RATE + PATIENCE, leave, name, size)
                if one is not None:
                    runs.setdefault(name, []).append(one)
        rows = [["", "us CPU each", "x gate", "the rest", "x ideal"]]
        gate = statistics.median(one.cpu for one in runs[GATE])
        for name in NAMES:
            if name not in runs:
                rows.append([name, "-", "-", "too long", "-"])
                continue
            cpu = statistics.median(one.cpu for one in runs[name])
            wall = statistics.median(one.wall for one in runs[name])
            ideal = statistics.median(one.wall / one.ideal for one in runs[name])
            results = [f"{cpu * 1e6:.2f}", f"{cpu / gate:.2f}", f"{wall:.3f} s", f"{ideal:.2f}"]
            rows.append([name, *results])
            if name in MINE:
                costs[name].append(cpu)
                found.want(f"{name}: the rest of {size:,}, beside the ideal", ideal, 1.1)
        found.add(
            f"{size:,} wait, {size // 2:,} are cancelled. Too long is {PATIENCE:g} s more.", rows
        )
    for name, each in costs.items():
        found.want(f"{name}: CPU, dearest beside cheapest size", max(each) / min(each), 2.5)


def storms(found: Report, seconds: float) -> None:
    """Cancel waiters all the time."""
    rows = [["", "used", "excess"]]
    for name in NAMES:
        one = apart(seconds + 20, storm, name, seconds)
        if one is None:
            rows.append([name, "too long", "-"])
            continue
        used, excess = one
        rows.append([name, f"{used:.1%}", f"{excess:.2f}"])
        if name in MINE:
            found.want_share(f"{name}: used in a storm", used, 0.99)
            early = excess / STORM_RATE
            found.want(f"{name}: ahead of the promise", early * 1e6, SIGHT * 1e6, " us")
    found.add(f"A storm of {seconds:g} s.", rows)


def report(rounds: int = 5, seconds: float = 3.0) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("Cancelled")
    half_cancelled(found, rounds)
    storms(found, seconds)
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(
        __doc__,
        rounds=(5, "rounds of ours and the gate; one of the peers"),
        seconds=(3.0, "seconds of the storm"),
    )
    print(machine())
    show(report(options.rounds, options.seconds))


if __name__ == "__main__":
    main()
