"""Does one job after the other; `busy` says whether cancelling would lose a response."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import aiohttp
from aiohttp import ClientResponse

from aiothrottle.aiohttp.adapter import discard
from aiothrottle.cli.fetch.reading.jobs import Job, Request
from aiothrottle.cli.fetch.reading.lines import Line
from aiothrottle.cli.fetch.results.folder import file_name
from aiothrottle.cli.fetch.results.record import Record, described
from aiothrottle.cli.fetch.sending.proxies import Proxies
from aiothrottle.cli.fetch.sending.redirects import headers_for, redirected
from aiothrottle.cli.terminal import without_credentials
from aiothrottle.errors import StoreUnavailable, ThrottleError

if TYPE_CHECKING:
    from yarl import URL

    from aiothrottle.aiohttp.session import Sender
    from aiothrottle.cli.fetch.reading.lines import Lines
    from aiothrottle.cli.fetch.results.folder import Folder
    from aiothrottle.cli.fetch.results.output import Output
    from aiothrottle.cli.fetch.results.tally import Tally
    from aiothrottle.retry import Retry

__all__ = ["Rules", "Worker"]

_CHUNK = 1 << 16
# A body that was cut off, or did not arrive in time. No OSError, which may be the disk's.
_CUT_OFF = (
    aiohttp.ClientPayloadError,
    aiohttp.ClientConnectionError,
    ConnectionError,
    TimeoutError,
)
# Failures of one URL or its server, which do not concern the next URL.
_FAILURES = (aiohttp.ClientError, OSError, ValueError, ThrottleError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is followed and kept of every response.

    Attributes:
        proxies: The proxies to send through; None: none.
        redirects: The most redirects to follow.
        kept_headers: Names of response headers, in lower case; ``"*"`` keeps all.
        longest_body: Bytes; None: no limit.
    """

    proxies: Proxies | None = None
    redirects: int = 0
    kept_headers: frozenset[str] = frozenset()
    longest_body: int | None = None


class Host(Protocol):
    """What a worker needs of its `Crawl`."""

    rules: Rules
    sender: "Sender"
    retry: "Retry"
    lines: "Lines"
    output: "Output"
    folder: "Folder | None"
    tally: "Tally"
    stopping: bool
    on_cut_off: "Callable[[URL, Exception, float], None] | None"

    def read(self, line: Line) -> Job | None:
        """Parse a line of the list."""
        ...

    def throttled(self, url: "URL", key: Hashable) -> None:
        """Count a request that the server of the URL has throttled; None: it has no key."""
        ...

    def count(self, record: Record) -> None:
        """Count a finished URL."""
        ...

    def end(self, error: StoreUnavailable) -> None:
        """Stop because the store failed."""
        ...


class Worker:
    """A task of a crawl, with the state of its current URL.

    Attributes:
        busy: Whether a request is in flight, or its response is being written.
    """

    __slots__ = (
        "_attempts",
        "_before",
        "_crawl",
        "_job",
        "_number",
        "_request",
        "_since",
        "_task",
        "_waited",
        "busy",
    )

    _job: Job
    _request: Request

    def __init__(self, crawl: Host, number: int) -> None:
        self._crawl = crawl
        self._number = number
        self._task: asyncio.Task[None] | None = None
        self._attempts = 0
        # The attempts of the redirects before.
        self._before = 0
        self._waited = 0.0
        self._since = 0.0
        self.busy: bool = False

    async def run(self) -> None:
        """Fetch lines until there are none.

        Raises:
            OSError: Reading the list failed.
            OutputError: Writing the output failed.
        """
        self._task = asyncio.current_task()
        lines = self._crawl.lines
        async for line in lines:
            await self._handle(line)
            self.busy = False
            lines.finish(line)

    def cancel(self) -> None:
        """Cancel the task, even if it is busy."""
        if self._task is not None:
            self._task.cancel()

    # ---- one attempt

    async def _ask(self, _: object) -> ClientResponse:
        """Send the request, for which the limiter has granted a permit."""
        request, proxies = self._request, self._crawl.rules.proxies
        proxy = None if proxies is None else proxies.of(request.url)
        headers = request.headers
        if proxies is not None and proxy is not None:
            headers = {**headers, **proxies.headers_for(request.url, proxy)}
        if self._crawl.stopping:  # and this task is cancelled, but did not need to wait since
            raise asyncio.CancelledError
        self.busy = True
        self._attempts += 1
        began = time.monotonic()
        self._waited += began - self._since
        self._crawl.tally.requests += 1
        try:
            response = await self._crawl.sender.session.request(
                request.method,
                request.url,
                headers=headers,
                data=request.data,
                allow_redirects=False,
                proxy=proxy,
            )
        except BaseException as error:
            self._rest()
            if isinstance(error, TimeoutError):
                # Unlike a plain TimeoutError it counts as a failed connection, which is retried.
                raise aiohttp.ServerTimeoutError from error
            raise
        self._crawl.tally.answered(time.monotonic() - began)
        self._answered(response)
        return response

    def _answered(self, response: ClientResponse) -> None:
        """Handle the headers of a response; one that is retried begins a wait."""
        if self._crawl.retry.is_throttled(response.status):
            self._crawl.throttled(response.url, (self._job.throttle or {}).get("key"))
        if self._next_delay(response.status) is not None:
            self._rest()

    def _next_delay(self, status: int | None) -> float | None:
        """Return the seconds before another attempt; None: there is none.

        Args:
            status: The status, with a Retry-After that is not too long; None: an exception.
        """
        made, method = self._attempts - self._before, self._request.method
        return self._crawl.retry.next_delay(made, method, status=status, retry_after=0.0)

    def _rest(self) -> None:
        """Begin a wait, in the queue or before a retry."""
        self._since = time.monotonic()
        self.busy = False
        if self._crawl.stopping:
            self.cancel()

    # ---- one URL

    async def _handle(self, line: Line) -> None:
        crawl = self._crawl
        job = crawl.read(line)
        if job is None:
            return
        if crawl.output.done.take(job.identity):
            crawl.tally.skipped += 1
            return
        record = Record(url=job.url, id=job.id, number=job.number)
        if job.request is None:
            place = f"{line.source}, line {line.number}: " if line.source else ""
            record.error = f"{place}{job.problem}"
        else:
            self._job, request = job, job.request
            headers = headers_for(request.url, request.headers)
            await self._fetch(request._replace(headers=headers), record)
        self.busy = True
        await crawl.output.write(record.line())
        crawl.count(record)

    async def _fetch(self, request: Request, record: Record) -> None:
        """Send a request, and follow its redirects; record what becomes of it."""
        self._attempts, self._waited, self._since = 0, 0.0, time.monotonic()
        followed = 0
        try:
            while (target := await self._exchange(request, record)) is not None:
                if followed == self._crawl.rules.redirects:
                    record.error = f"more than {followed} redirects"
                    break
                followed += 1
                request = target
                record.final_url = without_credentials(str(target.url))
                self._rest()
        except StoreUnavailable as error:
            self._crawl.end(error)  # not a failure of this URL, so it gets no record
            raise asyncio.CancelledError from error
        except _FAILURES as error:
            record.error = described(error)
        record.attempts = self._attempts - followed
        record.waited = self._waited

    async def _exchange(self, request: Request, record: Record) -> Request | None:
        """Have one request answered; record its response, or return the redirect to follow.

        The sender retries until there is a response, this method until its body is complete.
        """
        self._request, self._before = request, self._attempts
        while True:
            response = await self._crawl.sender.request(
                request.method,
                request.url,
                self._ask,
                {"headers": request.headers, "data": request.data},
                throttle=self._job.throttle,
                made=self._attempts - self._before,
            )
            self.busy = True
            try:
                return await self._receive(request, response, record)
            except _CUT_OFF as error:
                delay = None if self._is_given_up(response.status) else self._next_delay(None)
                if delay is None:
                    raise
                if self._crawl.on_cut_off is not None:
                    self._crawl.on_cut_off(request.url, error, delay)
            self._rest()
            await asyncio.sleep(delay)

    def _is_given_up(self, status: int) -> bool:
        """Return whether the sender would have retried a response, had it been allowed."""
        retry = self._crawl.retry
        return status in retry.statuses or retry.is_throttled(status)

    async def _receive(
        self, request: Request, response: ClientResponse, record: Record
    ) -> Request | None:
        """Record a response with its body, or return the redirect to follow."""
        try:
            record.status = response.status
            if self._crawl.rules.redirects:
                target = redirected(request, response.status, response.headers.get("Location"))
                if target is not None:
                    await discard(response)
                    return target
            await self._keep(request, response, record)
            return None
        finally:
            if not response.closed:  # most are closed, as their bodies were read
                response.release()

    async def _keep(self, request: Request, response: ClientResponse, record: Record) -> None:
        rules, folder = self._crawl.rules, self._crawl.folder
        if rules.kept_headers:
            record.headers = _chosen(response, rules.kept_headers)
        if folder is None:
            record.body = await self._read(response)
            record.charset = response.charset
            return
        async with aclosing(self._chunks(response)) as chunks:
            own = "" if self._job.identity == self._job.url else self._job.identity
            name = file_name(request.url, response.content_type, own)
            record.file = await folder.keep(name, self._number, chunks)

    async def _read(self, response: ClientResponse) -> bytes:
        if response.content.is_eof():  # most bodies are complete by now
            body = response.content.read_nowait()
            self._check_size(len(body))
            return body
        async with aclosing(self._chunks(response)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def _chunks(self, response: ClientResponse) -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in response.content.iter_chunked(_CHUNK):
            size += len(chunk)
            self._check_size(size)
            yield chunk

    def _check_size(self, size: int) -> None:
        most = self._crawl.rules.longest_body
        if most is not None and size > most:
            raise ValueError(f"the body is longer than {most} bytes (--max-filesize)")


def _chosen(response: ClientResponse, names: frozenset[str]) -> dict[str, str]:
    """Return the headers with these names; repeated ones are joined (RFC 9110, 5.3)."""
    chosen: dict[str, list[str]] = {}
    for name, value in response.headers.items():
        key = name.lower()
        if "*" in names or key in names:
            # aiohttp decodes invalid UTF-8 to surrogates, which some JSON readers reject.
            text = value.encode(errors="surrogateescape").decode(errors="replace")
            chosen.setdefault(key, []).append(text)
    return {name: ", ".join(values) for name, values in chosen.items()}
