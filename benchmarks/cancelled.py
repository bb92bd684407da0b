"""The cost of cancelling a queued waiter, and who bears it: `uv run benchmarks/cancelled.py`.

A crowd waits for 5,000 per second, of which all has just been spent, and every second one of it is
cancelled in one turn of the loop. CPU is what one of these costs until it is gone, its task
included; `the rest` is how long the others take to be through, beside the least that the limit
allows: who lets the cancelled ones keep their places in the line takes longer.

Then a storm: 50 workers ask without end for 1,000 per second, with a burst of 100, and in each
millisecond two of them are cancelled wherever they are: also between being let go and going. A
token that was meant for one of these is lost, or had twice. `used` and `excess` as under Accuracy.
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
    """CPU of one that was cancelled; seconds that the others took, and the least they could."""

    cpu: float
    wall: float
    ideal: float


def leave(name: str, waiters: int) -> Left:
    """Cancel every second one of so many that wait, in this process."""

    async def crowd() -> Left:
        contestant = make(name, RATE, BURST)
        begun = time.perf_counter()
        await spend(name, contestant, RATE, BURST)
        gone = 0

        def begin() -> None:
            nonlocal gone
            gone += 1

        tasks = [asyncio.create_task(contestant.once(begin)) for _ in range(waiters)]
        await asyncio.sleep(0)  # all have come
        leaving, staying = tasks[::2], tasks[1::2]
        came, granted, cpu = time.perf_counter(), gone, time.process_time()
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        cpu = time.process_time() - cpu
        await asyncio.gather(*staying)
        wall = time.perf_counter() - (begun if name in WINDOWED else came)
        left = waiters - waiters // 2
        if name in WINDOWED:
            return Left(cpu / left, wall, float(-(-(waiters - left) // RATE)))
        credit = min(BURST, max(0.0, (came - begun) * RATE - granted))
        return Left(cpu / left, wall, (gone - granted - credit) / RATE)

    gc.collect()
    gc.freeze()
    return asyncio.run(crowd())


def storm(name: str, seconds: float) -> tuple[float, float]:
    """Cancel all the time; give the share of the promise that was used, and the excess."""

    async def weather() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        contestant = make(name, STORM_RATE, STORM_BURST)
        assert contestant.promise is not None
        await contestant.repeat(1)
        await asyncio.sleep(1.1)  # it is as new again
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

    return asyncio.run(weather())


def crowds(found: Report, rounds: int) -> None:
    """Have half of a crowd leave."""
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
            figures = [f"{cpu * 1e6:.2f}", f"{cpu / gate:.2f}", f"{wall:.3f} s", f"{ideal:.2f}"]
            rows.append([name, *figures])
            if name in MINE:
                costs[name].append(cpu)
                found.want(f"{name}: the rest of {size:,}, beside the ideal", ideal, 1.1)
        found.add(f"{size:,} wait, {size // 2:,} leave. Too long is {PATIENCE:g} s more.", rows)
    for name, each in costs.items():
        found.want(f"{name}: CPU, dearest beside cheapest size", max(each) / min(each), 2.5)


def storms(found: Report, seconds: float) -> None:
    """Have them cancelled all the time."""
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
    """Measure, and hold the figures against the targets."""
    found = Report("Cancelled")
    crowds(found, rounds)
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
