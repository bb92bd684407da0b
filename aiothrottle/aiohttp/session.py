"""A session that waits its turn, holds its slot, and tries again when refused.

Why a wrapper: what is waited before `ClientSession.request` is called is outside of all its
timeouts, and `aiohttp.ClientSession` does not want to be subclassed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout, ClientWebSocketResponse
from aiohttp.typedefs import StrOrURL
from yarl import URL

from aiothrottle.adaptive import ClientThrottling
from aiothrottle.admission import Admission, AnyLimiter, Key, Target, check_seconds
from aiothrottle.aiohttp.arguments import check_arguments
from aiothrottle.aiohttp.body import Body
from aiothrottle.aiohttp.context import RequestContext
from aiothrottle.aiohttp.lease import Leases
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.aiohttp.response import (
    FAILURES,
    SWITCHING_PROTOCOLS,
    discard,
    hear,
    is_certain,
    is_plain,
    judged,
    origin_of,
    trusts_successes,
)
from aiothrottle.announcements import Heed
from aiothrottle.attempts import Attempts, Outcome, failed
from aiothrottle.headers import Profile
from aiothrottle.permit import Permit
from aiothrottle.retry import Retry

if TYPE_CHECKING:
    from typing import Unpack

    from aiohttp.client import _RequestOptions, _WSConnectOptions  # typing only: aiohttp's own

__all__ = ["ThrottledSession"]

_Result = TypeVar("_Result", bound="ClientResponse | ClientWebSocketResponse[bool]")

# aiohttp rounds its own time-outs up to a whole second.
_GRACE = 1.0


class ThrottledSession:
    """An `aiohttp.ClientSession` whose requests keep under a limiter's limits.

    Every verb works as it does there, with ``await`` and with ``async with``, and gives genuine
    `aiohttp.ClientResponse` objects. In addition a request

    - waits for the limiter first, outside of aiohttp's timeouts;
    - holds its slot until the body is read, released, closed or lost;
    - is tried again as `retry` says, and each attempt pays its token. A refusal (429, or 503 with
      Retry-After) pauses the limiter, and so all who share it. A body that cannot be sent twice
      is not: the refusal is given back.

    A chain of redirects is one request, of the host that it begins at.

    Args:
        limiter: Whose limits; may be shared with other sessions and other code. A
            `KeyedRateLimiter` has limits for each host, or whatever `key` says.
        session: The session to send with. It stays yours to close; but it does not send a request
            twice by itself any more, as aiohttp does when a connection was cut, since nobody
            would have paid for that. By default one is made, with `client_session_arguments`,
            and closed with this one.
        key: Gives the key of a request in a `KeyedRateLimiter`, from its method and `yarl.URL`. By
            default it is the host as DNS has it, ``"xn--bcher-kva.example"``, with the port unless
            it is the usual one: ``"localhost:8080"``.
        retry: When to try again; ``Retry(attempts=1)`` for never.
        queue_timeout: Seconds that an attempt waits for the limiter at the most. None: no limit.
        max_hold: Seconds that a response may hold its slot, after which its connection is closed;
            above 0. By default the `total` of its `aiohttp.ClientTimeout`, after which nobody can
            read it any more, but aiohttp keeps it if it was dropped half-read.
        hold_websockets: Whether a websocket holds its slot until it is closed; by default only
            for the handshake.
        buffer_body: Whether a body that cannot be sent twice, such as an async generator, is read
            into memory first, so that it can.
        overload: How requests to a server that fails are rejected here, with `Overloaded`, before
            they take a token: ``ClientThrottling(k=2.0)``, for each origin by itself. None: never.
        heed: What is done when the server says how much is left of its quota, and until when: that
            may be used up "at once", or is spread "evenly". It makes the limiter tighter, never
            looser than its own rate. None: it is not heeded.
        profiles: What has to be known of servers that the package does not know, to read their
            headers: see `aiothrottle.headers.Profile`.
        client_session_arguments: For the `aiohttp.ClientSession` that is made.

    Raises:
        TypeError: An argument is of a wrong kind, or unknown.
        ValueError: An argument is out of range; or a session is given, and arguments for a new
            one too; or a key, and a limiter that has none.

    >>> async def main():
    ...     async with ThrottledSession(RateLimiter(20, 10)) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """

    def __init__(
        self,
        limiter: AnyLimiter,
        *,
        session: ClientSession | None = None,
        key: Key | None = None,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        queue_timeout: float | None = None,
        max_hold: float | None = None,
        hold_websockets: bool = False,
        buffer_body: bool = False,
        overload: ClientThrottling | None = None,
        heed: Heed = "at once",
        profiles: Iterable[Profile] = (),
        **client_session_arguments: Any,  # noqa: ANN401 - as many as aiohttp has
    ) -> None:
        self._admission = Admission(
            limiter,
            key=key,
            default_key=origin_of,
            queue_timeout=queue_timeout,
            retry=retry,
            overload=overload,
            heed=heed,
            profiles=profiles,
        )
        check_seconds("max_hold", max_hold, above_zero=True)
        if session is not None and not isinstance(session, ClientSession):
            raise TypeError(f"session is an aiohttp.ClientSession, not {session!r}")
        if session is not None and client_session_arguments:
            raise ValueError(
                f"{', '.join(client_session_arguments)}: arguments for a new session, "
                "but session= is given as well; give one of them"
            )
        check_arguments(type(self), client_session_arguments)
        self._retry = retry
        self._trusting = trusts_successes(retry)
        self._failures = FAILURES if retry.exceptions is None else retry.exceptions
        self._leases = Leases()
        self._max_hold = max_hold
        self._hold_websockets = hold_websockets
        self._buffer_body = buffer_body
        self._session = session if session is None else without_resending(session)
        self._arguments = None if session is not None else client_session_arguments

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter that is waited for."""
        return self._admission.limiter

    @property
    def session(self) -> ClientSession:
        """The session that sends. One of our own is made here, as it needs a running loop."""
        if self._session is None:
            self._session = without_resending(ClientSession(**(self._arguments or {})))
        return self._session

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the session has
        # What is private there could send past the limiter.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.session, name)

    def request(
        self, method: str, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a request of any method; `options` are those of `aiohttp.ClientSession.request`.

        Raises:
            LimiterClosed: The limiter is closed.
            ThrottleTimeout: The wait would be, or was, longer than `queue_timeout`.
            Overloaded: The server fails, and the request was rejected here: see `overload`.
            aiohttp.ClientError: As aiohttp does, after the last attempt.
        """
        return RequestContext(self._send(method.upper(), url, options))

    def get(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a GET request; see `request`."""
        return self.request("GET", url, **options)

    def options(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send an OPTIONS request; see `request`."""
        return self.request("OPTIONS", url, **options)

    def head(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a HEAD request, which by default follows no redirects; see `request`."""
        options.setdefault("allow_redirects", False)
        return self.request("HEAD", url, **options)

    def post(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a POST request; see `request`."""
        return self.request("POST", url, **options)

    def put(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a PUT request; see `request`."""
        return self.request("PUT", url, **options)

    def patch(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a PATCH request; see `request`."""
        return self.request("PATCH", url, **options)

    def delete(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "RequestContext[ClientResponse]":
        """Send a DELETE request; see `request`."""
        return self.request("DELETE", url, **options)

    def ws_connect(
        self, url: StrOrURL, **options: "Unpack[_WSConnectOptions]"
    ) -> "RequestContext[ClientWebSocketResponse[bool]]":
        """Open a websocket. The handshake pays a token; what follows does not."""
        return RequestContext(
            self._try("GET", url, lambda session: session.ws_connect(url, **options))
        )

    async def close(self) -> None:
        """Close the session that sends, if it was made here. The limiter stays as it is."""
        if self._arguments is not None:
            await self.session.close()  # made here if it never was: then it is closed for good

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<ThrottledSession {self.limiter!r}, {self._retry!r}>"

    def _send(
        self, method: str, url: StrOrURL, options: "_RequestOptions"
    ) -> Coroutine[Any, Any, ClientResponse]:
        if options.get("data") is not None:
            return self._send_body(method, url, options)
        return self._try(
            method,
            url,
            lambda session: session.request(method, url, **options),
            options.get("timeout"),
        )

    async def _send_body(
        self, method: str, url: StrOrURL, options: "_RequestOptions"
    ) -> ClientResponse:
        body = Body.of(options.get("data"))
        try:
            if body is not None:
                if self._buffer_body and not body.is_replayable():
                    await body.buffer()
                options["data"] = body.data
            return await self._try(
                method,
                url,
                lambda session: session.request(method, url, **options),
                options.get("timeout"),
                body,
            )
        finally:
            if body is not None:
                await body.close()

    async def _try(
        self,
        method: str,
        url: StrOrURL,
        send: Callable[[ClientSession], Awaitable[_Result]],
        timeout: object = None,
        body: Body | None = None,
    ) -> _Result:
        """Send until it ends well, or is not to be sent again."""
        key, limiter = self._admission.only or self._target(method, url)
        server = None if self._admission.overloads is None else self._server(url)
        announcements = self._admission.announcements
        attempts: Attempts | None = None
        outcome: Outcome[Any] | None = None
        while True:
            permit = await self._admission.enter(limiter, server, outcome)
            try:
                response = await send(self.session)
            except Exception as error:
                permit.release()
                if (failure := self._failed(error, server)) is None:
                    raise
                outcome = failure
            except BaseException:
                permit.release()
                raise
            else:
                self._hold(permit, response, timeout)
                if not isinstance(response, ClientResponse):
                    self._admission.answered(server, SWITCHING_PROTOCOLS)
                    return response
                self._admission.answered(server, response.status)
                if self._trusting and announcements.has_none(response.status, response.headers):
                    permit.succeeded()
                    return response
                limits = hear(announcements, limiter, permit, response)
                if is_plain(self._retry, response.status, limits):
                    permit.succeeded()
                    return response
                outcome = await judged(self._retry, announcements, response, limits)
            attempts = attempts or Attempts(self._retry, method, self._admission.quota, key)
            delay = attempts.delay(outcome)
            # Also if this request is not tried again: its siblings would be refused as well.
            paused = self._admission.ended(permit, outcome, delay)
            replayable = body is None or body.is_replayable()
            if (
                delay is None
                or not replayable
                or not self._admission.again(attempts, permit, outcome, delay)
            ):
                attempts.ended(outcome)
                return cast("_Result", outcome.result())
            if outcome.response is not None:
                await discard(outcome.response)
            # Nothing is held meanwhile. Where the limiter is paused, that is the wait.
            if not paused:
                await asyncio.sleep(delay)

    def _failed(self, error: Exception, server: str | None) -> Outcome[Any] | None:
        """Tell how an attempt ended that raised an error; None if that is the last word."""
        if isinstance(error, aiohttp.ClientResponseError):  # as raise_for_status asks for
            self._admission.answered(server, error.status)
            host = error.request_info.url.raw_host or ""
            limits = self._admission.announcements.read(host, error.status, error.headers or ())
            return failed(error, error.status, limits)
        if isinstance(error, self._failures) and not is_certain(self._retry, error):
            return failed(error)
        return None

    def _target(self, method: str, url: StrOrURL) -> Target:
        return self._admission.target(method, self._absolute(url))

    def _server(self, url: StrOrURL) -> str:
        return origin_of("", self._absolute(url))

    def _absolute(self, url: StrOrURL) -> URL:
        try:
            url = URL(url)
        except ValueError as error:
            raise aiohttp.InvalidUrlClientError(url) from error  # as aiohttp says it
        if not url.absolute:
            # There is no public way to ask a session for its base_url.
            base: URL | None = getattr(self.session, "_base_url", None)
            url = url if base is None else base.join(url)
        return url

    def _hold(
        self,
        permit: Permit,
        response: "ClientResponse | ClientWebSocketResponse[bool]",
        timeout: object,
    ) -> None:
        """Release the permit when the response ends, whichever way it ends."""
        if isinstance(response, ClientResponse):
            if response.connection is None:  # the whole body came with the headers
                permit.release()
            else:
                self._leases.hold(permit, response, self._longest_hold(timeout))
            return
        # There is no public way from a websocket to its connection.
        handshake: ClientResponse | None = getattr(response, "_response", None)
        if self._hold_websockets and handshake is not None:
            self._leases.hold(permit, handshake, self._max_hold)
        else:
            permit.release()

    def _longest_hold(self, timeout: object) -> float | None:
        if self._max_hold is not None:
            return self._max_hold
        if not isinstance(timeout, ClientTimeout):
            timeout = self.session.timeout
        return timeout.total + _GRACE if timeout.total else None
