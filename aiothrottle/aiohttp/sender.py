"""Sends for a session: waits for each attempt, holds its slot, and tries again when refused."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from aiothrottle.retry import Retry

__all__ = ["Sender"]

# aiohttp rounds its own time-outs up to a whole second.
_GRACE = 1.0


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a session's, for all of its attempts."""

    method: str
    address: StrOrURL
    timeout: object
    body: Body | None
    adapter: "_SessionAdapter"

    @property
    def url(self) -> URL:
        try:
            url = URL(self.address)
        except ValueError as error:
            raise InvalidUrlClientError(self.address) from error  # as aiohttp says it
        if not url.absolute:
            # There is no public way to ask a session for its base_url.
            base: URL | None = getattr(self.adapter.session, "_base_url", None)
            url = url if base is None else base.join(url)
        return url


class _SessionAdapter(AiohttpAdapter[_Call]):
    """What the retry loop needs of a session."""

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

    def classify(self, error: Exception) -> Failure:
        if isinstance(error, ClientResponseError):  # as raise_for_status asks for
            host = error.request_info.url.raw_host or ""
            return Failure(response=(host, error.status, error.headers or {}))
        return super().classify(error)

    def total_of(self, request: _Call) -> float | None:
        timeout = request.timeout
        if not isinstance(timeout, ClientTimeout):
            timeout = self.session.timeout
        return timeout.total + _GRACE if timeout.total else None


class Sender:
    """What a `ThrottledSession` sends with, and `aiothrottle fetch`, whatever the request is.

    Args:
        session: The session, or the arguments for one: it is made when it is first needed, as that
            needs a running loop, and closed by `close`.
        limiter: What each attempt waits for.
        options: Those of the session.
        owns_session: Whether a session that is given is closed by `close` too.

    Raises:
        TypeError: `limiter` is none.
        ValueError: There is a key, and a limiter that has none.
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
        """Close the session that sends, if it is owned. The limiter stays as it is."""
        if self._owns_session:
            await self.session.close()  # made here if it never was: then it is closed for good

    def request(
        self,
        method: str,
        url: StrOrURL,
        send: Callable[[Any], Awaitable[ClientResponse]],
        timeout: object = None,
        body: Body | None = None,
    ) -> Coroutine[Any, Any, ClientResponse]:
        """Send until it ends well, or is not to be sent again: see `RetryLoop.run`.

        Args:
            method: In capitals.
            url: Where to; it may be relative to the session's.
            send: Makes one attempt.
            timeout: The `aiohttp.ClientTimeout` of an attempt, if it has one of its own.
            body: What is sent, if it may be of use only once.
        """
        return self._loop.run(_Call(method, url, timeout, body, self._adapter), send)

    async def connect(
        self, url: StrOrURL, send: Callable[[Any], Awaitable["ClientWebSocketResponse[bool]"]]
    ) -> "ClientWebSocketResponse[bool]":
        """Open a websocket; what the loop judges is the response to its handshake."""
        websocket: ClientWebSocketResponse[bool] | None = None

        async def handshake(call: _Call) -> ClientResponse:
            nonlocal websocket
            websocket = await send(call)
            # It has no public name.
            return websocket._response  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        await self.request("GET", url, handshake)
        assert websocket is not None
        return websocket
