"""The adapter of aiohttp: what the session and both middlewares share."""

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout
from yarl import URL

from aiothrottle._http.adapter import SHORT_BODY, SHORT_TIME, Failure
from aiothrottle._http.admission import origin
from aiothrottle._http.options import Options
from aiothrottle._http.settlement import Settlement
from aiothrottle.aiohttp.content import SettledContent
from aiothrottle.aiohttp.hold import Holds
from aiothrottle.aiohttp.replay import replayed
from aiothrottle.permit import Permit

_SWITCHING_PROTOCOLS = 101


def origin_of(_method: str, url: URL) -> str:
    """Return the host of the URL as DNS has it, with any port but the default one."""
    return origin(url.scheme, url.raw_host or "", url.port)


_Request_contra = TypeVar("_Request_contra", contravariant=True)


class AiohttpAdapter(Generic[_Request_contra]):
    """Translates for aiohttp; a subclass for each integration knows its requests.

    Args:
        options: How long responses and websockets hold their slots.
    """

    def __init__(self, options: Options) -> None:
        self._holds: Holds = Holds()
        self._max_hold = options.max_hold
        self._hold_websockets = options.hold_websockets

    def classify(self, error: Exception) -> Failure:
        """Classify a failed connection; a wrong certificate is not retryable."""
        lost = isinstance(error, aiohttp.ClientConnectionError)
        return Failure(
            retryable=lost and not isinstance(error, aiohttp.ClientSSLError),
            unanswered=lost or isinstance(error, OSError),
        )

    def receive(
        self, request: _Request_contra, response: ClientResponse, permit: Permit | None
    ) -> tuple[int, Mapping[str, str]]:
        """Return status and headers; the connection holds the permit."""
        status = response.status
        if permit is not None:
            switched = status == _SWITCHING_PROTOCOLS
            # Without a connection the whole body came with the headers.
            if response.connection is None or (switched and not self._hold_websockets):
                permit._release()
            elif self._max_hold is not None or switched:
                self._holds.start(permit, response, self._max_hold)
            else:
                self._holds.start(permit, response, self.total_of(request))
        return status, response.headers

    def total_of(self, request: _Request_contra) -> float | None:
        """Return the seconds after which aiohttp ends the response to a request, if it does."""
        timeout = getattr(request, "timeout", None)  # of a ClientRequest, since aiohttp 3.15
        return timeout.total if isinstance(timeout, ClientTimeout) else None

    def follow(self, response: ClientResponse, settlement: Settlement, /) -> None:
        """Feed the body to the settlement, as it is read, and end it when the body ends."""
        if response.status == _SWITCHING_PROTOCOLS or response.content.at_eof():
            settlement.end(complete=True)
        else:
            response.content = SettledContent(response.content, settlement)

    def host(self, response: ClientResponse) -> str:
        """Return the host that sent a response, the last one of a chain of redirects."""
        return response.url.raw_host or ""

    async def read_body(self, response: ClientResponse, *, unsized: bool) -> bytes | None:
        """Read a short body, and put it back. If it fails, the caller's reading raises."""
        if not unsized and not _is_short(response):
            return None
        with replayed(response):
            return await (_read_begin(response) if unsized else _read(response))

    @contextmanager
    def replayed(self, response: ClientResponse) -> Generator[Callable[[], ClientResponse]]:
        """Put back at the end what is read of the body."""
        with replayed(response):
            yield lambda: response

    async def close(self, response: ClientResponse) -> None:
        """Close a response that is not returned."""
        response.close()

    async def discard(self, response: ClientResponse) -> None:
        """End a response that is followed by another attempt, and release its permit."""
        await discard(response)

    async def prepare_again(self, _: _Request_contra, /) -> None:
        """Do nothing: a session makes a new request for each attempt."""


async def discard(response: ClientResponse) -> None:
    """End a response that is not needed: read it if it is short, and release its connection."""
    try:
        if _is_short(response):
            with suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(SHORT_TIME):
                    await response.read()  # which also waits until the upload has ended
    finally:
        response.release()


def _is_short(response: ClientResponse) -> bool:
    length = response.content_length
    packed = "Content-Encoding" in response.headers  # short only until it is decompressed
    return length is not None and length <= SHORT_BODY and not packed


async def _read_begin(response: ClientResponse) -> bytes | None:
    """Return the body if it turns out to be short."""
    body = b""
    try:
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > SHORT_BODY:
                return None
    except (aiohttp.ClientError, OSError):
        return None  # the caller's reading raises it too
    return body


async def _read(response: ClientResponse) -> bytes | None:
    """Return a short body. If reading fails, close the response and return None."""
    try:
        async with asyncio.timeout(SHORT_TIME):
            # Not `response.read()`, which caches the body: the caller reads it again.
            return await response.content.read()
    except (aiohttp.ClientError, OSError) as error:
        response.close()
        if isinstance(error, TimeoutError):
            # The caller's reading raises it.
            stalled = aiohttp.SocketTimeoutError("the body of a throttled response did not arrive")
            response.content.set_exception(stalled)
        return None  # the caller may not need the body


def without_resending(session: ClientSession) -> ClientSession:
    """Make the session send no request twice by itself, and return it.

    When a connection is cut, even a new one, aiohttp sends an idempotent request once more (RFC
    9112, section 9.3.1): a server that cuts all of them would get twice the limit. A `Retry`
    decides about retries instead.
    """
    # There is no public way.
    session._retry_connection = False  # pyright: ignore[reportPrivateUsage]
    return session
