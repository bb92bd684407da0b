"""A crawl at the limit of a real server: `uv run benchmarks/crawl.py`.

300 pages from a server that admits 50 in any second and 8 at once. The least possible time is 5 s:
50 pages at once, and 50 more after each second. A guard in seconds begins like that. With all
defaults requests are evenly spaced at first, which costs the pages of the first second.

aiolimiter with a semaphore never retries, as ours here: a throttled page is lost.
"""

import asyncio
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import ClientSession
from aiolimiter import AsyncLimiter
from measure import Report, arguments, machine, show

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession
from aiothrottle.testing import Audit, RateLimitedServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["report"]

RATE, AT_ONCE, GUARD = 50, 8, 0.02
OURS, DEFAULTS = f"guard={GUARD:g}", "all defaults"
PEER = "aiolimiter and a semaphore"


@asynccontextmanager
async def session_of(name: str) -> "AsyncGenerator[ClientSession | ThrottledSession]":
    """Return the session of that contestant, which sends each page once."""
    if name == PEER:
        async with ClientSession() as plain:
            yield plain
        return
    guard = GUARD if name == OURS else None
    limiter = RateLimiter(RATE, concurrency_limit=AT_ONCE, guard=guard)
    async with ThrottledSession(limiter, retry=Retry(attempts=1)) as session:
        yield session


async def crawl(name: str, pages: int) -> tuple[float, Audit]:
    """Fetch all pages at once; return the seconds it took, and the server's audit."""
    rate, slots = AsyncLimiter(RATE, 1), asyncio.Semaphore(AT_ONCE)
    async with (
        RateLimitedServer(RATE, concurrency_limit=AT_ONCE) as server,
        session_of(name) as session,
    ):

        async def fetch(page: int) -> None:
            async with session.get(server.url / str(page)) as response:
                await response.read()

        async def fetch_behind_a_limiter(page: int) -> None:
            async with slots, rate:
                await fetch(page)

        begun = time.monotonic()
        await asyncio.gather(*map(fetch_behind_a_limiter if name == PEER else fetch, range(pages)))
        return time.monotonic() - begun, server.audit


def report(pages: int = 300, rounds: int = 3) -> Report:
    """Crawl, and compare the results with the promise."""
    found = Report("A crawl")
    best = math.ceil(pages / RATE) - 1.0
    rows = [["", "seconds", "of the optimum", "throttled", "in any second", "at once"]]
    shares = dict.fromkeys((OURS, DEFAULTS, PEER), 1.0)
    throttled = dict.fromkeys(shares, 0)
    for number in range(1, rounds + 1):
        for name in shares:
            seconds, audit = asyncio.run(crawl(name, pages))
            shares[name] = min(shares[name], best / seconds)
            throttled[name] += audit.throttled
            rows.append(
                [
                    f"{name}, round {number}",
                    f"{seconds:.3f}",
                    f"{best / seconds:.1%}",
                    str(audit.throttled),
                    str(audit.greatest_count(1.0)),
                    str(audit.greatest_concurrency),
                ]
            )
    found.add(f"{pages} pages at {RATE}/s, {AT_ONCE} at once.", rows)
    for name in (OURS, DEFAULTS):
        found.want_share(f"{name}: share of the optimum, worst round", shares[name], 0.97)
        found.want(f"{name}: requests throttled", throttled[name], 0, "")
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, pages=(300, "pages"), rounds=(3, "rounds"))
    print(machine())
    show(report(options.pages, options.rounds))


if __name__ == "__main__":
    main()
