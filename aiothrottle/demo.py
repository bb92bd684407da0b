"""The demo: one server with a limit, crawled with no limiter, with a semaphore, with aiothrottle.

Everything happens on this machine. What the table says was counted by the server, not by the
crawlers.
"""

import asyncio
import contextlib
import math
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.limiter import RateLimiter
from aiothrottle.picture import Panel, save
from aiothrottle.rate import Rate
from aiothrottle.terminal import StatusLine
from aiothrottle.testing import Audit, RateLimitedServer, linked_pages
from aiothrottle.texts import number

__all__ = ["Run", "Terms", "run_demo"]

# Plain crawlers wait so long before they ask for a refused page again.
_BACK_OFF = 0.25

_LINK = re.compile(r'href="([^"]+)"')

Fetch: TypeAlias = Callable[[URL], Awaitable[str]]
"""Gets a page: its text, or "" if it is not to be had."""

Crawler: TypeAlias = Callable[["Terms"], AbstractAsyncContextManager[Fetch]]
"""Opens what a crawler needs, and gives its way of getting a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the server allows, and what is asked of the crawlers.

    Attributes:
        rate: The server admits so many whole requests in any window of the period.
        concurrency: It admits so many at once.
        pages: It has so many pages.
        page_time: Each of them takes it so many seconds.
        guard: Seconds by which aiothrottle stretches the period.
    """

    rate: Rate = field(default=Rate(50))
    concurrency: int = 8
    pages: int = 300
    page_time: float = 0.005
    guard: float = 0.02

    def least_time(self, pages: int) -> float:
        """Seconds below which no crawler can get so many pages.

        A full load may go at once, and another one a period later, and so on. The last load,
        full or not, starts when all periods but its own are over, and its requests still have to
        share the places.
        """
        loads = math.ceil(pages / self.rate.limit)
        last = pages - (loads - 1) * self.rate.limit
        return (loads - 1) * self.rate.period + math.ceil(last / self.concurrency) * self.page_time

    @property
    def patience(self) -> float:
        """Seconds after which a crawl is stopped."""
        return 10 + 3 * self.least_time(self.pages)


@dataclass(slots=True, eq=False)
class Run:
    """One crawl: what it found, and what the server saw of it."""

    name: str
    terms: Terms
    found: set[URL] = field(default_factory=set[URL])
    audit: Audit = field(default_factory=Audit)
    started_at: float = 0.0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """The part of the limits that was used: the least possible time over the time it took."""
        return self.terms.least_time(len(self.found)) / self.seconds if self.found else 0.0

    def complaint(self) -> str | None:
        """Say what is wrong with a crawl that should have been complete and without a refusal."""
        wrong: list[str] = []
        if missing := self.terms.pages - len(self.found):
            wrong.append(f"{missing} of {self.terms.pages} pages are missing")
        if self.audit.refused:
            wrong.append(f"{self.audit.refused} of {self.audit.sent} requests were refused")
        return " and ".join(wrong) or None


def run_demo(terms: Terms, picture: Path | None = None, limiter: RateLimiter | None = None) -> int:
    """Crawl three times, print what the server counted, and give the exit status.

    Args:
        terms: What the server allows.
        picture: Where to write a picture of the crawls.
        limiter: In place of the one that keeps to the terms, to see what a wrong one does.

    Returns:
        0 if the throttled crawl found every page and was refused nothing, and the picture is
        there if one was asked for; else 1.
    """
    runs = asyncio.run(_compare(terms, limiter))
    print("\n".join(_table(terms, runs)), flush=True)
    complaint = runs[-1].complaint()
    if complaint is None:
        print("\nThe throttled crawl is complete: nothing was refused.")
    else:
        print(f"\nThe throttled crawl failed: {complaint}.", file=sys.stderr)
    drawn = picture is None or save(
        [_panel(run) for run in runs], f"The server admits {_words(terms)}", picture
    )
    return 0 if complaint is None and drawn else 1


async def _compare(terms: Terms, limiter: RateLimiter | None) -> list[Run]:
    # In here Ctrl-C is a cancellation: whoever has read the first line may press it.
    print(_introduction(terms), flush=True)
    keeper = limiter or RateLimiter(
        terms.rate, concurrency_limit=terms.concurrency, guard=terms.guard
    )
    crawlers: dict[str, Crawler] = {
        "no limiter": _with_no_limiter,
        f"semaphore of {terms.concurrency}": _with_semaphore,
        "aiothrottle": lambda _: _with_aiothrottle(keeper),
    }
    return [await _measure(name, crawler, terms) for name, crawler in crawlers.items()]


# ---- crawling --------------------------------------------------------------------------------


async def _measure(name: str, crawler: Crawler, terms: Terms) -> Run:
    """Let one crawler loose on a fresh server."""
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
    """Follow every link from `start` on; `found` gets the pages, as they come."""
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
    """Get a page as a program does that knows nothing of limits: ask until it is there."""
    while True:
        async with session.get(url) as response:
            page = await response.text()
            if response.ok:
                return page
        await asyncio.sleep(_BACK_OFF)


@contextlib.contextmanager
def _progress(run: Run, screen: TextIO) -> Generator[None, None, None]:
    """Tell a person, if one is looking, how far the crawl has come."""
    if not screen.isatty():
        yield
        return
    status = StatusLine(screen)
    ticker = asyncio.create_task(_tick(run, status))
    try:
        yield
    finally:
        ticker.cancel()
        status.clear()


async def _tick(run: Run, status: StatusLine) -> None:
    while True:
        line = f"{run.name}: {len(run.found)} of {run.terms.pages} pages"
        status.show(f"{line}, {run.audit.refused} refused")
        await asyncio.sleep(0.1)


# ---- the table -------------------------------------------------------------------------------


def _introduction(terms: Terms) -> str:
    return f"""\
A server on this machine has {terms.pages} pages that link to each other.
It admits {_words(terms)}, and refuses the rest with 429.
A page takes it {number(terms.page_time)} s, so nobody can get them all in less than \
{terms.least_time(terms.pages):.2f} s.
Each crawler follows the links from "/". Those without aiothrottle ask for a refused page
again after {number(_BACK_OFF)} s. \
A crawl that is not complete after {terms.patience:.0f} s is stopped.
"""


def _words(terms: Terms) -> str:
    period = "second" if terms.rate.period == 1 else f"{number(terms.rate.period)} s"
    requests = "request" if terms.rate.limit == 1 else "requests"
    return f"{number(terms.rate.limit)} {requests} in any {period}, {terms.concurrency} at once"


def _table(terms: Terms, runs: Sequence[Run]) -> Iterator[str]:
    """Give the lines of the table: words to the left, numbers to the right."""
    period = terms.rate.period
    most = f"most in {number(period)} s"
    head = ("", "pages", "time", "sent", "refused", most, "most at once", "used")
    limit = ("the limit", "", "", "", "", number(terms.rate.limit), f"{terms.concurrency}", "")
    rows = [head, *(_row(run) for run in runs), limit]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (
            f"{cell:{'>' if index else '<'}{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "   ".join([first, *others]).rstrip()
    yield ""
    yield "sent, refused, most: as the server counted, refused requests too."
    yield "used: how much of the limit; the least time for so many pages / the time it took."
    guard = number(terms.guard)
    yield f"aiothrottle had a guard of {guard} s: it took the period for so much longer."


def _row(run: Run) -> tuple[str, ...]:
    return (
        run.name,
        f"{len(run.found)}",
        f"{run.seconds:.2f} s",
        f"{run.audit.sent}",
        f"{run.audit.refused}",
        f"{run.audit.greatest_count(run.terms.rate.period)}",
        f"{run.audit.greatest_concurrency}",
        f"{run.share:.1%}",
    )


def _panel(run: Run) -> Panel:
    """Give what the picture shows of a crawl."""
    return Panel(
        f"{run.name}: {len(run.found)} pages in {run.seconds:.2f} s, {run.audit.refused} refused",
        [(request.arrived_at - run.started_at, request.refused) for request in run.audit.requests],
        run.seconds,
        run.terms.rate,
    )
