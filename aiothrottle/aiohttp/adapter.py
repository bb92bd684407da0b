"""What the session and the middlewares both do with requests and responses of aiohttp."""

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import aiohttp
from aiohttp import ClientResponse, ClientTimeout
from yarl import URL

from aiothrottle._http.adapter import SHORT_BODY, SHORT_TIME, Failure
from aiothrottle._http.admission import origin
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.hold import Holds
from aiothrottle.aiohttp.replay import replayed
from aiothrottle.permit import Permit

__all__ = ["AiohttpAdapter", "discard", "origin_of"]

_SWITCHING_PROTOCOLS = 101


def origin_of(_method: str, url: URL) -> str:
    """Give the host of the URL as DNS has it, with the port unless it is the usual one."""
    return origin(url.scheme, url.raw_host or "", url.port)


_Request_contra = TypeVar("_Request_contra", contravariant=True)


class AiohttpAdapter(Generic[_Request_contra]):
    """What the retry loop needs of aiohttp, the same for the session and for both middlewares.

    Args:
        options: For how long responses and websockets hold their slots.
    """

    def __init__(self, options: Options) -> None:
        self._holds: Holds = Holds()
        self._max_hold = options.max_hold
        self._hold_websockets = options.hold_websockets

    def classify(self, error: Exception) -> Failure:
        """Tell whether the connection failed; a wrong certificate stays wrong."""
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
                permit.release()
            elif self._max_hold is not None or switched:
                self._holds.start(permit, response, self._max_hold)
            else:
                self._holds.start(permit, response, self.total_of(request))
        return status, response.headers

    def total_of(self, request: _Request_contra) -> float | None:
        """Return the seconds after which nobody can read the response to a request any more."""
        timeout = getattr(request, "timeout", None)  # of a ClientRequest, since aiohttp 3.15
        return timeout.total if isinstance(timeout, ClientTimeout) else None

    def host(self, response: ClientResponse) -> str:
        """Return the host that has sent a response, the last one of a chain of redirects."""
        return response.url.raw_host or ""

    async def read_body(self, response: ClientResponse) -> bytes | None:
        """Read a short body, and put it back. If it fails, its reader is told so."""
        if not _is_short(response):
            return None
        with replayed(response):
            return await _read(response)

    @contextmanager
    def replayed(self, response: ClientResponse) -> Generator[Callable[[], ClientResponse]]:
        """Put back at the end what is read of the body."""
        with replayed(response):
            yield lambda: response

    async def close(self, response: ClientResponse) -> None:
        """Close a response that nobody gets."""
        response.close()

    async def discard(self, _: _Request_contra, response: ClientResponse | None, /) -> None:
        """End a response that is followed by another attempt, and release its permit."""
        if response is not None:
            await discard(response)


async def discard(response: ClientResponse) -> None:
    """End a response that nobody wants: read it if it is short, and release its connection."""
    try:
        if _is_short(response):
            with suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(SHORT_TIME):
                    await response.read()  # and wait until nothing is uploaded any more
    finally:
        response.release()


def _is_short(response: ClientResponse) -> bool:
    length = response.content_length
    packed = "Content-Encoding" in response.headers  # short only until it is unpacked
    return length is not None and length <= SHORT_BODY and not packed


async def _read(response: ClientResponse) -> bytes | None:
    """Read a short body; None if it fails. It closes the response then."""
    try:
        async with asyncio.timeout(SHORT_TIME):
            # Not `response.read()`, which keeps the body: it is to be read anew by the caller.
            return await response.content.read()
    except (aiohttp.ClientError, OSError) as error:
        response.close()
        if isinstance(error, TimeoutError):
            # Who reads it all the same is told why.
            stalled = aiohttp.SocketTimeoutError("the body of the refusal did not come")
            response.content.set_exception(stalled)
        return None  # nobody wanted that body
