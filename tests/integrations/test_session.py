"""ThrottledSession against real servers on loopback, some of which misbehave on purpose."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from aiothrottle import LimiterClosed, RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from aiothrottle.testing import RateLimitedServer
from tests.serving import answer, endless, hang_up, in_flight, never, serving, until

QUICK = Retry(backoff=0.001)
METHODS = ["get", "options", "head", "post", "put", "patch", "delete"]

# ---- it is a session ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
async def test_every_method_is_awaitable_and_an_async_with(name: str) -> None:
    async with serving(answer()) as (url, seen), ThrottledSession(RateLimiter()) as session:
        response = await getattr(session, name)(url)
        assert type(response) is aiohttp.ClientResponse
        await response.read()
        async with getattr(session, name)(url) as response:
            assert response.status == 200
        assert [method for method, _ in seen] == [name.upper()] * 2


async def test_any_method_and_every_option_goes_through() -> None:
    async with serving(answer()) as (url, seen), ThrottledSession(RateLimiter()) as session:
        async with session.request("report", url, data=b"abc", params={"q": "1"}) as response:
            assert response.url.query == {"q": "1"}
        assert seen == [("REPORT", b"abc")]


async def test_a_request_is_a_coroutine_for_tasks_and_groups() -> None:
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


async def test_a_websocket_pays_a_token_and_frees_its_slot_after_the_handshake() -> None:
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


async def test_attributes_of_the_session_are_reachable_but_nothing_private() -> None:
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


async def test_it_closes_the_session_it_made_and_leaves_alone_the_one_it_was_given() -> None:
    async with aiohttp.ClientSession() as given:
        async with ThrottledSession(RateLimiter(), session=given) as session:
            assert session.session is given
        assert not given.closed
        async with ThrottledSession(RateLimiter()) as session:
            made = session.session
        assert made.closed


def test_it_can_be_made_before_a_loop_runs() -> None:
    session = ThrottledSession(RateLimiter(100, concurrency_limit=2))

    async def main() -> int:
        async with serving(answer()) as (url, _), session, session.get(url) as response:
            return response.status

    assert asyncio.run(main()) == 200


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"limiter": 20}, TypeError, "limiter"),
        ({"limiter": RateLimiter(), "retry": 5}, TypeError, "retry"),
        ({"limiter": RateLimiter(), "session": "s"}, TypeError, "session"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        ThrottledSession(**arguments)


async def test_arguments_for_a_session_that_is_given_are_a_contradiction() -> None:
    async with aiohttp.ClientSession() as given:
        with pytest.raises(ValueError, match="headers"):
            ThrottledSession(RateLimiter(), session=given, headers={})


# ---- it keeps the limit ------------------------------------------------------------------------


async def test_a_crawl_at_the_limit_of_the_server_is_never_refused() -> None:
    async with RateLimitedServer("40/250ms", concurrency_limit=4) as server:
        limiter = RateLimiter("40/250ms", concurrency_limit=4, guard=0.05)
        async with ThrottledSession(limiter, retry=Retry(attempts=1)) as session:

            async def fetch(page: int) -> int:
                async with session.get(server.url / str(page)) as response:
                    await response.read()
                    return response.status

            assert set(await asyncio.gather(*map(fetch, range(100)))) == {200}
        assert server.audit.refused == 0
        assert server.audit.greatest_concurrency <= 4


async def test_the_wait_for_the_limiter_is_outside_of_the_time_out() -> None:
    async with serving(answer()) as (url, _):
        limiter = RateLimiter("1/300ms")
        timeout = aiohttp.ClientTimeout(total=0.2)
        async with ThrottledSession(limiter, timeout=timeout) as session:
            statuses = [(await session.get(url)).status for _ in range(2)]
        assert statuses == [200, 200]


async def test_a_slot_is_held_until_the_body_is_read() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless) as (url, _), ThrottledSession(limiter) as session:
        response = await session.get(url)
        await response.content.readexactly(100_000)
        assert in_flight(limiter)
        response.release()
        assert not in_flight(limiter)


@pytest.mark.parametrize("leave", ["early exit", "close", "read", "error", "cancel"])
async def test_whichever_way_a_response_ends_its_slot_comes_back(leave: str) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    script = answer() if leave == "read" else endless
    async with serving(script) as (url, _), ThrottledSession(limiter) as session:

        async def use() -> None:
            async with session.get(url) as response:
                match leave:
                    case "close":
                        response.close()
                    case "read":
                        await response.read()
                    case "error":
                        raise KeyError
                    case "cancel":
                        await asyncio.get_running_loop().create_future()
                    case _:
                        pass

        task = asyncio.create_task(use())
        if leave == "cancel":
            await until(lambda: in_flight(limiter))
            task.cancel()
        await asyncio.wait([task])
        assert not in_flight(limiter)
        async with session.get(url) as response:
            assert response.status == 200
        if not task.cancelled():
            task.exception()


async def test_a_request_that_is_cancelled_before_the_headers_gives_its_slot_back() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(never, answer()) as (url, seen), ThrottledSession(limiter) as session:
        task = asyncio.create_task(session.get(url))
        await until(lambda: seen)
        task.cancel()
        await asyncio.wait([task])
        assert not in_flight(limiter)
        assert (await session.get(url)).status == 200


async def test_a_server_that_never_answers_costs_its_time_out_and_no_slot() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(never, answer()) as (url, _), ThrottledSession(limiter) as session:
        with pytest.raises(TimeoutError):
            await session.get(url, timeout=aiohttp.ClientTimeout(total=0.05))
        assert not in_flight(limiter)
        assert (await session.get(url)).status == 200


async def test_a_closed_limiter_refuses_and_the_session_says_so() -> None:
    limiter = RateLimiter(1)
    async with ThrottledSession(limiter) as session:
        await limiter.aclose()
        with pytest.raises(LimiterClosed):
            await session.get("http://127.0.0.1:9/")


async def test_a_closed_session_is_an_error_that_costs_no_slot() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    session = ThrottledSession(limiter)
    _ = session.session
    await session.close()
    with pytest.raises(RuntimeError, match="closed"):
        await session.get("http://127.0.0.1:9/")
    assert not in_flight(limiter)


# ---- it tries again ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_tried_again_for_any_method(method: str, status: int) -> None:
    refuse = answer(status, Retry_After="0")
    limiter = RateLimiter("3/h", concurrency_limit=1)
    async with (
        serving(refuse, refuse, answer()) as (url, seen),
        ThrottledSession(limiter, retry=QUICK) as session,
    ):
        async with session.request(method, url, data=b"same body") as response:
            assert response.status == 200
        assert seen == [(method, b"same body")] * 3
        # Every attempt has paid.
        assert not (await limiter.try_acquire())


async def test_the_last_refusal_is_given_back() -> None:
    retry = Retry(attempts=3, backoff=0.001)
    async with (
        serving(answer(429)) as (url, seen),
        ThrottledSession(RateLimiter(), retry=retry) as session,
        session.get(url) as response,
    ):
        assert response.status == 429
        assert await response.text() == "body"
        assert len(seen) == 3


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_the_whole_limiter_pauses_for_as_long_as_the_server_says(form: str) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=30)
    value = "30" if form == "seconds" else format_datetime(moment, usegmt=True)
    limiter = RateLimiter(100, concurrency_limit=1)
    async with (
        serving(answer(429, Retry_After=value)) as (url, _),
        ThrottledSession(limiter) as session,
    ):
        task = asyncio.create_task(session.get(url))
        await until(lambda: "paused" in repr(limiter))
        decision = await limiter.try_acquire()
        assert not decision
        assert 28 < decision.retry_after <= 31  # with its jitter
        task.cancel()
        await asyncio.wait([task])


async def test_a_date_is_taken_against_the_clock_of_the_server() -> None:
    """A server a year behind says "in 20 s" by its own clock: it is 20 s, and not the past."""
    then = datetime.now(UTC) - timedelta(days=365)
    date = format_datetime(then, usegmt=True)
    later = format_datetime(then + timedelta(seconds=20), usegmt=True)
    limiter = RateLimiter(100, concurrency_limit=1)
    async with (
        serving(answer(429, Date=date, Retry_After=later)) as (url, _),
        ThrottledSession(limiter, retry=Retry(attempts=1)) as session,
    ):
        await session.get(url)
        assert 18 < (await limiter.try_acquire()).retry_after <= 21  # with its jitter


async def test_a_server_that_asks_for_too_long_gets_no_second_request() -> None:
    limiter = RateLimiter(100, concurrency_limit=1)
    async with serving(answer(429, Retry_After="3600")) as (url, seen):
        retry = Retry(max_retry_after=10)
        async with ThrottledSession(limiter, retry=retry) as session:
            begun = time.monotonic()
            assert (await session.get(url)).status == 429
            assert time.monotonic() - begun < 9
        assert len(seen) == 1
        # The siblings wait too, but no longer than was allowed.
        assert 8 < (await limiter.try_acquire()).retry_after <= 10


@pytest.mark.parametrize("value", ["", "soon", "-5", "1e999", "x" * 5000, "nan"])
async def test_garbage_in_retry_after_is_as_good_as_none(value: str) -> None:
    async with (
        serving(answer(429, Retry_After=value), answer()) as (url, seen),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
    ):
        assert (await session.get(url)).status == 200
        assert len(seen) == 2


def given(limiter: RateLimiter, *, retry: Retry) -> ThrottledSession:
    return ThrottledSession(limiter, retry=retry, session=aiohttp.ClientSession())


@pytest.mark.parametrize("front", [ThrottledSession, given, throttled_session])
async def test_a_server_that_cuts_connections_gets_no_more_than_was_paid_for(front: Any) -> None:  # noqa: ANN401 - one of three
    """By itself aiohttp sends a GET again whose connection was cut, which nobody has paid for."""
    limiter = RateLimiter("100/s", concurrency_limit=1)
    async with serving(hang_up) as (url, seen), front(limiter, retry=QUICK) as front_session:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await front_session.get(url)
        assert len(seen) == limiter.statistics().granted == QUICK.attempts
        await getattr(front_session, "session", front_session).close()


async def test_a_dropped_connection_is_tried_again_where_that_is_safe() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(hang_up, hang_up, hang_up, answer()) as (url, _),
        ThrottledSession(limiter, retry=QUICK) as session,
    ):
        assert (await session.get(url)).status == 200
    async with (
        serving(hang_up, answer()) as (url, seen),
        ThrottledSession(limiter, retry=QUICK) as session,
    ):
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post(url, data=b"once")
        assert len(seen) == 1
    assert not in_flight(limiter)


@pytest.mark.parametrize("where", ["session", "request"])
async def test_raise_for_status_raises_after_the_last_attempt(where: str) -> None:
    session_wide: dict[str, Any] = {"raise_for_status": True} if where == "session" else {}
    per_request: dict[str, Any] = {"raise_for_status": True} if where == "request" else {}
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(answer(429), answer(), answer(404)) as (url, seen),
        ThrottledSession(limiter, retry=QUICK, **session_wide) as session,
    ):
        assert (await session.get(url, **per_request)).status == 200
        with pytest.raises(aiohttp.ClientResponseError, match="404"):
            await session.get(url, **per_request)
        assert len(seen) == 3
    assert not in_flight(limiter)


async def test_the_refused_response_is_released_before_the_next_try() -> None:
    async def big_refusal(_: web.Request) -> web.Response:
        return web.Response(status=429, body=b"x" * 8_000_000)

    connector = aiohttp.TCPConnector(limit=1)
    async with (
        serving(big_refusal, answer()) as (url, _),
        ThrottledSession(
            RateLimiter(concurrency_limit=1), retry=QUICK, connector=connector
        ) as session,
    ):
        async with asyncio.timeout(5):
            assert (await session.get(url)).status == 200


async def generated() -> AsyncIterator[bytes]:
    yield b"only once"


@pytest.mark.parametrize(
    ("data", "body", "sent"),
    [
        (b"bytes", b"bytes", 2),
        (bytearray(b"array"), b"array", 2),
        ("text", b"text", 2),
        ({"a": "1", "b": 2}, b"a=1&b=2", 2),
        ([("a", "1")], b"a=1", 2),
        (None, b"", 2),
        (generated, b"only once", 1),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_only_a_body_that_can_be_sent_twice_is(data: object, body: bytes, sent: int) -> None:
    async with (
        serving(answer(429), answer()) as (url, seen),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
    ):
        response = await session.post(url, data=data() if callable(data) else data)
        assert response.status == (200 if sent == 2 else 429)
        assert seen == [("POST", body)] * sent


async def test_a_json_body_is_sent_again() -> None:
    async with (
        serving(answer(429), answer()) as (url, seen),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
    ):
        assert (await session.post(url, json={"a": 1})).status == 200
        assert seen == [("POST", b'{"a": 1}')] * 2
