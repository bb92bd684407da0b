"""A crawl at the limit of a real server: `uv run benchmarks/crawl.py`.

300 pages from a server that admits 50 in any second and 8 at once. The least possible time is 5 s:
50 pages at once, and 50 more after each second.
"""

import asyncio
import math
import time

from measure import Report, Target, arguments, machine, show

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession
from aiothrottle.testing import Audit, RateLimitedServer

__all__ = ["report"]

RATE, AT_ONCE, GUARD = 50, 8, 0.02


async def crawl(pages: int) -> tuple[float, Audit]:
    """Fetch all pages at once; return the seconds it took, and the server's audit."""
    limiter = RateLimiter(RATE, concurrency_limit=AT_ONCE, guard=GUARD)
    async with (
        RateLimitedServer(RATE, concurrency_limit=AT_ONCE) as server,
        ThrottledSession(limiter, retry=Retry(attempts=1)) as session,
    ):

        async def fetch(page: int) -> None:
            async with session.get(server.url / str(page)) as response:
                await response.read()

        begun = time.monotonic()
        await asyncio.gather(*map(fetch, range(pages)))
        return time.monotonic() - begun, server.audit


def report(pages: int = 300, rounds: int = 3) -> Report:
    """Crawl, and compare the results with the promise."""
    found = Report("A crawl")
    best = math.ceil(pages / RATE) - 1
    rows = [["round", "seconds", "of the optimum", "throttled", "in any second", "at once"]]
    throttled = 0
    for number in range(1, rounds + 1):
        seconds, audit = asyncio.run(crawl(pages))
        throttled += audit.refused
        rows.append(
            [
                str(number),
                f"{seconds:.3f}",
                f"{best / seconds:.1%}",
                str(audit.refused),
                str(audit.greatest_count(1.0)),
                str(audit.greatest_concurrency),
            ]
        )
    found.add(f"{pages} pages at {RATE}/s with a guard of {GUARD:g} s, {AT_ONCE} at once.", rows)
    found.targets.append(Target("requests throttled", "0", str(throttled), throttled == 0))
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, pages=(300, "pages"), rounds=(3, "rounds"))
    print(machine())
    show(report(options.pages, options.rounds))


if __name__ == "__main__":
    main()
