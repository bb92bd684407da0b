"""Fetches one URL after the other, and knows at any time whether it may be interrupted."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import aiohttp
from aiohttp import ClientResponse

from aiothrottle.aiohttp.adapter import discard
from aiothrottle.errors import StoreUnavailable, ThrottleError
from aiothrottle.fetch.addresses import Address, read_address
from aiothrottle.fetch.folder import file_name
from aiothrottle.fetch.lines import Line
from aiothrottle.fetch.record import Record
from aiothrottle.fetch.redirects import Request, redirected
from aiothrottle.terminal import without_credentials

if TYPE_CHECKING:
    from yarl import URL

    from aiothrottle.aiohttp.sender import Sender
    from aiothrottle.fetch.folder import Folder
    from aiothrottle.fetch.lines import Lines
    from aiothrottle.fetch.output import Output
    from aiothrottle.fetch.tally import Tally
    from aiothrottle.retry import Retry

__all__ = ["Job", "Worker"]

_CHUNK = 1 << 16
# Whatever one URL or its server can do wrong. The next one has nothing to do with it.
_FAILURES = (aiohttp.ClientError, OSError, ValueError, ThrottleError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is asked of every URL, and what is kept of the answer.

    Attributes:
        redirects: How many are followed.
        kept_headers: Names of the response's, in small letters; ``"*"`` is all.
        longest_body: Bytes; None: any.
    """

    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    data: bytes | None = None
    redirects: int = 0
    kept_headers: frozenset[str] = frozenset()
    longest_body: int | None = None


class Host(Protocol):
    """What a worker works for: a `Crawl`."""

    job: Job
    sender: "Sender"
    retry: "Retry"
    lines: "Lines"
    output: "Output"
    folder: "Folder | None"
    tally: "Tally"
    stopping: bool

    def throttled(self, url: "URL") -> None:
        """Count a request that the server of the URL has throttled."""
        ...

    def count(self, record: Record) -> None:
        """Count a URL that is done."""
        ...

    def end(self, error: StoreUnavailable) -> None:
        """Stop, as nothing may be sent any more."""
        ...


class Worker:
    """A task of a crawl, and what its URL has been through.

    Attributes:
        busy: A request is on its way, or its answer on the way to the output.
    """

    __slots__ = (
        "_attempts",
        "_crawl",
        "_number",
        "_request",
        "_since",
        "_task",
        "_waited",
        "busy",
    )

    _request: Request

    def __init__(self, crawl: Host, number: int) -> None:
        self._crawl = crawl
        self._number = number
        self._task: asyncio.Task[None] | None = None
        self._attempts = 0
        self._waited = 0.0
        self._since = 0.0
        self.busy: bool = False

    async def run(self) -> None:
        """Take lines until there are none.

        Raises:
            OSError: They cannot be read any further.
            OutputError: The output cannot be written any more.
        """
        self._task = asyncio.current_task()
        lines = self._crawl.lines
        async for line in lines:
            await self._handle(line)
            self.busy = False
            lines.finish(line)

    def cancel(self) -> None:
        """Stop at once, whatever is under way."""
        if self._task is not None:
            self._task.cancel()

    # ---- one attempt

    async def _ask(self, _: object) -> ClientResponse:
        """Send the request. It has had its turn."""
        request = self._request
        self.busy = True
        self._attempts += 1
        self._waited += time.monotonic() - self._since
        self._crawl.tally.requests += 1
        try:
            response = await self._crawl.sender.session.request(
                request.method,
                request.url,
                headers=request.headers,
                data=request.data,
                allow_redirects=False,
            )
        except BaseException:
            self._rest()
            raise
        self._answered(response)
        return response

    def _answered(self, response: ClientResponse) -> None:
        """An answer has begun; if it is one that is tried again, a wait has."""
        retry = self._crawl.retry
        if response.status in retry.statuses:
            # A Retry-After of any value makes a 503 a throttled request.
            if retry.is_throttled(
                response.status, 0.0 if "Retry-After" in response.headers else None
            ):
                self._crawl.throttled(response.url)
            self._rest()

    def _rest(self) -> None:
        """Nothing is under way: it waits for its turn, or to be tried again."""
        self._since = time.monotonic()
        self.busy = False
        if self._crawl.stopping:
            self.cancel()

    # ---- one URL

    async def _handle(self, line: Line) -> None:
        crawl = self._crawl
        address = read_address(line.text)
        if address is None:
            return
        if crawl.output.done.take(address.shown):
            crawl.tally.skipped += 1
            return
        if address.url is None:
            place = f"{line.source}, line {line.number}: " if line.source else ""
            record = Record(url=address.shown, error=f"{place}{address.problem}")
        else:
            record = await self._fetch(
                address, Request(crawl.job.method, address.url, crawl.job.headers, crawl.job.data)
            )
        self.busy = True
        await crawl.output.write(record.line())
        crawl.count(record)

    async def _fetch(self, address: Address, request: Request) -> Record:
        """Fetch one URL, and follow its redirects."""
        self._attempts, self._waited, self._since = 0, 0.0, time.monotonic()
        record = Record(url=address.shown)
        followed = 0
        try:
            while (target := await self._exchange(request, record)) is not None:
                if followed == self._crawl.job.redirects:
                    record.error = f"more than {followed} redirects"
                    break
                followed += 1
                request = target
                record.final_url = without_credentials(str(target.url))
                self._rest()
        except StoreUnavailable as error:
            self._crawl.end(error)  # it is no failure of this URL, which stays to be fetched
            raise asyncio.CancelledError from error
        except _FAILURES as error:
            record.error = _described(error)
        record.attempts = self._attempts - followed
        record.waited = self._waited
        return record

    async def _exchange(self, request: Request, record: Record) -> Request | None:
        """Send one request. The answer goes to the record, or is a redirect to follow."""
        self._request = request
        response = await self._crawl.sender.request(request.method, request.url, self._ask)
        self.busy = True
        try:
            record.status = response.status
            if self._crawl.job.redirects:
                target = redirected(request, response.status, response.headers.get("Location"))
                if target is not None:
                    await discard(response)
                    return target
            await self._keep(request, response, record)
            return None
        finally:
            if not response.closed:  # with most it is, since their bodies have come
                response.release()

    async def _keep(self, request: Request, response: ClientResponse, record: Record) -> None:
        job, folder = self._crawl.job, self._crawl.folder
        if job.kept_headers:
            record.headers = _chosen(response, job.kept_headers)
        if folder is None:
            record.body = await self._read(response)
            record.charset = response.charset
            return
        async with aclosing(self._chunks(response)) as chunks:
            name = file_name(request.url, response.content_type)
            record.file = await folder.keep(name, self._number, chunks)

    async def _read(self, response: ClientResponse) -> bytes:
        if response.content.is_eof():  # as with most: all of it is here
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
        most = self._crawl.job.longest_body
        if most is not None and size > most:
            raise ValueError(f"the body is longer than {most} bytes (--max-filesize)")


def _chosen(response: ClientResponse, names: frozenset[str]) -> dict[str, str]:
    """Give the headers of those names; several of one name are one list (RFC 9110, 5.3)."""
    chosen: dict[str, list[str]] = {}
    for name, value in response.headers.items():
        key = name.lower()
        if "*" in names or key in names:
            # aiohttp keeps what is not UTF-8 as surrogates, which not all JSON readers take.
            text = value.encode(errors="surrogateescape").decode(errors="replace")
            chosen.setdefault(key, []).append(text)
    return {name: ", ".join(values) for name, values in chosen.items()}


def _described(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return without_credentials(str(error) or type(error).__name__)
