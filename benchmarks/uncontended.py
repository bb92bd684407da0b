"""The cost of one entry that does not wait: `uv run benchmarks/uncontended.py`.

The no-op is the least that `async with limiter.throttle()` can cost: a call that makes an object,
and two coroutines that do nothing. The limiters of this package have a rate and a concurrency
limit, make permits and keep statistics. A tenth of the entries is timed for slow peers.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import ours
import peers
from contestant import Contestant, Made
from measure import Chart, Report, arguments, interleave, machine, show

from aiothrottle import Rate, RateLimiter, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["report"]

# Such a high rate that no entry waits, and yet a log of them is cleared as it runs. These peers
# know no such period, or give it another meaning.
PLENTY = 1_000_000
SLOW = ("pyrate-limiter", "limits", "throttled-py")
OURS = ("SlidingWindowLog", "TokenBucket", "keyed, key known")
YARDSTICKS = ("no-op", "asyncio.Semaphore")


def contestants() -> dict[str, Contestant]:
    """Return all contestants that can be entered one by one."""
    windowed = Rate(PLENTY, 0.001)
    entries: dict[str, Contestant | None] = {
        "no-op": peers.no_op(),
        "SlidingWindowLog": Made(RateLimiter(windowed, concurrency_limit=1000).throttle),
        "TokenBucket": Made(
            RateLimiter(windowed, concurrency_limit=1000, algorithm=TokenBucket).throttle
        ),
        "keyed, key known": ours.keyed(windowed),
        "asyncio.Semaphore": peers.semaphore(),
    }
    makers: dict[str, Callable[[int, int], Contestant | None]] = dict(peers.PEERS)
    del makers["aiometer"]  # has no single entry, only batches
    for name, make in makers.items():
        per_second = PLENTY if name in SLOW else 1000 * PLENTY
        entries[name] = make(per_second, PLENTY)
    return {name: contestant for name, contestant in entries.items() if contestant}


async def compare(rounds: int, repeat: int) -> dict[str, float]:
    """Measure all contestants, none of which ever waits; return nanoseconds per entry."""
    runs = contestants()
    fast = {name: partial(it.repeat, repeat) for name, it in runs.items() if name not in SLOW}
    few = repeat // 10
    slow = {name: partial(it.repeat, few) for name, it in runs.items() if name in SLOW}
    medians = await interleave(fast, rounds=rounds, per_round=repeat)
    return medians | await interleave(slow, rounds=max(3, rounds // 5), per_round=few)


def report(rounds: int = 25, repeat: int = 20_000) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("Without a wait")
    medians = asyncio.run(compare(rounds, repeat))
    rows = [["one entry", "ns", "x no-op", "x SlidingWindowLog"]]
    for name, ns in medians.items():
        ratios = [ns / medians["no-op"], ns / medians["SlidingWindowLog"]]
        rows.append([name, f"{ns:.0f}", *(f"{ratio:.2f}" for ratio in ratios)])
    found.add(f"Median of {rounds} interleaved rounds of {repeat:,} entries.", rows)
    caption = "Nanoseconds of one entry that does not wait: the first column of the table, as bars."
    found.chart = Chart("uncontended", caption, "ns an entry", {"": medians}, OURS, YARDSTICKS)

    for name in ("SlidingWindowLog", "TokenBucket"):
        found.want(f"{name}, beside the no-op", medians[name] / medians["no-op"], 2.1)
        found.want(f"{name}, beside aiolimiter", medians[name] / medians["aiolimiter"], 0.75)
    if known := medians.get("keyed, key known"):
        found.want("keyed, beside the unkeyed", known / medians["SlidingWindowLog"], 2.5)
    quickest = min(set(peers.PEERS) & set(medians), key=medians.__getitem__)
    for name in ("SlidingWindowLog", "TokenBucket"):
        ratio = medians[name] / medians[quickest]
        found.want(f"{name}, beside the quickest peer ({quickest})", ratio, 1.0)
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=(25, "rounds"), repeat=(20_000, "entries a round"))
    print(machine())
    show(report(options.rounds, options.repeat))


if __name__ == "__main__":
    main()
