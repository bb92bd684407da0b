"""Crawls one server with a limit with no limiter, with a semaphore, with aiothrottle.

Everything runs on this machine. The server, not the crawlers, counts the numbers of a run.
"""

import asyncio
import contextlib
import math
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.cli.display import GLANCE, Display
from aiothrottle.cli.fetch.results.progress import Meter, Progress
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.testing import Audit, RateLimitedServer, linked_pages

__all__ = ["BACK_OFF", "Run", "Terms", "compare"]

#: Seconds that the crawlers without aiothrottle wait before a retry.
BACK_OFF = 0.25

_LINK = re.compile(r'href="([^"]+)"')

Fetch: TypeAlias = Callable[[URL], Awaitable[str]]
"""Returns the text of a page, or "" if it cannot be fetched."""

Crawler: TypeAlias = Callable[["Terms"], AbstractAsyncContextManager[Fetch]]
"""Opens what a crawler needs, and yields its function to fetch a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The limits of the server, and the size of the crawl.

    Attributes:
        rate: The rate limit of the server, of whole requests in any window of the period.
        concurrency: Its limit of concurrent requests.
        pages: The number of its pages.
        page_time: Seconds that it takes for each page.
        guard: Seconds that aiothrottle adds to the period, a safety margin for network jitter.
    """

    rate: Rate = field(default=Rate(50))
    concurrency: int = 8
    pages: int = 300
    page_time: float = 0.005
    guard: float = 0.02

    def least_time(self, pages: int) -> float:
        """Return the shortest possible time in seconds to crawl this number of pages.

        One full batch may start in each period. The last batch, full or not, starts after all
        other periods, and its requests must share the concurrent places.
        """
        loads = math.ceil(pages / self.rate.limit)
        last = pages - (loads - 1) * self.rate.limit
        return (loads - 1) * self.rate.period + math.ceil(last / self.concurrency) * self.page_time

    @property
    def patience(self) -> float:
        """The timeout of a crawl in seconds."""
        return 10 + 3 * self.least_time(self.pages)


@dataclass(slots=True, eq=False)
class Run:
    """One crawl, with the pages found and the server's audit."""

    name: str
    terms: Terms
    found: set[URL] = field(default_factory=set[URL])
    audit: Audit = field(default_factory=Audit)
    started_at: float = 0.0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """The used part of the limits: the shortest possible time divided by the actual time."""
        return self.terms.least_time(len(self.found)) / self.seconds if self.found else 0.0

    def complaint(self) -> str | None:
        """Return what is wrong with a crawl if it is incomplete or was throttled, else None."""
        wrong: list[str] = []
        if missing := self.terms.pages - len(self.found):
            wrong.append(f"{missing} of {self.terms.pages} pages are missing")
        if self.audit.refused:
            wrong.append(f"{self.audit.refused} of {self.audit.sent} requests were throttled")
        return " and ".join(wrong) or None


async def compare(terms: Terms, limiter: RateLimiter | None) -> list[Run]:
    """Crawl a new server with each crawler; `limiter` replaces the one that keeps to the terms."""
    keeper = limiter or RateLimiter(
        terms.rate, concurrency_limit=terms.concurrency, guard=terms.guard
    )
    crawlers: dict[str, Crawler] = {
        "no limiter": _with_no_limiter,
        f"semaphore of {terms.concurrency}": _with_semaphore,
        "aiothrottle": lambda _: _with_aiothrottle(keeper),
    }
    return [await _measure(name, crawler, terms) for name, crawler in crawlers.items()]


async def _measure(name: str, crawler: Crawler, terms: Terms) -> Run:
    """Run one crawler against a new server."""
    run = Run(name, terms)
    pages = linked_pages(terms.pages)

    async def page(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(terms.page_time)
        return await pages(request)

    async with (
        RateLimitedServer(terms.rate, concurrency_limit=terms.concurrency, handler=page) as server,
        crawler(terms) as fetch,
    ):
        run.audit = server.audit
        with _progress(run, sys.stderr):
            run.started_at = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(terms.patience):
                    await _crawl(server.url, fetch, run.found)
            run.seconds = time.monotonic() - run.started_at
    return run


async def _crawl(start: URL, fetch: Fetch, found: set[URL]) -> None:
    """Follow every link from `start` on; add the pages to `found` as they arrive."""
    seen = {start}

    async def visit(url: URL) -> None:
        page = await fetch(url)
        if not page:
            return
        found.add(url)
        for link in map(url.join, map(URL, _LINK.findall(page))):
            if link not in seen:
                seen.add(link)
                tasks.create_task(visit(link))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(visit(start))


@contextlib.asynccontextmanager
async def _with_no_limiter(_: Terms) -> AsyncGenerator[Fetch, None]:
    async with aiohttp.ClientSession() as session:
        yield lambda url: _insist(session, url)


@contextlib.asynccontextmanager
async def _with_semaphore(terms: Terms) -> AsyncGenerator[Fetch, None]:
    semaphore = asyncio.Semaphore(terms.concurrency)
    async with aiohttp.ClientSession() as session:

        async def fetch(url: URL) -> str:
            async with semaphore:
                return await _insist(session, url)

        yield fetch


@contextlib.asynccontextmanager
async def _with_aiothrottle(limiter: RateLimiter) -> AsyncGenerator[Fetch, None]:
    async with ThrottledSession(limiter) as session:

        async def fetch(url: URL) -> str:
            async with session.get(url) as response:
                return await response.text() if response.ok else ""

        yield fetch


async def _insist(session: aiohttp.ClientSession, url: URL) -> str:
    """Fetch a page as a program without a limiter does: retry until it succeeds."""
    while True:
        async with session.get(url) as response:
            page = await response.text()
            if response.ok:
                return page
        await asyncio.sleep(BACK_OFF)


@contextlib.contextmanager
def _progress(run: Run, screen: TextIO) -> Generator[None, None, None]:
    """Show the progress of the crawl if the stream is a terminal."""
    with Display(screen) as display:
        ticker = asyncio.create_task(_tick(run, display))
        try:
            yield
        finally:
            ticker.cancel()


async def _tick(run: Run, display: Display) -> None:
    meter = Meter(run.terms.rate)
    while display.is_live:
        found = len(run.found)
        fraction = found / run.terms.pages
        meter.mark(time.monotonic(), run.audit.sent, fraction)
        progress = Progress(
            done=f"{run.name}: {found} of {run.terms.pages} pages",
            throttled=run.audit.refused,
            left=meter.left,
            rate=meter.rate,
            limit=run.terms.rate,
        )
        display.show(progress.parts(), fraction, progress.time_left())
        await asyncio.sleep(GLANCE)
