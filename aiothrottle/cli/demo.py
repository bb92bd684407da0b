"""``aiothrottle demo``: what it takes, and its run."""

import argparse

from aiothrottle.cli.arguments import picture, whole_number, whole_rate
from aiothrottle.demo import Terms, run_demo
from aiothrottle.picture import SUFFIXES

__all__ = ["add_demo"]

# A plain aiohttp session opens no more connections: above it, no crawler would notice the limit.
_MOST_AT_ONCE = 100
# All of them are kept in memory, with the requests.
_MOST_PAGES = 100_000


def add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    defaults = Terms()
    parser = commands.add_parser(
        "demo",
        help="crawl a server on this machine, without and with aiothrottle, and compare",
        description="Start a server with a limit on this machine and crawl it three times: with no "
        "limiter, with a semaphore, with aiothrottle. Needs no network.",
    )
    parser.add_argument(
        "--rate",
        type=whole_rate,
        default=defaults.rate,
        metavar="RATE",
        help="what the server admits: 50 (per second), 50/s, 300/min, 5/100ms (default: 50/s)",
    )
    parser.add_argument(
        "--concurrency",
        type=whole_number(_MOST_AT_ONCE),
        default=defaults.concurrency,
        metavar="N",
        help="how many requests it admits at once (default: %(default)s)",
    )
    parser.add_argument(
        "--pages",
        type=whole_number(_MOST_PAGES),
        default=defaults.pages,
        metavar="N",
        help="how many pages it has (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=picture,
        metavar="FILE",
        help=f"write a picture of the crawls ({', '.join(SUFFIXES)}); needs matplotlib",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terms = Terms(rate=options.rate, concurrency=options.concurrency, pages=options.pages)
    return run_demo(terms, options.plot)
