"""The transport for both httpx libraries: waits for the limiter, sends, retries.

A transport sends one request of a client; the client follows redirects, authenticates and decodes
above it. The wait for the limiter is outside of the client's timeouts: those time single steps of
the wrapped transport (pool, connect, write, read), and begin with each step.
"""

from types import TracebackType
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, Unpack

from aiothrottle._checks import shown
from aiothrottle._http.admission import Admission, AnyLimiter, LimiterLike
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import ClientOptions, read_options
from aiothrottle.transport.adapter import TransportAdapter, origin_of
from aiothrottle.transport.hold import HeldStream
from aiothrottle.transport.library import AsyncTransport, Request, Response

__all__ = ["Transport"]

_Request = TypeVar("_Request", bound=Request)
_Response = TypeVar("_Response", bound=Response)


class Transport(Generic[_Request, _Response]):
    """A transport that waits for a limiter, holds a slot, and retries.

    The subclass for each library is an `AsyncBaseTransport` too, and documents the arguments.
    """

    #: The module; both have the same names.
    _library: ClassVar[Any]
    _held_stream: ClassVar[type[HeldStream]]

    def __init__(
        self,
        limiter: LimiterLike,
        *,
        transport: AsyncTransport[_Request, _Response] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        library = self._library
        checked = read_options(type(self).__name__, ClientOptions, options)
        self._admission = Admission(limiter, checked, origin_of)
        if transport is not None and not isinstance(transport, library.AsyncBaseTransport):
            name = f"{library.__name__}.AsyncBaseTransport"
            raise TypeError(f"transport must be an {name}, got {shown(transport)}")
        self._transport: AsyncTransport[_Request, _Response] = (
            transport or library.AsyncHTTPTransport()
        )
        self._retry = checked.retry
        self._buffer_body = checked.buffer_body
        self._adapter = TransportAdapter[_Request, _Response](
            library, self._held_stream, checked.max_hold
        )
        self._loop = RetryLoop(self._adapter, checked, origin_of, self._admission)

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter of all requests, or of each key."""
        return self._admission.limiter

    async def handle_async_request(self, request: _Request) -> _Response:
        """Send a request of the client, with the retries of `retry`.

        Raises:
            LimiterClosed: The limiter is closed.
            ThrottleTimeout: The wait would be, or was, longer than `queue_timeout`.
            RequestDropped: The server is failing; see `adaptive_throttling`.
            TransportError: The library's, of the last attempt.
            TypeError: The extension "aiothrottle", or the result of a hook, has a value of a wrong
                type.
            ValueError: The same with a value out of range.
        """
        if not isinstance(request, self._library.Request):
            raise self._misplaced(request)
        if self._buffer_body and not self._adapter.is_replayable(request):
            await request.aread()

        return await self._loop.run(
            request, self._transport.handle_async_request, request.extensions.get("aiothrottle")
        )

    def _misplaced(self, request: object) -> TypeError:
        """Return the error of a transport in a client of another library."""
        ours, theirs = self._library.__name__, type(request).__module__.partition(".")[0]
        use = ""
        if {ours, theirs} == {"httpx", "httpx2"}:
            use = f": write `from aiothrottle.{theirs} import ThrottledTransport`"
        return TypeError(
            f"aiothrottle.{ours}.ThrottledTransport is for {ours}.AsyncClient, and got a request "
            f"of {theirs}{use}"
        )

    def handle_request(self, request: object) -> NoReturn:
        """Raise TypeError: a synchronous client cannot wait for the limiter.

        Args:
            request: The request of the client.
        """
        del request
        name = self._library.__name__
        raise TypeError(f"ThrottledTransport is for {name}.AsyncClient, not for {name}.Client")

    def __enter__(self) -> NoReturn:
        """Raise TypeError, as `handle_request` does."""
        self.handle_request(None)

    async def aclose(self) -> None:
        """Close the wrapped transport. The limiter stays as it is."""
        try:
            await self._transport.aclose()
        finally:
            self._adapter.release_all()

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
            self._adapter.release_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._admission.given!r}, {self._retry!r}>"
