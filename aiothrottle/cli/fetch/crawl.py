"""A crawl: tasks that do one job of a list after the other, and how to stop them.

Invariant: `busy` of a task says whether cancelling it would lose a response.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

import aiohttp
from aiohttp import ClientResponse
from yarl import URL

from aiothrottle._checks import duration
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.session import Call, SessionAdapter
from aiothrottle.cli.fetch.jobs import Job, ListError, Reader, Request
from aiothrottle.cli.fetch.lines import Line, Lines
from aiothrottle.cli.fetch.requests import headers_for, redirected
from aiothrottle.cli.fetch.results import Record, Results
from aiothrottle.cli.output import described, without_credentials
from aiothrottle.cli.proxies import Proxies, headers_through
from aiothrottle.errors import StoreUnavailable, ThrottleError
from aiothrottle.events import Event, Paused, Throttled
from aiothrottle.keyed import AnyLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.statistics import MANY_WAITS, Waits

# A body that was cut off, or did not arrive in time. No OSError, which may be the disk's.
_CUT_OFF = (
    aiohttp.ClientPayloadError,
    aiohttp.ClientConnectionError,
    ConnectionError,
    TimeoutError,
)
# Failures of one URL or its server, which do not concern the next URL.
_FAILURES = (aiohttp.ClientError, OSError, ValueError, ThrottleError)


@dataclass(slots=True)
class Tally:
    """The counts of a run so far.

    Attributes:
        statuses: URLs by the status of their last response.
        failed: URLs without a complete response, or with the status of an error.
        skipped: URLs that had a record in the output.
        requests: Requests sent: attempts and redirects.
        throttled: Requests that the server throttled.
        waited: Seconds, of all URLs together.
    """

    done: int = 0
    statuses: Counter[int] = field(default_factory=Counter[int])
    failed: int = 0
    skipped: int = 0
    requests: int = 0
    throttled: int = 0
    waited: float = 0.0
    _latencies: Waits = field(default_factory=Waits)

    def answered(self, seconds: float) -> None:
        """Count the latency of a response: the seconds from its request to its headers."""
        recent = self._latencies.recent
        recent.append(seconds)
        if len(recent) >= MANY_WAITS:
            self._latencies.count_recent()

    def latency(self) -> str:
        """Return the median and the 95th percentile of the latencies; "": there are none."""
        waits = self._latencies
        waits.count_recent()
        if not waits.count:
            return ""
        # Two digits: the histogram is off by an eighth.
        median, most = (duration(waits.percentile(part, at_once=0), 2) for part in (0.5, 0.95))
        return f"p50 {median}, p95 {most}"

    def count(self, record: Record) -> None:
        """Count a finished URL."""
        self.done += 1
        self.failed += record.failed
        self.waited += record.waited
        if record.status is not None:
            self.statuses[record.status] += 1


@dataclass(slots=True, eq=False)
class _Work:
    """What one task is doing.

    Attributes:
        job: The job of its line, and its record, which counts the attempts and the waits.
        before: The attempts before the present request, which a redirect may have asked for.
        since: When the present wait has begun.
    """

    number: int
    task: asyncio.Task[None] = field(init=False)
    busy: bool = False
    job: Job = field(init=False)
    record: Record = field(init=False)
    before: int = 0
    since: float = 0.0


@dataclass(slots=True, eq=False)
class Crawl:
    """Fetches the URLs of all lines, and writes their records. Runs once.

    Args:
        client: Sends the requests.
        limiter: The limiter that each attempt waits for.
        options: Those of the integration; its `retry` decides about bodies that are cut off, too.
        lines: The list.
        reader: Parses its lines.
        results: Keeps the responses, and writes the records.
        redirects: The most redirects to follow.
        proxies: The proxies to send through.
        on_failure: Called with the record of every failure.
        trace: Called with what is sent and received, as a mark and a text; None: nobody asks.
    """

    client: aiohttp.ClientSession
    limiter: AnyLimiter
    options: Options
    lines: Lines
    reader: Reader
    results: Results
    redirects: int
    proxies: Proxies
    on_failure: Callable[[Record], None]
    trace: Callable[[str, str], None] | None = None
    tally: Tally = field(default_factory=Tally, init=False)
    _works: list[_Work] = field(default_factory=list[_Work], init=False)
    _stopping: bool = field(default=False, init=False)
    _pauses: dict[Hashable, float] = field(default_factory=dict[Hashable, float], init=False)
    _ended_by: StoreUnavailable | None = field(default=None, init=False)
    _adapter: SessionAdapter = field(init=False)
    _loop: RetryLoop[Call, ClientResponse] = field(init=False)

    def __post_init__(self) -> None:
        """Make the loop that retries, as a `ThrottledSession` does."""
        self._adapter = SessionAdapter(self.client, self.options)
        self._loop = RetryLoop(self._adapter, self.options, self.limiter)
        self.limiter.observe(self._observe)

    async def run(self, workers: int) -> None:
        """Fetch all URLs with this number of tasks, each with one URL in memory.

        Raises:
            ListError: The list has another format.
            OSError: Reading the list failed.
            OutputError: Writing the output failed.
            StoreUnavailable: The store of the limits failed.
        """
        self._works = [_Work(number) for number in range(workers)]
        try:
            async with asyncio.TaskGroup() as group:
                for work in self._works:
                    work.task = group.create_task(self._work(work))
        except ExceptionGroup as failures:
            error = failures.exceptions[0]
            raise error from error.__cause__
        finally:
            self.lines.close()
        if self._ended_by is not None:
            raise self._ended_by

    def stop(self, *, abort: bool = False) -> None:
        """Send nothing more, and finish the requests in flight, or cancel them."""
        self._stopping = True
        self.lines.close()
        for work in self._works:
            if abort or not work.busy:
                work.task.cancel()

    def _observe(self, event: Event) -> None:
        if isinstance(event, Throttled):  # by whatever status or body
            self.tally.throttled += 1
        elif isinstance(event, Paused):
            self._pauses[event.key] = time.monotonic() + event.seconds

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return sum(work.busy for work in self._works)

    @property
    def pauses(self) -> tuple[int, float]:
        """The number of paused limiters, and the seconds left of the longest pause."""
        now = time.monotonic()
        self._pauses = {key: end for key, end in self._pauses.items() if end > now}
        return len(self._pauses), max(self._pauses.values(), default=now) - now

    @property
    def limits(self) -> tuple[float | None, int | None]:
        """The rate, in tokens per second, and the slots of the limiter of all requests now."""
        if not isinstance(self.limiter, RateLimiter):
            return None, None
        now = self.limiter.statistics()
        return now.rate_limit, now.concurrency_limit

    # ---- one task, and one line

    async def _work(self, work: _Work) -> None:
        """Fetch lines until there are none."""
        async for line in self.lines:
            try:
                job = self.reader.read(line)
            except ListError:
                self.lines.close()  # no other task gets a line any more
                raise
            if job is not None:
                work.job = job
                await self._handle(work, line)
            work.busy = False
            self.lines.finish(line)

    async def _handle(self, work: _Work, line: Line) -> None:
        output, job = self.results.output, work.job
        if output.take(job.identity):
            self.tally.skipped += 1
            return
        work.record = record = Record(url=job.url, id=job.id, number=job.number)
        if job.request is None:
            place = f"{line.source}, line {line.number}: " if line.source else ""
            record.error = f"{place}{job.problem}"
        else:
            await self._fetch(work, job.request)
        work.busy = True
        await output.write(record.line())
        self.tally.count(record)
        if record.failed:
            self.on_failure(record)

    async def _fetch(self, work: _Work, request: Request) -> None:
        """Send a request, and follow its redirects; record what becomes of it."""
        record, followed = work.record, 0
        work.since = time.monotonic()
        request = request._replace(headers=headers_for(request.url, request.headers))
        try:
            while (target := await self._exchange(work, request)) is not None:
                if followed == self.redirects:
                    record.error = f"more than {followed} redirects"
                    break
                followed += 1
                record.attempts -= 1  # a followed redirect is none
                request = target
                record.final_url = without_credentials(str(target.url))
                self._rest(work)
        except StoreUnavailable as error:
            self._ended_by = error  # not a failure of this URL, so it gets no record
            self.stop()
            raise asyncio.CancelledError from error
        except _FAILURES as error:
            record.error = described(error)

    # ---- one request

    async def _exchange(self, work: _Work, request: Request) -> Request | None:
        """Have one request answered; record its response, or return the redirect to follow.

        The loop retries until there is a response, this method until its body is complete.
        """
        work.before = work.record.attempts
        ask = partial(self._ask, work, request)
        options = {"headers": request.headers, "data": request.data}
        call = Call(request.method, request.url, options)
        while True:
            made = work.record.attempts - work.before
            response = await self._loop.run(call, ask, work.job.throttle, made)
            work.busy = True
            try:
                return await self._receive(work, request, response)
            except _CUT_OFF as error:
                status, retry = response.status, self.options.retry
                # The loop would have retried such a response, had it been allowed.
                given_up = status in retry.statuses or retry.is_throttled(status)
                delay = None if given_up else self._next_delay(work, request, None)
                if delay is None:
                    raise
                why = described(error)
                self._trace("*", "", request.url, f": {why}: next attempt in {delay:.3f} s")
            self._rest(work)
            await asyncio.sleep(delay)

    async def _ask(self, work: _Work, request: Request, _: object) -> ClientResponse:
        """Send the request, for which the limiter has granted a permit."""
        proxy = self.proxies.of(request.url)
        if self._stopping:  # and this task is cancelled, but did not need to wait since
            raise asyncio.CancelledError
        work.busy = True
        began = time.monotonic()
        work.record.attempts += 1
        work.record.waited += began - work.since
        self.tally.requests += 1
        self._trace(">", f"{request.method} ", request.url)
        try:
            response = await self.client.request(
                request.method,
                request.url,
                headers=headers_through(proxy, request.url, request.headers),
                data=request.data,
                allow_redirects=False,
                proxy=proxy,
            )
        except BaseException as error:
            why, seconds = described(error), time.monotonic() - began
            self._trace("!", "", request.url, f": {why} after {seconds:.3f} s")
            self._rest(work)
            if isinstance(error, TimeoutError):
                # Unlike a plain TimeoutError it counts as a failed connection, which is retried.
                raise aiohttp.ServerTimeoutError from error
            raise
        seconds = time.monotonic() - began
        self.tally.answered(seconds)
        self._trace("<", f"{response.status} ", response.url, f" in {seconds:.3f} s")
        if self._next_delay(work, request, response.status) is not None:
            self._rest(work)
        return response

    def _trace(self, mark: str, before: str, url: URL, after: str = "") -> None:
        if self.trace is not None:
            self.trace(mark, f"{before}{without_credentials(str(url))}{after}")

    def _next_delay(self, work: _Work, request: Request, status: int | None) -> float | None:
        """Return the seconds before another attempt; None: there is none.

        Args:
            work: Has the attempts.
            request: Has the method.
            status: The status, with a Retry-After that is not too long; None: an exception.
        """
        made = work.record.attempts - work.before
        return self.options.retry.next_delay(made, request.method, status=status, retry_after=0.0)

    def _rest(self, work: _Work) -> None:
        """Begin a wait, in the queue or before a retry."""
        work.since = time.monotonic()
        work.busy = False
        if self._stopping:
            work.task.cancel()

    async def _receive(
        self, work: _Work, request: Request, response: ClientResponse
    ) -> Request | None:
        """Record a response with its body, or return the redirect to follow."""
        job, record = work.job, work.record
        try:
            record.status = response.status
            if self.redirects:
                target = redirected(request, response.status, response.headers.get("Location"))
                if target is not None:
                    await self._adapter.discard(response)
                    return target
            own = "" if job.identity == job.url else job.identity
            await self.results.keep(response, record, request.url, own, work.number)
            return None
        finally:
            if not response.closed:  # most are closed, as their bodies were read
                response.release()
