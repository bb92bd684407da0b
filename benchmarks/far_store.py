"""One limit through a Valkey that is far away: `uv run benchmarks/far_store.py`.

Valkey runs behind a proxy that delays each direction by half of the round trip. Processes share a
`SlidingWindowLog`, and each of their workers asks again as soon as it is granted. Grants are
counted by the server's clock, after two seconds in which the processes learn the round trip.
"""

import asyncio
import math
from collections.abc import Sequence

from delay import delayed
from measure import Report, arguments, jain, show
from redis.asyncio import Redis
from server import valkey
from stores import calls_so_far, share

from aiothrottle.testing import greatest_count

__all__ = ["report"]

ROUND_TRIPS = (0, 50, 100, 200)
RATES = (10, 100, 1000)
# Seconds until the limit is used as it will be: connections, and some round trips.
_LEARNING = 2.0
# Seconds in which the last requests are granted: these do not count.
_ENDING = 0.5


def used_after(instants: Sequence[Sequence[float]], begin: float, seconds: float) -> list[int]:
    """Count the grants of each process from so many seconds after the first one."""
    begin += min(min(each, default=math.inf) for each in instants)
    return [sum(begin <= instant < begin + seconds for instant in each) for each in instants]


async def _calls(port: int) -> int:
    async with Redis(port=port) as client:
        return await calls_so_far(client)


def report(
    *,
    round_trips: Sequence[int] = ROUND_TRIPS,
    rates: Sequence[int] = RATES,
    workers: Sequence[int] = (30, 200),
    seconds: int = 5,
) -> Report:
    """Measure everything."""
    found = Report("A far store")
    head = ["limit", "round trip", "processes", "workers each"]
    rows = [[*head, "used of the limit", "most in any second", "calls per grant", "Jain"]]
    for round_trip in round_trips:
        worst, most = 1.0, 0.0
        with valkey() as near, delayed(near, round_trip / 1000) as port:
            for rate in rates:
                for processes in (1, 4):
                    for count in workers:
                        row, used, above = _measure(
                            near, port, rate, processes=processes, workers=count, seconds=seconds
                        )
                        rows.append([f"{rate:,}/s", f"{round_trip} ms", *row])
                        worst, most = min(worst, used), max(most, above)
        found.want_share(f"{round_trip} ms: used of the limit, at the least", worst, 0.95)
        found.want(f"{round_trip} ms: most in any second, of the limit", most, 1.0, "")
    found.add(f"Limits that are shared for {seconds} s.", rows)
    return found


def _measure(
    near: int, port: int, rate: int, *, processes: int, workers: int, seconds: int
) -> tuple[list[str], float, float]:
    """Return the row, the share that was used, and the most in a second as a part of the limit."""
    before = asyncio.run(_calls(near))
    granted, instants = share(
        port, processes, rate, seconds + _LEARNING + _ENDING, tasks=workers, key=f"{workers}"
    )
    calls = (asyncio.run(_calls(near)) - before) / sum(granted)
    counts = used_after(instants, _LEARNING, seconds)
    used = sum(counts) / (rate * seconds)
    most = greatest_count([instant for each in instants for instant in each], 1.0)
    numbers = [f"{used:.1%}", f"{most:,}", f"{calls:.2f}", f"{jain(counts):.3f}"]
    return [str(processes), str(workers), *numbers], used, most / rate


if __name__ == "__main__":
    options = arguments(__doc__, seconds=(5, "seconds that are counted"))
    show(report(seconds=options.seconds))
