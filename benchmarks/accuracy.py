"""How much of a limit is used, and whether it is ever exceeded: `uv run benchmarks/accuracy.py`.

Each limiter meets some seconds of saturated demand. `used` is the share of what its promise allows
in that time. `excess` is the number of requests too many in the worst stretch of time: above the
limit in any second for a window, above burst + rate x t in any time t for a bucket. The time of a
request is read at the start of its body, some microseconds after the grant.

With a burst of 1 a late timer cannot be made up for, and the timers of asyncio are late by up to a
millisecond. The bare timer, a lock and `asyncio.sleep`, shows how much that costs. It takes turns
with the limiters, three times: the tables have the medians, and the worst excess. `LeakyBucket`
keeps an absolute schedule, and may make up for 2 ms.
"""

import asyncio
import statistics
import time
from collections import defaultdict

import ours
import peers
from measure import Chart, Report, apart, arguments, machine, show
from promises import Window

__all__ = ["report"]

RATES = (10, 100, 1_000, 10_000)
# The observer's clock is read some microseconds after its body begins: this is its accuracy.
SIGHT = 10e-6
# Seconds until every limit is whole again.
_PAUSE = 1.1
TIMER = "bare timer"
MAKERS = {**ours.OURS, TIMER: peers.bare_timer, **peers.PEERS}
# At most one in any 1/rate.
STRICT = ("TokenBucket", "SlidingWindowLog, burst=1")
# Rounds of the contestants that are compared with the timer, and of the timer.
_ROUNDS = 3

# The promise, the share used and the excess.
Result = tuple[str, float, float]


def saturate(name: str, rate: int, burst: int, seconds: float) -> Result | None:
    """Ask for more than the limit allows; return the promise, the share used and the excess."""

    async def measured() -> Result | None:
        contestant = MAKERS[name](rate, burst)
        if contestant is None:
            return None
        assert contestant.promise is not None
        await contestant.repeat(1)
        await asyncio.sleep(_PAUSE)
        instants: list[float] = []
        workers = max(2, min(2 * rate, 2_000))
        await contestant.saturate(lambda: instants.append(time.monotonic()), seconds, workers)
        end = instants[0] + seconds
        used = sum(instant < end for instant in instants) / contestant.promise.most(seconds)
        kind = "burst + rate x t"
        if isinstance(contestant.promise, Window):
            kind = "in any second" if contestant.promise.period == 1 else "one in any 1/rate"
        return kind, used, contestant.promise.excess(instants)

    return asyncio.run(measured())


def in_turn(rate: int, burst: int, seconds: float) -> dict[str, Result]:
    """Measure each that has such a limit; the ones compared with the timer more than once."""
    results: dict[str, list[Result]] = defaultdict(list)
    for turn in range(_ROUNDS if burst == 1 else 1):
        for name in MAKERS:
            if turn == 0 or name in (*STRICT, TIMER):
                result = apart(seconds + 20, saturate, name, rate, burst, seconds)
                if result is not None:
                    results[name].append(result)
    return {
        name: (
            several[0][0],
            statistics.median(used for _, used, _ in several),
            max(excess for _, _, excess in several),
        )
        for name, several in results.items()
    }


def report(seconds: float = 3.0, rates: tuple[int, ...] = RATES) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("Accuracy")
    least: dict[str, float] = {}
    beside: dict[str, float] = {}
    longest: dict[str, float] = {}
    paced: dict[str, dict[str, float]] = {}
    for bursts in ("rate", "1"):
        rows = [[f"burst {bursts}", "promise"]]
        rows[0] += [f"{rate}/s {what}" for rate in rates for what in ("used", "excess")]
        lines: dict[str, list[str]] = {}
        for rate in rates:
            burst = rate if bursts == "rate" else 1
            results = in_turn(rate, burst, seconds)
            if burst == 1 and rate >= 100:  # slower rates are easy
                paced[f"{rate:,}/s"] = {name: used for name, (_, used, _) in results.items()}
            for name, (kind, used, excess) in results.items():
                lines.setdefault(name, [name, kind]).extend([f"{used:.1%}", f"{excess:.2f}"])
                if name in ours.OURS:
                    label = f"{name}, burst {bursts}"
                    longest[label] = max(excess / rate, longest.get(label, 0.0))
                    if burst > 1 or name not in STRICT:
                        least[label] = min(used, least.get(label, used))
            for name in STRICT if burst == 1 else ():
                ratio = results[name][1] / results[TIMER][1]
                beside[name] = min(ratio, beside.get(name, ratio))
        found.add(f"{seconds:g} s of demand, burst of {bursts}.", rows + list(lines.values()))
    caption = "The share used of a rate with a burst of 1: from the second table, as bars."
    unit = "used, with a burst of 1"
    found.chart = Chart("accuracy", caption, unit, paced, ours.OURS, [TIMER], share=True)
    for label, used in least.items():
        found.want_share(f"{label}: share used, worst rate", used, 0.995)
    for name, ratio in beside.items():
        what = f"{name}, burst 1: share used, beside a bare timer, worst rate"
        found.want_least(what, ratio, 0.95)
    for label, early in longest.items():
        found.want(f"{label}: ahead of the promise, worst rate", early * 1e6, SIGHT * 1e6, " us")
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, seconds=(3.0, "seconds of demand"))
    print(machine())
    show(report(options.seconds))


if __name__ == "__main__":
    main()
