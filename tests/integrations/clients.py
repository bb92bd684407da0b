"""One driver per integration: the same requests with the same options by every client.

A shared behaviour is stated once, in a matrix test that `every(...)` runs for all integrations with
the features that it needs. `MISSING` is the one table of features that an integration does not
have; `lacking(...)` runs a test for these, so that no entry is there without a proof.
"""

# ruff: noqa: ANN401 - clients and responses of three libraries

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, Self

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

import aiothrottle.httpx
import aiothrottle.httpx2
from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import (
    Retry,
    RetryMiddleware,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_session,
)
from aiothrottle.aiohttp.adapter import origin_of as aiohttp_origin
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.transport.adapter import origin_of as transport_origin
from tests.misbehaving_server import MisbehavingServer
from tests.serving import Handler, serving
from tests.virtually import counts, turns

ONCE = Retry(attempts=1)
QUICK = Retry(attempts=4, backoff=0.001, pause_jitter=0)

CONNECTION_ERRORS = (aiohttp.ClientConnectionError, httpx.TransportError, httpx2.TransportError)
BODY_ERRORS = (aiohttp.ClientError, httpx.HTTPError, httpx2.HTTPError)
TIMEOUTS = (TimeoutError, httpx.TimeoutException, httpx2.TimeoutException)


class Feature(Enum):
    """What some integrations do and others do not."""

    LIMITS = "takes a token for each attempt, and a slot for each response"
    RETRIES = "makes another attempt after a failure"
    UNTIMED_WAIT = "waits for the limiter outside of the client's timeouts"
    OVERRIDES = "lets one request override its key, cost, priority and timeout"
    HOPS = "takes a token for each hop of a chain of redirects"


_AROUND = "aiohttp's timeout `total` runs around its middlewares"
_GENUINE = "a request to a genuine ClientSession has no place for it but `middlewares`"
_NO_LIMITER = "it has no limiter; a ThrottleMiddleware inside of it waits"

#: What an integration does not do, and why.
MISSING: dict[tuple[str, Feature], str] = {
    ("ThrottledSession", Feature.HOPS): "aiohttp follows redirects inside of each attempt",
    ("throttled_session", Feature.UNTIMED_WAIT): _AROUND,
    ("throttled_session", Feature.OVERRIDES): _GENUINE,
    ("ThrottleMiddleware", Feature.UNTIMED_WAIT): _AROUND,
    ("ThrottleMiddleware", Feature.OVERRIDES): _GENUINE,
    ("ThrottleMiddleware", Feature.RETRIES): "a RetryMiddleware around it retries",
    ("RetryMiddleware", Feature.LIMITS): _NO_LIMITER,
    ("RetryMiddleware", Feature.UNTIMED_WAIT): _NO_LIMITER,
    ("RetryMiddleware", Feature.OVERRIDES): _NO_LIMITER,
    ("RetryMiddleware", Feature.HOPS): _NO_LIMITER,
}


class Reply(NamedTuple):
    """A response that was read."""

    status: int
    body: bytes


class Stream(Protocol):
    """A response whose headers have arrived; a block around it ends it."""

    raw: Any
    status: int

    async def read(self) -> bytes: ...
    def chunks(self) -> AsyncIterator[bytes]: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc_info: object) -> None: ...


class Options(NamedTuple):
    """How a request is sent."""

    body: object = None
    headers: Mapping[str, str] | None = None
    #: Seconds for the whole request or, in httpx, for each of its steps.
    timeout: float | None = None
    #: Seconds until the next bytes of the response.
    read_timeout: float | None = None
    redirects: bool = True
    json: object = None
    throttle: Mapping[str, object] | None = None


class Client(Protocol):
    """A client of one integration; `raw` is the library's own."""

    raw: Any

    async def open(self, url: URL | str, method: str, options: Options) -> Stream:
        """Send a request, and return the response when its headers have arrived."""
        ...


async def collected(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def send(client: Client, url: URL | str, method: str = "GET", **options: Any) -> Reply:
    """Send a request and read its response."""
    async with await client.open(url, method, Options(**options)) as stream:
        return Reply(stream.status, await stream.read())


@dataclass
class Scene:
    """A client of one integration, its limiter, and a server that records what it receives."""

    integration: "Integration"
    client: Client
    limiter: Any
    url: URL
    #: Method and body of each request to a script of handlers.
    seen: list[tuple[str, bytes]]
    tasks: list[asyncio.Task[Reply]] = field(default_factory=list[asyncio.Task[Reply]])

    async def send(self, path: str = "", method: str = "GET", **options: Any) -> Reply:
        return await send(self.client, self.url.join(URL(path)), method, **options)

    def start(self, path: str = "", method: str = "GET", **options: Any) -> asyncio.Task[Reply]:
        """Send in a task, which is cancelled at the end of the scene."""
        self.tasks.append(asyncio.create_task(self.send(path, method, **options)))
        return self.tasks[-1]

    async def open(self, path: str = "", method: str = "GET", **options: Any) -> Stream:
        return await self.client.open(self.url.join(URL(path)), method, Options(**options))

    @property
    def held(self) -> int:
        """How many slots are held."""
        return counts(self.limiter)[0]

    @property
    def waiting(self) -> int:
        return counts(self.limiter)[1]

    @property
    def paused_for(self) -> float:
        seconds: float = self.limiter.statistics().paused_for
        return seconds

    def assert_granted(self, attempts: int) -> None:
        """Check that each attempt took a token, and that none holds a slot."""
        granted = attempts if self.integration.has(Feature.LIMITS) else 0
        assert (self.limiter.statistics().granted, self.held) == (granted, 0)


class _AiohttpStream:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.raw: Any = response
        self.status = response.status

    async def read(self) -> bytes:
        body: bytes = await self.raw.read()
        return body

    def chunks(self) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = self.raw.content.iter_any()
        return chunks

    async def close(self) -> None:
        self.raw.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.raw.__aexit__(*exc_info)


class AiohttpClient:
    """Sends with a session of aiohttp."""

    def __init__(self, session: ClientSession | ThrottledSession) -> None:
        self.raw: Any = session

    async def open(self, url: URL | str, method: str, options: Options) -> Stream:
        named = {"data": options.body, "json": options.json, "throttle": options.throttle}
        more: dict[str, Any] = {name: it for name, it in named.items() if it is not None}
        response = await self.raw.request(
            method,
            url,
            headers=options.headers,
            timeout=ClientTimeout(total=options.timeout, sock_read=options.read_timeout),
            allow_redirects=options.redirects,
            **more,
        )
        return _AiohttpStream(response)


class _HttpxStream:
    def __init__(self, response: Any) -> None:
        self.raw = response
        self.status: int = response.status_code

    async def read(self) -> bytes:
        body: bytes = await self.raw.aread()
        return body

    def chunks(self) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = self.raw.aiter_bytes()
        return chunks

    async def close(self) -> None:
        await self.raw.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.raw.aclose()


class HttpxClient:
    """Sends with an `AsyncClient` of httpx or httpx2."""

    def __init__(self, client: Any) -> None:
        self.raw = client

    async def open(self, url: URL | str, method: str, options: Options) -> Stream:
        seconds = options.timeout
        request = self.raw.build_request(
            method,
            str(url),
            content=options.body,
            json=options.json,
            extensions={} if options.throttle is None else {"aiothrottle": options.throttle},
            headers=options.headers,
            timeout=(seconds, options.read_timeout or seconds, seconds, seconds),
        )
        response = await self.raw.send(request, stream=True, follow_redirects=options.redirects)
        return _HttpxStream(response)


AnyLimiter = RateLimiter | KeyedRateLimiter
_Start = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def _session(limiter: AnyLimiter, connections: int, **options: Any) -> AsyncGenerator[Client]:
    connector = TCPConnector(limit=connections)
    async with ThrottledSession(limiter, connector=connector, **options) as session:
        yield AiohttpClient(session)


@asynccontextmanager
async def _both(limiter: AnyLimiter, connections: int, **options: Any) -> AsyncGenerator[Client]:
    connector = TCPConnector(limit=connections)
    async with throttled_session(limiter, connector=connector, **options) as session:
        yield AiohttpClient(session)


@asynccontextmanager
async def _with(middleware: Any, connections: int) -> AsyncGenerator[Client]:
    session = ClientSession(middlewares=[middleware], connector=TCPConnector(limit=connections))
    # Else aiohttp would make attempts of its own.
    async with without_resending(session):
        yield AiohttpClient(session)


def _throttle(
    limiter: AnyLimiter, connections: int, **options: Any
) -> AbstractAsyncContextManager[Client]:
    return _with(ThrottleMiddleware(limiter, **options), connections)


def _retry(_: AnyLimiter, connections: int, **options: Any) -> AbstractAsyncContextManager[Client]:
    return _with(RetryMiddleware(**options), connections)


# One for all: making one takes longer than most tests.
_TLS = ssl.create_default_context()


def _transport(library: Any, transport: Any) -> _Start:
    @asynccontextmanager
    async def start(
        limiter: AnyLimiter, connections: int, **options: Any
    ) -> AsyncGenerator[Client]:
        limits = library.Limits(max_connections=connections)
        inner = library.AsyncHTTPTransport(verify=_TLS, limits=limits)
        throttled = transport(limiter, transport=inner, **options)
        async with library.AsyncClient(transport=throttled, timeout=None) as client:
            yield HttpxClient(client)

    return start


@dataclass(frozen=True)
class Integration:
    """An integration, and how its client is started."""

    name: str
    start: _Start
    #: Makes the URL that the client gives to `key`, and its default key.
    url: Callable[[str], Any]
    origin: Callable[[str, Any], str]

    def has(self, feature: Feature) -> bool:
        return (self.name, feature) not in MISSING

    def client(
        self,
        limiter: AnyLimiter,
        *,
        connections: int = 1,
        retry: Retry = QUICK,
        **options: Any,
    ) -> AbstractAsyncContextManager[Client]:
        """Start a client, by default with one connection, so that a lost connection is noticed."""
        return self.start(limiter, connections, retry=retry, **options)

    @asynccontextmanager
    async def scene(
        self,
        url: URL,
        seen: list[tuple[str, bytes]],
        limiter: AnyLimiter | None = None,
        **options: Any,
    ) -> AsyncGenerator[Scene]:
        """Start a client, by default of a limiter with one slot, which is free at the end."""
        limiter = RateLimiter(concurrency_limit=1) if limiter is None else limiter
        async with self.client(limiter, **options) as client:
            scene = Scene(self, client, limiter, url, seen)
            yield scene
            for task in scene.tasks:
                task.cancel()
            await asyncio.gather(*scene.tasks, return_exceptions=True)
            if isinstance(limiter, RateLimiter):
                assert counts(limiter) == (0, 0)

    @asynccontextmanager
    async def serve(
        self, *script: Handler, limiter: AnyLimiter | None = None, **options: Any
    ) -> AsyncGenerator[Scene]:
        """Start a server that answers by the handlers, the last one for ever, and a client."""
        async with (
            serving(*script) as (url, seen),
            self.scene(url, seen, limiter, **options) as scene,
        ):
            yield scene

    @asynccontextmanager
    async def misbehave(
        self, limiter: AnyLimiter | None = None, **options: Any
    ) -> AsyncGenerator[tuple[MisbehavingServer, Scene]]:
        """Start a `MisbehavingServer` and a client."""
        async with (
            MisbehavingServer() as server,
            self.scene(server.url, [], limiter, **options) as scene,
        ):
            yield server, scene


INTEGRATIONS = [
    Integration("ThrottledSession", _session, URL, aiohttp_origin),
    Integration("throttled_session", _both, URL, aiohttp_origin),
    Integration("ThrottleMiddleware", _throttle, URL, aiohttp_origin),
    Integration("RetryMiddleware", _retry, URL, aiohttp_origin),
    Integration(
        "httpx",
        _transport(httpx, aiothrottle.httpx.ThrottledTransport),
        httpx.URL,
        transport_origin,
    ),
    Integration(
        "httpx2",
        _transport(httpx2, aiothrottle.httpx2.ThrottledTransport),
        httpx2.URL,
        transport_origin,
    ),
]


def _parametrized(chosen: list[Integration]) -> pytest.MarkDecorator:
    assert chosen
    return pytest.mark.parametrize("integration", chosen, ids=[each.name for each in chosen])


def every(*features: Feature) -> pytest.MarkDecorator:
    """Run a test for each integration that has all of the features."""
    return _parametrized([each for each in INTEGRATIONS if all(map(each.has, features))])


def lacking(feature: Feature) -> pytest.MarkDecorator:
    """Run a test for each integration that does not have the feature."""
    return _parametrized([each for each in INTEGRATIONS if not each.has(feature)])


class Clock:
    """The time of the running loop and of servers, which a test moves forward without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.monotonic
        self._skipped = 0.0
        monkeypatch.setattr(time, "monotonic", self.time)

    def time(self) -> float:
        return self._real() + self._skipped

    def limiter(self, rate_limit: Any = None, **options: Any) -> RateLimiter:
        """Make a limiter on this clock, by default with one slot."""
        options = {"concurrency_limit": 1, **options}
        return RateLimiter(rate_limit, clock=self.time, **options)

    async def skip(self, seconds: float) -> None:
        """Move the time forward, and let the timers fire that are due by then."""
        self._skipped += seconds
        await turns()


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"x" * 10)
    assert request.transport is not None
    request.transport.close()
    return response


async def compressed_chunks(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_compression()
    await response.prepare(request)
    for _ in range(3):
        await response.write(b"x" * 1000)
    return response
