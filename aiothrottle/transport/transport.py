"""The transport: waits, sends, tries again.

A transport sends one request of a client, which follows redirects, authenticates and decodes above
it. Here it waits its turn first, outside of the client's timeouts: those are of single steps of the
wrapped transport (pool, connect, write, read), and begin with each step.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from aiothrottle._http.admission import Admission, AnyLimiter, origin
from aiothrottle._http.announcements import may_say_more
from aiothrottle._http.attempts import Attempts, Outcome, failed, judge
from aiothrottle._http.options import ClientOptions, read_options
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.redact import shown
from aiothrottle.transport.lease import HeldStream, Lease
from aiothrottle.transport.library import AsyncTransport, Request, Response

__all__ = ["Transport"]

_SWITCHING_PROTOCOLS = 101

# A short body is read, so that the connection can be used again; a longer one costs more than a
# new connection.
_SHORT_BODY = 1 << 16
_SHORT_TIME = 1.0


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
        retry = checked.retry
        self._admission = Admission(limiter, checked, _origin_of)
        if transport is not None and not isinstance(transport, library.AsyncBaseTransport):
            name = f"{library.__name__}.AsyncBaseTransport"
            raise TypeError(f"transport is an {name}, not {shown(transport)}")
        self._transport: AsyncTransport[_Request, _Response] = (
            transport or library.AsyncHTTPTransport()
        )
        self._retry = retry
        self._no_answer = _failures(library)
        self._failures = self._no_answer if retry.exceptions is None else retry.exceptions
        self._max_hold = checked.max_hold
        self._buffer_body = checked.buffer_body
        self._multipart = _multipart(library)
        self._leases: set[Lease] = set()

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
        target = self._admission.target(request.method, request.url)
        replayable = self._is_replayable(request.stream)
        if self._buffer_body and not replayable:
            await request.aread()
            replayable = True
        attempts = Attempts(self._retry, request.method, self._admission.quota, target.key)
        server = None if self._admission.overloads is None else _origin_of("", request.url)
        outcome: Outcome[_Response] | None = None
        while True:
            permit = await self._admission.enter(target.limiter, server, outcome)
            outcome = await self._attempt(request, target.limiter, permit, server)
            delay = attempts.delay(outcome)
            # Also if this request is not tried again: its siblings would be refused as well.
            paused = self._admission.ended(permit, outcome, delay)
            if (
                delay is None
                or not replayable
                or not self._admission.again(attempts, permit, outcome, delay)
            ):
                attempts.ended(outcome)
                return outcome.result()
            if outcome.response is not None:
                await self._discard(outcome.response)
            # Nothing is held meanwhile. Where the limiter is paused, that is the wait.
            if not paused:
                await asyncio.sleep(delay)

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

    async def _attempt(
        self, request: _Request, limiter: RateLimiter, permit: Permit, server: str | None
    ) -> Outcome[_Response]:
        """Send once. The permit is released when the response ends, whichever way it ends."""
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException as error:
            permit.release()
            if isinstance(error, self._no_answer):
                self._admission.failed(server)
            if not isinstance(error, self._failures) or (
                self._retry.exceptions is None and _is_of_a_certificate(error)
            ):
                raise
            return failed(error)
        self._admission.answered(server, response.status_code)
        held = self._hold(permit, response)
        response.request = request  # the client does so later; `should_retry` may ask for it now
        try:
            return await self._judge(request, limiter, permit, response, held)
        except BaseException:  # of the user's should_retry, or cancelled
            await (response.aclose() if held is None else held.end())
            raise

    async def _judge(
        self,
        request: _Request,
        limiter: RateLimiter,
        permit: Permit,
        response: _Response,
        held: HeldStream | None,
    ) -> Outcome[_Response]:
        """Tell how a response ends an attempt, and the limiter what it says.

        Whatever is read of its body for that can still be read by the caller.
        """
        announcements, host = self._admission.announcements, request.url.host
        status, headers = response.status_code, response.headers.multi_items()
        limits = announcements.read(host, status, headers)
        # What is packed is short only until it is unpacked.
        readable = _is_short(response.headers) and "Content-Encoding" not in response.headers
        if readable and may_say_more(status, limits):
            try:
                body = await self._read(response, held)
            except self._library.TransportError as error:
                # It cannot be given back any more, as nobody could read it.
                return failed(error, status, limits)
            limits = announcements.read(host, status, headers, body)
        announcements.pass_on(limiter, permit, limits)
        if self._retry.should_retry is None or held is None:
            return await judge(self._retry, response, status, limits)
        held.begin_reading_ahead()
        outcome = await judge(self._retry, response, status, limits)
        held.end_reading_ahead()
        return outcome._replace(response=self._unread(response, held))

    async def _read(self, response: _Response, held: HeldStream | None) -> bytes:
        try:
            async with asyncio.timeout(_SHORT_TIME):
                return await (response.aread() if held is None else held.read_ahead())
        except TimeoutError as error:
            raise self._library.ReadTimeout("the body of a refusal does not come") from error

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

    def _hold(self, permit: Permit, response: _Response) -> HeldStream | None:
        # What a mock or a cache gives is closed already, and nobody will close it once more.
        if response.is_closed or response.status_code == _SWITCHING_PROTOCOLS:
            permit.release()
            return None
        lease = Lease(permit, response.stream, self._max_hold, self._leases)
        held = response.stream = self._held_stream(lease)
        return held

    async def _discard(self, response: _Response) -> None:
        """Let go of a refused response, and of its slot."""
        try:
            if _is_short(response.headers) and not response.is_stream_consumed:
                # Nobody wants that body.
                with suppress(TimeoutError, self._library.TransportError):
                    async with asyncio.timeout(_SHORT_TIME):
                        async for _ in response.aiter_raw():
                            pass
        finally:
            await response.aclose()

    def _is_replayable(self, stream: Any) -> bool:  # noqa: ANN401 - of either library
        """Tell whether a request's body can be sent again, and comes out the same."""
        if isinstance(stream, self._library.ByteStream):
            return True
        return isinstance(stream, self._multipart) and all(map(_is_repeatable, stream.fields))

    def _release_all(self) -> None:
        for lease in tuple(self._leases):
            lease.release()


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
    return isinstance(content, str | bytes) or (hasattr(content, "seekable") and content.seekable())


def _is_short(headers: Mapping[str, str]) -> bool:
    try:
        return int(headers.get("Content-Length", "")) <= _SHORT_BODY
    except ValueError:
        return False
