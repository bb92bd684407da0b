"""A session that waits for a limiter, holds a slot for each response, and retries.

It is a wrapper, so that the wait before `ClientSession.request` is outside of all its timeouts;
aiohttp advises against subclasses of `aiohttp.ClientSession`. ``aiothrottle fetch`` shares `Call`
and `SessionAdapter` with it.

Invariant: a session that is made here is made once, on its first use, which needs a running loop.
"""

import inspect
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from aiohttp import (
    BaseConnector,
    BasicAuth,
    ClientMiddlewareType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    HttpVersion,
    InvalidUrlClientError,
    TraceConfig,
)
from aiohttp.abc import AbstractCookieJar
from aiohttp.typedefs import LooseCookies, LooseHeaders, StrOrURL
from yarl import URL

from aiothrottle._checks import check_choice, check_names, shown
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import Options, SessionOptions, names_of
from aiothrottle._http.terms import LimiterLike
from aiothrottle.aiohttp.adapter import AiohttpAdapter, content_of, origin_of, without_resending
from aiothrottle.aiohttp.body import SINGLE_USE, Body, SharedTracker, is_replayable, keep_iterators
from aiothrottle.errors import not_async
from aiothrottle.hooks import Request, Throttle
from aiothrottle.keyed import AnyLimiter

if TYPE_CHECKING:
    from aiohttp.client import _RequestOptions, _WSConnectOptions  # typing only: aiohttp's own

_Check: TypeAlias = Callable[[ClientResponse], Awaitable[None]]
_RaiseForStatus: TypeAlias = bool | _Check | None
_Result = TypeVar("_Result", bound="ClientResponse | ClientWebSocketResponse")

# aiohttp rounds its own timeouts up to a whole second.
_GRACE = 1.0


# ---- arguments -----------------------------------------------------------------------------------

_OF_AIOHTTP = frozenset(
    name
    for name, parameter in inspect.signature(ClientSession).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
)


class _ClientSessionArguments(TypedDict, total=False):
    """The arguments of `aiohttp.ClientSession`, for type checkers: those of the newest aiohttp.

    At run time those of the installed aiohttp count.
    """

    base_url: StrOrURL | None
    connector: BaseConnector | None
    loop: AbstractEventLoop | None
    cookies: LooseCookies | None
    headers: LooseHeaders | None
    proxy: StrOrURL | None
    proxy_auth: BasicAuth | None
    skip_auto_headers: Iterable[str] | None
    auth: BasicAuth | None
    json_serialize: Callable[[Any], str]
    json_serialize_bytes: Callable[[Any], bytes] | None
    request_class: type[ClientRequest]
    response_class: type[ClientResponse]
    ws_response_class: type[ClientWebSocketResponse]
    version: HttpVersion
    cookie_jar: AbstractCookieJar | None
    connector_owner: bool
    raise_for_status: bool | _Check
    read_timeout: float
    conn_timeout: float | None
    timeout: ClientTimeout
    auto_decompress: bool
    trust_env: bool
    requote_redirect_url: bool
    trace_configs: list[TraceConfig] | None
    read_bufsize: int
    max_line_size: int
    max_field_size: int
    max_headers: int
    fallback_charset_resolver: Callable[[ClientResponse, bytes], str]
    middlewares: Sequence[ClientMiddlewareType]
    ssl_shutdown_timeout: float | None


class SessionArguments(SessionOptions, _ClientSessionArguments, total=False):
    """The arguments of `ThrottledSession` and `throttled_session`: options, and aiohttp's."""


def read_arguments(
    function: Callable[..., object], given: Mapping[str, Any]
) -> tuple[Options, dict[str, Any]]:
    """Split the arguments of `function` into options and arguments of `aiohttp.ClientSession`.

    Raises:
        TypeError: A name is unknown to both, or an option is of a wrong type.
        ValueError: An option is out of range.
    """
    names = names_of(SessionOptions)
    named = {name for name in inspect.signature(function).parameters if name != "arguments"}
    check_names(
        function.__name__,
        names | _OF_AIOHTTP | named,
        given,
        elsewhere=", and aiohttp.ClientSession has none either",
    )
    options = Options(**{name: value for name, value in given.items() if name in names})
    return options, {name: value for name, value in given.items() if name not in names}


# ---- requests ------------------------------------------------------------------------------------


class RequestContext(Coroutine[Any, Any, _Result], Generic[_Result]):
    """A coroutine, for `await` and `create_task`, and an asynchronous context manager."""

    __slots__ = ("_coroutine", "_response")

    def __init__(self, coroutine: Coroutine[Any, Any, _Result]) -> None:
        self._coroutine = coroutine
        # What the warning about a coroutine that is never awaited names.
        coroutine.__qualname__ = "ThrottledSession.request"  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - a coroutine's signature
        """As a coroutine's."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - a coroutine's signature
        """As a coroutine's."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """As a coroutine's."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, _Result]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> _Result:
        self._response: _Result = await self._coroutine
        await self._response.__aenter__()
        return self._response

    def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> Coroutine[Any, Any, None]:  # noqa: ANN401 - as there
        return self._response.__aexit__(exc_type, exc, traceback)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a session, which may take several attempts."""

    method: str
    address: StrOrURL
    #: Those of aiohttp's request.
    options: Mapping[str, Any]
    #: The body, if it could be sent only once.
    body: Body | None = None


class SessionAdapter(AiohttpAdapter[Call]):
    """Translates for a session, which it makes on its first use."""

    def __init__(self, session: ClientSession | Mapping[str, Any], options: Options) -> None:
        super().__init__(options)
        self._repeatable = options.retry.methods
        self._given = session
        if isinstance(session, ClientSession):
            without_resending(session)

    @cached_property
    def session(self) -> ClientSession:
        """The session, which is made when it is used first, unless it was given."""
        if isinstance(self._given, ClientSession):
            return self._given
        return without_resending(ClientSession(**self._given))

    def send(self, request: Call) -> Awaitable[ClientResponse]:
        """Make one attempt."""
        options = request.options
        if request.body is not None:
            options = {**options, "data": request.body}
        return self.session.request(request.method, request.address, **options)

    def origin(self, request: Call, /) -> str:
        return origin_of(self._url(request.address))

    def _url(self, address: StrOrURL) -> URL:
        try:
            url = URL(address)
        except ValueError as error:
            raise InvalidUrlClientError(address) from error  # as aiohttp does
        if not url.absolute:
            # There is no public way to ask a session for its base_url.
            base: URL | None = getattr(self.session, "_base_url", None)
            url = url if base is None else base.join(url)
        return url

    def is_replayable(self, request: Call, response: ClientResponse | None = None, /) -> bool:
        method = request.method
        if response is not None and response.method != method and method not in self._repeatable:
            return False  # a redirect has answered it with a GET: it is done
        return request.body is None or is_replayable(request.body)

    async def buffer(self, request: Call, /) -> None:
        if request.body is not None:
            await request.body.buffer()

    def view(self, request: Call, /) -> Request:
        url = self._url(request.address)
        if params := request.options.get("params"):
            url = url.extend_query(params)
        # As aiohttp combines them: a name of the call replaces that of the session.
        headers: Any = self.session.headers.copy()
        headers.update(request.options.get("headers") or ())
        if (document := request.options.get("json")) is not None:
            return Request(request.method, url, headers, document=document)
        return Request(request.method, url, headers, content_of(request.options.get("data")))

    def total_of(self, request: Call) -> float | None:
        timeout: object = request.options.get("timeout", self.session.timeout)
        if timeout is None or isinstance(timeout, int | float):  # as aiohttp takes it
            timeout = ClientTimeout(timeout)
        elif not isinstance(timeout, ClientTimeout):  # its sentinel
            timeout = self.session.timeout
        return timeout.total + _GRACE if timeout.total else None


class ThrottledSession:
    """An `aiohttp.ClientSession` whose requests keep the limits of a limiter.

    Every method works as in aiohttp, with ``await`` and with ``async with``, and returns genuine
    `aiohttp.ClientResponse` objects. In addition a request

    - waits for the limiter first, outside of aiohttp's timeouts;
    - holds its slot until the body is read, released, closed or lost;
    - is retried by the rules of `retry`, and takes a token for each attempt. A throttled response
      (420, 429, 529, mostly 503) pauses the limiter for all requests that share it. A body that
      cannot be sent twice is not: the throttled response is returned;
    - reports its outcome to the limiter, which tunes its guard and its adaptive limits by it.

    A chain of redirects is one request, to the host of the first URL. A POST that a redirect has
    answered with a GET was done, and is not sent again if the GET is throttled.

    Args:
        limiter: The limiter, which may be shared with other sessions and other code. A
            `KeyedRateLimiter` limits each host by itself, or each result of `key`. A rate, such
            as ``"10/s"``: a limiter is made of it.
        session: The session to send with. You close it, unless `owns_session` is true. It does
            not send a request again by itself any more, as aiohttp does after a connection was
            cut: that would take no token. By default a session is made, and closed with this one.
        owns_session: Whether a given `session` is closed with this one, by `close` or at the end
            of `async with`.
        arguments: The options of `SessionOptions` (`key`, `retry`, `queue_timeout` and so on) and,
            without `session`, those of `aiohttp.ClientSession`.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
        ValueError: An argument is out of range; or `session` is given, and arguments for a new one
            too; or `key` is given, and the limiter has no keys.

    >>> async def main():
    ...     async with ThrottledSession(RateLimiter(20, concurrency_limit=10)) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """

    def __init__(
        self,
        limiter: LimiterLike,
        *,
        session: ClientSession | None = None,
        owns_session: bool = False,
        **arguments: Unpack[SessionArguments],
    ) -> None:
        if session is not None and not isinstance(session, ClientSession):
            raise TypeError(f"session must be an aiohttp.ClientSession, got {shown(session)}")
        check_choice("owns_session", owns_session, (True, False))
        options, for_client_session = read_arguments(type(self), arguments)
        if session is not None and for_client_session:
            raise ValueError(
                f"{', '.join(for_client_session)}: arguments for a new session, "
                "but session= is given as well; give one of them"
            )
        self._adapter = SessionAdapter(for_client_session if session is None else session, options)
        self._loop = RetryLoop(self._adapter, options, limiter)
        # There is no public way to ask a session for it.
        self._raise_for_status: _RaiseForStatus = for_client_session.get(
            "raise_for_status", getattr(session, "_raise_for_status", None)
        )
        self._owns_session = owns_session or session is None
        self._is_closed = False

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter of all requests, or of each key."""
        return self._loop.admission.limiter

    @property
    def session(self) -> ClientSession:
        """The session that sends. If none was given, the first use in a running loop makes it."""
        return self._adapter.session

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the session
        # A private one could send without the limiter.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.session, name)

    def request(
        self,
        method: str,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a request of any method.

        Args:
            method: The method.
            url: The URL.
            throttle: What this request overrides, such as ``{"cost": 3}``: see `hooks.Throttle`.
            options: Those of `aiohttp.ClientSession.request`.

        Returns:
            What ``async with`` or ``await`` makes the response of, as with aiohttp.

        Raises:
            LimiterClosed: The limiter is closed.
            ThrottleTimeout: The wait would be, or was, longer than `queue_timeout`.
            RequestDropped: The server is failing; see `adaptive_throttling`.
            aiohttp.ClientError: aiohttp's, of the last attempt.
            TypeError: `throttle`, or the result of a hook, has a value of a wrong type.
            ValueError: The same with a value out of range.
        """
        return self._send(Call(method.upper(), url, options), throttle)

    def get(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a GET request; see `request`."""
        return self._send(Call("GET", url, options), throttle)

    def options(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send an OPTIONS request; see `request`."""
        return self._send(Call("OPTIONS", url, options), throttle)

    def head(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a HEAD request, which by default follows no redirects; see `request`."""
        options.setdefault("allow_redirects", False)
        return self._send(Call("HEAD", url, options), throttle)

    def post(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a POST request; see `request`."""
        return self._send(Call("POST", url, options), throttle)

    def put(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a PUT request; see `request`."""
        return self._send(Call("PUT", url, options), throttle)

    def patch(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a PATCH request; see `request`."""
        return self._send(Call("PATCH", url, options), throttle)

    def delete(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_RequestOptions]",
    ) -> "RequestContext[ClientResponse]":
        """Send a DELETE request; see `request`."""
        return self._send(Call("DELETE", url, options), throttle)

    def ws_connect(
        self,
        url: StrOrURL,
        *,
        throttle: Throttle | None = None,
        **options: "Unpack[_WSConnectOptions]",
    ) -> "RequestContext[ClientWebSocketResponse]":
        """Open a websocket. The handshake takes a token; the messages do not.

        Args:
            url: The URL.
            throttle: As for `request`.
            options: Those of `aiohttp.ClientSession.ws_connect`.
        """
        return RequestContext(self._connect(url, options, throttle))

    async def close(self) -> None:
        """Close the session that sends, if it was made here or `owns_session` is true.

        The limiter is not closed.
        """
        if self._owns_session:
            self._is_closed = True
            await self.session.close()  # one made only now is closed for good

    if not TYPE_CHECKING:  # a type checker finds that mistake by itself

        def __enter__(self) -> NoReturn:
            raise not_async("ThrottledSession(...) as session:")

        def __exit__(self, *exc_info: object) -> None:
            """Never run: without it the error of `with` is about this method."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<ThrottledSession {self._loop.admission.given!r}, {self._loop.options.retry!r}>"

    def _send(self, call: Call, throttle: Throttle | None) -> RequestContext[ClientResponse]:
        options = call.options
        check = options.get("raise_for_status")
        if check is None:
            check = self._raise_for_status
        if check or self._is_closed or (options and not SINGLE_USE.isdisjoint(options)):
            return RequestContext(self._send_prepared(call, throttle, check))
        return RequestContext(self._loop.run(call, self._adapter.send, throttle))

    async def _send_prepared(
        self, call: Call, throttle: Throttle | None, check: _RaiseForStatus
    ) -> ClientResponse:
        """Send with options that are not for each attempt of aiohttp.

        Some could be used only once. `raise_for_status` is for the last response: else nobody could
        read the body of a 403, and what a function raises for a 429 does not say that it was one.
        """
        if self._is_closed:  # said before the wait, as by aiohttp
            raise RuntimeError("Session is closed")
        options = call.options = {**call.options, "raise_for_status": False}
        keep_iterators(options)
        tracker = options.get("upload_tracker")
        if tracker is not None:
            tracker = options["upload_tracker"] = SharedTracker(tracker)
        try:
            call.body = Body.of(options.get("data"))
            response = await self._loop.run(call, self._adapter.send, throttle)
        finally:
            if tracker is not None:
                tracker.end()
            if call.body is not None:
                await call.body.finish()
        try:
            if callable(check):
                await check(response)
            elif check:
                response.raise_for_status()
        except BaseException:
            response.release()  # the caller does not get it
            raise
        return response

    async def _connect(
        self, url: StrOrURL, options: "_WSConnectOptions", throttle: Throttle | None
    ) -> "ClientWebSocketResponse":
        """Open a websocket; the loop judges the response to its handshake."""
        if self._is_closed:  # said before the wait, as by aiohttp
            raise RuntimeError("Session is closed")
        keep_iterators(cast("dict[str, Any]", options))
        websocket: ClientWebSocketResponse | None = None

        async def handshake(_: Call) -> ClientResponse:
            nonlocal websocket
            websocket = await self.session.ws_connect(url, **options)
            # It has no public name.
            return websocket._response  # pyright: ignore[reportPrivateUsage]

        # A websocket's `timeout` is another one, and its other options are no body.
        seen = {name: options.get(name) for name in ("headers", "params")}
        await self._loop.run(Call("GET", url, seen), handshake, throttle)
        assert websocket is not None
        return websocket
