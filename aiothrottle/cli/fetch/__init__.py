r"""Fetch lists of URLs under limits.

The output has a line of JSON for each URL:

  {"url": ..., "status": 200, "body": ..., "attempts": 1, "waited": 0.1,
   "error": null}

A list has one URL on each line; blank lines and lines that begin with # are
skipped. It is read while its URLs are fetched, so it may have any length.
Without any URL or list, it is the standard input, unless that is a terminal.
A URL without http:// or https:// is http. A line that is no URL becomes a
record with an error. Throttled requests (429, or 503 with Retry-After) are
retried when the server allows it.

Press Ctrl-C once to finish the requests in flight and stop, twice to abort.
After any end, the same command with --resume fetches the rest.

Examples:
  aiothrottle fetch https://example.org/ https://example.org/about
  aiothrottle fetch -i urls.txt -o answers.jsonl --rate 10/s --rate 500/min
  aiothrottle fetch -i urls.txt --output-dir pages --per-host 2/s
  aiothrottle fetch -i urls.txt -o answers.jsonl --resume
  gzip -dc urls.txt.gz | aiothrottle fetch -o answers.jsonl
  aiothrottle fetch --requests jobs.jsonl -o answers.jsonl --profile openai \
    --rate requests=500/min --rate tokens=200000/min \
    -H "Authorization: Bearer $KEY"

exit status:
  0  every URL of this run was fetched, with a status below 400
  1  the run is complete, but some URLs failed: their records have an "error",
     or a status of 400 or more
  2  the arguments are invalid, or input, output or store cannot be opened;
     nothing was sent
  3  the run broke off, since the list, the output (such as a full disk) or
     the store failed
  130, 143  interrupted, by Ctrl-C or SIGTERM
  141  the reader of the output has closed it
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict

from aiothrottle import __version__
from aiothrottle._http.options import Options
from aiothrottle.amounts import REQUESTS
from aiothrottle.cli.fetch.crawl import Crawl
from aiothrottle.cli.fetch.jobs import JsonReader, ListError, Reader, UrlReader
from aiothrottle.cli.fetch.limits import Limiters, Limits, of_requests
from aiothrottle.cli.fetch.lines import Lines, Source, open_source, source_of
from aiothrottle.cli.fetch.report import Messages, Report
from aiothrottle.cli.fetch.requests import Sending
from aiothrottle.cli.fetch.results import OutputError, Results, Saved
from aiothrottle.cli.options import Command, argument, fail, filled, option
from aiothrottle.cli.output import without_credentials
from aiothrottle.cli.progress import beside
from aiothrottle.cli.proxies import Proxies, proxies_of_environment
from aiothrottle.errors import StoreUnavailable
from aiothrottle.keyed import AnyLimiter

# Seconds for connecting.
_CONNECTING = 30.0
# The exit status of a run; the last one is that of a program that SIGPIPE ended.
_FETCHED, _FAILURES, _NOTHING_SENT, _BROKEN_OFF, _BROKEN_PIPE = 0, 1, 2, 3, 128 + 13


@dataclass(kw_only=True)
class Lists:
    """The lists of a run.

    Attributes:
        urls: what to fetch; - is standard input
        input_file: a list of URLs; - is standard input; may be repeated (default: standard input,
            if there is no URL and it is no terminal)
        requests: a list of requests; - is standard input. Each line is a JSON object with url, and
            any of method, headers, json or data, cost, key, id; the records have the id, or else
            the number of the line
    """

    urls: list[str] = argument("URL", filled)
    input_file: list[str] = option("-i FILE", filled)
    requests: str | None = option("FILE", filled)

    def __post_init__(self) -> None:
        """Reject what one list says, and another too."""
        if [*self.urls, *self.input_file, self.requests].count("-") > 1:
            raise ValueError("- was given more than once, but standard input can be read only once")
        if self.requests is not None and (self.urls or self.input_file):
            raise ValueError("--requests is the whole list: leave out URLs and --input-file")
        if file := next(filter(os.path.isfile, self.urls), None):
            raise ValueError(f"{file} is a file, not a URL: give it with --input-file")

    @property
    def files(self) -> list[str]:
        """The files of the lists."""
        return self.input_file if self.requests is None else [self.requests]

    def open(self) -> list[Source]:
        """Open all: the arguments in their order, then the files.

        Raises:
            OSError: One cannot be opened.
        """
        urls = [open_source("-") if url == "-" else source_of(url) for url in self.urls]
        return [*urls, *map(open_source, self.files)]


def _run(
    parser: argparse.ArgumentParser,
    lists: Lists,
    limits: Limits,
    sending: Sending,
    saved: Saved,
    messages: Messages,
) -> int:
    if not (lists.urls or lists.files):
        if os.isatty(0):
            parser.error("no URLs: give some, or a list by --input-file or on standard input")
        lists.input_file = ["-"]
    try:
        for name in [*lists.files, *(url for url in lists.urls if url == "-")]:
            saved.check(name)
        # All that may be wrong with the options, before a file is opened.
        reader, options = _reader(lists, limits, sending), limits.options(sending.retry)
        proxies, sources, results = proxies_of_environment(), lists.open(), saved.open()
    except (OutputError, ValueError) as error:
        fail(parser, str(error))
    except OSError as error:
        fail(parser, f"{error.filename or 'standard input'} cannot be read: {error.strerror}")
    run = Run(limits, sending, messages, reader, options, proxies, sources, results)
    _allow_connections()
    try:
        return asyncio.run(run.run())
    finally:
        results.close()


def _allow_connections() -> None:
    """Raise the limit of open files: each connection is one, and idle ones stay open."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # Windows has neither it nor such a limit

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # As many as any system allows: macOS rejects its own hard limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 10_240)), hard))


def _reader(lists: Lists, limits: Limits, sending: Sending) -> Reader:
    """Return the reader of the list."""
    headers = CIMultiDict(sending.header)
    if lists.requests is None:
        if limits.profile is None and (unused := limits.resources.keys() - {REQUESTS}):
            raise ValueError(
                f"no URL costs {min(unused)}, as each is charged requests=1 and nothing else: "
                "give --rate requests=10/s, or costs in --requests"
            )
        return UrlReader(sending.method or "GET", headers)
    if sending.method is not None:
        raise ValueError("each line of --requests has its own method: leave out --request")
    return JsonReader(headers, [*limits.resources], limits.keyed)


@dataclass(slots=True)
class Run:
    """A run from its parts to its exit status. `options` are those of the session."""

    limits: Limits
    sending: Sending
    messages: Messages
    reader: Reader
    options: Options
    proxies: Proxies
    sources: Sequence[Source]
    results: Results

    async def run(self) -> int:
        """Fetch all URLs, and return the exit status."""
        # On a terminal with the records, a display would overwrite them.
        drawn = not self.results.output.on_terminal
        rates, slots = of_requests(self.limits.rates), self.limits.concurrency
        report = Report(self.messages, sys.stderr, rates, slots, drawn=drawn)
        async with contextlib.AsyncExitStack() as stack:
            try:
                limiters = await stack.enter_async_context(self.limits.open())
            except (ImportError, StoreUnavailable, ValueError) as error:
                wrong = f"{self.limits.store}: {without_credentials(str(error))}"
                report.say(f"aiothrottle fetch: error: argument --store: {wrong}")
                return _NOTHING_SENT
            return await self._crawl(limiters, report)

    async def _crawl(self, limiters: Limiters, report: Report) -> int:
        async with self._client() as client, contextlib.AsyncExitStack() as stack:
            crawl = Crawl(
                client,
                limiters.to_wait_for,
                self.options,
                Lines(self.sources, self.reader.longest, few=self.limits.concurrency),
                self.reader,
                self.results,
                self.sending.max_redirs if self.sending.location else 0,
                self.proxies,
                report.failure,
                report.trace if self.messages.verbose else None,
            )
            if self.messages.verbose:
                stack.callback(limiters.to_wait_for.observe(report.observe))
            if self.messages.dashboard:
                await stack.enter_async_context(_page(limiters.named, crawl, report))
            trouble: str | None = None
            caught: list[int] = []
            try:
                async with beside(report.watch(crawl)):
                    with _signals(crawl, report, caught):
                        await crawl.run(self.limits.workers)
            except OutputError as error:
                if isinstance(error.__cause__, BrokenPipeError):  # the reader closed the output
                    return _BROKEN_PIPE
                report.say(f"aiothrottle fetch: {error}")
                return _BROKEN_OFF
            except ListError as error:
                report.say(f"aiothrottle fetch: {error}")
                return _NOTHING_SENT
            except StoreUnavailable as error:
                trouble = f"the store of the limits fails: {without_credentials(str(error))}"
            except OSError as error:
                trouble = f"the list cannot be read: {error.strerror}"
            report.ended(crawl)
        output = self.results.output
        rest = ": the same with --resume fetches the rest" if output.can_resume else ""
        if trouble is not None:
            report.say(f"aiothrottle fetch: {trouble}")
            report.say(f"Broken off{rest}.")
            return _BROKEN_OFF
        if caught:
            report.say(f"Interrupted{rest}.")
            return 128 + caught[0]
        report.besides(output.done.total())
        return _FAILURES if crawl.tally.failed else _FETCHED

    def _client(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # The limiter bounds the connections.
            connector=aiohttp.TCPConnector(limit=0, ssl=not self.sending.insecure),
            # A jar for a million hosts would be large.
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"aiothrottle/{__version__}"},  # -H may replace it
            timeout=aiohttp.ClientTimeout(self.sending.max_time or None, sock_connect=_CONNECTING),
        )


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


@contextlib.contextmanager
def _signals(crawl: Crawl, report: Report, caught: list[int]) -> Generator[None, None, None]:
    """Stop the crawl at the first signal, abort it at the second; append both to `caught`."""
    loop = asyncio.get_running_loop()

    def interrupt(number: int) -> None:
        caught.append(number)
        crawl.stop(abort=len(caught) > 1)
        if len(caught) == 1 and crawl.in_flight:
            report.say(f"Finishing {crawl.in_flight} in flight; press Ctrl-C again to abort.")

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell starts background jobs with Ctrl-C ignored, and it must stay ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends at once
                    loop.add_signal_handler(number, interrupt, number)
                    stack.callback(loop.remove_signal_handler, number)
        yield


COMMAND = Command(
    text=__doc__,
    usage="[options] [URL ...]",
    options={
        "": Lists,
        "limits": Limits,
        "requests": Sending,
        "output": Saved,
        "messages": Messages,
    },
    run=_run,
)
