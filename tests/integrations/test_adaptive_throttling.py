"""Requests to a server that fails are rejected here, by every front, and for each origin by itself.

What is drawn is always 0.0, so that any share that is rejected is of the next request.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import ClientSession, web

import aiothrottle.httpx
import aiothrottle.httpx2
from aiothrottle import (
    AdaptiveThrottling,
    AttemptThrottled,
    RateLimiter,
    RequestDropped,
    ThrottleTimeout,
)
from aiothrottle._http.throttling import OriginThrottling
from aiothrottle.aiohttp import Retry, ThrottledSession, ThrottleMiddleware, throttled_session
from aiothrottle.testing import RateLimitedServer

STRICT = AdaptiveThrottling(k=1.0)
ONCE = Retry(attempts=1)
Get = Callable[[str], Awaitable[int]]


@asynccontextmanager
async def session_of(limiter: RateLimiter, **options: Any) -> AsyncGenerator[Get, None]:  # noqa: ANN401
    async with ThrottledSession(limiter, **options) as session:
        yield lambda url: status_of(session, url)


@asynccontextmanager
async def middlewares(limiter: RateLimiter, **options: Any) -> AsyncGenerator[Get, None]:  # noqa: ANN401
    async with throttled_session(limiter, **options) as session:
        yield lambda url: status_of(session, url)


@asynccontextmanager
async def transport(limiter: RateLimiter, **options: Any) -> AsyncGenerator[Get, None]:  # noqa: ANN401
    front = aiothrottle.httpx.ThrottledTransport(limiter, **options)
    async with httpx.AsyncClient(transport=front) as client:
        yield lambda url: status_in(client, url)


@asynccontextmanager
async def transport2(limiter: RateLimiter, **options: Any) -> AsyncGenerator[Get, None]:  # noqa: ANN401
    front = aiothrottle.httpx2.ThrottledTransport(limiter, **options)
    async with httpx2.AsyncClient(transport=front) as client:
        yield lambda url: status_in(client, url)


async def status_of(session: ThrottledSession | ClientSession, url: str) -> int:
    async with session.get(url) as response:
        return response.status


async def status_in(client: httpx.AsyncClient | httpx2.AsyncClient, url: str) -> int:
    return (await client.get(url)).status_code


Front = Callable[..., AbstractAsyncContextManager[Get]]
FRONTS: list[Front] = [session_of, middlewares, transport, transport2]
CONNECTION_FAILED = (aiohttp.ClientConnectionError, httpx.ConnectError, httpx2.ConnectError)


@pytest.fixture(autouse=True)
def _worst_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)


async def answer(request: web.Request) -> web.Response:
    return web.Response(status=int(request.path.strip("/")))


def serve() -> RateLimitedServer:
    return RateLimitedServer(None, handler=answer)


@pytest.mark.parametrize("front", FRONTS)
async def test_a_request_to_a_server_that_fails_is_not_sent(front: Front) -> None:
    limiter = RateLimiter(1000, concurrency_limit=10)
    async with (
        serve() as failing,
        serve() as fine,
        front(limiter, retry=ONCE, adaptive_throttling=STRICT) as get,
    ):
        assert await get(f"{failing.url}500") == 500
        with pytest.raises(RequestDropped, match="is failing: the request was dropped") as raised:
            await get(f"{failing.url}200")
        assert await get(f"{fine.url}200") == 200
        assert await get(f"{fine.url}200") == 200
        assert len(failing.audit.requests) == 1
    assert raised.value.dropped_share == 0.5
    assert raised.value.origin == f"127.0.0.1:{failing.url.port}"
    assert raised.value.__cause__ is None
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.in_flight) == (3, 0)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("status", [200, 304, 404, 429])
async def test_client_error_counts_as_accepted(front: Front, status: int) -> None:
    async with (
        serve() as server,
        front(RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT) as get,
    ):
        for _ in range(3):
            assert await get(f"{server.url}{status}") == status


@pytest.mark.parametrize("front", FRONTS)
async def test_another_attempt_is_rejected_too_and_says_what_came_before(front: Front) -> None:
    retry = Retry(backoff=0.001)
    async with (
        serve() as server,
        front(RateLimiter(None), retry=retry, adaptive_throttling=STRICT) as get,
    ):
        with pytest.raises(RequestDropped) as raised:
            await get(f"{server.url}502")
        assert len(server.audit.requests) == 1
    cause = raised.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert (cause.status, cause.retry_after) == (502, None)


@pytest.mark.parametrize("front", FRONTS)
async def test_a_connection_that_fails_is_not_accepted(front: Front) -> None:
    async with serve() as server:
        url = f"{server.url}200"
    async with front(RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT) as get:
        with pytest.raises(CONNECTION_FAILED):
            await get(url)
        with pytest.raises(RequestDropped):
            await get(url)


@pytest.mark.parametrize("front", FRONTS)
async def test_who_gives_up_in_the_line_says_nothing_about_the_server(front: Front) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    options = {"retry": ONCE, "adaptive_throttling": STRICT, "queue_timeout": 0.01}
    async with serve() as server, front(limiter, **options) as get:
        async with limiter.throttle():
            with pytest.raises(ThrottleTimeout):
                await get(f"{server.url}200")
        assert await get(f"{server.url}200") == 200


@pytest.mark.parametrize("count", [1, 2, 10, 50, 200])
@pytest.mark.parametrize("front", FRONTS)
async def test_requests_under_way_to_a_healthy_server_are_not_rejected(
    front: Front, count: int
) -> None:
    under_way = 0
    together = asyncio.Event()

    async def wait_for_others(_: web.Request) -> web.Response:
        nonlocal under_way
        under_way += 1
        if under_way == min(count, 50):  # fewer than the connections that a client makes
            together.set()
        await together.wait()
        return web.Response()

    async with (
        RateLimitedServer(None, handler=wait_for_others) as server,
        front(RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT) as get,
    ):
        for _ in range(2):
            statuses = await asyncio.gather(*[get(str(server.url)) for _ in range(count)])
            assert statuses == [200] * count


@pytest.mark.parametrize("front", FRONTS)
async def test_cancelled_request_is_not_counted(front: Front) -> None:
    arrived = asyncio.Event()

    async def wait_or_answer(request: web.Request) -> web.Response:
        if request.path == "/wait":
            arrived.set()
            await asyncio.Event().wait()
        return web.Response()

    async with (
        RateLimitedServer(None, handler=wait_or_answer) as server,
        front(RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT) as get,
    ):
        for _ in range(3):
            task = asyncio.ensure_future(get(f"{server.url}wait"))
            await arrived.wait()
            arrived.clear()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await get(f"{server.url}") == 200


@pytest.mark.parametrize("front", FRONTS[:2])
async def test_timeout_of_the_client_counts_as_failure(front: Front) -> None:
    async def wait(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    timeout = aiohttp.ClientTimeout(total=0.05)
    async with (
        RateLimitedServer(None, handler=wait) as server,
        front(RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT, timeout=timeout) as get,
    ):
        with pytest.raises(TimeoutError):
            await get(str(server.url))
        with pytest.raises(RequestDropped):
            await get(str(server.url))


@pytest.mark.parametrize("front", FRONTS[:2])
async def test_request_that_is_not_sent_is_not_counted(front: Front) -> None:
    async with (
        serve() as server,
        front(
            RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT, headers={"X": "a\r\nb"}
        ) as get,
    ):
        with pytest.raises(ValueError, match=r"(?i)header injection|newline"):
            await get(f"{server.url}200")
        with pytest.raises(ValueError, match=r"(?i)header injection|newline"):
            await get(f"{server.url}200")
        assert not server.audit.requests


async def test_an_error_in_place_of_a_response_counts_by_its_status() -> None:
    async with (
        serve() as server,
        ThrottledSession(
            RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT, raise_for_status=True
        ) as session,
    ):
        for _ in range(3):
            with pytest.raises(aiohttp.ClientResponseError):
                await session.get(f"{server.url}404")
        with pytest.raises(aiohttp.ClientResponseError):
            await session.get(f"{server.url}503")
        with pytest.raises(RequestDropped):
            await session.get(f"{server.url}200")


async def test_no_more_origins_are_remembered_than_matter() -> None:
    throttling = OriginThrottling(STRICT)
    for number in range(3000):
        throttling.count("first.example", None)
        throttling.count(f"{number}.example", None)
    assert len(throttling._states) == 1024
    for known in ("first.example", "2999.example"):
        with pytest.raises(RequestDropped):
            throttling.check(known)
    throttling.check("1.example")


@pytest.mark.parametrize("front", [*FRONTS[:2], ThrottleMiddleware, transport])
async def test_only_the_algorithm_will_do(front: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match=r"adaptive_throttling is an AdaptiveThrottling, such as .*, not 2\.0"
    ):
        async with front(RateLimiter(1), adaptive_throttling=2.0):
            pass
