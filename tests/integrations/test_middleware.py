"""Middlewares among other middlewares, websockets, and what aiohttp adds to a request.

Websockets and options of aiohttp are tested with `ThrottledSession` too. The behaviour that all
integrations share is specified in `test_matrix_*.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import pytest
from aiohttp import (
    ClientHandlerType,
    ClientMiddlewareType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
)

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import (
    Retry,
    RetryMiddleware,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_session,
)
from tests.misbehaving_server import MisbehavingServer
from tests.serving import answer, serving, until

pytestmark = [
    pytest.mark.uvloop,
    # aiohttp warns of a connection that is collected in one cycle with its response.
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),
]

ONCE = Retry(attempts=1)
QUICK = Retry(attempts=3, backoff=0.001)
Make: TypeAlias = Callable[..., Any]
both = pytest.mark.parametrize("make", [ThrottledSession, throttled_session])


class Scene(NamedTuple):
    server: MisbehavingServer
    limiter: RateLimiter
    session: Any

    async def get(self, path: str, **options: object) -> ClientResponse:
        response: ClientResponse = await self.session.get(self.server.url / path, **options)
        return response

    async def text(self, path: str, **options: object) -> str:
        async with self.session.get(self.server.url / path, **options) as response:
            text: str = await response.text()
            return text

    @property
    def granted(self) -> int:
        return self.limiter.statistics().granted


@asynccontextmanager
async def scene(make: Make, **options: object) -> AsyncGenerator[Scene]:
    """Start a server and a session with one slot, which is free at the end."""
    limiter = RateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as server:
        # A signal does not interrupt uvloop.
        async with make(limiter, **options) as session, asyncio.timeout(10):
            yield Scene(server, limiter, session)
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)


def session_of(*middlewares: ClientMiddlewareType | None) -> Make:
    """Return a function that makes a session with these; None: with a `ThrottleMiddleware`."""

    def make(limiter: RateLimiter) -> ClientSession:
        throttle = ThrottleMiddleware(limiter, retry=ONCE)
        return ClientSession(middlewares=[each or throttle for each in middlewares])

    return make


async def send_twice(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    await handler(request)
    return await handler(request)


# ---- middlewares among middlewares -------------------------------------------------------------


def test_middlewares_are_hashable() -> None:
    throttle, retry = ThrottleMiddleware(RateLimiter()), RetryMiddleware()
    assert len({throttle, retry, throttle}) == 2


@pytest.mark.parametrize(("order", "tokens"), [("outside", 2), ("inside", 1)])
async def test_digest_authentication_needs_one_slot(order: str, tokens: int) -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    chain = [digest, None] if order == "outside" else [None, digest]
    async with scene(session_of(*chain)) as at:
        assert await at.text("digest") == "body"
        assert at.granted == tokens
        assert at.server.hits["/digest"] == 2


async def test_digest_authentication_below_the_session() -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    async with scene(ThrottledSession, middlewares=[digest]) as at:
        assert await at.text("digest") == "body"
        assert at.granted == 1


async def test_digest_authentication_around_both_middlewares() -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    async with scene(throttled_session, middlewares=[digest]) as at:
        assert await at.text("digest") == "body"
        assert at.granted == 2


@pytest.mark.parametrize("path", ["whole", "large", "stall"])
@pytest.mark.parametrize(("chain", "tokens"), [((send_twice, None), 2), ((None, send_twice), 1)])
async def test_middleware_that_sends_twice_needs_one_slot(
    chain: tuple[ClientMiddlewareType | None, ...], tokens: int, path: str
) -> None:
    async with scene(session_of(*chain)) as at:
        response = await at.get(path)
        assert at.server.hits[f"/{path}"] == 2
        assert at.granted == tokens
        response.close()
        (await at.limiter.acquire(timeout=1.0)).release()


async def test_request_sent_twice_holds_one_slot() -> None:
    async with scene(session_of(send_twice, None)) as at:
        response = await at.get("stall")
        assert at.limiter.statistics().in_flight == 1
        response.close()


async def test_given_middlewares_are_around_all_attempts() -> None:
    seen: list[int] = []

    async def outer(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        seen.append(response.status)
        return response

    async with scene(throttled_session, retry=QUICK, middlewares=[outer]) as at:
        at.server.throttled_times = 2
        assert await at.text("throttled") == "body"
        assert (seen, at.granted) == ([200], 3)


async def test_middlewares_of_a_request_replace_all() -> None:
    async with scene(throttled_session) as at:
        assert await at.text("whole", middlewares=()) == "body"
        assert at.granted == 0


# ---- websockets --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("hold", [False, True])
async def test_hold_websockets_holds_the_slot(make: Make, *, hold: bool) -> None:
    async with scene(make, hold_websockets=hold) as at:
        at.server.go.clear()
        async with at.session.ws_connect(at.server.url / "websocket") as websocket:
            assert at.limiter.statistics().in_flight == int(hold)
            at.server.go.set()
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert at.granted == 1


@both
async def test_throttled_websocket_is_opened_by_a_retry(make: Make) -> None:
    async with scene(make, retry=QUICK) as at:
        at.server.go.set()
        async with at.session.ws_connect(at.server.url / "websocket-throttled-once") as websocket:
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert at.granted == 2


@both
async def test_should_retry_is_not_called_for_a_websocket(make: Make) -> None:
    retry = Retry(attempts=2, backoff=0.001, should_retry=lambda response: response.status != 200)
    async with scene(make, retry=retry, hold_websockets=True) as at:
        at.server.go.clear()
        async with at.session.ws_connect(at.server.url / "websocket") as websocket:
            assert (at.granted, at.limiter.statistics().in_flight) == (1, 1)
            at.server.go.set()
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE


# ---- retries -----------------------------------------------------------------------------------


@both
async def test_429_in_place_of_100_continue_is_retried(make: Make) -> None:
    async with scene(make, retry=QUICK) as at:
        url = at.server.url / "throttled-expectation"
        async with at.session.post(url, data=b"upload", expect100=True) as response:
            assert await response.text() == "upload"


async def test_only_the_session_keeps_cookies_of_throttled_responses() -> None:
    cookies: list[str | None] = []
    for make in (ThrottledSession, throttled_session):
        jar = aiohttp.CookieJar(unsafe=True)  # also for IP addresses
        async with scene(make, retry=QUICK, cookie_jar=jar) as at:
            assert await at.text("throttled-once") == "body"
            cookies.append(at.server.seen[1].headers.get("Cookie"))
    assert cookies == ["a=b", None]


async def test_total_timeout_runs_between_attempts() -> None:
    async with scene(throttled_session, retry=QUICK) as at:
        at.server.retry_after = "Retry-After: 5\r\n"
        with pytest.raises(TimeoutError):
            await at.get("throttled", timeout=ClientTimeout(total=0.05))


@both
@pytest.mark.parametrize("where", ["session", "request"])
async def test_raise_for_status_raises_after_the_last_attempt(make: Make, where: str) -> None:
    of_session = {"raise_for_status": True} if where == "session" else {}
    of_request: dict[str, Any] = {"raise_for_status": True} if where == "request" else {}
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(answer(429), answer(), answer(404), answer(429)) as (url, seen),
        make(limiter, retry=QUICK, **of_session) as session,
    ):
        assert (await session.get(url, **of_request)).status == 200
        for status, requests in [(404, 3), (429, 3 + QUICK.attempts)]:
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await session.get(url, **of_request)
            assert (caught.value.status, len(seen)) == (status, requests)
    assert limiter.statistics().in_flight == 0


# ---- timeouts and traces -----------------------------------------------------------------------


@pytest.mark.parametrize(("make", "before"), [(ThrottledSession, 0), (throttled_session, 1)])
async def test_traces_begin_with_the_attempt(make: Make, before: int) -> None:
    started: list[object] = []

    async def start(*_: object) -> None:
        started.append(_)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    async with scene(make, trace_configs=[trace]) as at:
        permit = await at.limiter.acquire()
        task = asyncio.ensure_future(at.text("whole"))
        await until(lambda: at.limiter.statistics().waiting)
        assert len(started) == before
        permit.release()
        assert await task == "body"
        assert len(started) == 1


# ---- errors ------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("used", [False, True])
async def test_closed_session_raises(make: Make, *, used: bool) -> None:
    async with scene(make) as at:
        if used:
            assert await at.text("whole") == "body"
        await at.session.close()
        with pytest.raises(RuntimeError, match="closed"):
            await at.get("whole")
        assert at.limiter.statistics().in_flight == 0


@both
@pytest.mark.parametrize("limiter", [RateLimiter(), KeyedRateLimiter()], ids=["one", "keyed"])
@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:99999/", "nowhere", "http:///"])
async def test_invalid_url_raises_as_in_aiohttp(make: Make, limiter: object, url: str) -> None:
    async with make(limiter) as session:
        with pytest.raises(aiohttp.InvalidUrlClientError):
            await session.get(url)
