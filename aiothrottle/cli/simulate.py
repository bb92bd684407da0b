"""Try an algorithm and a guard against a simulated server, without any request.

Clients of a server with a limit run in virtual time, and the requests that it
throttles are counted, for each algorithm and each guard.

used: admitted requests, as a part of the most that the server could admit.
in a period: the most requests, throttled or not, in any window of the
server's period.
fairness: 1 if all clients got the same, 1/n if one of n got everything.

Examples:
  aiothrottle simulate --rate 100/min --algorithm token-bucket
  aiothrottle simulate --server-algorithm fixed-window --guard 0 --guard 0.01
  aiothrottle simulate --clients 4 --client-rate 5/s --plot clients.png
"""

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from aiothrottle import _checks, algorithms
from aiothrottle.cli.advice import usual_guard
from aiothrottle.cli.options import (
    Command,
    duration,
    flag,
    number,
    option,
    picture,
    positive_duration,
    rate,
    whole_number,
    whole_rate,
)
from aiothrottle.cli.output import (
    Panel,
    chosen,
    columns_of,
    fitted,
    print_document,
    print_texts,
    save_picture,
)
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.simulation import Outcome, RetryAfter, Server, simulate, table
from aiothrottle.simulation.outcome import cells
from aiothrottle.testing.algorithms import AlgorithmName

_NO_LIMITER = "none"
_WORKERS = 20
# Periods in a picture: more would be too narrow to see.
_SHOWN = 12
# Algorithms differ only after the first period.
_LEAST_SECONDS, _LEAST_PERIODS = 60.0, 5
_ALGORITHMS: dict[str, type[algorithms.Algorithm[Any]]] = {
    "sliding-window-log": algorithms.SlidingWindowLog,
    "token-bucket": algorithms.TokenBucket,
    "leaky-bucket": algorithms.LeakyBucket,
    "fixed-window": algorithms.FixedWindow,
    "sliding-window-counter": algorithms.SlidingWindowCounter,
}


@dataclass(kw_only=True)
class Show:
    """How to show the outcomes.

    Attributes:
        json: print the results as one JSON document, and nothing else, to standard output
        plot: draw the first 12 periods into this file (.png, .svg); needs matplotlib
    """

    json: bool = flag()
    plot: Path | None = option("FILE", picture)


@dataclass(kw_only=True)
class World:
    """The server, the network before it, and the time.

    Attributes:
        rate: its rate limit: 20 (per second), 20/s, 300/min (default: 20/s)
        server_algorithm: its algorithm (default: %(default)s)
        server_burst: the size of its token bucket (default: the limit)
        retry_after: the Retry-After of its 429: whole seconds, exact ones, or none (default:
            %(default)s)
        latency: minimum network delay of a request, and of its response (default: %(default)g)
        jitter: maximum random delay added to the latency (default: %(default)g)
        seconds: simulated time (default: 60, and at least five of the server's periods)
        seed: seed of all random numbers (default: %(default)s)
    """

    rate: Rate = option("RATE", whole_rate, Rate(20))
    server_algorithm: AlgorithmName = option(
        "", default="sliding-window-log", choices=get_args(AlgorithmName)
    )
    server_burst: int | None = option("N", whole_number(1_000_000))
    retry_after: RetryAfter = option("", default="seconds", choices=get_args(RetryAfter))
    latency: float = option("SECONDS", positive_duration, 0.05)
    jitter: float = option("SECONDS", duration, 0.01)
    seconds: float = option("SECONDS", positive_duration, 0.0)
    seed: int = option("N", int, 0)

    def __post_init__(self) -> None:
        """Choose the time, and reject an option without effect."""
        if self.server_burst and self.server_algorithm != "token-bucket":
            raise ValueError(
                "--server-burst needs a token bucket: give --server-algorithm token-bucket"
            )
        self.seconds = self.seconds or max(_LEAST_SECONDS, _LEAST_PERIODS * self.rate.period)


@dataclass(kw_only=True)
class Clients:
    """The clients, and the limiters to compare.

    Attributes:
        algorithm: their algorithm: sliding-window-log (the default), token-bucket, leaky-bucket,
            fixed-window, sliding-window-counter, or none; may be repeated, to compare
        guard: safety margin added to their period; may be repeated, to compare (default: 0, and 5%
            of the period or 0.05)
        client_rate: rate limit of each client (default: that of the server)
        burst: the most requests in a row
        clients: number of independent clients (default: %(default)s)
        workers: tasks of each client, each sending one request after another (default: 20)
        demand: in place of the workers: requests per second of each client, at random times
    """

    algorithm: list[str] = option("NAME", choices=[*_ALGORITHMS, _NO_LIMITER])
    guard: list[float] = option("SECONDS", duration)
    client_rate: Rate | None = option("RATE", rate)
    burst: float | None = option("N", number)
    clients: int = option("N", whole_number(1000), 1)
    workers: int | None = option("N", whole_number(10_000))
    demand: float | None = option("N", number)

    def __post_init__(self) -> None:
        """Reject a contradiction."""
        if self.workers and self.demand:
            raise ValueError("--demand replaces the workers: leave out --workers")


def _run(parser: argparse.ArgumentParser, show: Show, world: World, clients: Clients) -> int:
    try:
        outcomes = _outcomes(world, clients)
    except ValueError as error:
        parser.error(str(error))
    setting = _setting(world, clients)
    if show.json:
        print_document(_document(world, clients, outcomes))
    else:
        # A table that fits a terminal; in Markdown into a pipe.
        width = columns_of(sys.stdout)
        rows = table(outcomes).splitlines() if width is None else fitted(cells(outcomes), width)
        print_texts([setting, "", *rows])
    if show.plot is None:
        return 0
    shown = min(world.seconds, _SHOWN * world.rate.period)
    panels = [
        Panel(
            f"{name}: {it.sent} sent, {it.throttled} throttled, {it.utilisation:.1%} used",
            [(arrival.at, arrival.throttled) for arrival in it.arrivals if arrival.at < shown],
            shown,
            world.rate,
        )
        for name, it in outcomes.items()
    ]
    drawn = save_picture(panels, setting, show.plot, sys.stderr if show.json else sys.stdout)
    return 0 if drawn else 1


def _document(world: World, clients: Clients, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    return {
        "server": {
            "rate": world.rate,
            "algorithm": world.server_algorithm,
            "burst": world.server_burst,
        },
        "clients": clients.clients,
        **chosen(world, "latency", "jitter", "seconds", "seed"),
        "outcomes": [
            {
                "name": name,
                **chosen(outcome, "sent", "throttled", "fairness", "given_up"),
                "used": outcome.utilisation,
                "wait_mean": _known(outcome.waits.mean),
                "wait_p50": _known(outcome.waits.p50),
                "wait_p99": _known(outcome.waits.p99),
                "most_in_period": outcome.greatest_count,
            }
            for name, outcome in outcomes.items()
        ],
    }


def _known(wait: float) -> float | None:
    return None if math.isnan(wait) else wait


def _outcomes(world: World, clients: Clients) -> dict[str, Outcome]:
    server = Server(
        world.rate, world.server_algorithm, burst=world.server_burst, retry_after=world.retry_after
    )
    return {
        name: simulate(
            limiter,
            server,
            clients=clients.clients,
            workers=clients.workers or _WORKERS,
            demand=clients.demand,
            latency=world.latency,
            jitter=world.jitter,
            seconds=world.seconds,
            seed=world.seed,
        )
        for name, limiter in _limiters(clients, clients.client_rate or world.rate).items()
    }


def _limiters(clients: Clients, kept_to: Rate) -> "dict[str, partial[RateLimiter]]":
    """Return a factory for each of the compared limiters."""
    limiters: dict[str, partial[RateLimiter]] = {}
    for algorithm in clients.algorithm or ["sliding-window-log"]:
        if algorithm == _NO_LIMITER:
            limiters["no limiter"] = partial(RateLimiter)
            continue
        for guard in clients.guard or [0.0, usual_guard([kept_to])]:
            limiters[f"{algorithm}, guard {_checks.number(guard)} s"] = partial(
                RateLimiter,
                kept_to,
                algorithm=_ALGORITHMS[algorithm],
                burst=clients.burst,
                guard=guard,
            )
    return limiters


def _setting(world: World, clients: Clients) -> str:
    holding = f" holding {world.server_burst}" if world.server_burst else ""
    count = "1 client" if clients.clients == 1 else f"{clients.clients} clients"
    limit, period = _checks.number(world.rate.limit), _checks.number(world.rate.period)
    return (
        f"A {world.server_algorithm.replace('-', ' ')}{holding} of {limit} in {period} s, {count}, "
        f"jitter {_checks.number(world.jitter)} s, {_checks.number(world.seconds)} s"
    )


COMMAND = Command(
    text=__doc__,
    usage="[options]",
    options={"": Show, "the server": World, "the clients": Clients},
    run=_run,
)
