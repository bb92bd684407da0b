"""The transport: waits, sends, tries again.

A transport sends one request of a client, which follows redirects, authenticates and decodes above
it. Here it waits its turn first, outside of the client's timeouts: those are of single steps of the
wrapped transport (pool, connect, write, read), and begin with each step.
"""

import asyncio
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from aiothrottle._http.adapter import SHORT_BODY, SHORT_TIME, Failure
from aiothrottle._http.admission import Admission, AnyLimiter, origin
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import ClientOptions, read_options
from aiothrottle.permit import Permit
from aiothrottle.redact import shown
from aiothrottle.transport.lease import HeldStream, Lease
from aiothrottle.transport.library import AsyncTransport, Request, Response

__all__ = ["Transport"]

_SWITCHING_PROTOCOLS = 101

_Request = TypeVar("_Request", bound=Request)
_Response = TypeVar("_Response", bound=Response)


class Transport(Generic[_Request, _Response]):
    """A transport that waits its turn, holds its slot, and tries again when refused.

    A subclass for each library is an `AsyncBaseTransport` too, and tells the arguments.
    """

    #: The library itself: the names in it are the same in both.
    _library: ClassVar[Any]
    _held_stream: ClassVar[type[HeldStream]]

    def __init__(
        self,
        limiter: AnyLimiter,
        *,
        transport: AsyncTransport[_Request, _Response] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        library = self._library
        checked = read_options(type(self).__name__, ClientOptions, options)
        self._admission = Admission(limiter, checked, _origin_of)
        if transport is not None and not isinstance(transport, library.AsyncBaseTransport):
            name = f"{library.__name__}.AsyncBaseTransport"
            raise TypeError(f"transport is an {name}, not {shown(transport)}")
        self._transport: AsyncTransport[_Request, _Response] = (
            transport or library.AsyncHTTPTransport()
        )
        self._retry = checked.retry
        self._buffer_body = checked.buffer_body
        self._leases: set[Lease] = set()
        self._adapter = _Adapter[_Request, _Response](
            library, self._held_stream, checked.max_hold, self._leases
        )
        self._loop = RetryLoop(self._adapter, checked, _origin_of, self._admission)

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter that is waited for."""
        return self._admission.limiter

    async def handle_async_request(self, request: _Request) -> _Response:
        """Send a request of the client, as often as `retry` says.

        Raises:
            LimiterClosed: The limiter is closed.
            ThrottleTimeout: The wait would be, or was, longer than `queue_timeout`.
            Overloaded: The server fails, and the request was rejected here: see `overload`.
            TransportError: Of the library, as the wrapped transport does, after the last attempt.
        """
        if self._buffer_body and not self._adapter.is_replayable(request):
            await request.aread()

        async def send() -> _Response:
            response = await self._transport.handle_async_request(request)
            response.request = request  # the client does so later, `should_retry` may ask now
            return response

        return await self._loop.run(request, send)

    async def aclose(self) -> None:
        """Close the wrapped transport. The limiter stays as it is."""
        try:
            await self._transport.aclose()
        finally:
            self._release_all()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        try:
            await self._transport.__aexit__(exc_type, exc_value, traceback)
        finally:
            self._release_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limiter!r}, {self._retry!r}>"

    def _release_all(self) -> None:
        for lease in tuple(self._leases):
            lease.release()


class _Adapter(Generic[_Request, _Response]):
    """What the retry loop needs of a library."""

    def __init__(
        self,
        library: Any,  # noqa: ANN401 - a module
        held_stream: type[HeldStream],
        max_hold: float | None,
        leases: set[Lease],
    ) -> None:
        self._library = library
        self._held_stream = held_stream
        self._max_hold = max_hold
        self._leases = leases
        self._no_answer = _failures(library)
        self._multipart = _multipart(library)

    def hold(self, permit: Permit, _: _Request, response: _Response) -> None:
        # What a mock or a cache gives is closed already, and nobody will close it once more.
        if response.is_closed or response.status_code == _SWITCHING_PROTOCOLS:
            permit.release()
        else:
            lease = Lease(permit, response.stream, self._max_hold, self._leases)
            response.stream = self._held_stream(lease)

    def is_replayable(self, request: _Request) -> bool:
        stream = request.stream
        if isinstance(stream, self._library.ByteStream):
            return True
        return isinstance(stream, self._multipart) and all(map(_is_repeatable, stream.fields))

    def classify(self, error: Exception) -> Failure:
        lost = isinstance(error, self._no_answer)
        return Failure(retryable=lost and not _is_of_a_certificate(error), unanswered=lost)

    def read(self, response: _Response) -> tuple[int, Mapping[str, str]]:
        return response.status_code, response.headers

    def host(self, response: _Response) -> str:
        host: str = response.request.url.host
        return host

    async def read_body(self, response: _Response) -> bytes | None:
        # What is packed is short only until it is unpacked.
        if not _is_short(response.headers) or "Content-Encoding" in response.headers:
            return None
        held = _held(response)
        try:
            async with asyncio.timeout(SHORT_TIME):
                return await (response.aread() if held is None else held.read_ahead())
        except TimeoutError as error:
            raise self._library.ReadTimeout("the body of a refusal does not come") from error

    @contextmanager
    def replayed(self, response: _Response) -> Generator[Callable[[], _Response]]:
        held = _held(response)
        if held is None or response.is_closed:
            yield lambda: response
            return
        held.begin_reading_ahead()
        yield lambda: self._unread(response, held)
        held.end_reading_ahead()

    def _unread(self, response: _Response, held: HeldStream) -> _Response:
        """Give a response of which nothing has been read, whatever `should_retry` has read."""
        if not response.is_closed and not response.is_stream_consumed:
            return response
        # There is no public way to have a response forget what it has decoded.
        unread: _Response = self._library.Response(
            response.status_code,
            headers=response.headers,
            stream=held,
            request=response.request,
            extensions=response.extensions,
            history=response.history,
            default_encoding=response.default_encoding,
        )
        # An iterator that `should_retry` has left may end late, and then closes its response.
        response.stream = self._library.ByteStream(b"")
        return unread

    async def close(self, response: _Response) -> None:
        held = _held(response)
        await (response.aclose() if held is None else held.end())

    async def discard(self, response: _Response) -> None:
        try:
            if _is_short(response.headers) and not response.is_stream_consumed:
                # Nobody wants that body.
                with suppress(TimeoutError, self._library.TransportError):
                    async with asyncio.timeout(SHORT_TIME):
                        async for _ in response.aiter_raw():
                            pass
        finally:
            await response.aclose()


def _held(response: Response) -> HeldStream | None:
    stream = response.stream
    return stream if isinstance(stream, HeldStream) else None


def _origin_of(_method: str, url: Any) -> str:  # noqa: ANN401 - of either library
    """Give the host of the URL as DNS has it, with the port unless it is the usual one."""
    return origin(url.scheme, url.raw_host.decode("ascii"), url.port)


def _failures(library: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - a module
    """Give what is raised because a connection failed.

    Neither a full pool, since nothing was sent then, nor a proxy that refuses is such a failure.
    """
    return (
        library.NetworkError,
        library.RemoteProtocolError,
        library.ConnectTimeout,
        library.ReadTimeout,
        library.WriteTimeout,
    )


def _is_of_a_certificate(error: BaseException | None) -> bool:
    """Tell whether another attempt would fail as well: it would meet the same certificate.

    The libraries have no class for it, but what they have met is in the chain.
    """
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _multipart(library: Any) -> type[Any]:  # noqa: ANN401 - a module
    """Give the class of a form with files, which has no public name."""
    form: object = library.Request("POST", "http://localhost/", files={"file": b""}).stream
    return type(form)


def _is_repeatable(field: Any) -> bool:  # noqa: ANN401 - of either library
    """Tell whether a field of a form can be sent again. The libraries go back to its beginning."""
    if not hasattr(field, "file"):
        return hasattr(field, "value")
    content = field.file
    if isinstance(content, str | bytes):
        return True
    if not hasattr(content, "seekable") or getattr(content, "closed", False):
        return False
    return bool(content.seekable())


def _is_short(headers: Mapping[str, str]) -> bool:
    try:
        return int(headers.get("Content-Length", "")) <= SHORT_BODY
    except ValueError:
        return False
