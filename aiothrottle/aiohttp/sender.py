"""Sends for a session and for ``aiothrottle fetch``, and makes the session on its first use."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aiohttp import (
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    InvalidUrlClientError,
)
from aiohttp.typedefs import StrOrURL
from yarl import URL

from aiothrottle._http.adapter import Failure
from aiothrottle._http.admission import Admission, LimiterLike
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.adapter import AiohttpAdapter, origin_of, without_resending
from aiothrottle.aiohttp.body import Body
from aiothrottle.aiohttp.views import view_of_call
from aiothrottle.hooks import Request, Throttle

if TYPE_CHECKING:
    from aiothrottle.retry import Retry

# aiohttp rounds its own timeouts up to a whole second.
_GRACE = 1.0
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Call:
    """One call of a session, which may take several attempts."""

    __slots__ = ("adapter", "address", "body", "method", "options")

    def __init__(
        self,
        adapter: "_SessionAdapter",
        method: str,
        address: StrOrURL,
        options: Mapping[str, Any],
        body: Body | None,
    ) -> None:
        self.adapter: _SessionAdapter = adapter
        self.method: str = method
        self.address: StrOrURL = address
        #: Those of aiohttp's request.
        self.options: Mapping[str, Any] = options
        self.body: Body | None = body

    def send(self, _: "Call") -> Awaitable[ClientResponse]:
        """Make one attempt."""
        session = self.adapter.made or self.adapter.session
        return session.request(self.method, self.address, **self.options)

    @property
    def url(self) -> URL:
        try:
            url = URL(self.address)
        except ValueError as error:
            raise InvalidUrlClientError(self.address) from error  # as aiohttp does
        if not url.absolute:
            # There is no public way to ask a session for its base_url.
            base: URL | None = getattr(self.adapter.session, "_base_url", None)
            url = url if base is None else base.join(url)
        return url


class _SessionAdapter(AiohttpAdapter[Call]):
    """Translates for a session, which it makes on its first use."""

    def __init__(self, session: ClientSession | Mapping[str, Any], options: Options) -> None:
        super().__init__(options)
        #: The session, once it is made.
        self.made: ClientSession | None = None
        self._arguments: Mapping[str, Any] = {}
        if isinstance(session, ClientSession):
            self.made = without_resending(session)
        else:
            self._arguments = session

    @property
    def session(self) -> ClientSession:
        if self.made is None:
            self.made = without_resending(ClientSession(**self._arguments))
        return self.made

    def is_replayable(self, request: Call) -> bool:
        return request.body is None or request.body.is_replayable()

    def view(self, request: Call, /) -> Request:
        url = request.url
        if params := request.options.get("params"):
            url = url.extend_query(params)
        return view_of_call(request.method, url, self.session.headers, request.options)

    def classify(self, error: Exception) -> Failure:
        if isinstance(error, ClientResponseError):  # of raise_for_status
            host = error.request_info.url.raw_host or ""
            return Failure(response=(host, error.status, error.headers or {}))
        return super().classify(error)

    def total_of(self, request: Call) -> float | None:
        timeout = request.options.get("timeout")
        if not isinstance(timeout, ClientTimeout):
            timeout = self.session.timeout
        return timeout.total + _GRACE if timeout.total else None


class Sender:
    """Sends the requests of a `ThrottledSession` or of ``aiothrottle fetch``.

    Args:
        session: The session, or the arguments for one: it is made on its first use, which needs a
            running loop, and closed by `close`.
        limiter: The limiter that each attempt waits for.
        options: The options of the session.
        owns_session: Whether `close` closes a given session too.

    Raises:
        TypeError: `limiter` is of a wrong type.
        ValueError: The options have a `key`, and the limiter has no keys.
    """

    def __init__(
        self,
        session: ClientSession | Mapping[str, Any],
        limiter: LimiterLike,
        options: Options,
        *,
        owns_session: bool = False,
    ) -> None:
        admission = Admission(limiter, options, origin_of)
        self.admission: Admission = admission
        self.retry: Retry = options.retry
        #: For the session, which makes a `Call` of each request and runs it without a detour.
        self.adapter: _SessionAdapter = _SessionAdapter(session, options)
        self.loop: RetryLoop[Call, ClientResponse] = RetryLoop(
            self.adapter, options, origin_of, admission
        )
        self._owns_session = owns_session or not isinstance(session, ClientSession)

    @property
    def session(self) -> ClientSession:
        """The session that sends."""
        return self.adapter.session

    async def close(self) -> None:
        """Close the session that sends, if it is owned. The limiter is not closed."""
        if self._owns_session:
            await self.session.close()  # one made only now is closed for good

    def request(
        self,
        method: str,
        url: StrOrURL,
        send: Callable[[Any], Awaitable[ClientResponse]],
        options: Mapping[str, Any] = _NO_OPTIONS,
        body: Body | None = None,
        throttle: Throttle | None = None,
        made: int = 0,
    ) -> Coroutine[Any, Any, ClientResponse]:
        """Send until an attempt succeeds or must not be retried: see `RetryLoop.run`.

        Args:
            method: The method, in capitals.
            url: The URL, which may be relative to the `base_url` of the session.
            send: Makes one attempt.
            options: The options of the request, as the caller gave them, for hooks.
            body: The body, if it could be sent only once.
            throttle: What the request overrides; None: nothing.
            made: The attempts before this call, which count too.
        """
        call = Call(self.adapter, method, url, options, body)
        return self.loop.run(call, send, throttle, made)

    async def connect(
        self,
        url: StrOrURL,
        send: Callable[[Any], Awaitable["ClientWebSocketResponse[bool]"]],
        options: Mapping[str, Any] = _NO_OPTIONS,
        throttle: Throttle | None = None,
    ) -> "ClientWebSocketResponse[bool]":
        """Open a websocket; the loop judges the response to its handshake."""
        websocket: ClientWebSocketResponse[bool] | None = None

        async def handshake(call: Call) -> ClientResponse:
            nonlocal websocket
            websocket = await send(call)
            # It has no public name.
            return websocket._response  # pyright: ignore[reportPrivateUsage]

        # A websocket's `timeout` is another one, and its other options are no body.
        seen = {"headers": options.get("headers")}
        await self.request("GET", url, handshake, seen, throttle=throttle)
        assert websocket is not None
        return websocket
