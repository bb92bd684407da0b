"""What it costs to wait in a line of 1,000 to 100,000: `uv run benchmarks/contended.py`.

50,000 may begin per second, and all that may has just been spent; then all come at once. Two
shapes of that limit: 50,000 in any second, all of which come free at one instant, and a stream
with a burst of 500. Every contestant has a process of its own in every round, and a small crowd
before, in which the interpreter specialises the code. The semaphore is handed on by each to the
next.

CPU is what a waiter costs from its coming to its end, its task included: in the first quartile of
the rounds, beside that of the gate. A crowd of 1,000 is over in 5 ms, so it has three times as many
rounds; and in some, whoever has it, it is half as dear again: when a neighbour has the other half
of the core, or after a second of sleep. How the medians compare stands beside that.

A turn is what the loop does between two looks at its sockets. Turns count once all have come, and
so does time for the stream; for the window it counts since that was spent.
"""

import asyncio
import gc
import selectors
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import ours
import peers
from contestant import Contestant, Entered
from measure import Chart, Report, apart, arguments, machine, show

__all__ = ["report"]

RATE, BURST = 50_000, 500
SIZES = (1_000, 10_000, 100_000)
GATE = "bare gate"
SEMAPHORE = "asyncio.Semaphore"
# These are made with burst = rate: 50,000 in any second. The others are a stream.
WINDOWED = ("SlidingWindowLog", "asyncio-throttle", "pyrate-limiter", "limits")


Average: TypeAlias = Callable[[Iterable[float]], float]


class Run(NamedTuple):
    """One run: seconds of CPU; by the clock, and the least that the limit allows; turns."""

    arriving: float
    serving: float
    wall: float
    ideal: float
    longest_turn: float
    per_1000: float


class Turns(selectors.DefaultSelector):
    """A selector that times the turns of the loop between two selects."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.granted = 0.0
        self.longest = self.per_1000 = 0.0
        self.count: Callable[[], float] = lambda: 0.0

    def restart(self) -> None:
        """Forget what was: from here on it counts."""
        self.begun, self.granted = time.perf_counter(), self.count()
        self.longest = self.per_1000 = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Note how long the turn took that ends here."""
        turn, granted = time.perf_counter() - self.begun, self.count()
        self.longest = max(self.longest, turn)
        self.per_1000 = max(self.per_1000, turn / max(1.0, (granted - self.granted) / 1000))
        events = super().select(timeout)
        self.begun, self.granted = time.perf_counter(), granted
        return events


def make(name: str, rate: int = RATE, burst: int = BURST) -> Contestant:
    """Give the contestant of that name."""
    if name == GATE:
        return peers.bare_gate(rate, burst)
    if name == SEMAPHORE:
        return peers.semaphore(1)
    made = {**ours.OURS, **peers.PEERS}[name](rate, rate if name in WINDOWED else burst)
    assert made is not None, f"{name} has no such limit"
    return made


async def spend(name: str, contestant: Contestant, rate: int = RATE, burst: int = BURST) -> None:
    """Spend all that may begin at once."""
    if isinstance(contestant, Entered) and isinstance(contestant.block, asyncio.Semaphore):
        await contestant.block.acquire()
        # By then all have come: a timer fires in the turn after this one at the earliest.
        asyncio.get_running_loop().call_later(0.0, contestant.block.release)
    elif name != GATE:  # it is made that way
        await contestant.repeat(rate if name in WINDOWED else burst)


def run(name: str, waiters: int) -> Run:
    """Have so many wait at once, in this process."""
    turns = Turns()

    async def crowd() -> Run:
        contestant = make(name)
        begun = time.perf_counter()
        await spend(name, contestant)
        done = 0
        end = asyncio.get_running_loop().create_future()

        def begin() -> None:
            nonlocal done
            done += 1
            if done == waiters:
                end.set_result(None)

        turns.count = lambda: done
        cpu = time.process_time()
        tasks = [asyncio.create_task(contestant.once(begin)) for _ in range(waiters)]
        await asyncio.sleep(0)  # all have come
        arrived, came = time.process_time(), time.perf_counter()
        granted = done
        turns.restart()
        await end
        served = time.process_time()
        wall = time.perf_counter() - (begun if name in WINDOWED else came)
        turn, per_1000 = turns.longest, turns.per_1000
        await asyncio.gather(*tasks)
        least = ideal(name, waiters, came - begun, granted)
        return Run(arrived - cpu, served - arrived, wall, least, turn, per_1000)

    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        every, waiters = waiters, SIZES[0]
        runner.run(crowd())
        waiters = every
        return runner.run(crowd())


def memory(name: str, waiters: int) -> float:
    """Give the bytes that one of so many waiters takes, its task included."""

    async def crowd() -> float:
        contestant = make(name, 50, 1)  # so slow that all wait
        await spend(name, contestant, 50, 1)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tasks = [asyncio.create_task(contestant.once(lambda: None)) for _ in range(waiters)]
        await asyncio.sleep(0)
        bytes_each = (tracemalloc.get_traced_memory()[0] - before) / waiters
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return bytes_each

    return asyncio.run(crowd())


def ideal(name: str, waiters: int, gone: float = 0.0, granted: int = 0) -> float:
    """Give the seconds that the limit asks for: a window since it was spent, a stream from now on.

    It was spent so long ago, and some of the waiters were granted since.
    """
    if name == SEMAPHORE:
        return 0.0
    if name in WINDOWED:
        return float(-(-waiters // RATE))
    credit = min(BURST, max(0.0, gone * RATE - granted))
    return (waiters - granted - credit) / RATE


def report(
    rounds: int = 7,
    peer_rounds: int = 1,
    patience: float = 8.0,
    sizes: tuple[int, ...] = SIZES,
) -> Report:
    """Measure, and hold the figures against the targets."""
    found = Report("Many wait")
    mine = ["SlidingWindowLog", "TokenBucket"]
    others = [SEMAPHORE, *(name for name in peers.PEERS if name != "aiometer")]
    names = [GATE, *mine, *others]
    runs: dict[tuple[str, int], list[Run]] = {}
    too_long: set[str] = set()
    for size in sizes:
        for number in range(3 * rounds if size == SIZES[0] else rounds):
            for name in names if number < peer_rounds else [GATE, *mine]:
                if name in too_long:
                    continue
                one = apart(ideal(name, size) + patience + 1, run, name, size)
                if one is None:
                    too_long.add(name)  # and no larger crowd of it
                else:
                    runs.setdefault((name, size), []).append(one)

    def middle(name: str, size: int, figure: Callable[[Run], float]) -> float:
        return statistics.median(map(figure, runs[name, size]))

    def low(name: str, size: int, figure: Callable[[Run], float]) -> float:
        return quartile(map(figure, runs[name, size]))

    def beside_gate(
        name: str, size: int, figure: Callable[[Run], float], of: Average = quartile
    ) -> float:
        mine = runs[name, size]
        gates = runs[GATE, size][: len(mine)]  # of a peer, in as many rounds as the peer had
        return of(map(figure, mine)) / of(map(figure, gates))

    costs: dict[str, dict[str, float | None]] = {}
    for size in sizes:
        each = {
            name: low(name, size, cpu) / size * 1e6 if (name, size) in runs else None
            for name in names
        }
        costs[f"{size:,} waiters"] = each
        head = ["", "us CPU each", "x gate", "medians", "of it served", "x gate", "wall"]
        rows = [[*head, "x ideal", "longest turn", "per 1,000 grants"]]
        for name in names:
            if each[name] is None:
                rows.append([name, *["-"] * 5, "too long", *["-"] * 3])
                continue
            over = "-" if name == SEMAPHORE else f"{middle(name, size, over_ideal):.2f}"
            rows.append(
                [
                    name,
                    f"{each[name]:.2f}",
                    f"{beside_gate(name, size, cpu):.2f}",
                    f"{beside_gate(name, size, cpu, statistics.median):.2f}",
                    f"{low(name, size, serving) / size * 1e6:.2f}",
                    f"{beside_gate(name, size, serving):.2f}",
                    f"{middle(name, size, wall):.3f} s",
                    over,
                    f"{middle(name, size, longest_turn) * 1e3:.2f} ms",
                    f"{middle(name, size, per_1000) * 1e3:.2f} ms",
                ]
            )
        found.add(f"{size:,} waiters. Too long is {patience:g} s more than the ideal.", rows)
    caption = "Microseconds of CPU of each waiter: the first columns of the tables, as bars."
    unit = "µs of CPU for each waiter"
    found.chart = Chart("contended", caption, unit, costs, mine, (GATE, SEMAPHORE))

    bytes_each = {name: apart(60, memory, name, 10_000) or 0.0 for name in [GATE, *mine, *others]}
    rows = [["memory of one of 10,000 waiters", "bytes", "x gate"]]
    rows += [
        [name, f"{size:.0f}", f"{size / bytes_each[GATE]:.2f}"] for name, size in bytes_each.items()
    ]
    found.add("Its task, coroutines and future included (tracemalloc).", rows)

    most = sizes[-1]
    timed = [name for name in others if (name, most) in runs and name != SEMAPHORE]
    best = min((middle(name, most, over_ideal) for name in timed), default=1.0)
    for name in mine:
        flat = [low(name, size, cpu) / size for size in sizes]
        found.want(f"{name}: CPU, dearest beside cheapest size", max(flat) / min(flat), 2.5)
        for size in sizes:
            ratio = beside_gate(name, size, cpu)
            found.want(f"{name}: CPU of {size:,}, beside the bare gate", ratio, 1.4)
        ratio = middle(name, most, over_ideal) / best
        found.want(f"{name}: time over ideal of {most:,}, beside the peers' best", ratio, 1.1)
        ratio = bytes_each[name] / bytes_each[GATE]
        found.want(f"{name}: memory, beside the bare gate", ratio, 1.15)
        turn = middle(name, most, per_1000) * 1e3
        found.want(f"{name}: turn of the loop per 1,000 grants, {most:,} wait", turn, 5, " ms")
    return found


def quartile(values: Iterable[float]) -> float:
    """Give the value that a quarter of them is below."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]


def cpu(one: Run) -> float:
    """Give the CPU of it all."""
    return one.arriving + one.serving


def serving(one: Run) -> float:
    """Give the CPU since all had come."""
    return one.serving


def wall(one: Run) -> float:
    """Give the time since all had come."""
    return one.wall


def over_ideal(one: Run) -> float:
    """Give the time, as a multiple of what the limit asks for."""
    return one.wall / one.ideal


def longest_turn(one: Run) -> float:
    """Give the longest turn of the loop."""
    return one.longest_turn


def per_1000(one: Run) -> float:
    """Give the longest turn of the loop, by the thousands that it granted."""
    return one.per_1000


def main() -> None:
    """Measure and print."""
    options = arguments(
        __doc__,
        rounds=(7, "rounds of ours and the gate"),
        peers=(1, "rounds of the peers"),
        patience=(8.0, "seconds over the ideal after which a contestant is stopped"),
    )
    print(machine())
    show(report(options.rounds, options.peers, options.patience))


if __name__ == "__main__":
    main()
