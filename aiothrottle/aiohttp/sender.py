"""Sends for a session and for ``aiothrottle fetch``, and makes the session on its first use."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
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
from aiothrottle._http.admission import Admission, AnyLimiter
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.adapter import AiohttpAdapter, origin_of
from aiothrottle.aiohttp.body import Body
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.aiohttp.views import view_of_call
from aiothrottle.hooks import Request, Throttle

if TYPE_CHECKING:
    from aiothrottle.retry import Retry

__all__ = ["Sender"]

# aiohttp rounds its own timeouts up to a whole second.
_GRACE = 1.0
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a session, which may take several attempts."""

    method: str
    address: StrOrURL
    timeout: object
    body: Body | None
    adapter: "_SessionAdapter"
    #: Those of aiohttp's request.
    options: Mapping[str, Any]

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


class _SessionAdapter(AiohttpAdapter[_Call]):
    """Translates for a session, which it makes on its first use."""

    def __init__(self, session: ClientSession | Mapping[str, Any], options: Options) -> None:
        super().__init__(options)
        self._session: ClientSession | None = None
        self._arguments: Mapping[str, Any] = {}
        if isinstance(session, ClientSession):
            self._session = without_resending(session)
        else:
            self._arguments = session

    @property
    def session(self) -> ClientSession:
        if self._session is None:
            self._session = without_resending(ClientSession(**self._arguments))
        return self._session

    def is_replayable(self, request: _Call) -> bool:
        return request.body is None or request.body.is_replayable()

    def view(self, request: _Call, /) -> Request:
        url = request.url
        if params := request.options.get("params"):
            url = url.extend_query(params)
        return view_of_call(request.method, url, self.session.headers, request.options)

    def classify(self, error: Exception) -> Failure:
        if isinstance(error, ClientResponseError):  # of raise_for_status
            host = error.request_info.url.raw_host or ""
            return Failure(response=(host, error.status, error.headers or {}))
        return super().classify(error)

    def total_of(self, request: _Call) -> float | None:
        timeout = request.timeout
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
        limiter: AnyLimiter,
        options: Options,
        *,
        owns_session: bool = False,
    ) -> None:
        admission = Admission(limiter, options, origin_of)
        self.limiter: AnyLimiter = limiter
        self.retry: Retry = options.retry
        self._adapter = _SessionAdapter(session, options)
        self._loop = RetryLoop[_Call, ClientResponse](self._adapter, options, origin_of, admission)
        self._owns_session = owns_session or not isinstance(session, ClientSession)

    @property
    def session(self) -> ClientSession:
        """The session that sends."""
        return self._adapter.session

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
        *,
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
        call = _Call(method, url, options.get("timeout"), body, self._adapter, options)
        return self._loop.run(call, send, throttle, made)

    async def connect(
        self,
        url: StrOrURL,
        send: Callable[[Any], Awaitable["ClientWebSocketResponse[bool]"]],
        options: Mapping[str, Any] = _NO_OPTIONS,
        throttle: Throttle | None = None,
    ) -> "ClientWebSocketResponse[bool]":
        """Open a websocket; the loop judges the response to its handshake."""
        websocket: ClientWebSocketResponse[bool] | None = None

        async def handshake(call: _Call) -> ClientResponse:
            nonlocal websocket
            websocket = await send(call)
            # It has no public name.
            return websocket._response  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        # A websocket's `timeout` is another one, and its other options are no body.
        seen = {"headers": options.get("headers")}
        await self.request("GET", url, handshake, seen, throttle=throttle)
        assert websocket is not None
        return websocket
