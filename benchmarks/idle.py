"""What a limiter costs while nothing happens: `uv run benchmarks/idle.py`. Takes a minute.

Nobody waits: a hundred went, and then the loop is left alone. What there is besides, tasks, timers
and threads, would keep a program from its end, or wake a machine that could sleep.

A thousand wait, and one may go each second. Somebody has to wake for that one; who polls does so
for each that waits, all the time. A turn is what the loop does between two looks at its sockets.
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
    """What there was besides, and what was done in a second: turns of the loop, CPU."""

    besides: int
    turns: float
    cpu: float


class Turns(selectors.DefaultSelector):
    """A selector that counts the turns of the loop."""

    count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Count this one."""
        self.count += 1
        return super().select(timeout)


def rest(name: str, waiters: int, seconds: float) -> Rest:
    """Have so many wait for it in this process, or nobody, and look on."""
    turns = Turns()

    async def watched() -> Rest:
        rate = 1 if waiters else 1_000
        contestant = make(name, rate, rate)
        await contestant.repeat(1 if waiters else 100)
        tasks = [asyncio.create_task(contestant.once(lambda: None)) for _ in range(waiters)]
        await asyncio.sleep(0.1)  # all have come
        gc.collect()
        besides = len(asyncio.all_tasks()) - 1 - sum(not task.done() for task in tasks)
        besides += threading.active_count() - 1 + _timers(asyncio.get_running_loop())
        turns.count, began_at, cpu = 0, time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        took, cpu = time.monotonic() - began_at, time.process_time() - cpu
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Two turns are the sleep's own: its beginning and its end.
        return Rest(besides, max(0, turns.count - 2) / took, cpu / took)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(watched())


def _timers(loop: asyncio.AbstractEventLoop) -> int:
    """Count those that will go off."""
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return sum(not timer.cancelled() for timer in scheduled)


def report(seconds: float = 3.0) -> Report:
    """Measure, and hold the figures against the targets."""
    found = Report("Idle")
    for waiters in (0, WAITERS):
        rows = [["", "tasks, timers, threads", "turns per second", "CPU per second"]]
        for name in NAMES:
            one = apart(seconds + 20, rest, name, waiters, seconds)
            assert one is not None, f"{name} kept the loop from its end"
            figures = [f"{one.besides}", f"{one.turns:.1f}", f"{one.cpu * 1e3:.2f} ms"]
            rows.append([name, *figures])
            if name not in MINE:
                continue
            if waiters:
                found.want(f"{name}: turns, {waiters:,} wait", one.turns, 10, " per second")
            else:
                found.want(f"{name}: tasks, timers, threads, nobody waits", one.besides, 0, "")
                found.want(f"{name}: turns, nobody waits", one.turns, 1, " per second")
        found.add(f"{waiters:,} wait, 1 may go each second." if waiters else "Nobody waits.", rows)
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, seconds=(3.0, "seconds for which each is looked at"))
    print(machine())
    show(report(options.seconds))


if __name__ == "__main__":
    main()
