"""No rate given, at servers that nobody chose: `uv run benchmarks/unknown.py`.

1,000 servers are drawn at random: how they count, 0.3 to 100 requests a second, per second to per
minute, the burst, the Retry-After (whole seconds, exact or none), and 1 to 100 ms of network each
way. In virtual time 24 workers send for a minute, at most 8 requests at once. Each client meets the
same servers. *Throttled* is a share of the requests, *used* of what the server could have admitted.

"No rate" is `RateLimiter(concurrency_limit=8)` in a session, and "pauses alone" the same with
`learn_rate=False`. "The rate" is `RateLimiter(RATE, concurrency_limit=8)`. The others are what
`aiohttp-retry` does, with 8 requests at once, alone and behind the bucket of `aiolimiter` with that
rate: each 429 makes only its own request wait, and has a Retry-After even where the server sends
none. "Twice the rate" is what a second program leaves of a limit, or a user who is wrong.

The worst servers admit less than one request a second, and most of them do not say how long to
wait: with ten to forty requests in the minute, each probe of the limit is a large share. Two
windows at once mislead the search, as the short one admits more than the long one.
"""

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import rivals
from measure import Report, Rows, show

from aiothrottle import RateLimiter, TokenBucket
from aiothrottle.rate import Rate
from aiothrottle.simulation import Arrival, RetryAfter, Server, simulate
from aiothrottle.simulation.run import most_admitted
from aiothrottle.testing.algorithms import ServerAlgorithm, SlidingWindowLog

__all__ = ["report"]

TITLE = "No rate given, at random servers"
SECONDS, FOUND = 60.0, 10.0
WORKERS, AT_ONCE = 24, 8
# Requests per second that divide the servers into groups.
GROUPS = (0.0, 1.0, 4.0, 20.0, math.inf)


# ---- the servers ---------------------------------------------------------------------------------


class Both:
    """Several windows at once."""

    def __init__(self, *windows: ServerAlgorithm) -> None:
        self.windows: tuple[ServerAlgorithm, ...] = windows

    def ready_at(self) -> float:
        """Return when the last of them admits a request."""
        return max(window.ready_at() for window in self.windows)

    def count(self, now: float) -> None:
        """Count a request in all of them."""
        for window in self.windows:
            window.count(now)


class Refilled:
    """A bucket that is filled up at intervals."""

    def __init__(self, size: int, interval: float) -> None:
        self.size, self.interval = size, interval
        self.left, self.fills = size, 0

    def ready_at(self) -> float:
        """Return when it is filled up, if it is empty."""
        return -math.inf if self.left else (self.fills + 1) * self.interval

    def count(self, now: float) -> None:
        """Take a token."""
        fills = math.floor(now / self.interval + 1e-9)
        if fills > self.fills:
            self.fills, self.left = fills, self.size
        self.left -= 1


class Weighted:
    """A counter per window, to which the window before adds the part that it still covers."""

    def __init__(self, limit: int, period: float) -> None:
        self.limit, self.period = limit, period
        self.window: int = 0
        self.now: int = 0
        self.before: int = 0

    def ready_at(self) -> float:
        """Return when the weighted sum leaves room for one more."""
        if self.now >= self.limit:
            return (self.window + 1 + self._part(self.now, self.limit - 1)) * self.period
        part = self._part(self.before, self.limit - 1 - self.now)
        return (self.window + part) * self.period if part else -math.inf

    @staticmethod
    def _part(counted: int, room: int) -> float:
        """Return the part of a window after which so many that count in it fit into the room."""
        return max(0.0, 1.0 - room / counted) if counted else 0.0

    def count(self, now: float) -> None:
        """Count a request."""
        window = math.floor(now / self.period + 1e-9)
        if window > self.window:
            self.before = self.now if window == self.window + 1 else 0
            self.window, self.now = window, 0
        self.now += 1


@dataclass(frozen=True)
class Case:
    """A server, the rates that its documentation would name, and the network before it."""

    about: str
    rates: Sequence[Rate]
    server: Server
    latency: float
    jitter: float

    @property
    def per_second(self) -> float:
        """The requests per second that it admits in the long run."""
        return min(rate.limit / rate.period for rate in self.rates)


def draw(seed: int) -> Case:
    """Draw a server."""
    chance = random.Random(f"server {seed}")
    period = chance.choice((1, 1, 1, 5, 10, 60))
    limit = max(1, round(period * math.exp(chance.uniform(math.log(0.3), math.log(100)))))
    retry_after: RetryAfter = chance.choice(get_args(RetryAfter))
    rate = Rate(limit, period)
    rates, burst = [rate], chance.choice((1, 2, 5, 10, 20, 50))
    make = partial(Server, rate, retry_after=retry_after)
    match chance.choice(("log", "fixed", "bucket", "even", "refilled", "two", "weighted")):
        case "log":
            how, server = "sliding window", make()
        case "fixed":
            how, server = "fixed window", make("fixed-window")
        case "bucket":
            how, server = f"bucket of {burst}", make("token-bucket", burst=burst)
        case "even":
            how, server = "even spacing", make("token-bucket", burst=1)
        case "refilled":
            size = min(limit, burst)
            how = f"{size} filled up at intervals"
            server = make(partial(Refilled, size, size * period / limit))
        case "two":
            times = chance.choice((4, 10, 60))
            rates.append(
                Rate(max(1, round(limit * times * chance.uniform(0.3, 0.9))), period * times)
            )
            how = f"sliding window, and {rates[1]}"
            server = make(
                lambda: Both(*(SlidingWindowLog(int(it.limit), it.period) for it in rates))
            )
        case _:
            how, server = "weighted counter", make(partial(Weighted, limit, period))
    latency = math.exp(chance.uniform(math.log(0.001), math.log(0.1)))
    # So short that the slots are enough for the rate.
    latency = min(latency, AT_ONCE * period / limit / 4.5)
    text = f"{rate}, {how}, Retry-After: {retry_after}, {latency * 1000:.0f} ms"
    return Case(text, rates, server, latency, latency * chance.random())


# ---- the clients ---------------------------------------------------------------------------------


class Alone(rivals.RetryAfterAlone):
    """Each 429 makes only its own request wait."""

    def __init__(self) -> None:
        super().__init__()
        self.limiter = RateLimiter(concurrency_limit=AT_ONCE)


class BehindABucket(rivals.RetryAfterAlone):
    """The same, behind a bucket of the slowest rate."""

    def __init__(self, rates: Sequence[Rate]) -> None:
        super().__init__()
        slowest = min(rates, key=lambda rate: rate.limit / rate.period)
        self.limiter = RateLimiter(
            slowest, algorithm=TokenBucket, concurrency_limit=AT_ONCE, guard=0.0
        )


def ours(case: Case, seed: int, **limits: object) -> Sequence[Arrival]:
    """Send through a limiter."""
    make = partial(RateLimiter, concurrency_limit=AT_ONCE, **limits)  # type: ignore[arg-type]
    return simulate(
        make,
        case.server,
        workers=WORKERS,
        latency=case.latency,
        jitter=case.jitter,
        seconds=SECONDS,
        seed=seed,
    ).arrivals


def theirs(make: Callable[[], rivals.Rival], case: Case, seed: int) -> Sequence[Arrival]:
    """Send by the rule of another project."""
    return rivals.run(
        make, case.server, workers=WORKERS, latency=case.latency, seconds=SECONDS, seed=seed
    )


def twice(rates: Sequence[Rate]) -> list[Rate]:
    """Return rates that are too high."""
    return [Rate(2 * rate.limit, rate.period) for rate in rates]


CLIENTS: dict[str, Callable[[Case, int], Sequence[Arrival]]] = {
    "**no rate**": ours,
    "pauses alone": partial(ours, learn_rate=False),
    "retries alone": partial(theirs, Alone),
    "**the rate**": lambda case, seed: ours(case, seed, rate_limit=list(case.rates)),
    "the rate in a bucket, and retries": lambda case, seed: theirs(
        partial(BehindABucket, case.rates), case, seed
    ),
    "**twice the rate**": lambda case, seed: ours(case, seed, rate_limit=twice(case.rates)),
    "twice the rate in a bucket, and retries": lambda case, seed: theirs(
        partial(BehindABucket, twice(case.rates)), case, seed
    ),
}


class Minute(NamedTuple):
    """What a server saw: shares of 1, and the number of 429s."""

    throttled: float
    later: float
    used: float
    number: int


def minute(client: str, seed: int) -> Minute:
    """Let a client send for a minute to a server."""
    case = draw(seed)
    arrivals = [it for it in CLIENTS[client](case, seed) if it.at < SECONDS]
    phase = random.Random(f"{seed} phase").random() * case.server.period
    most = most_admitted(case.server.make_algorithm(phase), SECONDS)
    throttled = [it.at for it in arrivals if it.throttled]
    sent_later = sum(it.at >= FOUND for it in arrivals)
    return Minute(
        len(throttled) / len(arrivals),
        sum(at >= FOUND for at in throttled) / max(1, sent_later),
        (len(arrivals) - len(throttled)) / most,
        len(throttled),
    )


# ---- the report ----------------------------------------------------------------------------------


def spread(shares: Sequence[float], bad: int) -> str:
    """Return the median, and the 90th or the 10th percentile, which is worse."""
    tenths = statistics.quantiles(shares, n=10)
    return f"{statistics.median(shares):.1%} ({tenths[bad]:.1%})"


def row_of(name: str, minutes: Sequence[Minute]) -> list[str]:
    """Return a row of a table."""
    return [
        name,
        spread([it.throttled for it in minutes], -1),
        spread([it.later for it in minutes], -1),
        spread([it.used for it in minutes], 0),
        f"{statistics.median(it.number for it in minutes):.0f}",
    ]


def report(servers: int = 1000) -> Report:
    """Meet so many servers."""
    found = Report(TITLE)
    head = ["", "throttled", "after 10 s", "used", "429s"]
    everywhere: Rows = [head]
    ours_at: list[Minute] = []
    with ProcessPoolExecutor() as pool:
        for client in CLIENTS:
            minutes = list(pool.map(partial(minute, client), range(servers), chunksize=8))
            everywhere.append(row_of(client, minutes))
            ours_at = ours_at or minutes
    found.add("All servers: the median, and in brackets the worst tenth", everywhere)
    cases = [draw(seed) for seed in range(servers)]
    groups: Rows = [head]
    for least, most in itertools.pairwise(GROUPS):
        those = [m for m, it in zip(ours_at, cases, strict=True) if least <= it.per_second < most]
        name = f"{least:g} to {most:g}/s" if most < math.inf else f"{least:g}/s and more"
        groups.append(row_of(name, those))
    found.add("No rate, by the limit of the server", groups)
    worst = sorted(zip(ours_at, cases, strict=True), key=lambda it: -it[0].throttled)[:10]
    rows = [
        [it.about, f"{m.throttled:.0%}", f"{m.later:.0%}", f"{m.used:.0%}", f"{m.number}"]
        for m, it in worst
    ]
    found.add("No rate, at the ten servers that throttled most", [["server", *head[1:]], *rows])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1000, help="how many")
    show(report(parser.parse_args().servers))
