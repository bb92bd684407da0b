"""Throttled requests by client and server algorithm: `uv run benchmarks/algorithms.py`.

`--write` puts the tables into docs/project/results/algorithms.md, between the markers there.
Nothing is measured: it is simulated on virtual time, so every machine gives the same results. Takes
about two minutes.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from measure import put_into

import aiothrottle
from aiothrottle import RateLimiter, algorithms
from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.rate import Rate
from aiothrottle.simulation import Server, simulate

PAGE = Path(__file__).parents[1] / "docs" / "project" / "results" / "algorithms.md"

LIMIT = 20
JITTER = 0.01
SECONDS = 300
SEEDS = (0, 1, 2)

# What a client may use to stay under 20 per period, which its guard stretches.
CLIENTS: dict[str, Callable[[float], Algorithm[Any]]] = {
    "`SlidingWindowLog`": lambda period: SlidingWindowLog(Rate(LIMIT, period)),
    "`SlidingWindowLog`, at most 5 back to back": lambda period: AllOf(
        SlidingWindowLog(Rate(LIMIT, period)), TokenBucket(Rate(LIMIT, period), burst=5)
    ),
    "`TokenBucket`": lambda period: TokenBucket(Rate(LIMIT, period)),
    "`TokenBucket(burst=5)`": lambda period: TokenBucket(Rate(LIMIT, period), burst=5),
    "`LeakyBucket`": lambda period: LeakyBucket(Rate(LIMIT, period)),
    "`FixedWindow`": lambda period: FixedWindow(Rate(LIMIT, period)),
    "`SlidingWindowCounter`": lambda period: SlidingWindowCounter(Rate(LIMIT, period)),
    "`Cooldown`": lambda period: Cooldown(LIMIT, period),
    "`WaitUntil`": lambda period: WaitUntil(period / LIMIT, raise_after=60, limit=60),
}
# The package itself exports the algorithms that users choose from; its module, all of them.
CHOICES = {*dir(aiothrottle)} & {*algorithms.__all__}

SERVERS = {
    "a rolling window": Server(LIMIT, "sliding-window-log"),
    "a fixed window": Server(LIMIT, "fixed-window"),
    "a token bucket of 20": Server(LIMIT, "token-bucket"),
    "a token bucket of 5": Server(LIMIT, "token-bucket", burst=5),
}
GUARDS = (0.0, JITTER, 0.05)
# Requests a second at random times, instead of workers that always have a request to send.
DEMAND = 18
JITTERS = (0.0, 0.005, 0.01, 0.02, 0.05)


class Result(NamedTuple):
    """The result of a client and a server: the means over the seeds."""

    throttled: float
    used: float

    def __str__(self) -> str:
        return f"{self.throttled * 100:.2f} / {self.used * 100:.1f}"


def run(
    client: Callable[[], RateLimiter],
    server: Server,
    *,
    clients: int = 1,
    jitter: float = JITTER,
    demand: float | None = None,
) -> Result:
    """Simulate once for each seed."""
    outcomes = [
        simulate(
            client,
            server,
            clients=clients,
            demand=demand,
            jitter=jitter,
            seconds=SECONDS,
            seed=seed,
        )
        for seed in SEEDS
    ]
    return Result(
        statistics.mean(outcome.throttled_share for outcome in outcomes),
        statistics.mean(outcome.utilisation for outcome in outcomes),
    )


def table(rows: list[list[str]]) -> str:
    """Lay out rows of text in Markdown, the first being the head."""
    rows = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def milliseconds(seconds: float) -> str:
    """Write a duration."""
    return f"{seconds * 1000:g} ms"


def algorithms_table(server: Server) -> str:
    """Compare the client algorithms with a server, with several guards."""
    rows = [["client algorithm", *(f"guard {milliseconds(guard)}" for guard in GUARDS)]]
    for name, make in CLIENTS.items():
        cells = [
            str(run(partial(RateLimiter, algorithm=make(1 + guard)), server)) for guard in GUARDS
        ]
        rows.append([name, *cells])
    return table(rows)


def demand_table() -> str:
    """Compare the client algorithms with every server, for requests at random times."""
    rows = [["client algorithm", *SERVERS]]
    for name, make in CLIENTS.items():
        client = partial(RateLimiter, algorithm=make(1 + JITTER))
        cells = [str(run(client, server, demand=DEMAND)) for server in SERVERS.values()]
        rows.append([name, *cells])
    return table(rows)


def guards_table() -> str:
    """Compare guards of the default algorithm with a rolling window."""
    guards = (0.0, 0.005, 0.01, 0.02, 0.05)
    rows = [["jitter", *(f"guard {milliseconds(guard)}" for guard in guards)]]
    for jitter in JITTERS:
        cells = [
            str(
                run(
                    partial(RateLimiter, LIMIT, guard=guard),
                    Server(LIMIT),
                    jitter=jitter,
                )
            )
            for guard in guards
        ]
        rows.append([milliseconds(jitter), *cells])
    return table(rows)


def clients_table() -> str:
    """Compare clients that share one limit and know nothing of each other."""
    rows = [["clients", "each has its part", "each takes the whole"]]
    for clients in (1, 2, 4):
        cells = [
            str(
                run(
                    partial(RateLimiter, rate, guard=JITTER),
                    Server(LIMIT),
                    clients=clients,
                )
            )
            for rate in (LIMIT / clients, LIMIT)
        ]
        rows.append([str(clients), *cells])
    return table(rows)


def report() -> str:
    """Simulate everything; return the text between the markers."""
    terms = (
        f"*Simulated by `python benchmarks/algorithms.py --write` on {time.strftime('%Y-%m-%d')}: "
        f"{LIMIT} requests per second, 20 workers that always have a request to send, "
        f"{milliseconds(JITTER)} of jitter on the way unless noted, {SECONDS} s, "
        f"the mean of {len(SEEDS)} seeds.*"
    )
    parts = [terms, "In each cell: requests throttled, in % / limit used, in %."]
    for name, server in SERVERS.items():
        parts += [f"### The server counts in {name}", algorithms_table(server)]
    parts += [
        "### Requests at random times",
        f"{DEMAND} a second on average, and a guard of {milliseconds(JITTER)}:",
        demand_table(),
    ]
    parts += ["### How long a guard", "The default algorithm, and a server with a rolling window:"]
    parts += [guards_table()]
    parts += [
        "### Several clients, one limit",
        f"The same, with a guard of {milliseconds(JITTER)}:",
        clients_table(),
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Simulate and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args()
    unlisted = [name for name in CHOICES if not any(name in client for client in CLIENTS)]
    if unlisted:
        parser.error(f"add a line to CLIENTS for {', '.join(sorted(unlisted))}")
    text = report()
    print(text)
    if options.write:
        put_into(PAGE, "algorithms.py", text)


if __name__ == "__main__":
    main()
