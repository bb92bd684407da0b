"""The cost of a limiter while nothing happens: `uv run benchmarks/idle.py`. Takes a minute.

Without waiters, a limiter should have no tasks, timers or threads, which would keep a program from
its end or wake an idle machine. With a thousand waiters, of which one is granted each second, it
needs one wakeup per second. A turn is the work of the loop between two selects.
"""

import asyncio
import gc
import selectors
import threading
import time
from typing import NamedTuple

from contended import GATE, make
from measure import Report, apart, arguments, machine, show
from peers import PEERS

__all__ = ["report"]

MINE = ("SlidingWindowLog", "TokenBucket")
NAMES = (GATE, *MINE, *(name for name in PEERS if name != "aiometer"))
WAITERS = 1_000


class Rest(NamedTuple):
    """Tasks, timers and threads of the limiter; turns of the loop and CPU in a second."""

    besides: int
    turns: float
    cpu: float


class Turns(selectors.DefaultSelector):
    """A selector that counts the turns of the loop."""

    count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Count a turn."""
        self.count += 1
        return super().select(timeout)


def rest(name: str, waiters: int, seconds: float) -> Rest:
    """Watch a limiter with so many waiters, or none, in this process."""
    turns = Turns()

    async def watched() -> Rest:
        rate = 1 if waiters else 1_000
        contestant = make(name, rate, rate)
        await contestant.repeat(1 if waiters else 100)
        tasks = [asyncio.create_task(contestant.once(lambda: None)) for _ in range(waiters)]
        await asyncio.sleep(0.1)  # all are waiting
        gc.collect()
        besides = len(asyncio.all_tasks()) - 1 - sum(not task.done() for task in tasks)
        besides += threading.active_count() - 1 + _timers(asyncio.get_running_loop())
        turns.count, began_at, cpu = 0, time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        took, cpu = time.monotonic() - began_at, time.process_time() - cpu
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Two turns are those of the sleep itself: its beginning and its end.
        return Rest(besides, max(0, turns.count - 2) / took, cpu / took)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(watched())


def _timers(loop: asyncio.AbstractEventLoop) -> int:
    """Count the timers that will fire."""
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return sum(not timer.cancelled() for timer in scheduled)


def report(seconds: float = 3.0) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("Idle")
    for waiters in (0, WAITERS):
        rows = [["", "tasks, timers, threads", "turns per second", "CPU per second"]]
        for name in NAMES:
            one = apart(seconds + 20, rest, name, waiters, seconds)
            assert one is not None, f"{name} kept the loop from its end"
            results = [f"{one.besides}", f"{one.turns:.1f}", f"{one.cpu * 1e3:.2f} ms"]
            rows.append([name, *results])
            if name not in MINE:
                continue
            if waiters:
                found.want(f"{name}: turns, {waiters:,} wait", one.turns, 10, " per second")
            else:
                found.want(f"{name}: tasks, timers, threads, no waiters", one.besides, 0, "")
                found.want(f"{name}: turns, no waiters", one.turns, 1, " per second")
        found.add(
            f"{waiters:,} wait, 1 is granted each second." if waiters else "No waiters.", rows
        )
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, seconds=(3.0, "seconds for which each is watched"))
    print(machine())
    show(report(options.seconds))


if __name__ == "__main__":
    main()
