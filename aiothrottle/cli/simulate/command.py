"""``aiothrottle simulate``: its arguments, its table and its picture."""

import argparse
import math
import sys
from collections.abc import Mapping
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
from aiothrottle.cli.arguments import (
    number,
    picture,
    rate,
    seconds,
    some_seconds,
    whole_number,
    whole_rate,
)
from aiothrottle.cli.document import add_json, print_document, rate_value
from aiothrottle.cli.picture import SUFFIXES, Panel, save
from aiothrottle.cli.suggestion import usual_guard
from aiothrottle.cli.table import columns_of, fitted, paragraph
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.simulation import Outcome, RetryAfter, Server, simulate, table
from aiothrottle.simulation.outcome import cells
from aiothrottle.testing.server import AlgorithmName

__all__ = ["execute", "fill"]

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


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and their help."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "aiothrottle simulate [options]"
    add_json(parser)
    _add_server(parser.add_argument_group("the server"))
    _add_clients(parser.add_argument_group("the clients"))
    parser.add_argument(
        "--seconds",
        type=some_seconds,
        metavar="SECONDS",
        help="simulated time (default: 60, and at least five of the server's periods)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of all random numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=picture,
        metavar="FILE",
        help=f"draw the first {_SHOWN} periods ({', '.join(SUFFIXES)}); needs matplotlib",
    )


def _add_server(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--rate",
        type=whole_rate,
        default=Rate(20),
        metavar="RATE",
        help="its rate limit: 20 (per second), 20/s, 300/min (default: 20/s)",
    )
    group.add_argument(
        "--server-algorithm",
        choices=get_args(AlgorithmName),
        default="sliding-window-log",
        help="its algorithm (default: %(default)s)",
    )
    group.add_argument(
        "--server-burst",
        type=whole_number(1_000_000),
        metavar="N",
        help="the size of its token bucket (default: the limit)",
    )
    group.add_argument(
        "--retry-after",
        choices=get_args(RetryAfter),
        default="seconds",
        help="the Retry-After of its 429: whole seconds, exact ones, or none "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--latency",
        type=some_seconds,
        default=0.05,
        metavar="SECONDS",
        help="minimum network delay of a request, and of its response (default: %(default)g)",
    )
    group.add_argument(
        "--jitter",
        type=seconds,
        default=0.01,
        metavar="SECONDS",
        help="maximum random delay added to the latency (default: %(default)g)",
    )


def _add_clients(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--algorithm",
        choices=[*_ALGORITHMS, _NO_LIMITER],
        action="append",
        help="their algorithm; may be repeated, to compare (default: sliding-window-log)",
    )
    group.add_argument(
        "--guard",
        type=seconds,
        action="append",
        metavar="SECONDS",
        help="safety margin added to their period; may be repeated, to compare (default: 0, and "
        "5%% of the period or 0.05)",
    )
    group.add_argument(
        "--client-rate",
        type=rate,
        metavar="RATE",
        help="rate limit of each client (default: that of the server)",
    )
    group.add_argument("--burst", type=number, metavar="N", help="the most requests in a row")
    group.add_argument(
        "--clients",
        type=whole_number(1000),
        default=1,
        metavar="N",
        help="number of independent clients (default: %(default)s)",
    )
    group.add_argument(
        "--workers",
        type=whole_number(10_000),
        metavar="N",
        help=f"tasks of each client, each sending one request after another (default: {_WORKERS})",
    )
    group.add_argument(
        "--demand",
        type=number,
        metavar="N",
        help="in place of the workers: requests per second of each client, at random times",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if options.seconds is None:
        options.seconds = max(_LEAST_SECONDS, _LEAST_PERIODS * options.rate.period)
    try:
        outcomes = _outcomes(options)
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        print_document(_document(options, outcomes))
    else:
        _print_table(_setting(options), outcomes)
    if options.plot is None:
        return 0
    panels = [_panel(name, outcome, options) for name, outcome in outcomes.items()]
    messages = sys.stderr if options.json else sys.stdout
    return 0 if save(panels, _setting(options), options.plot, messages) else 1


def _print_table(setting: str, outcomes: Mapping[str, Outcome]) -> None:
    """Print a table that fits a terminal; in Markdown into a pipe."""
    width = columns_of(sys.stdout)
    lines = [table(outcomes)] if width is None else fitted(cells(outcomes), width)
    print("\n".join([paragraph(setting, width), "", *lines]), flush=True)


def _document(options: argparse.Namespace, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    return {
        "server": {
            "rate": rate_value(options.rate),
            "algorithm": options.server_algorithm,
            "burst": options.server_burst,
        },
        "clients": options.clients,
        "latency": options.latency,
        "jitter": options.jitter,
        "seconds": options.seconds,
        "seed": options.seed,
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


def _outcomes(options: argparse.Namespace) -> dict[str, Outcome]:
    if options.server_burst and options.server_algorithm != "token-bucket":
        raise ValueError(
            "--server-burst needs a token bucket: give --server-algorithm token-bucket"
        )
    if options.workers and options.demand:
        raise ValueError("--demand replaces the workers: leave out --workers")
    server = Server(
        options.rate,
        options.server_algorithm,
        burst=options.server_burst,
        retry_after=options.retry_after,
    )
    return {
        name: simulate(
            limiter,
            server,
            clients=options.clients,
            workers=options.workers or _WORKERS,
            demand=options.demand,
            latency=options.latency,
            jitter=options.jitter,
            seconds=options.seconds,
            seed=options.seed,
        )
        for name, limiter in _limiters(options).items()
    }


def _limiters(options: argparse.Namespace) -> "dict[str, partial[RateLimiter]]":
    """Return a factory for each of the compared limiters."""
    kept_to: Rate = options.client_rate or options.rate
    guards = options.guard or [0.0, usual_guard([kept_to])]
    limiters: dict[str, partial[RateLimiter]] = {}
    for algorithm in options.algorithm or ["sliding-window-log"]:
        if algorithm == _NO_LIMITER:
            limiters["no limiter"] = partial(RateLimiter)
            continue
        for guard in guards:
            limiters[f"{algorithm}, guard {_checks.number(guard)} s"] = partial(
                RateLimiter,
                kept_to,
                algorithm=_ALGORITHMS[algorithm],
                burst=options.burst,
                guard=guard,
            )
    return limiters


def _setting(options: argparse.Namespace) -> str:
    rate_, burst = options.rate, options.server_burst
    holding = f" holding {burst}" if burst else ""
    clients = "1 client" if options.clients == 1 else f"{options.clients} clients"
    return (
        f"A {options.server_algorithm.replace('-', ' ')}{holding} of "
        f"{_checks.number(rate_.limit)} in {_checks.number(rate_.period)} s, {clients}, "
        f"jitter {_checks.number(options.jitter)} s, {_checks.number(options.seconds)} s"
    )


def _panel(name: str, outcome: Outcome, options: argparse.Namespace) -> Panel:
    shown = min(options.seconds, _SHOWN * options.rate.period)
    return Panel(
        f"{name}: {outcome.sent} sent, {outcome.refused} throttled, {outcome.utilisation:.1%} used",
        [(arrival.at, arrival.refused) for arrival in outcome.arrivals if arrival.at < shown],
        shown,
        options.rate,
    )
