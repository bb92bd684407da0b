"""Crawl a server on this machine, without and with aiothrottle, and compare.

The server has a limit. It is crawled three times: with no limiter, with a
semaphore, with aiothrottle. The server, not the crawlers, counts the numbers
of a run. Needs no network.

Examples:
  aiothrottle demo
  aiothrottle demo --rate 20/s --pages 100 --plot demo.png

exit status:
  0  aiothrottle's crawl is complete, and none of its requests was throttled
  1  it is not, or one was, or the picture cannot be written
  2  the arguments are invalid
  130  interrupted, by Ctrl-C; 141: the reader of the output has closed it
"""

import argparse
import asyncio
import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

from aiothrottle._checks import number
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.cli.options import Command, flag, option, picture, whole_number, whole_rate
from aiothrottle.cli.output import (
    Panel,
    chosen,
    columns_of,
    fitted,
    paragraph,
    print_document,
    print_texts,
    save_picture,
)
from aiothrottle.cli.progress import GLANCE, Display, Meter, beside
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.testing import Audit, RateLimitedServer, linked_pages

# A plain aiohttp session opens no more connections: above it, no crawler would notice the limit.
_MOST_AT_ONCE = 100
# All pages and requests are kept in memory.
_MOST_PAGES = 100_000
# Seconds that the crawlers without aiothrottle wait before a retry.
_BACK_OFF = 0.25
_LINK = re.compile(r'href="([^"]+)"')

Session: TypeAlias = aiohttp.ClientSession | ThrottledSession
Gate: TypeAlias = AbstractAsyncContextManager[None]


@dataclass(slots=True, kw_only=True)
class Terms:
    """The limits of the server, and the size of the crawl.

    Attributes:
        rate: rate limit of the server: 50 (per second), 50/s, 300/min, 5/100ms (default: 50/s)
        concurrency: its limit of concurrent requests (default: %(default)s)
        pages: number of its pages (default: %(default)s)
        plot: draw the crawls into this file (.png, .svg); needs matplotlib
        json: print the results as one JSON document, and nothing else, to standard output
        page_time: Seconds that the server takes for each page.
        guard: Seconds that aiothrottle adds to the period, a safety margin for network jitter.
    """

    rate: Rate = option("RATE", whole_rate, Rate(50))
    concurrency: int = option("N", whole_number(_MOST_AT_ONCE), 8)
    pages: int = option("N", whole_number(_MOST_PAGES), 300)
    plot: Path | None = option("FILE", picture)
    json: bool = flag()
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

    def __str__(self) -> str:
        """Return the limits in words."""
        period = "second" if self.rate.period == 1 else f"{number(self.rate.period)} s"
        requests = "request" if self.rate.limit == 1 else "requests"
        return f"{number(self.rate.limit)} {requests} in any {period}, {self.concurrency} at once"


@dataclass(slots=True, eq=False)
class Run:
    """One crawl, with the pages found and the server's audit."""

    name: str
    terms: Terms
    found: set[URL] = field(default_factory=set[URL])
    audit: Audit = field(default_factory=Audit)
    started_at: float = 0.0
    seconds: float = 0.0

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the crawl, by their names in a document.

        The used part of the limits is the shortest possible time divided by the actual time.
        """
        found, audit = len(self.found), self.audit
        return {
            "pages": found,
            "seconds": self.seconds,
            "sent": audit.sent,
            "throttled": audit.throttled,
            "most_in_period": audit.greatest_count(self.terms.rate.period),
            "most_at_once": audit.greatest_concurrency,
            "used": self.terms.least_time(found) / self.seconds if found else 0.0,
        }

    def complaint(self) -> str | None:
        """Return what is wrong with a crawl if it is incomplete or was throttled, else None."""
        wrong: list[str] = []
        if missing := self.terms.pages - len(self.found):
            wrong.append(f"{missing} of {self.terms.pages} pages are missing")
        if self.audit.throttled:
            wrong.append(f"{self.audit.throttled} of {self.audit.sent} requests were throttled")
        return " and ".join(wrong) or None


def _run(_: argparse.ArgumentParser, terms: Terms) -> int:
    """Crawl three times, print the numbers of the server, and return the exit status.

    Returns:
        0 if aiothrottle's crawl found every page and no request was throttled, and the picture,
        if any, was written; else 1.
    """
    runs = asyncio.run(_compare(terms))
    complaint = runs[-1].complaint()
    if terms.json:
        print_document(_document(terms, runs))
    else:
        print_texts(_table(terms, runs, succeeded=complaint is None))
    if complaint is not None:
        text = f"aiothrottle's crawl failed: {complaint}."
        print(f"\n{paragraph(text, columns_of(sys.stderr))}", file=sys.stderr)
    drawn = terms.plot is None or save_picture(
        [_panel(run) for run in runs],
        f"The server admits {terms}",
        terms.plot,
        sys.stderr if terms.json else sys.stdout,
    )
    return 0 if complaint is None and drawn else 1


# ---- the crawls ----------------------------------------------------------------------------------


async def _compare(terms: Terms) -> list[Run]:
    """Crawl a new server with each crawler."""
    if not terms.json:
        # Printed inside asyncio.run, where Ctrl-C is a cancellation from the first line on.
        print_texts(_introduction(terms))
    limiter = RateLimiter(terms.rate, concurrency_limit=terms.concurrency, guard=terms.guard)
    free, plain = contextlib.nullcontext(), aiohttp.ClientSession
    crawlers: list[tuple[str, Callable[[], Session], Gate]] = [
        ("no limiter", plain, free),
        (f"semaphore of {terms.concurrency}", plain, asyncio.Semaphore(terms.concurrency)),
        ("aiothrottle", partial(ThrottledSession, limiter), free),
    ]
    runs: list[Run] = []
    for name, open_session, gate in crawlers:
        runs.append(Run(name, terms))
        async with open_session() as session:
            await _measure(runs[-1], session, gate)
    return runs


async def _measure(run: Run, session: Session, gate: Gate) -> None:
    """Crawl a new server, with each request behind a gate."""
    terms, pages = run.terms, linked_pages(run.terms.pages)

    async def page(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(terms.page_time)
        return await pages(request)

    async with RateLimitedServer(
        terms.rate, concurrency_limit=terms.concurrency, handler=page
    ) as server:
        run.audit = server.audit
        display = Display(sys.stderr)
        with display.drawing(), contextlib.suppress(TimeoutError):
            run.started_at = time.monotonic()
            async with beside(_tick(run, display)), asyncio.timeout(terms.patience):
                await _crawl(server.url, session, gate, run.found)
        run.seconds = time.monotonic() - run.started_at


async def _crawl(start: URL, session: Session, gate: Gate, found: set[URL]) -> None:
    """Follow every link from `start` on; add the pages to `found` as they arrive."""
    seen = {start}

    async def visit(url: URL) -> None:
        page = await fetch(url)
        found.add(url)
        for link in map(url.join, map(URL, _LINK.findall(page))):
            if link not in seen:
                seen.add(link)
                tasks.create_task(visit(link))

    async def fetch(url: URL) -> str:
        """Return a page; insist as a program without a limiter does, until it succeeds."""
        while True:
            async with gate, session.get(url) as response:
                page = await response.text()
                if response.ok:
                    return page
            await asyncio.sleep(_BACK_OFF)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(visit(start))


async def _tick(run: Run, display: Display) -> None:
    """Show the progress of the crawl if the display is live."""
    meter = Meter(run.terms.rate)
    while display.is_live:
        found, pages = len(run.found), run.terms.pages
        meter.mark(time.monotonic(), run.audit.sent, found / pages)
        parts = meter.parts(f"{run.name}: {found} of {pages} pages", 0, run.audit.throttled)
        display.show(parts, meter.fraction, meter.left)
        await asyncio.sleep(GLANCE)


# ---- the results ---------------------------------------------------------------------------------


def _introduction(terms: Terms) -> Iterator[str]:
    yield f"A server on this machine has {terms.pages} pages that link to each other."
    yield f"It admits {terms}, and throttles the rest (429)."
    yield f"A page takes {number(terms.page_time)} s."
    yield f"So crawling them all takes at least {terms.least_time(terms.pages):.2f} s."
    yield 'Each crawler follows the links from "/".'
    yield f"Those without aiothrottle retry a throttled page after {number(_BACK_OFF)} s."
    yield f"A crawl that is not complete after {terms.patience:.0f} s is stopped."
    yield ""


def _table(terms: Terms, runs: Sequence[Run], *, succeeded: bool) -> Iterator[str]:
    most = f"most in {number(terms.rate.period)} s"
    head = ("", "pages", "time", "sent", "throttled", most, "most at once", "used")
    rows = [(run.name, *(_cell(*each) for each in run.numbers().items())) for run in runs]
    limit = ("the limit", "", "", "", "", number(terms.rate.limit), f"{terms.concurrency}", "")
    yield from fitted([head, *rows, limit], columns_of(sys.stdout))
    yield ""
    yield "sent, throttled, most: counted by the server; most includes throttled requests."
    yield "used: the used part of the limit, which is the shortest possible time / the time taken."
    yield f"aiothrottle added a guard of {number(terms.guard)} s to the period, for network jitter."
    if succeeded:
        yield ""
        yield "aiothrottle's crawl is complete: no request was throttled."


def _cell(name: str, value: float) -> str:
    return {"seconds": f"{value:.2f} s", "used": f"{value:.1%}"}.get(name, f"{value}")


def _document(terms: Terms, runs: Sequence[Run]) -> dict[str, object]:
    return {
        "server": chosen(terms, "rate", "concurrency", "pages"),
        "least_seconds": terms.least_time(terms.pages),
        "guard": terms.guard,
        "crawls": [{"name": run.name, **run.numbers()} for run in runs],
        "problem": runs[-1].complaint(),
    }


def _panel(run: Run) -> Panel:
    """Return the panel of a crawl in the picture."""
    throttled = run.audit.throttled
    return Panel(
        f"{run.name}: {len(run.found)} pages in {run.seconds:.2f} s, {throttled} throttled",
        [(it.arrived_at - run.started_at, it.throttled) for it in run.audit.requests],
        run.seconds,
        run.terms.rate,
    )


COMMAND = Command(text=__doc__, usage="[options]", options={"": Terms}, run=_run)
