"""The cost of waiting in a queue of 1,000 to 100,000: `uv run benchmarks/contended.py`.

The limit of 50,000 per second has just been spent; then all waiters come at once. There are two
kinds of limits: a window, in which all tokens come free at one instant, and a stream with a burst
of 500. The bare gate is a queue of futures with the limit of the stream. The waiters of
`asyncio.Semaphore` pass it on to each other.

CPU is the cost of a waiter from its start to its end, its task included: the first quartile of the
rounds, and beside it the ratio of the medians. Each limiter runs in a process of its own in every
round. A queue of 1,000 takes only 5 ms, so it has three times as many rounds.

A turn is the work of the loop between two selects. Turns count once all are waiting.
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
        """Discard earlier turns, and count from here on."""
        self.begun, self.granted = time.perf_counter(), self.count()
        self.longest = self.per_1000 = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Record how long the turn took that ends here."""
        turn, granted = time.perf_counter() - self.begun, self.count()
        self.longest = max(self.longest, turn)
        self.per_1000 = max(self.per_1000, turn / max(1.0, (granted - self.granted) / 1000))
        events = super().select(timeout)
        self.begun, self.granted = time.perf_counter(), granted
        return events


def make(name: str, rate: int = RATE, burst: int = BURST) -> Contestant:
    """Return the contestant of that name."""
    if name == GATE:
        return peers.bare_gate(rate, burst)
    if name == SEMAPHORE:
        return peers.semaphore(1)
    made = {**ours.OURS, **peers.PEERS}[name](rate, rate if name in WINDOWED else burst)
    assert made is not None, f"{name} has no such limit"
    return made


async def spend(name: str, contestant: Contestant, rate: int = RATE, burst: int = BURST) -> None:
    """Spend the whole burst."""
    if isinstance(contestant, Entered) and isinstance(contestant.block, asyncio.Semaphore):
        await contestant.block.acquire()
        # By then all are waiting: a timer fires in the turn after this one at the earliest.
        asyncio.get_running_loop().call_later(0.0, contestant.block.release)
    elif name != GATE:  # it starts with an empty bucket
        await contestant.repeat(rate if name in WINDOWED else burst)


def run(name: str, waiters: int) -> Run:
    """Serve so many waiters at once, in this process."""
    turns = Turns()

    async def measured() -> Run:
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
        await asyncio.sleep(0)  # all are waiting
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
        runner.run(measured())
        waiters = every
        return runner.run(measured())


def memory(name: str, waiters: int) -> float:
    """Return the bytes that one of so many waiters takes, its task included."""

    async def measured() -> float:
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

    return asyncio.run(measured())


def ideal(name: str, waiters: int, elapsed: float = 0.0, granted: int = 0) -> float:
    """Return the least seconds by the limit: a window from its spending on, a stream from now on.

    The limit was spent `elapsed` seconds ago, and `granted` waiters were granted since.
    """
    if name == SEMAPHORE:
        return 0.0
    if name in WINDOWED:
        return float(-(-waiters // RATE))
    credit = min(BURST, max(0.0, elapsed * RATE - granted))
    return (waiters - granted - credit) / RATE


def report(
    rounds: int = 7,
    peer_rounds: int = 1,
    patience: float = 8.0,
    sizes: tuple[int, ...] = SIZES,
) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("A long queue")
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
                    too_long.add(name)  # no larger queue of this contestant
                else:
                    runs.setdefault((name, size), []).append(one)

    def middle(name: str, size: int, value: Callable[[Run], float]) -> float:
        return statistics.median(map(value, runs[name, size]))

    def low(name: str, size: int, value: Callable[[Run], float]) -> float:
        return quartile(map(value, runs[name, size]))

    def beside_gate(
        name: str, size: int, value: Callable[[Run], float], of: Average = quartile
    ) -> float:
        mine = runs[name, size]
        gates = runs[GATE, size][: len(mine)]  # for a peer, as many rounds as the peer had
        return of(map(value, mine)) / of(map(value, gates))

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
            found.want(f"{name}: CPU of {size:,}, beside the bare gate", ratio, 1.25)
        ratio = middle(name, most, over_ideal) / best
        found.want(f"{name}: time over ideal of {most:,}, beside the peers' best", ratio, 1.1)
        ratio = bytes_each[name] / bytes_each[GATE]
        found.want(f"{name}: memory, beside the bare gate", ratio, 1.1)
        turn = middle(name, most, per_1000) * 1e3
        found.want(f"{name}: turn of the loop per 1,000 grants, {most:,} wait", turn, 5, " ms")
    return found


def quartile(values: Iterable[float]) -> float:
    """Return the value that a quarter of them is below."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]


def cpu(one: Run) -> float:
    """Return the CPU of the whole run."""
    return one.arriving + one.serving


def serving(one: Run) -> float:
    """Return the CPU since all were waiting."""
    return one.serving


def wall(one: Run) -> float:
    """Return the time since all were waiting."""
    return one.wall


def over_ideal(one: Run) -> float:
    """Return the time, as a multiple of the least by the limit."""
    return one.wall / one.ideal


def longest_turn(one: Run) -> float:
    """Return the longest turn of the loop."""
    return one.longest_turn


def per_1000(one: Run) -> float:
    """Return the longest turn of the loop per thousand grants."""
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
