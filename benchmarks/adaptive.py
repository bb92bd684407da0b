"""Unknown limits, found and followed: `uv run benchmarks/adaptive.py [--write]`.

Real limiters are simulated on virtual time, so every machine gives the same results. This page has
2 seeds for each case; [Results](../results/adaptive.md) has tables of more. The
rules of other projects are in `benchmarks/rivals.py`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import rivals
from measure import Report, Rows, markdown, put_into, show

from aiothrottle import AdaptiveRate, RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.simulation import Arrival, Outcome, RetryAfter, Server, simulate
from aiothrottle.testing.algorithms import AlgorithmName

PAGE = Path(__file__).parents[1] / "docs" / "project" / "results" / "adaptive.md"
TITLE = "Unknown limits"

ALGORITHMS: tuple[AlgorithmName, ...] = ("sliding-window-log", "fixed-window", "token-bucket")
RATES = (Rate(10, 1), Rate(100, 1), Rate(500, 60))
STARTS = {"4 times too fast": 4.0, "10 times too slow": 0.1}
# Windows in which to find the limit, and then windows in which it is watched.
SEARCH = 10
WATCHED = {1: 300, 60: 40}
# A limit is found when, for these seconds (at least a window), so much is used and throttled.
STRETCH, USED, THROTTLED = 20, 0.9, 0.01
WORKERS = 50
# Seconds each way in the comparison with other rules: one of them depends on latency alone.
LATENCY = 0.02
JITTERS = (0.0, 0.01, 0.03, 0.1)

Result = TypeVar("Result")


def each(seeds: range, simulate_one: Callable[[int], Result]) -> list[Result]:
    """Simulate once for each seed, on all cores."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(simulate_one, seeds))


class Part(NamedTuple):
    """The traffic at a server in a part of the time: shares of the requests, and of the limit."""

    throttled: float
    used: float
    fairness: float = 1.0


def part(arrivals: Iterable[Arrival], rate: Rate, since: float, until: float) -> Part:
    """Return the traffic at the server from `since` until `until`."""
    admitted: dict[int, int] = {}
    sent = 0
    for arrival in arrivals:
        if since <= arrival.at < until:
            sent += 1
            admitted[arrival.client] = admitted.get(arrival.client, 0) + (not arrival.throttled)
    total = sum(admitted.values())
    squares = sum(count**2 for count in admitted.values())
    return Part(
        1.0 - total / sent if sent else 0.0,
        total * rate.period / rate.limit / (until - since),
        total**2 / (len(admitted) * squares) if squares else 1.0,
    )


def mean(parts: list[Part]) -> Part:
    """Return the mean of each field."""
    return Part(*(statistics.mean(column) for column in zip(*parts, strict=True)))


def percent(share: float, digits: int = 2) -> str:
    """Write a share."""
    return f"{share * 100:.{digits}f}"


def per_second(rate: Rate) -> float:
    """Return the requests per second."""
    return rate.limit / rate.period


def adaptive(rate: Rate, start: float) -> RateLimiter:
    """Build the limiter, which knows nothing but its initial rate."""
    truth = per_second(rate)
    return RateLimiter(AdaptiveRate(start * truth, minimum=truth / 100, maximum=20 * truth))


def named(rate: Rate) -> str:
    """Write a rate as a user does."""
    return f"{rate.limit:g}/{'s' if rate.period == 1 else 'min'}"


def watch(
    rate: Rate, algorithm: AlgorithmName, start: float, retry_after: RetryAfter, seed: int
) -> tuple[Part, float]:
    """Simulate a search; return the traffic after it, and the windows until the limit is found."""
    period = rate.period
    end = (SEARCH + WATCHED[int(period)]) * period
    outcome = simulate(
        partial(adaptive, rate, start),
        Server(rate, algorithm, retry_after=retry_after),
        workers=WORKERS,
        seconds=end,
        seed=seed,
    )
    return part(outcome.arrivals, rate, SEARCH * period, end), found_after(outcome, rate, 0.0, end)


def found_after(outcome: Outcome, rate: Rate, since: float, end: float) -> float:
    """Return the windows from `since` until the limit is found, and kept for the stretch."""
    length = max(1, int(STRETCH / rate.period))
    admitted = [0] * (int(end / rate.period) + 1)
    throttled = admitted.copy()
    for arrival in outcome.arrivals:
        counts = throttled if arrival.throttled else admitted
        counts[int(arrival.at / rate.period)] += 1
    limit = rate.limit * length
    for first in range(int(since / rate.period), len(admitted) - length):
        stretch = slice(first, first + length)
        if sum(admitted[stretch]) >= USED * limit and sum(throttled[stretch]) <= THROTTLED * limit:
            return first - since / rate.period
    return float("inf")


def constant(report: Report, seeds: range) -> None:
    """Find a limit that stays."""
    rows: Rows = [["server", "begun", "throttled, %", "used, %", "found after, windows (most)"]]
    worst = Part(0.0, 1.0)
    slowest = on_average = 0.0
    cases: list[tuple[RetryAfter, tuple[Rate, ...]]] = [("seconds", RATES), ("none", RATES[:1])]
    for retry_after, rates in cases:
        for algorithm in ALGORITHMS:
            for rate in rates:
                for name, start in STARTS.items():
                    runs = each(seeds, partial(watch, rate, algorithm, start, retry_after))
                    result = mean([after for after, _ in runs])
                    found = [windows for _, windows in runs]
                    if retry_after == "seconds":
                        worst = Part(
                            max(worst.throttled, result.throttled), min(worst.used, result.used)
                        )
                        slowest = max(slowest, *found)
                        on_average = max(on_average, statistics.mean(found))
                    rows.append(
                        [
                            f"{algorithm}, {named(rate)}, Retry-After: {retry_after}",
                            name,
                            percent(result.throttled),
                            percent(result.used, 1),
                            f"{statistics.mean(found):.1f} ({max(found):.0f})",
                        ]
                    )
    report.add("A limit that stays, seen from the eleventh window on", rows)
    report.want("throttled after 10 windows, the worst server", worst.throttled * 100, 1.0, " %")
    report.want_share("used after 10 windows, the worst server", worst.used, 0.95)
    report.want("windows until it is found, the worst server", on_average, 10, "")
    report.want("windows until it is found, the worst of all runs", slowest, 10, "")


def follow(
    rate: Rate,
    new: Rate,
    algorithm: AlgorithmName,
    begin: float,
    retry_after: RetryAfter,
    seed: int,
) -> tuple[Part, float]:
    """Simulate a change of the limit; return the traffic since, and the seconds until found."""
    end = max(3 * begin, begin + 300.0)
    outcome = simulate(
        partial(adaptive, rate, 1.0),
        Server(rate, algorithm, retry_after=retry_after),
        workers=WORKERS,
        seconds=end,
        changes={begin: Server(new, algorithm, retry_after=retry_after)},
        seed=seed,
    )
    found = found_after(outcome, new, begin, end) * rate.period
    return part(outcome.arrivals, new, begin, end), found


def changing(report: Report, seeds: range) -> None:
    """Follow a limit that halves or doubles."""
    rows: Rows = [["server", "limit", "throttled, %", "used, %", "followed after, s (most)"]]
    cases: list[tuple[Rate, float, RetryAfter]] = [
        (RATES[0], 30.0, "none"),
        (RATES[0], 300.0, "none"),
        (RATES[0], 300.0, "seconds"),
        (RATES[2], 1200.0, "seconds"),
    ]
    for algorithm in ALGORITHMS:
        for rate, begin, retry_after in cases:
            for name, factor in (("halves", 0.5), ("doubles", 2.0)):
                new = Rate(rate.limit * factor, rate.period)
                runs = each(seeds, partial(follow, rate, new, algorithm, begin, retry_after))
                result = mean([after for after, _ in runs])
                found = [seconds for _, seconds in runs]
                rows.append(
                    [
                        f"{algorithm}, {named(rate)}, Retry-After: {retry_after}",
                        f"{name} at {begin:.0f} s",
                        percent(result.throttled),
                        percent(result.used, 1),
                        f"{statistics.mean(found):.0f} ({max(found):.0f})",
                    ]
                )
    report.add("A limit that changes, seen from the change on", rows)


def share(rate: Rate, algorithm: AlgorithmName, seed: int) -> Part:
    """Simulate four clients on one limit; return the traffic after a settling time."""
    begin, end = (300.0, 600.0) if rate.period == 1 else (1200.0, 2400.0)
    outcome = simulate(
        partial(adaptive, rate, 1.0),
        Server(rate, algorithm),
        clients=4,
        workers=WORKERS // 2,
        seconds=end,
        seed=seed,
    )
    return part(outcome.arrivals, rate, begin, end)


def sharing(report: Report, seeds: range) -> None:
    """Share a limit among four clients that know nothing of each other."""
    rows: Rows = [["server", "throttled, %", "used, %", "fairness (least)"]]
    worst, fairness = 0.0, 1.0
    for algorithm in ALGORITHMS:
        for rate in RATES:
            parts = each(seeds, partial(share, rate, algorithm))
            result = mean(parts)
            worst = max(worst, result.throttled)
            fairness = min(fairness, result.fairness)
            rows.append(
                [
                    f"{algorithm}, {named(rate)}",
                    percent(result.throttled),
                    percent(result.used, 1),
                    f"{result.fairness:.3f} ({min(it.fairness for it in parts):.3f})",
                ]
            )
    report.add("Four clients on one limit, each begun at all of it, after a while", rows)
    report.want("four clients: throttled, the worst server", worst * 100, 1.5, " %")
    report.want_share("four clients: Jain's fairness, the worst server", fairness, 0.95)


def rival(make: Callable[[], rivals.Rival], server: Server, seed: int) -> Part:
    """Run a rival's rule against the server."""
    end = float(SEARCH + WATCHED[1])
    arrivals = rivals.run(make, server, workers=20, latency=LATENCY, seconds=end, seed=seed)
    return part(arrivals, server.rate, SEARCH, end)


def ours(server: Server, seed: int) -> Part:
    """Run our own rule against the server."""
    end = float(SEARCH + WATCHED[1])
    outcome = simulate(
        partial(adaptive, server.rate, 4.0),
        server,
        workers=20,
        latency=LATENCY,
        seconds=end,
        seed=seed,
    )
    return part(outcome.arrivals, server.rate, SEARCH, end)


def beside(report: Report, seeds: range) -> None:
    """Compare it with other rules, at 10/s."""
    contestants: dict[str, Callable[[Server, int], Part]] = {
        "**`AdaptiveRate`**": ours,
        "exponential back-off": partial(rival, rivals.BackOff),
        "Retry-After per request": partial(rival, rivals.RetryAfterAlone),
        "AWS's cubic": partial(rival, rivals.AwsCubic),
        "AutoThrottle's rule": partial(rival, rivals.AutoThrottle),
    }
    rows: Rows = [["client", *ALGORITHMS]]
    for name, ask in contestants.items():
        cells: list[str] = []
        for algorithm in ALGORITHMS:
            result = mean(each(seeds, partial(ask, Server(RATES[0], algorithm))))
            cells.append(f"{percent(result.throttled)} / {percent(result.used, 1)}")
        rows.append([name, *cells])
    report.add(
        "Beside other rules, 10/s and 20 workers, 20 to 30 ms each way: throttled, % / used, %",
        rows,
    )


def jittered(rate: Rate, jitter: float, guard: float | Literal["auto"], seed: int) -> Part:
    """Simulate a limiter that knows the limit, with a guard."""
    make = partial(RateLimiter, rate, guard=guard)
    outcome = simulate(make, Server(rate), jitter=jitter, workers=WORKERS, seconds=100, seed=seed)
    return Part(outcome.throttled_share, outcome.utilisation)


def guards(report: Report, seeds: range) -> None:
    """Let the guard tune itself, before a server that counts to the last request."""
    rows: Rows = [["jitter", "limit", "no guard", "the right guard", 'guard="auto"']]
    choices: tuple[float | Literal["auto"] | None, ...] = (0.0, None, "auto")
    worst, least = 0.0, 1.0
    for jitter in JITTERS:
        for rate in RATES[:2]:
            cells = [
                mean(each(seeds, partial(jittered, rate, jitter, jitter if it is None else it)))
                for it in choices
            ]
            worst = max(worst, cells[2].throttled)
            least = min(least, cells[2].used / cells[1].used)
            rows.append(
                [
                    f"{jitter * 1000:g} ms",
                    named(rate),
                    *(f"{percent(cell.throttled)} / {percent(cell.used, 1)}" for cell in cells),
                ]
            )
    report.add("The guard that tunes itself: throttled, % / used, %", rows)
    report.want('guard="auto": throttled, the worst jitter', worst * 100, 0.1, " %")
    report.want_share('guard="auto": used, of what the right guard uses', least, 0.9)


PARTS = {
    "constant": constant,
    "beside": beside,
    "changing": changing,
    "sharing": sharing,
    "guards": guards,
}


def report(seeds: int = 2) -> Report:
    """Return the comparison with other rules, and check the targets of all parts."""
    found, rest = Report(TITLE), Report(TITLE)
    for simulate_part in PARTS.values():
        simulate_part(found if simulate_part is beside else rest, range(seeds))
    found.targets += rest.targets
    return found


def page_part(report: Report, seeds: int) -> str:
    """Return the text between the markers."""
    terms = (
        f"*Simulated by `python benchmarks/adaptive.py --seeds {seeds} --write` on "
        f"{time.strftime('%Y-%m-%d')}: "
        f"{WORKERS} workers that always have a request to send unless noted, 50 to 60 ms "
        f"each way, Retry-After in whole seconds, the mean of {seeds} seeds.*"
    )
    text = [terms]
    for caption, rows in report.tables:
        text += [f"### {caption}", markdown(rows)]
    text.append("### Targets")
    text.append(
        "\n".join(
            f"- {it.what}: {it.found} (wanted {it.wanted}): "
            f"{'reached' if it.reached else '**not reached**'}"
            for it in report.targets
        )
    )
    return "\n\n".join(text)


def main() -> None:
    """Simulate and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; by default all")
    parser.add_argument("--seeds", type=int, default=20, help="how many (20: an hour of one core)")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args()
    report = Report(TITLE)
    for name in options.parts or PARTS:
        PARTS[name](report, range(options.seeds))
        print(f"{name}: done", flush=True)
    show(report)
    if options.write:
        put_into(PAGE, "adaptive.py", page_part(report, options.seeds))


if __name__ == "__main__":
    main()
