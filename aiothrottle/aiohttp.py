"""aiohttp, throttled: a session that waits its turn, holds its slot, and tries again when refused.

Why a wrapper: what is waited before `ClientSession.request` is called is outside of all its
timeouts. Why the connection's callback: it fires exactly once, whichever way a response ends, and
a slot is then held exactly as long as aiohttp counts the connection as in use.
"""

import asyncio
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast

import aiohttp
from aiohttp import ClientResponse, ClientResponseError, ClientSession
from aiohttp.typedefs import StrOrURL

from aiothrottle.headers import parse_http_date, parse_retry_after
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.retry import Retry

if TYPE_CHECKING:
    from typing import Unpack

    from aiohttp.client import _RequestOptions, _WSConnectOptions  # typing only: aiohttp's own

__all__ = ["Retry", "ThrottledSession"]

_Result = TypeVar("_Result", bound="ClientResponse | aiohttp.ClientWebSocketResponse[bool]")

# A short body is read, so that the connection can be used again; a longer one costs more than a
# new connection.
_SHORT_BODY = 1 << 16
_SHORT_TIME = 1.0


class ThrottledSession:
    """An `aiohttp.ClientSession` whose requests keep under a limiter's limits.

    Every verb works as it does there, with ``await`` and with ``async with``, and gives genuine
    `aiohttp.ClientResponse` objects. In addition a request

    - waits for the limiter first, outside of aiohttp's timeouts;
    - holds its slot until the body is read, released, closed or lost;
    - is tried again as `retry` says, and each attempt pays its token. A refusal (429, or 503 with
      Retry-After) pauses the limiter, and so all who share it. A body that cannot be sent twice
      is not: the refusal is given back.

    A chain of redirects is one request.

    Args:
        limiter: Whose limits; may be shared with other sessions and other code.
        session: The session to send with. It stays yours to close. By default one is made, with
            `client_session_arguments`, and closed with this one.
        retry: When to try again; ``Retry(attempts=1)`` for never.
        client_session_arguments: For the `aiohttp.ClientSession` that is made.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: A session is given, and arguments for a new one too.

    >>> async def main():
    ...     async with ThrottledSession(RateLimiter(20, 10)) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """

    def __init__(
        self,
        limiter: RateLimiter,
        *,
        session: ClientSession | None = None,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        **client_session_arguments: Any,  # noqa: ANN401 - as many as aiohttp has
    ) -> None:
        if not isinstance(limiter, RateLimiter):
            raise TypeError(f"limiter is a RateLimiter, not {limiter!r}")
        if not isinstance(retry, Retry):
            raise TypeError(f"retry is a Retry, such as Retry(attempts=1), not {retry!r}")
        if session is not None and not isinstance(session, ClientSession):
            raise TypeError(f"session is an aiohttp.ClientSession, not {session!r}")
        if session is not None and client_session_arguments:
            raise ValueError(
                f"{', '.join(client_session_arguments)}: arguments for a new session, "
                "but session= is given as well; give one of them"
            )
        self._limiter = limiter
        self._retry = retry
        self._session = session
        self._arguments = None if session is not None else client_session_arguments

    @property
    def limiter(self) -> RateLimiter:
        """The limiter that is waited for."""
        return self._limiter

    @property
    def session(self) -> ClientSession:
        """The session that sends. One of our own is made here, as it needs a running loop."""
        if self._session is None:
            self._session = ClientSession(**(self._arguments or {}))
        return self._session

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the session has
        # What is private there could send past the limiter.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.session, name)

    def request(
        self, method: str, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a request of any method; `options` are those of `aiohttp.ClientSession.request`.

        Raises:
            LimiterClosed: The limiter is closed.
            aiohttp.ClientError: As aiohttp does, after the last attempt.
        """
        return _RequestContext(self._send(method.upper(), url, options))

    def get(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a GET request; see `request`."""
        return self.request("GET", url, **options)

    def options(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send an OPTIONS request; see `request`."""
        return self.request("OPTIONS", url, **options)

    def head(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a HEAD request, which by default follows no redirects; see `request`."""
        options.setdefault("allow_redirects", False)
        return self.request("HEAD", url, **options)

    def post(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a POST request; see `request`."""
        return self.request("POST", url, **options)

    def put(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a PUT request; see `request`."""
        return self.request("PUT", url, **options)

    def patch(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a PATCH request; see `request`."""
        return self.request("PATCH", url, **options)

    def delete(
        self, url: StrOrURL, **options: "Unpack[_RequestOptions]"
    ) -> "_RequestContext[ClientResponse]":
        """Send a DELETE request; see `request`."""
        return self.request("DELETE", url, **options)

    def ws_connect(
        self, url: StrOrURL, **options: "Unpack[_WSConnectOptions]"
    ) -> "_RequestContext[aiohttp.ClientWebSocketResponse[bool]]":
        """Open a websocket. The handshake pays a token and holds a slot; what follows does not."""
        return _RequestContext(self._connect(url, options))

    async def close(self) -> None:
        """Close the session that sends, if it was made here. The limiter stays as it is."""
        if self._arguments is not None and self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<ThrottledSession {self._limiter!r}, {self._retry!r}>"

    async def _send(self, method: str, url: StrOrURL, options: "_RequestOptions") -> ClientResponse:
        attempt = 1
        while True:
            permit = await self._limiter.acquire()
            outcome = await self._attempt(permit, method, url, options)
            delay = self._next_delay(attempt, method, outcome, options)
            if delay is None:
                return outcome.result()
            if outcome.response is not None:
                await _discard(outcome.response)
            # Nothing is held meanwhile. A refusal has paused the limiter: the wait is there.
            if not outcome.refused(self._retry):
                await asyncio.sleep(delay)
            attempt += 1

    async def _attempt(
        self, permit: Permit, method: str, url: StrOrURL, options: "_RequestOptions"
    ) -> "_Outcome":
        """Send once. The permit is released when the response ends, whichever way it ends."""
        try:
            response = await self.session.request(method, url, **options)
        except ClientResponseError as error:  # raise_for_status, which has released the response
            permit.release()
            return _Outcome(error=error, status=error.status, headers=error.headers or {})
        except aiohttp.ClientConnectionError as error:
            permit.release()
            return _Outcome(error=error)
        except BaseException:
            permit.release()
            raise
        _hold(permit, response)
        return _Outcome(response=response, status=response.status, headers=response.headers)

    def _next_delay(
        self, attempt: int, method: str, outcome: "_Outcome", options: "_RequestOptions"
    ) -> float | None:
        """Decide about another attempt, and pause the limiter if this one was refused."""
        retry = self._retry
        if isinstance(outcome.error, aiohttp.ClientSSLError):
            return None  # the same certificate again
        retry_after = outcome.retry_after()
        delay = retry.next_delay(attempt, method, status=outcome.status, retry_after=retry_after)
        if outcome.refused(retry):
            # Also if this request is not tried again: its siblings would be refused as well.
            pause = delay if delay is not None else retry_after or 0.0
            self._limiter.pause(min(pause, retry.max_retry_after))
        return delay if _is_replayable(options.get("data")) else None

    async def _connect(
        self, url: StrOrURL, options: "_WSConnectOptions"
    ) -> "aiohttp.ClientWebSocketResponse[bool]":
        async with self._limiter.throttle():
            websocket: aiohttp.ClientWebSocketResponse[bool]
            websocket = await self.session.ws_connect(url, **options)
            return websocket


class _Outcome(NamedTuple):
    """How one attempt ended: a response, or an error that may have a status and headers too."""

    response: ClientResponse | None = None
    error: aiohttp.ClientError | None = None
    status: int | None = None
    headers: Mapping[str, str] = {}

    def result(self) -> ClientResponse:
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response

    def retry_after(self) -> float | None:
        """Seconds that the server asked for, its own clock taken for its dates."""
        value = self.headers.get("Retry-After")
        if value is None:
            return None
        now = parse_http_date(self.headers.get("Date", "")) or datetime.now(UTC)
        return parse_retry_after(value, now)

    def refused(self, retry: Retry) -> bool:
        return self.status is not None and retry.is_refusal(self.status, self.retry_after())


class _RequestContext(Coroutine[Any, Any, _Result], Generic[_Result]):
    """What a verb gives: a coroutine, for `await` and `create_task`, and an `async with`."""

    __slots__ = ("_coroutine", "_response")

    def __init__(self, coroutine: Coroutine[Any, Any, _Result]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - a coroutine's signature
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - a coroutine's signature
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, _Result]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> _Result:
        self._response: _Result = await self._coroutine
        await self._response.__aenter__()
        return self._response

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._response.__aexit__(exc_type, exc, traceback)


def _hold(permit: Permit, response: ClientResponse) -> None:
    """Release the permit when aiohttp lets the connection go; the response may be dropped."""
    connection = response.connection
    if connection is None:  # the whole body came with the headers, or there is none
        permit.release()
    else:
        connection.add_callback(permit.release)


async def _discard(response: ClientResponse) -> None:
    """Let go of a refused response, and of its slot."""
    try:
        length = response.content_length
        if length is not None and length <= _SHORT_BODY:
            async with asyncio.timeout(_SHORT_TIME):
                await response.read()
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass  # nobody wanted that body
    finally:
        response.release()


def _is_replayable(data: object) -> bool:
    """Tell whether aiohttp makes the same body of `data` a second time.

    An allow-list: a file or a generator that was read once goes out empty or cut the second
    time, and the server says 200.
    """
    if data is None or _is_plain(data):
        return True
    fields: Iterable[object]
    if isinstance(data, Mapping):
        fields = cast("Mapping[object, object]", data).values()
    elif isinstance(data, list | tuple):
        pairs = cast("Sequence[tuple[object, object]]", data)
        fields = (value for _, value in pairs)
    else:
        return False
    return all(_is_plain(value) for value in fields)


def _is_plain(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview | str | int | float)
