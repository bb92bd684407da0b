"""The command line: ``aiothrottle demo``."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from aiothrottle import __version__
from aiothrottle.demo import PICTURES, Terms, matplotlib_is_missing, run_demo
from aiothrottle.rate import Rate, as_rate

__all__ = ["main"]

# What a shell reports of a program that Ctrl-C has ended: 128 and the number of SIGINT.
_INTERRUPTED = 130

# A plain aiohttp session opens no more connections: above it, no crawler would notice the limit.
_MOST_AT_ONCE = 100
# All of them are kept in memory, with the requests.
_MOST_PAGES = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit status; `arguments` are by default the program's.

    Raises:
        SystemExit: The arguments ask for help or the version (0), or make no sense (2).
    """
    parser = _make_parser()
    try:
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return 0
        return _demo(options)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return _INTERRUPTED


def _make_parser() -> argparse.ArgumentParser:
    defaults = Terms()
    parser = argparse.ArgumentParser(
        prog="aiothrottle", description="Stay under the limits of the APIs you call."
    )
    parser.add_argument("--version", action="version", version=f"aiothrottle {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="crawl a server on this machine, without and with aiothrottle, and compare",
        description="Start a server with a limit on this machine and crawl it three times: with no "
        "limiter, with a semaphore, with aiothrottle. Needs no network.",
    )
    demo.add_argument(
        "--rate",
        type=_rate,
        default=defaults.rate,
        metavar="RATE",
        help="what the server admits: 50 (per second), 50/s, 300/min, 5/100ms (default: 50/s)",
    )
    demo.add_argument(
        "--concurrency",
        type=_whole_number(_MOST_AT_ONCE),
        default=defaults.concurrency,
        metavar="N",
        help="how many requests it admits at once (default: %(default)s)",
    )
    demo.add_argument(
        "--pages",
        type=_whole_number(_MOST_PAGES),
        default=defaults.pages,
        metavar="N",
        help="how many pages it has (default: %(default)s)",
    )
    demo.add_argument(
        "--plot",
        type=_picture,
        metavar="FILE",
        help=f"write a picture of the crawls ({', '.join(PICTURES)}); needs matplotlib",
    )
    return parser


def _demo(options: argparse.Namespace) -> int:
    terms = Terms(rate=options.rate, concurrency=options.concurrency, pages=options.pages)
    return run_demo(terms, options.plot)


def _rate(text: str) -> Rate:
    """Read a rate that a server can keep to in whole requests."""
    try:
        rate = as_rate(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if rate.limit < 1 or rate.limit != math.floor(rate.limit):
        raise argparse.ArgumentTypeError(
            f"a server admits whole requests, not {text!r}; one in two seconds is 1/2s"
        )
    return rate


def _whole_number(greatest: int) -> Callable[[str], int]:
    """Make a reader of whole numbers from 1 to `greatest`."""

    def read(text: str) -> int:
        message = f"must be a whole number from 1 to {greatest}, not {text!r}"
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(message) from None
        if not 1 <= number <= greatest:
            raise argparse.ArgumentTypeError(message)
        return number

    return read


def _picture(text: str) -> Path:
    """Read the name of a picture, and see that it can be drawn: a crawl later it is too late."""
    picture = Path(text)
    if picture.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(
            f"must be a file name in {' or '.join(PICTURES)}, not {text!r}"
        )
    if not picture.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(picture.parent)!r}")
    if matplotlib_is_missing():
        raise argparse.ArgumentTypeError(
            "a picture needs matplotlib: pip install 'aiothrottle-client[plot]'"
        )
    return picture
