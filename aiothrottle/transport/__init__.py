"""The transport for both httpx libraries: waits for the limiter, sends, retries.

A transport sends one request of a client; the client follows redirects, authenticates and decodes
above it. The wait for the limiter is outside of the client's timeouts: those time single steps of
the wrapped transport (pool, connect, write, read), and begin with each step.

Neither library is imported here. Both have the same names, so requests and responses are `Any`:
protocols for them would repeat the two libraries.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeAlias, TypeVar, Unpack, cast

from aiothrottle._checks import shown
from aiothrottle._http.loop import SHORT_BODY, SHORT_TIME, Failure, RetryLoop, is_short, lacks_files
from aiothrottle._http.options import ClientOptions, read_options
from aiothrottle._http.terms import LimiterLike, Settlement, origin
from aiothrottle._statuses import AMBIGUOUS, SWITCHING_PROTOCOLS
from aiothrottle.hooks import Request as HookRequest
from aiothrottle.keyed import AnyLimiter
from aiothrottle.permit import Permit
from aiothrottle.transport.hold import AnyLibrary, DecodedBody, HeldStream, Hold, decode, stream_of

_AnyRequest: TypeAlias = Any
_AnyResponse: TypeAlias = Any
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Base = TypeVar("_Base")


class Transport(Generic[_Request, _Response, _Base]):
    """A transport that waits for a limiter, holds a slot, and retries.

    The subclass for each library is an `AsyncBaseTransport` too, and documents the arguments.
    """

    _library: ClassVar[AnyLibrary]

    def __init__(
        self,
        limiter: LimiterLike,
        *,
        transport: _Base | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        library = self._library
        checked = read_options(type(self).__name__, ClientOptions, options)
        self._adapter = TransportAdapter(library, checked.max_hold)
        self._loop = RetryLoop[_AnyRequest, _Response](self._adapter, checked, limiter)
        if transport is not None and not isinstance(transport, library.AsyncBaseTransport):
            name = f"{library.__name__}.AsyncBaseTransport"
            raise TypeError(f"transport must be an {name}, got {shown(transport)}")
        self._transport: Any = library.AsyncHTTPTransport() if transport is None else transport
        # How often it was closed: what waits then is not sent.
        self._closings = 0

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter of all requests, or of each key."""
        return self._loop.admission.limiter

    async def handle_async_request(self, request: _Request) -> _Response:
        """Send a request of the client, with the retries of `retry`.

        Raises:
            LimiterClosed: The limiter is closed.
            ThrottleTimeout: The wait would be, or was, longer than `queue_timeout`.
            RequestDropped: The server is failing; see `adaptive_throttling`.
            RuntimeError: The client was closed during a wait.
            TransportError: The library's, of the last attempt.
            TypeError: The extension "aiothrottle", or the result of a hook, has a value of a wrong
                type.
            ValueError: The same with a value out of range.
        """
        if not isinstance(request, self._library.Request):
            raise self._misplaced(request)
        sent: _AnyRequest = request
        closings = self._closings

        def send(request: _AnyRequest) -> Any:  # noqa: ANN401 - of the wrapped transport
            if self._closings != closings:  # a pool would open again, and stay open
                raise RuntimeError("Cannot send a request, as the client has been closed.")
            return self._transport.handle_async_request(request)

        return await self._loop.run(sent, send, sent.extensions.get("aiothrottle"))

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
        await self._close(self._transport.aclose())

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close(self._transport.__aexit__(*exc_info))

    async def _close(self, closing: Awaitable[None]) -> None:
        self._closings += 1
        try:
            await closing
        finally:
            self._adapter.release_all()

    def __repr__(self) -> str:
        loop = self._loop
        return f"<{type(self).__name__} {loop.admission.given!r}, {loop.options.retry!r}>"


class TransportAdapter:
    """Translates for a library.

    Args:
        library: The module.
        max_hold: Seconds that a response may hold its permit; None: no limit.
    """

    def __init__(self, library: AnyLibrary, max_hold: float | None) -> None:
        self.library = library
        self.max_hold = max_hold
        self._holds: set[Hold] = set()
        # Neither a full pool, as nothing was sent, nor a proxy that denies access is a failure.
        self._no_answer = (
            library.NetworkError,
            library.RemoteProtocolError,
            library.ConnectTimeout,
            library.ReadTimeout,
            library.WriteTimeout,
        )
        # A form with files, whose class has no public name.
        form = library.Request("POST", "http://localhost/", files={"file": b""}).stream
        self._multipart: type[Any] = type(form)
        self._stream = stream_of(library)

    def receive(
        self, request: _AnyRequest, response: _AnyResponse, permit: Permit | None
    ) -> tuple[int, Mapping[str, str]]:
        """Return status and headers; the stream of the response holds the permit."""
        response.request = request  # the client sets it later, `should_retry` may read it now
        if permit is not None:
            # A response of a mock or a cache is closed already, and will not be closed again.
            if response.is_closed or response.status_code == SWITCHING_PROTOCOLS:
                permit.release()
            else:
                hold = Hold(permit, response.stream, self.max_hold, self._holds)
                response.stream = self._stream(hold, self.library.ReadError)
        return response.status_code, response.headers

    def origin(self, request: _AnyRequest) -> str:
        """Return the server of a request."""
        url = request.url
        return origin(url.scheme, url.raw_host.decode("ascii"), url.port)

    def view(self, request: _AnyRequest) -> HookRequest:
        """Return what a hook sees of a request."""
        stream, content = request.stream, None
        if isinstance(stream, self.library.ByteStream):
            content = b"".join(cast("Iterable[bytes]", stream)) or None
        return HookRequest(request.method, request.url, request.headers, content)

    def follow(self, response: _AnyResponse, settlement: Settlement) -> None:
        """Feed the body to the settlement, as it is read, and end it when the body ends."""
        held = _held(response)
        if held is not None:
            encoding = response.headers.get("Content-Encoding")
            held.hold.settlement = (
                settlement if encoding is None else DecodedBody(settlement, encoding, self.library)
            )
            return
        complete = response.status_code == SWITCHING_PROTOCOLS
        if not complete:
            with suppress(self.library.StreamError):  # it was closed unread
                settlement.feed(response.content)
                complete = True
        settlement.end(complete=complete)

    def is_replayable(self, request: _AnyRequest, _: object = None, /) -> bool:
        """Return whether the body of a request can be sent again unchanged."""
        stream = request.stream
        if isinstance(stream, self.library.ByteStream) or _is_empty(request):
            return True
        return isinstance(stream, self._multipart) and all(map(_is_repeatable, stream.fields))

    async def buffer(self, request: _AnyRequest) -> None:
        """Read a body into memory; what is sent then is replayable."""
        await request.aread()

    def classify(self, error: Exception) -> Failure:
        """Classify a failed connection; a wrong certificate is not retryable."""
        lost, causes = isinstance(error, self._no_answer), [*_causes(error)]
        return Failure(
            # Another attempt would meet a wrong certificate again.
            retryable=lost
            and not any(isinstance(it, ssl.SSLCertVerificationError) for it in causes),
            unanswered=lost and not any(map(lacks_files, causes)),
        )

    def host(self, response: _AnyResponse) -> str:
        """Return the host that sent a response."""
        return str(response.request.url.host)

    async def read_body(self, response: _AnyResponse, *, unsized: bool) -> bytes | None:
        """Read a short body, and keep it for the caller."""
        held, encoding = _held(response), response.headers.get("Content-Encoding")
        if not unsized and not is_short(response.headers):
            return None
        # Reading cannot be resumed here, and a response that was not throttled is mostly returned.
        is_returned = unsized or response.status_code in AMBIGUOUS
        try:
            async with asyncio.timeout(None if is_returned else SHORT_TIME):
                body = await (response.aread() if held is None else _short_body(held))
        except TimeoutError as error:
            raise self.library.ReadTimeout(
                "the body of a throttled response did not arrive"
            ) from error
        if body is None or held is None or encoding is None:
            return body
        try:
            return b"".join(decode(self.library, encoding, body, SHORT_BODY))
        except self.library.DecodingError:  # the caller's reading raises it too
            return None

    def replayed(self, response: _AnyResponse) -> AbstractContextManager[_AnyResponse]:
        """Return a copy of the response: there is no public way to make one unread again."""
        held = _held(response)
        if held is None:
            return nullcontext(response)
        copy = self.library.Response(
            response.status_code,
            content=held.read_ahead(),
            request=response.request,
            extensions=response.extensions,
        )
        copy.headers = response.headers  # without what the library adds for `content`
        return nullcontext(copy)

    async def close(self, response: _AnyResponse) -> None:
        """Close a response that is not returned."""
        await response.aclose()

    async def discard(self, response: _AnyResponse) -> None:
        """End a response that is followed by another attempt, and release its permit."""
        try:
            if is_short(response.headers, as_sent=True):
                # The body is not needed. A RuntimeError: it was read.
                with suppress(TimeoutError, RuntimeError, self.library.TransportError):
                    async with asyncio.timeout(SHORT_TIME):
                        async for _ in response.aiter_raw():
                            pass
        finally:
            await response.aclose()

    async def prepare_again(self, request: _AnyRequest) -> None:
        """Give an empty body that was read once a new stream; the libraries rewind all others."""
        if _is_empty(request) and not isinstance(request.stream, self.library.ByteStream):
            request.stream = self.library.ByteStream(b"")

    def release_all(self) -> None:
        """Release the permits of all responses: their connections are closed."""
        for hold in tuple(self._holds):
            hold.release()


def _held(response: _AnyResponse) -> HeldStream | None:
    return response.stream if isinstance(response.stream, HeldStream) else None


async def _short_body(held: HeldStream) -> bytes | None:
    """Read a body ahead; return None if it is not short."""
    body = b""
    async for chunk in held.read_ahead():
        body += chunk
        if len(body) > SHORT_BODY:
            return None
    return body


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error of a library and its causes, for some of which it has no class."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_empty(request: _AnyRequest) -> bool:
    """Return whether a request has no body (RFC 9112, section 6.3).

    A transport above, such as one of a cache, may have made a stream of its own of none.
    """
    headers = request.headers
    return "Content-Length" not in headers and "Transfer-Encoding" not in headers


def _is_repeatable(field: Any) -> bool:  # noqa: ANN401 - of either library
    """Return whether a field of a form can be sent again. The libraries rewind it."""
    if not hasattr(field, "file"):
        return hasattr(field, "value")
    content = field.file
    if isinstance(content, str | bytes):
        return True
    if not hasattr(content, "seekable") or getattr(content, "closed", False):
        return False
    return bool(content.seekable())
