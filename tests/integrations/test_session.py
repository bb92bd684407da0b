"""What only a `ThrottledSession` does: aiohttp's methods and arguments, and a given session.

The behaviour that it shares with the other integrations is specified in `test_matrix_*.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from aiothrottle import KeyedRateLimiter, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from aiothrottle.testing import RateLimitedServer
from tests.serving import answer, hang_up, in_flight, serving, until

QUICK = Retry(backoff=0.001, pause_jitter=0)
METHODS = ["get", "options", "head", "post", "put", "patch", "delete"]

# ---- aiohttp's interface -----------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
async def test_every_method_is_awaitable_and_an_async_with(name: str) -> None:
    async with serving(answer()) as (url, seen), ThrottledSession(RateLimiter()) as session:
        response = await getattr(session, name)(url)
        assert type(response) is aiohttp.ClientResponse
        await response.read()
        async with getattr(session, name)(url) as response:
            assert response.status == 200
        assert [method for method, _ in seen] == [name.upper()] * 2


async def test_any_method_and_option_is_passed_on() -> None:
    async with serving(answer()) as (url, seen), ThrottledSession(RateLimiter()) as session:
        async with session.request("report", url, data=b"abc", params={"q": "1"}) as response:
            assert response.url.query == {"q": "1"}
        assert seen == [("REPORT", b"abc")]


async def test_request_is_a_coroutine() -> None:
    async with serving(answer()) as (url, _), ThrottledSession(RateLimiter()) as session:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(session.get(url))
        responses = [task.result(), *await asyncio.gather(session.get(url), session.get(url))]
        assert [await response.text() for response in responses] == ["body"] * 3


async def test_head_follows_no_redirect_and_get_does() -> None:
    async def redirect(request: web.Request) -> web.Response:
        if request.path == "/there":
            return web.Response(text="there")
        raise web.HTTPFound("/there")

    limiter = RateLimiter(100, concurrency_limit=1)
    async with serving(redirect) as (url, _), ThrottledSession(limiter) as session:
        async with session.head(url) as response:
            assert response.status == 302
        async with session.get(url) as response:
            assert await response.text() == "there"
    assert not in_flight(limiter)


async def test_websocket_holds_its_slot_for_the_handshake() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for message in websocket:
            await websocket.send_str(message.data)
        return websocket

    limiter = RateLimiter("2/h", concurrency_limit=1)
    async with (
        RateLimitedServer(None, handler=echo) as server,
        ThrottledSession(limiter) as session,
        session.ws_connect(server.url) as websocket,
    ):
        await websocket.send_str("hello")
        assert await websocket.receive_str() == "hello"
        decision = await limiter.try_acquire()
        assert (decision.allowed, decision.remaining) == (True, 0)


async def test_public_attributes_of_the_session_are_reachable() -> None:
    async with ThrottledSession(RateLimiter(), headers={"X-One": "1"}) as session:
        assert session.headers["X-One"] == "1"
        assert not session.closed
        with pytest.raises(AttributeError):
            _ = session._request


@pytest.mark.parametrize("by_block", [False, True])
async def test_given_session_is_closed_when_it_is_owned(by_block: bool) -> None:
    given = aiohttp.ClientSession()
    session = ThrottledSession(RateLimiter(), session=given, owns_session=True)
    if by_block:
        async with session:
            assert not given.closed
    else:
        await session.close()
    assert given.closed
    await session.close()


async def test_only_the_session_it_made_is_closed() -> None:
    async with aiohttp.ClientSession() as given:
        async with ThrottledSession(RateLimiter(), session=given) as session:
            assert session.session is given
        assert not given.closed
        async with ThrottledSession(RateLimiter()) as session:
            made = session.session
        assert made.closed


def test_session_can_be_made_before_a_loop_runs() -> None:
    session = ThrottledSession(RateLimiter(100, concurrency_limit=2))

    async def main() -> int:
        async with serving(answer()) as (url, _), session, session.get(url) as response:
            return response.status

    assert asyncio.run(main()) == 200


async def test_arguments_beside_a_given_session_raise() -> None:
    async with aiohttp.ClientSession() as given:
        with pytest.raises(ValueError, match="headers"):
            ThrottledSession(RateLimiter(), session=given, headers={})


def test_wrong_session_is_named() -> None:
    with pytest.raises(TypeError, match="session"):
        ThrottledSession(RateLimiter(), session="https://example.org")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_relative_url_has_the_base_urls_key() -> None:
    limiter = KeyedRateLimiter("1/h")
    async with (
        serving(answer()) as (url, _),
        ThrottledSession(limiter, base_url=url) as session,
    ):
        await session.get("/page")
        assert not await limiter.peek(f"127.0.0.1:{url.port}")


async def test_given_session_repeats_no_lost_connection() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(hang_up) as (url, seen),
        aiohttp.ClientSession() as given,
        ThrottledSession(limiter, retry=QUICK, session=given) as session,
    ):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.get(url)
        assert len(seen) == limiter.statistics().granted == QUICK.attempts


# ---- options that can be read once -------------------------------------------------------------


def dump(value: object) -> str:
    return json.dumps(value, default=list)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"headers": iter([("X-Mine", "1"), ("X-Mine", "2")])}, "X-Mine=1,2"),
        ({"headers": ((name, "1") for name in ["X-Mine"])}, "X-Mine=1"),
        ({"cookies": iter([("a", "1")])}, "Cookie=a=1"),
        ({"cookies": zip("ab", "12", strict=True)}, "Cookie=a=1; b=2"),
        ({"skip_auto_headers": iter(["User-Agent"])}, "User-Agent="),
        ({"json": iter([1, 2])}, "body=[1, 2]"),
        ({"data": b"x", "headers": iter([("X-Mine", "1")])}, "X-Mine=1"),
    ],
)
async def test_iterator_is_the_same_for_each_attempt(
    options: dict[str, Any], expected: str
) -> None:
    received: list[str] = []
    name = expected.partition("=")[0]

    async def throttle_twice(request: web.Request) -> web.Response:
        found = (await request.text()) if name == "body" else ",".join(values(request, name))
        received.append(f"{name}={found}")
        return web.Response(status=429 if len(received) < 3 else 200)

    async with (
        serving(throttle_twice) as (url, _),
        ThrottledSession(RateLimiter(), retry=QUICK, json_serialize=dump) as session,
        session.post(url, **options) as response,
    ):
        assert response.status == 200
    assert received == [expected] * 3


def values(request: web.Request, name: str) -> list[str]:
    return request.headers.getall(name, [])


async def test_handshake_has_the_same_headers_at_each_attempt() -> None:
    received: list[tuple[str | None, str | None]] = []

    async def throttle_first(request: web.Request) -> web.StreamResponse:
        names = ("X-Mine", "Sec-WebSocket-Protocol")
        received.append((request.headers.get(names[0]), request.headers.get(names[1])))
        if len(received) == 1:
            return web.Response(status=429)
        socket = web.WebSocketResponse(protocols=["chat"])
        await socket.prepare(request)
        await socket.close()
        return socket

    async with (
        serving(throttle_first) as (url, _),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
        session.ws_connect(
            url, headers=iter([("X-Mine", "1")]), protocols=iter(["chat"])
        ) as socket,
    ):
        assert socket.protocol == "chat"
    assert received == [("1", "chat")] * 2


async def test_iterator_that_raises_does_so_when_awaited() -> None:
    def raising() -> Iterator[tuple[str, str]]:
        raise LookupError
        yield "", ""

    limiter = RateLimiter(concurrency_limit=1)
    async with ThrottledSession(limiter) as session:
        request = session.get("http://127.0.0.1:9/", headers=raising())
        with pytest.raises(LookupError):
            await request
    assert limiter.statistics().granted == 0


@pytest.mark.parametrize("data", [iter([("a", "1")]), (piece for piece in [b"x"])])
async def test_body_of_an_iterator_raises_as_in_aiohttp(data: object) -> None:
    async with serving(answer()) as (url, seen), ThrottledSession(RateLimiter()) as session:
        with pytest.raises(TypeError, match="pairs allowed"):
            await session.post(url, data=data)
        assert not seen


async def test_async_generator_is_sent_once() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"

    async with (
        serving(answer(429), answer()) as (url, seen),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
        session.post(url, data=pieces(), headers=iter([("X", "1")])) as response,
    ):
        assert response.status == 429
        assert seen == [("POST", b"one")]


needs_trackers = pytest.mark.skipif(
    not hasattr(aiohttp, "UploadTracker"), reason="aiohttp has them since 3.14.4"
)


@needs_trackers
@pytest.mark.parametrize("make", [ThrottledSession, throttled_session])
async def test_upload_tracker_counts_all_attempts(make: Callable[..., Any]) -> None:
    tracker = aiohttp.UploadTracker()
    async with (
        serving(answer(429), answer(429), answer()) as (url, seen),
        make(RateLimiter(), retry=QUICK) as session,
    ):
        request = asyncio.create_task(session.post(url, data=b"four", upload_tracker=tracker))
        await until(lambda: len(seen) > 1)
        assert not tracker.upload_complete.done()
        assert (await request).status == 200
        await tracker.upload_complete
        assert (tracker.attempts, tracker.bytes_written) == (3, 4)
        with pytest.raises(RuntimeError, match="already bound"):
            await session.post(url, data=b"four", upload_tracker=tracker)
        assert len(seen) == 3


@needs_trackers
async def test_upload_tracker_ends_when_nothing_was_sent() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    tracker = aiohttp.UploadTracker()
    async with ThrottledSession(limiter, queue_timeout=0.01) as session, limiter.throttle():
        with pytest.raises(ThrottleTimeout):
            await session.post("http://127.0.0.1:9/", data=b"x", upload_tracker=tracker)
    with pytest.raises(aiohttp.UploadAbortedError):
        await tracker.upload_complete
