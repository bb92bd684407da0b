"""One driver per integration: the same requests with the same options by every client.

A shared behaviour is stated once, in a matrix test that `every(...)` runs for all integrations with
the features that it needs, or `pair`, `sessions` and `transports` where others cannot differ.
"""

import asyncio
import gzip
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any, NamedTuple, Self

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector
from yarl import URL

import aiothrottle.httpx
import aiothrottle.httpx2
from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_middlewares, throttled_session
from aiothrottle.aiohttp.adapter import without_resending
from aiothrottle.hooks import Response
from tests.support import virtually
from tests.support.misbehaving_server import MisbehavingServer
from tests.support.serving import Handler, in_chunks, serving, until
from tests.support.virtually import counts, turns

ONCE = Retry(attempts=1)
QUICK = Retry(attempts=4, backoff=0.001, pause_jitter=0)

CONNECTION_ERRORS = (aiohttp.ClientConnectionError, httpx.TransportError, httpx2.TransportError)
BODY_ERRORS = (aiohttp.ClientError, httpx.HTTPError, httpx2.HTTPError)
TIMEOUTS = (TimeoutError, httpx.TimeoutException, httpx2.TimeoutException)


class Feature(Flag):
    #: Waits for the limiter outside of the client's timeouts.
    UNTIMED_WAIT = auto()
    #: Lets one request override its key, cost, priority and timeout.
    OVERRIDES = auto()
    #: Takes a token for each hop of a chain of redirects.
    HOPS = auto()


class Reply(NamedTuple):
    status: int
    body: bytes


def always(value: object) -> Callable[[object], Any]:
    return lambda _: value


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def collected(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def body_of(response: Any) -> bytes:
    body: bytes = await (response.aread() if hasattr(response, "aread") else response.read())
    return body


@dataclass
class Stream:
    """A response whose headers have arrived, as the library has it; a block around it ends it."""

    raw: Any

    @property
    def is_httpx(self) -> bool:
        return hasattr(self.raw, "aread")

    @property
    def status(self) -> int:
        return int(self.raw.status_code if self.is_httpx else self.raw.status)

    async def read(self) -> bytes:
        return await body_of(self.raw)

    def chunks(self) -> AsyncIterator[bytes]:
        chunks = self.raw.aiter_bytes() if self.is_httpx else self.raw.content.iter_any()
        return aiter(chunks)

    async def leave(self) -> None:
        await (self.raw.aclose() if self.is_httpx else self.raw.__aexit__(None, None, None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class Client:
    """A client; `raw` is a session of aiohttp, or an `AsyncClient` of httpx or httpx2."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def open(
        self,
        url: URL | str,
        method: str = "GET",
        *,
        body: object = None,
        timeout: float | None = None,
        redirects: bool = True,
        throttle: object = None,
        **options: Any,
    ) -> Stream:
        """Send a request, and return the response when its headers have arrived.

        The `timeout` is that of the whole request or, in httpx, of each of its steps.
        """
        if hasattr(self.raw, "build_request"):
            options["extensions"] = {} if throttle is None else {"aiothrottle": throttle}
            options |= {"content": body, "timeout": timeout}
            request = self.raw.build_request(method, str(url), **options)
            return Stream(await self.raw.send(request, stream=True, follow_redirects=redirects))
        given = {"data": body, "throttle": throttle}
        options |= {name: it for name, it in given.items() if it is not None}
        options |= {"timeout": ClientTimeout(timeout), "allow_redirects": redirects}
        return Stream(await self.raw.request(method, str(url), **options))

    async def send(self, url: URL | str, method: str = "GET", **options: Any) -> Reply:
        async with await self.open(url, method, **options) as stream:
            return Reply(stream.status, await stream.read())

    async def close(self) -> None:
        await (self.raw.aclose if hasattr(self.raw, "aclose") else self.raw.close)()


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
        return await self.client.send(self.url.join(URL(path)), method, **options)

    def start(self, path: str = "", method: str = "GET", **options: Any) -> asyncio.Task[Reply]:
        """Send in a task, which is cancelled at the end of the scene."""
        self.tasks.append(asyncio.create_task(self.send(path, method, **options)))
        return self.tasks[-1]

    @asynccontextmanager
    async def queued(self, **options: Any) -> AsyncGenerator[asyncio.Task[Reply]]:
        """Hold the slot, and start a request that waits for it."""
        async with self.limiter.throttle():
            task = self.start(**options)
            await until(lambda: self.waiting)
            yield task

    async def open(self, path: str = "", method: str = "GET", **options: Any) -> Stream:
        return await self.client.open(self.url.join(URL(path)), method, **options)

    @property
    def held(self) -> int:
        return counts(self.limiter)[0]

    @property
    def waiting(self) -> int:
        return counts(self.limiter)[1]

    @property
    def paused_for(self) -> float:
        return float(self.limiter.statistics().paused_for)

    def assert_granted(self, attempts: int) -> None:
        """Check that each attempt took a token, and that none holds a slot."""
        assert (self.limiter.statistics().granted, self.held) == (attempts, 0)


AnyLimiter = RateLimiter | KeyedRateLimiter
_Start = Callable[..., AbstractAsyncContextManager[Client]]


def _session(make: Callable[..., Any]) -> _Start:
    @asynccontextmanager
    async def start(
        limiter: AnyLimiter, connections: int, **options: Any
    ) -> AsyncGenerator[Client]:
        connector = TCPConnector(limit=connections)
        async with make(limiter, connector=connector, **options) as session:
            yield Client(session)

    return start


def _middlewares(limiter: AnyLimiter, *, connector: Any, **options: Any) -> ClientSession:
    middlewares = throttled_middlewares(limiter, **options)
    # Without resending: else aiohttp would make attempts of its own.
    return without_resending(ClientSession(middlewares=middlewares, connector=connector))


# One for all: making one takes longer than most tests.
TLS = ssl.create_default_context()


def _transport(library: Any, module: Any) -> _Start:
    @asynccontextmanager
    async def start(
        limiter: AnyLimiter, connections: int, *, transport: Any = None, **options: Any
    ) -> AsyncGenerator[Client]:
        limits = library.Limits(max_connections=connections)
        inner = transport or library.AsyncHTTPTransport(verify=TLS, limits=limits)
        throttled = module.ThrottledTransport(limiter, transport=inner, **options)
        async with library.AsyncClient(transport=throttled, timeout=None) as client:
            yield Client(client)

    return start


@dataclass(frozen=True)
class Integration:
    name: str
    start: _Start
    lacks: Feature
    #: Of a transport: the module of the client, and that of the transport.
    library: Any = None
    module: Any = None

    def has(self, feature: Feature) -> bool:
        return feature not in self.lacks

    def client(
        self, limiter: AnyLimiter, *, connections: int = 1, retry: Retry = QUICK, **options: Any
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
            await virtually.cancel(*scene.tasks)
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
        async with (
            MisbehavingServer() as server,
            self.scene(server.url, [], limiter, **options) as scene,
        ):
            yield server, scene

    def mock(
        self, respond: Callable[[Any], Any], **options: Any
    ) -> AbstractAsyncContextManager[Scene]:
        mock = self.library.MockTransport(respond)
        return self.scene(URL("http://host/"), [], transport=mock, **options)


# aiohttp's timeout `total` runs around its middlewares, and only `middlewares` of a request reach
# them. A session follows redirects inside of each attempt.
_MIDDLEWARE = Feature.UNTIMED_WAIT | Feature.OVERRIDES
INTEGRATIONS = [
    Integration("ThrottledSession", _session(ThrottledSession), Feature.HOPS),
    Integration("throttled_session", _session(throttled_session), _MIDDLEWARE),
    Integration("throttled_middlewares", _session(_middlewares), _MIDDLEWARE),
    *(
        Integration(library.__name__, _transport(library, module), Feature(0), library, module)
        for library, module in [(httpx, aiothrottle.httpx), (httpx2, aiothrottle.httpx2)]
    ),
]
SESSION, MIDDLEWARES = INTEGRATIONS[:2]


def _parametrized(chosen: list[Integration]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("integration", chosen, ids=[each.name for each in chosen])


def every(*features: Feature) -> pytest.MarkDecorator:
    """Run a test for each integration that has all of the features."""
    return _parametrized([each for each in INTEGRATIONS if all(map(each.has, features))])


#: For what the one retry loop decides, with what an adapter tells it.
pair = _parametrized([SESSION, INTEGRATIONS[3]])
sessions = _parametrized([SESSION, MIDDLEWARES])
transports = _parametrized(INTEGRATIONS[3:])


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


class Reader:
    """A body reader that records what it gets, and returns a cost at the end of the whole body."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ends: list[bool] = []

    def feed(self, chunk: bytes, /) -> None:
        assert chunk
        assert not self.ends
        self.chunks.append(chunk)

    def end(self, *, complete: bool) -> Any:
        self.ends.append(complete)
        return 5 if complete else None

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


class Readers(list[Reader]):
    def __call__(self, _: Response) -> Reader:
        self.append(Reader())
        return self[-1]

    @property
    def ends(self) -> list[list[bool]]:
        return [each.ends for each in self]


def in_form(body: bytes, form: str, status: int = 200, **headers: str) -> Handler:
    """Send a body in a form such as "gzip, chunked"; without "chunked" it has its length."""
    if "gzip" in form:
        body, headers["Content_Encoding"] = gzip.compress(body), "gzip"
    if "chunked" not in form:
        headers["Content_Length"] = str(len(body))
    pieces = [body[begin : begin + 2000] for begin in range(0, len(body), 2000)]
    return in_chunks(*pieces, status=status, then=None, **headers)
