"""Middlewares among other middlewares, websockets, and what aiohttp adds to a request."""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, web

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, ThrottleMiddleware, throttled_middlewares
from tests.integrations.clients import (
    MIDDLEWARES,
    ONCE,
    QUICK,
    SESSION,
    Integration,
    Readers,
    always,
    sessions,
)
from tests.support.misbehaving_server import MisbehavingServer
from tests.support.serving import answer, in_chunks, serving

# aiohttp warns of a connection that is collected in one cycle with its response.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")

# ---- middlewares among middlewares -------------------------------------------------------------


async def send_twice(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    await handler(request)
    return await handler(request)


async def test_throttled_request_of_two_middlewares_precedes_waiting_ones() -> None:
    retry = Retry(backoff=0.2, pause_jitter=1)  # it joins the queue before the pause ends
    chain = throttled_middlewares(limiter := RateLimiter(concurrency_limit=1), retry=retry)
    script = answer(429), answer()
    async with serving(*script) as (url, seen), ClientSession(middlewares=chain) as session:
        await asyncio.gather(*(session.request(it, url) for it in ("PUT", "GET", "GET")))
    assert [method for method, _ in seen] == ["PUT", "PUT", "GET", "GET"]
    assert limiter.statistics().retries == 1


async def test_retry_of_two_middlewares_counts_where_its_key_was_merged() -> None:
    limiter = KeyedRateLimiter(1000)
    chain = throttled_middlewares(limiter, retry=QUICK, key=always("route"))

    async def merge(_: web.Request) -> web.Response:
        limiter.merge("route", "bucket")
        return web.Response(status=502)

    async with serving(merge, answer()) as (url, _), ClientSession(middlewares=chain) as session:
        await limiter.record("bucket")
        assert (await session.get(url)).status == 200
    assert limiter.statistics("bucket").granted == 1


@pytest.mark.parametrize("path", ["whole", "large"])
@pytest.mark.parametrize("is_outside", [False, True])
async def test_middleware_that_sends_twice_needs_one_slot(is_outside: bool, path: str) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    throttle = ThrottleMiddleware(limiter, retry=ONCE)
    chain: list[Any] = [send_twice, throttle] if is_outside else [throttle, send_twice]
    async with MisbehavingServer() as server, ClientSession(middlewares=chain) as session:
        response = await session.get(server.url / path)
        statistics = limiter.statistics()
        assert (server.hits[f"/{path}"], statistics.granted) == (2, 2 if is_outside else 1)
        assert statistics.in_flight == (path != "whole")
        response.close()
        (await limiter.acquire(timeout=1.0)).release()


async def test_response_that_cannot_be_held_returns_its_slot() -> None:
    class Foreign:
        status = 200

    async def foreign(_: ClientRequest, __: ClientHandlerType) -> Any:
        return Foreign()

    limiter = RateLimiter(concurrency_limit=1)
    chain: list[Any] = [ThrottleMiddleware(limiter, retry=ONCE), foreign]
    async with ClientSession(middlewares=chain) as session:
        with pytest.raises(AttributeError) as caught:
            await session.get("http://127.0.0.1:9/")
    assert limiter.statistics().in_flight == 0, caught.value  # whose traceback keeps the permit


@sessions
async def test_digest_and_expectation_need_one_slot(integration: Integration) -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    async with integration.misbehave(middlewares=[digest], connections=2) as (server, at):
        assert await at.send("digest") == (200, b"body")
        assert server.hits["/digest"] == 2
        at.assert_granted(1 if integration is SESSION else 2)
    async with integration.misbehave() as (server, at):
        url = server.url / "throttled-expectation"
        async with at.client.raw.post(url, data=b"upload", expect100=True) as response:
            assert await response.text() == "upload"


async def test_given_middlewares_are_around_all_attempts() -> None:
    seen: list[int] = []

    async def outer(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        seen.append(response.status)
        return response

    async with MIDDLEWARES.serve(answer(429), answer(429), answer(), middlewares=[outer]) as at:
        assert await at.send() == (200, b"body")
        assert seen == [200]
        at.assert_granted(3)
        async with at.client.raw.get(at.url, middlewares=()):  # these replace all
            at.assert_granted(3)


@sessions
@pytest.mark.parametrize("hold", [False, True])
async def test_hold_websockets_holds_the_slot(integration: Integration, *, hold: bool) -> None:
    """A throttled one is opened by a retry; `should_retry` is not called for an open one."""
    retry = Retry(backoff=0.001, pause_jitter=0, should_retry=lambda it: it.status != 200)
    options: dict[str, Any] = {"retry": retry, "settle": (readers := Readers())}
    async with integration.misbehave(hold_websockets=hold, **options) as (server, at):
        server.go.clear()
        url = server.url / "websocket-throttled-once"
        async with at.client.raw.ws_connect(url) as websocket:
            assert (at.held, readers.ends[-1]) == (int(hold), [True])  # its messages are no body
            server.go.set()
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        at.assert_granted(2)


# ---- what aiohttp adds -------------------------------------------------------------------------


async def test_only_the_session_keeps_cookies_of_throttled_responses() -> None:
    cookies: list[str | None] = []
    for integration in (SESSION, MIDDLEWARES):
        jar = aiohttp.CookieJar(unsafe=True)  # also for IP addresses
        async with integration.misbehave(cookie_jar=jar) as (server, at):
            assert (await at.send("throttled-once")).status == 200
            cookies.append(server.seen[1].headers.get("Cookie"))
    assert cookies == ["a=b", None]


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("where", ["session", "given session", "request"])
@sessions
async def test_raise_for_status_follows_last_attempt(
    integration: Integration, where: str, *, by_function: bool
) -> None:
    seen: list[int] = []

    async def check(response: ClientResponse) -> None:
        seen.append(response.status)
        if response.status != 200:
            raise LookupError

    options: dict[str, Any] = {"raise_for_status": check if by_function else True}
    error = LookupError if by_function else aiohttp.ClientResponseError
    of_session, of_request = ({}, options) if where == "request" else (options, {})
    # aiohttp itself, up to 3.12, keeps the connection of a large one.
    missing = in_chunks(b"x" * 1_000_000, status=404) if integration is SESSION else answer(404)
    script = answer(429), answer(), missing, answer(429)
    async with integration.serve(*script, **of_session) as at:
        client = at.client.raw
        if where == "given session" and integration is SESSION:
            client = ThrottledSession(at.limiter, session=client.session, retry=QUICK)
        assert (await client.get(at.url, **of_request)).status == 200
        for _ in range(2):
            with pytest.raises(error):
                await client.get(at.url, **of_request)
        assert seen == ([200, 404, 429] if by_function else [])
        at.assert_granted(2 + 1 + QUICK.attempts)
        assert at.limiter.statistics().throttled == 1 + QUICK.attempts


@sessions
async def test_raise_for_status_hides_no_body(integration: Integration) -> None:
    phrase = b"secondary rate limit"
    throttled = in_chunks(phrase, status=403, Content_Length=str(len(phrase)))
    async with integration.serve(throttled, answer(), raise_for_status=True) as at:
        assert (await at.send()).status == 200
        assert at.limiter.statistics().throttled == 1


@sessions
async def test_proxy_that_throttles_is_asked_again(integration: Integration) -> None:
    async with integration.misbehave() as (server, at):
        with pytest.raises(aiohttp.ClientHttpProxyError):
            await at.client.raw.post("https://host/", proxy=server.url)
        assert [it.method for it in server.seen] == ["CONNECT"] * QUICK.attempts
        at.assert_granted(QUICK.attempts)


@sessions
async def test_invalid_url_and_closed_session_raise_as_in_aiohttp(integration: Integration) -> None:
    for limiter in (RateLimiter(), KeyedRateLimiter()):
        async with integration.client(limiter) as client:
            for url in ("http://[", "http://127.0.0.1:99999/", "nowhere", "http:///"):
                with pytest.raises(aiohttp.InvalidUrlClientError):
                    await client.raw.get(url)
            await client.raw.close()
            with pytest.raises(RuntimeError, match="closed"):
                await client.raw.get("http://127.0.0.1/")
