"""``aiothrottle demo``: its arguments and its run."""

import argparse

from aiothrottle.cli.arguments import picture, whole_number, whole_rate
from aiothrottle.cli.demo.crawl import Terms
from aiothrottle.cli.demo.run import run_demo
from aiothrottle.cli.document import add_json
from aiothrottle.cli.picture import SUFFIXES

__all__ = ["execute", "fill"]

_DESCRIPTION = """\
Start a server with a limit on this machine and crawl it three times: with no
limiter, with a semaphore, with aiothrottle. Needs no network.
"""

_EPILOG = """\
exit status:
  0  aiothrottle's crawl is complete, and none of its requests was throttled
  1  it is not, or one was, or the picture cannot be written
  2  the arguments are invalid
  130  interrupted, by Ctrl-C; 141: the reader of the output has closed it

examples:
  aiothrottle demo
  aiothrottle demo --rate 20/s --pages 100 --plot demo.png
"""

# A plain aiohttp session opens no more connections: above it, no crawler would notice the limit.
_MOST_AT_ONCE = 100
# All pages and requests are kept in memory.
_MOST_PAGES = 100_000


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and their help."""
    defaults = Terms()
    parser.description = _DESCRIPTION
    parser.usage = "aiothrottle demo [options]"
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--rate",
        type=whole_rate,
        default=defaults.rate,
        metavar="RATE",
        help="rate limit of the server: 50 (per second), 50/s, 300/min, 5/100ms (default: 50/s)",
    )
    parser.add_argument(
        "--concurrency",
        type=whole_number(_MOST_AT_ONCE),
        default=defaults.concurrency,
        metavar="N",
        help="its limit of concurrent requests (default: %(default)s)",
    )
    parser.add_argument(
        "--pages",
        type=whole_number(_MOST_PAGES),
        default=defaults.pages,
        metavar="N",
        help="number of its pages (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=picture,
        metavar="FILE",
        help=f"write a picture of the crawls ({', '.join(SUFFIXES)}); needs matplotlib",
    )
    add_json(parser)


def execute(_: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    terms = Terms(rate=options.rate, concurrency=options.concurrency, pages=options.pages)
    return run_demo(terms, options.plot, as_json=options.json)
