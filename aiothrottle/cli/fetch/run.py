"""Runs a crawl to its exit status: opens the limiters and the session, and handles signals."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import aiohttp

from aiothrottle import __version__
from aiothrottle._http.admission import AnyLimiter
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.sender import Sender
from aiothrottle.cli.fetch.crawl import Crawl
from aiothrottle.cli.fetch.jobs import ListError, Reader
from aiothrottle.cli.fetch.limits import Limiters, Limits
from aiothrottle.cli.fetch.lines import Lines, Source
from aiothrottle.cli.fetch.report import Messages, Report
from aiothrottle.cli.fetch.requests import Proxies, Sending
from aiothrottle.cli.fetch.results import OutputError, Results
from aiothrottle.cli.output import without_credentials
from aiothrottle.errors import StoreUnavailable

# Seconds for connecting.
_CONNECTING = 30.0


class Status(IntEnum):
    """The exit status of a run."""

    FETCHED = 0
    FAILURES = 1
    NOTHING_SENT = 2
    BROKEN_OFF = 3
    BROKEN_PIPE = 128 + 13  # as of a program that SIGPIPE ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is made of. `options` are those of the integration that sends."""

    sources: Sequence[Source]
    reader: Reader
    limits: Limits
    options: Options
    sending: Sending
    proxies: Proxies | None
    results: Results
    messages: Messages


async def run(plan: Plan) -> int:
    """Fetch all URLs, and return the exit status."""
    report = Report(
        sys.stderr,
        quiet=plan.messages.quiet,
        verbose=plan.messages.verbose,
        drawn=not plan.results.output.on_terminal,  # the records would be overwritten
        rates=plan.limits.of_requests,
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            limiters = await stack.enter_async_context(plan.limits.open())
        except (ImportError, StoreUnavailable, ValueError) as error:
            wrong = f"{plan.limits.store}: {without_credentials(str(error))}"
            report.say(f"aiothrottle fetch: error: argument --store: {wrong}")
            return Status.NOTHING_SENT
        return await _crawl(plan, limiters, report)


async def _crawl(plan: Plan, limiters: Limiters, report: Report) -> int:
    async with _client(plan.sending, report) as client, contextlib.AsyncExitStack() as stack:
        crawl = Crawl(
            Sender(client, limiters.to_wait_for, plan.options),
            Lines(plan.sources, plan.reader.longest, few=plan.limits.concurrency),
            plan.reader,
            plan.results,
            redirects=plan.sending.redirects,
            proxies=plan.proxies,
            on_failure=report.failure,
            on_cut_off=report.cut_off,
        )
        if plan.messages.verbose:
            stack.callback(limiters.to_wait_for.observe(report.observe))
        if plan.messages.dashboard:
            await stack.enter_async_context(_page(limiters.named, crawl, report))
        watch = asyncio.create_task(report.watch(crawl))
        trouble: str | None = None
        caught: list[int] = []
        try:
            with _signals(crawl, report, caught):
                await crawl.run(plan.limits.workers)
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
    output = plan.results.output
    rest = ": the same with --resume fetches the rest" if output.can_resume else ""
    if trouble is not None:
        report.say(f"aiothrottle fetch: {trouble}")
        report.say(f"Broken off{rest}.")
        return Status.BROKEN_OFF
    if caught:
        report.say(f"Interrupted{rest}.")
        return 128 + caught[0]
    report.besides(len(output.done))
    return Status.FAILURES if crawl.tally.failed else Status.FETCHED


@contextlib.asynccontextmanager
async def _page(
    limiters: Mapping[str, AnyLimiter], crawl: Crawl, report: Report
) -> AsyncGenerator[None]:
    """Serve a live page of the run."""
    from aiothrottle.dashboard import serve  # a server, and only for the page

    def facts() -> dict[str, str]:
        tally, fraction = crawl.tally, crawl.lines.fraction
        found = {"URLs done": f"{tally.done:,}", "failed": f"{tally.failed:,}"}
        return found if fraction is None else {**found, "of the list": f"{int(100 * fraction)} %"}

    async with serve(limiters, facts=facts) as url:
        report.say(f"Live page: {url}")
        yield


def _client(sending: Sending, report: Report) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # The limiter bounds the connections.
        connector=aiohttp.TCPConnector(limit=0, ssl=not sending.insecure),
        # A jar for a million hosts would be large.
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=report.trace_configs(),
        headers={"User-Agent": f"aiothrottle/{__version__}"},  # -H may replace it
        timeout=aiohttp.ClientTimeout(total=sending.max_time or None, sock_connect=_CONNECTING),
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
