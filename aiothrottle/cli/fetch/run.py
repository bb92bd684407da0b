"""Runs a crawl from its settings to its exit status, with the session and the signals."""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TextIO

import aiohttp

from aiothrottle._http.admission import AnyLimiter
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.session import Sender
from aiothrottle.cli.fetch.reading.jobs import ListError, Reader
from aiothrottle.cli.fetch.reading.lines import Lines, Source
from aiothrottle.cli.fetch.report import Report
from aiothrottle.cli.fetch.results.folder import Folder
from aiothrottle.cli.fetch.results.output import Output, OutputError
from aiothrottle.cli.fetch.sending.cookies import Cookie, jar_of
from aiothrottle.cli.fetch.sending.crawl import Crawl
from aiothrottle.cli.fetch.sending.limits import Limiters, Limits
from aiothrottle.cli.fetch.sending.worker import Rules
from aiothrottle.cli.fetch.trace import Trace
from aiothrottle.cli.terminal import without_credentials
from aiothrottle.errors import StoreUnavailable

__all__ = ["Settings", "Status", "run"]


class Status(IntEnum):
    """The exit status of a run."""

    FETCHED = 0
    FAILURES = 1
    NOTHING_SENT = 2
    BROKEN_OFF = 3
    BROKEN_PIPE = 128 + 13  # as of a program that SIGPIPE ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run.

    Attributes:
        reader: Parses the lines of the sources.
        options: The options of the integration that sends.
        max_time: Seconds for a request, without waits; None: no timeout.
        connect_timeout: Seconds for connecting; None: no timeout.
        tls: How certificates are checked; False: they are not.
        cookies: The cookies to begin with, where those of responses are kept too; None: none are.
        verbose: Whether to print each request and wait.
        dashboard: Whether to serve a live page.
    """

    rules: Rules
    sources: Sequence[Source]
    reader: Reader
    limits: Limits
    options: Options
    user_agent: str
    max_time: float | None
    connect_timeout: float | None
    tls: ssl.SSLContext | bool
    cookies: Sequence[Cookie] | None
    output: Output
    folder: Folder | None
    quiet: bool
    verbose: bool = False
    dashboard: bool = False


async def run(settings: Settings, screen: TextIO) -> int:
    """Fetch all URLs, and return the exit status."""
    report = Report(
        screen,
        quiet=settings.quiet,
        drawn=not settings.output.on_terminal,  # the records would be overwritten
        rates=settings.limits.of_requests,
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            limiters = await stack.enter_async_context(settings.limits.open())
        except (ImportError, StoreUnavailable, ValueError) as error:
            wrong = f"{settings.limits.store}: {without_credentials(str(error))}"
            report.say(f"aiothrottle fetch: error: argument --store: {wrong}")
            return Status.NOTHING_SENT
        return await _crawl(settings, limiters, report)


async def _crawl(settings: Settings, limiters: Limiters, report: Report) -> int:
    trace = Trace(report.say) if settings.verbose else None
    async with _client(settings, trace) as client, contextlib.AsyncExitStack() as stack:
        crawl = Crawl(
            settings.rules,
            sender=Sender(client, limiters.to_wait_for, settings.options),
            lines=Lines(settings.sources, settings.reader.longest, few=settings.limits.concurrency),
            reader=settings.reader,
            output=settings.output,
            folder=settings.folder,
            on_failure=report.failure,
            on_cut_off=None if trace is None else trace.cut_off,
        )
        if trace is not None:
            stack.callback(limiters.to_wait_for.observe(trace.observe))
        if settings.dashboard:
            await stack.enter_async_context(_page(limiters.named, crawl, report))
        watch = asyncio.create_task(report.watch(crawl))
        trouble: str | None = None
        caught: list[int] = []
        try:
            with _signals(crawl, report, caught):
                await crawl.run(settings.limits.workers)
        except OutputError as error:
            if isinstance(error.__cause__, BrokenPipeError):  # the reader closed the output
                return Status.BROKEN_PIPE
            report.say(f"aiothrottle fetch: {error}")
            return Status.BROKEN_OFF
        except ListError as error:
            report.say(f"aiothrottle fetch: {error}")
            return Status.NOTHING_SENT
        except StoreUnavailable as error:
            trouble = f"the store of the limits fails: {without_credentials(str(error))}"
        except OSError as error:
            trouble = f"the list cannot be read: {error.strerror}"
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        report.ended(crawl)
    rest = ": the same with --resume fetches the rest" if settings.output.can_resume else ""
    if trouble is not None:
        report.say(f"aiothrottle fetch: {trouble}")
        report.say(f"Broken off{rest}.")
        return Status.BROKEN_OFF
    if caught:
        report.say(f"Interrupted{rest}.")
        return 128 + caught[0]
    report.besides(len(settings.output.done))
    return Status.FAILURES if crawl.tally.failed else Status.FETCHED


@contextlib.asynccontextmanager
async def _page(
    limiters: Mapping[str, AnyLimiter], crawl: Crawl, report: Report
) -> AsyncGenerator[None]:
    """Serve a live page of the run."""
    from aiothrottle.dashboard import serve  # a server, and only for the page

    async with serve(limiters, facts=lambda: report.facts(crawl)) as url:
        report.say(f"Live page: {url}")
        yield


def _client(settings: Settings, trace: Trace | None) -> aiohttp.ClientSession:
    cookies = settings.cookies
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=settings.tls),  # the limiter bounds them
        # A jar for a million hosts would be large, so there is one only where the user asks.
        cookie_jar=aiohttp.DummyCookieJar() if cookies is None else jar_of(cookies),
        trace_configs=[] if trace is None else [trace.config()],
        headers={"User-Agent": settings.user_agent},
        timeout=aiohttp.ClientTimeout(
            total=settings.max_time, sock_connect=settings.connect_timeout
        ),
    )


@contextlib.contextmanager
def _signals(crawl: Crawl, report: Report, caught: list[int]) -> Generator[None, None, None]:
    """Stop the crawl at the first signal, abort it at the second; append both to `caught`."""
    loop = asyncio.get_running_loop()

    def interrupt(number: int) -> None:
        caught.append(number)
        if len(caught) == 1:
            crawl.stop()
            if crawl.in_flight:
                report.say(f"Finishing {crawl.in_flight} in flight; press Ctrl-C again to abort.")
        else:
            crawl.abort()

    # A shell starts background jobs with Ctrl-C ignored, and it must stay ignored.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends at once
        for number in numbers:
            loop.add_signal_handler(number, interrupt, number)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
