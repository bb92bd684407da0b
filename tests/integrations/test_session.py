"""What only a `ThrottledSession` does: aiohttp's methods and arguments, and a given session."""

# aioresponses leaves the types of its arguments open.
# pyright: reportUnknownMemberType=false

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import ClientTimeout, web
from aioresponses import aioresponses
from yarl import URL

from aiothrottle import CostTooHigh, KeyedRateLimiter, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, ThrottledSession
from tests.integrations.clients import MIDDLEWARES, ONCE, SESSION, Clock, Integration, sessions
from tests.support.serving import answer, hang_up, serving, until

QUICK = Retry(attempts=3, backoff=0.001, pause_jitter=0)
METHODS = ["get", "options", "head", "post", "put", "patch", "delete"]

# ---- aiohttp's interface -----------------------------------------------------------------------


async def test_every_method_is_awaitable_and_an_async_with() -> None:
    redirect = answer(302, Location="/")
    script = [*[answer()] * 16, redirect, redirect, answer()]
    async with serving(*script) as (url, seen), ThrottledSession(RateLimiter()) as session:
        for name in METHODS:
            response = await getattr(session, name)(url)
            assert type(response) is aiohttp.ClientResponse
            async with getattr(session, name)(url) as response:
                assert response.status == 200
            assert [method for method, _ in seen[-2:]] == [name.upper()] * 2
        await session.request("report", url, data=b"abc")
        assert seen[-1] == ("REPORT", b"abc")
        await asyncio.create_task(session.get(url))
        # HEAD follows no redirect.
        assert [(await send(url)).status for send in (session.head, session.get)] == [302, 200]


async def test_session_is_closed_if_it_is_owned() -> None:
    async with aiohttp.ClientSession(headers={"X-One": "1"}) as given:
        async with ThrottledSession(RateLimiter(), session=given) as session:
            assert session.session is given
            assert session.headers["X-One"] == "1"
            with pytest.raises(AttributeError):
                _ = session._request
        assert not session.closed
        async with ThrottledSession(RateLimiter(), session=given, owns_session=True):
            assert not given.closed
        assert given.closed
    made = ThrottledSession(limiter := RateLimiter("1/h"))
    for _ in range(2):
        await made.close()
        assert made.session.closed
    for request in (made.get("x:"), made.post("x:", data=b""), made.ws_connect("x:")):
        with pytest.raises(RuntimeError, match="Session is closed"):
            await request
    assert limiter.statistics().granted == 0, "they wait for nothing, as in aiohttp"


def test_session_may_be_made_before_a_loop_and_have_a_base_url() -> None:
    limiter = KeyedRateLimiter("1/h")
    session = ThrottledSession(limiter, base_url="http://127.0.0.1:9/")

    async def main() -> None:
        async with session:
            with pytest.raises(CostTooHigh):  # before a connection is made
                await session.get("/page", throttle={"cost": 2})
            assert list(limiter) == ["127.0.0.1:9"]

    asyncio.run(main())


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


async def test_response_is_held_for_the_timeout_of_its_request(clock: Clock) -> None:
    """And a second more, as aiohttp rounds its own timeouts up."""
    options: dict[str, Any] = {"retry": ONCE, "connections": 5, "timeout": ClientTimeout(total=600)}
    async with SESSION.misbehave(clock.limiter(concurrency_limit=5), **options) as (server, at):
        get = partial(at.client.raw.get, server.url / "stall")
        endless = await get(timeout=None)
        await get()
        for timeout in (ClientTimeout(60), 20, 30):
            await get(timeout=timeout)
        left: list[int] = []
        for seconds in (20.5, 1, 10, 30, 560):  # which end no deadline, and then one each
            await clock.skip(seconds)
            left.append(at.held)
        assert left == [5, 4, 3, 2, 1]
        endless.close()
        await until(lambda: not server.connected)


async def test_middleware_holds_a_response_for_the_timeout_of_its_request(clock: Clock) -> None:
    class Request(aiohttp.ClientRequest):  # as from aiohttp 3.15 on
        timeout = ClientTimeout(total=60)

    limiter = clock.limiter()
    async with MIDDLEWARES.misbehave(limiter, retry=ONCE, request_class=Request) as (server, at):
        kept = await at.client.raw.get(server.url / "stall")
        for seconds, held in ((59, 1), (2, 0)):
            await clock.skip(seconds)
            assert at.held == held
        del kept


@pytest.mark.parametrize(("method", "status", "attempts"), [("POST", 429, 1), ("PUT", 200, 2)])
async def test_post_that_a_redirect_has_answered_is_not_sent_again(
    method: str, status: int, attempts: int
) -> None:
    redirect = answer(303, Location="/")
    async with SESSION.serve(redirect, answer(429), redirect, answer()) as at:
        assert (await at.send(method=method)).status == status
        assert [it for it, _ in at.seen] == [method, "GET"] * attempts


# ---- options that can be read once -------------------------------------------------------------


SINGLE_USE: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"headers": iter([("X-Mine", "1"), ("X-Mine", "2")])}, "X-Mine=1,2"),
    (lambda: {"cookies": zip("ab", "12", strict=True)}, "Cookie=a=1; b=2"),
    (lambda: {"skip_auto_headers": iter(["User-Agent"])}, "User-Agent="),
    (lambda: {"json": iter([1, 2])}, "body=[1, 2]"),
]


async def test_iterator_is_the_same_for_each_attempt() -> None:
    async def serialize(make: Callable[[], dict[str, Any]], name: str) -> list[str]:
        received: list[str] = []

        async def throttle_twice(request: web.Request) -> web.Response:
            values = ",".join(request.headers.getall(name, []))
            received.append(f"{name}={await request.text() if name == 'body' else values}")
            return web.Response(status=429 if len(received) < 3 else 200)

        options: dict[str, Any] = {"json_serialize": partial(json.dumps, default=list)}
        async with SESSION.serve(throttle_twice, **options) as at:
            assert (await at.client.raw.post(at.url, **make())).status == 200
        return received

    for make, expected in SINGLE_USE:
        assert await serialize(make, expected.partition("=")[0]) == [expected] * 3
    options: dict[str, Any] = {"headers": iter([("X-Mine", "1")]), "protocols": iter(["chat"])}
    async with SESSION.misbehave() as (server, at):
        url = server.url / "websocket-throttled-once"
        async with at.client.raw.ws_connect(url, **options):
            pass
        names = ("X-Mine", "Sec-WebSocket-Protocol")
        received = [[each.headers.get(name) for name in names] for each in server.seen]
    assert received == [["1", "chat"]] * 2


async def test_rejected_websocket_applies_the_quota() -> None:
    limiter, quota = RateLimiter(9), {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "30"}
    async with SESSION.serve(answer(404, **quota), limiter=limiter) as at:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await at.client.raw.ws_connect(at.url)
        assert (await limiter.peek()).retry_after > 28


async def test_wrong_iterator_raises_when_awaited() -> None:
    def raising() -> Iterator[tuple[str, str]]:
        raise LookupError
        yield "", ""

    async with SESSION.serve(answer()) as at:
        request = at.client.raw.get(at.url, headers=raising())
        with pytest.raises(LookupError):
            await request
        with pytest.raises(TypeError, match="pairs allowed"):  # as in aiohttp
            await at.send(method="POST", body=iter([("a", "1")]))
        at.assert_granted(0)


@pytest.mark.skipif(not hasattr(aiohttp, "UploadTracker"), reason="of aiohttp since 3.14.4")
@sessions
async def test_upload_tracker_counts_all_attempts(integration: Integration) -> None:
    tracker = aiohttp.UploadTracker()
    script = answer(429), answer(429), answer()
    async with integration.serve(*script, queue_timeout=0.3) as at:
        post = at.client.raw.post
        request = asyncio.create_task(post(at.url, data=b"four", upload_tracker=tracker))
        await until(lambda: len(at.seen) > 1)
        assert not tracker.upload_complete.done()
        assert (await request).status == 200
        await tracker.upload_complete
        assert (tracker.attempts, tracker.bytes_written) == (3, 4)
        with pytest.raises(RuntimeError, match="already bound"):
            await post(at.url, data=b"four", upload_tracker=tracker)
        unsent = aiohttp.UploadTracker()
        async with at.limiter.throttle():
            with pytest.raises(ThrottleTimeout):
                await post(at.url, data=b"x", upload_tracker=unsent)
        assert len(at.seen) == 3
    if integration is SESSION:
        with pytest.raises(aiohttp.UploadAbortedError):
            await unsent.upload_complete


class Response(aiohttp.ClientResponse):
    """Adds an argument that aiohttp >= 3.14 requires and aioresponses does not pass."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "stream_writer" in inspect.signature(aiohttp.ClientResponse).parameters:
            kwargs.setdefault("stream_writer", Mock(output_size=0))
        super().__init__(*args, **kwargs)


async def test_session_under_aioresponses_takes_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresponses.core.ClientResponse", Response)
    url = URL("http://api.test/items")
    async with SESSION.scene(url, [], retry=QUICK) as at:
        with aioresponses() as server:
            server.get(url, status=429)
            server.get(url, exception=aiohttp.ServerDisconnectedError())
            server.get(url, payload={"id": 1})
            assert await at.send() == (200, b'{"id": 1}')
        at.assert_granted(3)


async def test_response_leaves_the_slot_of_a_block_in_another_task_known() -> None:
    limiter, arrived = RateLimiter(1000, concurrency_limit=2), asyncio.Event()

    async def respond(_: web.Request) -> web.Response:
        await arrived.wait()
        return web.Response(body=bytes(1 << 22))  # it does not end unread

    async with serving(respond) as (url, _), ThrottledSession(limiter) as session:
        request = asyncio.create_task(session.get(url))
        await until(lambda: limiter.statistics().in_flight == 1)
        async with limiter.throttle():  # takes the last slot
            arrived.set()
            response = await request
            with pytest.raises(RuntimeError, match="this task holds a slot"):
                await limiter.acquire()
        await response.read()
