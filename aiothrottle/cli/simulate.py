"""``aiothrottle simulate``: algorithms and guards before a simulated server, compared."""

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from aiothrottle import _checks
from aiothrottle.algorithms import (
    Algorithm,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from aiothrottle.cli.advice import usual_guard
from aiothrottle.cli.options import (
    Command,
    json_option,
    number,
    option,
    plot_option,
    rate,
    seconds,
    some_seconds,
    whole_number,
    whole_rate,
)
from aiothrottle.cli.output import columns_of, fitted, paragraph, print_document
from aiothrottle.cli.picture import Panel, save
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.simulation import Outcome, RetryAfter, Server, simulate, table
from aiothrottle.simulation.outcome import cells
from aiothrottle.testing.server import AlgorithmName

_NO_LIMITER = "none"
_WORKERS = 20
# Periods in a picture: more would be too narrow to see.
_SHOWN = 12
# Algorithms differ only after the first period.
_LEAST_SECONDS, _LEAST_PERIODS = 60.0, 5
_ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "sliding-window-log": SlidingWindowLog,
    "token-bucket": TokenBucket,
    "leaky-bucket": LeakyBucket,
    "fixed-window": FixedWindow,
    "sliding-window-counter": SlidingWindowCounter,
}

_DESCRIPTION = """\
Simulate clients of a server with a limit, in virtual time, and count the requests that it
throttles, for each algorithm and each guard.
"""

_EPILOG = """\
used: admitted requests, as a part of the most that the server could have admitted.
in a period: the most requests, throttled or not, in any window of the server's period.
fairness: 1 if all clients got the same, 1/n if one of n got everything.

examples:
  aiothrottle simulate --rate 100/min --algorithm sliding-window-log --algorithm token-bucket
  aiothrottle simulate --server-algorithm fixed-window --guard 0 --guard 0.01 --plot guards.png
  aiothrottle simulate --clients 4 --client-rate 5/s
"""


@dataclass(kw_only=True)
class Run:
    """How long to simulate, and how to show the outcomes."""

    json: bool = json_option()
    seconds: float | None = option(
        "SECONDS",
        "simulated time (default: 60, and at least five of the server's periods)",
        some_seconds,
    )
    seed: int = option("N", "seed of all random numbers (default: %(default)s)", int, 0)
    plot: Any = plot_option(f"the first {_SHOWN} periods")


@dataclass(kw_only=True)
class Limits:
    """The server, and the network before it."""

    rate: Rate = option(
        "RATE",
        "its rate limit: 20 (per second), 20/s, 300/min (default: 20/s)",
        whole_rate,
        Rate(20),
    )
    server_algorithm: AlgorithmName = option(
        None,
        "its algorithm (default: %(default)s)",
        default="sliding-window-log",
        choices=get_args(AlgorithmName),
    )
    server_burst: int | None = option(
        "N", "the size of its token bucket (default: the limit)", whole_number(1_000_000)
    )
    retry_after: RetryAfter = option(
        None,
        "the Retry-After of its 429: whole seconds, exact ones, or none (default: %(default)s)",
        default="seconds",
        choices=get_args(RetryAfter),
    )
    latency: float = option(
        "SECONDS",
        "minimum network delay of a request, and of its response (default: %(default)g)",
        some_seconds,
        0.05,
    )
    jitter: float = option(
        "SECONDS",
        "maximum random delay added to the latency (default: %(default)g)",
        seconds,
        0.01,
    )


@dataclass(kw_only=True)
class Clients:
    """The clients, and the limiters to compare."""

    algorithm: list[str] = option(
        None,
        "their algorithm; may be repeated, to compare (default: sliding-window-log)",
        action="append",
        choices=[*_ALGORITHMS, _NO_LIMITER],
    )
    guard: list[float] = option(
        "SECONDS",
        "safety margin added to their period; may be repeated, to compare (default: 0, and 5%% of "
        "the period or 0.05)",
        seconds,
        action="append",
    )
    client_rate: Rate | None = option(
        "RATE", "rate limit of each client (default: that of the server)", rate
    )
    burst: float | None = option("N", "the most requests in a row", number)
    clients: int = option(
        "N", "number of independent clients (default: %(default)s)", whole_number(1000), 1
    )
    workers: int | None = option(
        "N",
        f"tasks of each client, each sending one request after another (default: {_WORKERS})",
        whole_number(10_000),
    )
    demand: float | None = option(
        "N", "in place of the workers: requests per second of each client, at random times", number
    )


def _run(parser: argparse.ArgumentParser, run: Run, limits: Limits, clients: Clients) -> int:
    lasting = run.seconds or max(_LEAST_SECONDS, _LEAST_PERIODS * limits.rate.period)
    try:
        outcomes = _outcomes(limits, clients, lasting, run.seed)
    except ValueError as error:
        parser.error(str(error))
    setting = _setting(limits, clients, lasting)
    if run.json:
        print_document(_document(limits, clients, lasting, run.seed, outcomes))
    else:
        # A table that fits a terminal; in Markdown into a pipe.
        width = columns_of(sys.stdout)
        lines = [table(outcomes)] if width is None else fitted(cells(outcomes), width)
        print("\n".join([paragraph(setting, width), "", *lines]), flush=True)
    if run.plot is None:
        return 0
    shown = min(lasting, _SHOWN * limits.rate.period)
    panels = [
        Panel(
            f"{name}: {it.sent} sent, {it.refused} throttled, {it.utilisation:.1%} used",
            [(arrival.at, arrival.refused) for arrival in it.arrivals if arrival.at < shown],
            shown,
            limits.rate,
        )
        for name, it in outcomes.items()
    ]
    return 0 if save(panels, setting, run.plot, sys.stderr if run.json else sys.stdout) else 1


def _document(
    limits: Limits, clients: Clients, lasting: float, seed: int, outcomes: Mapping[str, Outcome]
) -> dict[str, object]:
    return {
        "server": {
            "rate": limits.rate,
            "algorithm": limits.server_algorithm,
            "burst": limits.server_burst,
        },
        "clients": clients.clients,
        "latency": limits.latency,
        "jitter": limits.jitter,
        "seconds": lasting,
        "seed": seed,
        "outcomes": [
            {
                "name": name,
                "sent": outcome.sent,
                "throttled": outcome.refused,
                "used": outcome.utilisation,
                "wait_mean": _known(outcome.waits.mean),
                "wait_p50": _known(outcome.waits.p50),
                "wait_p99": _known(outcome.waits.p99),
                "most_in_period": outcome.greatest_count,
                "fairness": outcome.fairness,
                "given_up": outcome.given_up,
            }
            for name, outcome in outcomes.items()
        ],
    }


def _known(wait: float) -> float | None:
    return None if math.isnan(wait) else wait


def _outcomes(limits: Limits, clients: Clients, lasting: float, seed: int) -> dict[str, Outcome]:
    if limits.server_burst and limits.server_algorithm != "token-bucket":
        raise ValueError(
            "--server-burst needs a token bucket: give --server-algorithm token-bucket"
        )
    if clients.workers and clients.demand:
        raise ValueError("--demand replaces the workers: leave out --workers")
    server = Server(
        limits.rate,
        limits.server_algorithm,
        burst=limits.server_burst,
        retry_after=limits.retry_after,
    )
    return {
        name: simulate(
            limiter,
            server,
            clients=clients.clients,
            workers=clients.workers or _WORKERS,
            demand=clients.demand,
            latency=limits.latency,
            jitter=limits.jitter,
            seconds=lasting,
            seed=seed,
        )
        for name, limiter in _limiters(clients, clients.client_rate or limits.rate).items()
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


def _setting(limits: Limits, clients: Clients, lasting: float) -> str:
    rate_, burst = limits.rate, limits.server_burst
    holding = f" holding {burst}" if burst else ""
    count = "1 client" if clients.clients == 1 else f"{clients.clients} clients"
    return (
        f"A {limits.server_algorithm.replace('-', ' ')}{holding} of "
        f"{_checks.number(rate_.limit)} in {_checks.number(rate_.period)} s, {count}, "
        f"jitter {_checks.number(limits.jitter)} s, {_checks.number(lasting)} s"
    )


COMMAND = Command(
    usage="[options]",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    options={"": Run, "the server": Limits, "the clients": Clients},
    run=_run,
)
