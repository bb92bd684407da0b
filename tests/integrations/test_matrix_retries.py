"""Retries: the same for every integration that retries."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from aiothrottle._http import adapter
from aiothrottle.aiohttp import Retry, RetryBudget
from tests.integrations.clients import (
    CONNECTION_ERRORS,
    QUICK,
    TIMEOUTS,
    Clock,
    Feature,
    Integration,
    every,
    lacking,
)
from tests.misbehaving_server import BOMB, MisbehavingServer
from tests.serving import Handler, answer, hang_up, never, until
from tests.virtually import turns

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES


# ---- throttled requests ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "throttled", [answer(429), answer(429, Retry_After="0"), answer(503, Retry_After="0")]
)
@every(RETRIES)
async def test_throttled_request_is_retried_with_any_method(
    integration: Integration, throttled: Handler, method: str
) -> None:
    async with integration.serve(throttled, throttled, answer()) as at:
        assert await at.send(method=method, body=b"same body") == (200, b"body")
        assert at.seen == [(method, b"same body")] * 3
        at.assert_granted(3)


@lacking(RETRIES)
async def test_without_retries_a_request_is_sent_once(integration: Integration) -> None:
    async with integration.serve(answer(429)) as at:
        assert await at.send() == (429, b"body")
        assert len(at.seen) == 1
        at.assert_granted(1)


@every(RETRIES)
async def test_last_throttled_response_is_returned(integration: Integration) -> None:
    async with integration.serve(answer(429)) as at:
        assert await at.send() == (429, b"body")
        assert len(at.seen) == QUICK.attempts
        at.assert_granted(QUICK.attempts)


async def large(_: web.Request) -> web.Response:
    return web.Response(status=429, body=b"x" * 8_000_000)


def endless(status: int) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    return handle


async def broken_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=429, headers={"Content-Length": "1000"})
    await response.prepare(request)
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.uvloop
@pytest.mark.parametrize("throttled", [large, endless(429), broken_off])
@every(RETRIES)
async def test_body_of_a_throttled_response_delays_nothing(
    integration: Integration, throttled: Handler
) -> None:
    async with integration.serve(throttled, answer()) as at:
        assert await at.send() == (200, b"body")
        at.assert_granted(2)


@pytest.mark.parametrize("path", ["throttled-and-stalled", "throttled-and-trickling"])
@every(RETRIES)
async def test_unfinished_body_of_a_throttled_response_is_closed(
    integration: Integration, path: str, clock: Clock
) -> None:
    async with integration.misbehave(clock.limiter()) as (_, at):
        task = at.start(path)
        while not task.done():
            await clock.skip(adapter.SHORT_TIME)
        assert await task == (200, b"body")
        at.assert_granted(2)


@every(RETRIES)
async def test_body_of_a_throttled_response_is_not_unpacked(integration: Integration) -> None:
    assert len(BOMB) < adapter.SHORT_BODY  # otherwise it would not be read at all
    async with integration.misbehave() as (server, at):
        gc.collect()
        tracemalloc.start()
        # The body comes after the headers: aiohttp before 3.13 unpacks what comes with them.
        server.go.clear()
        asyncio.get_running_loop().call_later(0.05, server.go.set)
        try:
            assert (await at.send("throttled-with-a-bomb")).status == 200
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 << 20
        at.assert_granted(2)


@every(RETRIES)
async def test_short_throttled_response_keeps_its_connection(integration: Integration) -> None:
    async with integration.misbehave() as (server, at):
        server.throttled_times, server.retry_after = 2, ""
        assert (await at.send("throttled")).status == 200
        assert (server.hits["/throttled"], server.connections) == (3, 1)


@every(RETRIES)
async def test_upload_throttled_before_it_is_read_is_repeated(integration: Integration) -> None:
    async with integration.misbehave() as (_, at):
        assert await at.send("throttled-early", "POST", body=b"x" * 500_000) == (200, b"500000")
        at.assert_granted(2)


# ---- failures ----------------------------------------------------------------------------------


@every(RETRIES)
async def test_lost_connection_is_retried_if_idempotent(integration: Integration) -> None:
    async with integration.serve(hang_up, hang_up, answer(), hang_up, answer()) as at:
        assert (await at.send()).status == 200
        with pytest.raises(CONNECTION_ERRORS):
            await at.send(method="POST", body=b"once")
        assert len(at.seen) == 4
        at.assert_granted(4)


@every(RETRIES)
async def test_lost_connections_cost_one_token_each(integration: Integration) -> None:
    """By itself aiohttp sends a GET whose connection was cut once more, without a token."""
    async with integration.serve(hang_up) as at:
        with pytest.raises(CONNECTION_ERRORS):
            await at.send()
        assert len(at.seen) == QUICK.attempts
        at.assert_granted(QUICK.attempts)


@every(RETRIES)
async def test_refused_connection_is_retried(integration: Integration) -> None:
    async with MisbehavingServer() as server:
        url = server.url
    async with integration.scene(url, []) as at:
        with pytest.raises(CONNECTION_ERRORS):
            await at.send()
        at.assert_granted(QUICK.attempts)


@every(RETRIES)
async def test_connection_half_closed_before_the_response_is_retried(
    integration: Integration,
) -> None:
    async with integration.misbehave() as (server, at):
        assert (await at.send("half-closed-early")).status == 200
        assert server.hits["/half-closed-early"] == 2
        at.assert_granted(2)


@every(LIMITS, RETRIES)
async def test_failure_pauses_no_other_request(integration: Integration) -> None:
    retry = Retry(backoff=30, max_backoff=60, jitter="decorrelated")
    async with integration.serve(hang_up, answer(), retry=retry) as at:
        task = at.start()
        await until(lambda: at.seen and not at.held)
        assert at.paused_for == 0
        assert (await at.send()).status == 200
        assert not task.done()


@every(RETRIES)
async def test_given_exceptions_are_retried(integration: Integration, clock: Clock) -> None:
    retry = Retry(backoff=0.001, exceptions=TIMEOUTS)
    async with integration.serve(never, answer(), limiter=clock.limiter(), retry=retry) as at:
        task = at.start(read_timeout=60)
        await until(lambda: at.seen)
        await turns(20)
        await clock.skip(61)
        while not task.done():
            await clock.skip(0.01)
        assert (await task).status == 200
        assert len(at.seen) == 2
        at.assert_granted(2)


@every(RETRIES)
async def test_empty_exceptions_retry_no_failure(integration: Integration) -> None:
    retry = Retry(backoff=0.001, exceptions=())
    async with integration.serve(hang_up, retry=retry) as at:
        with pytest.raises(CONNECTION_ERRORS):
            await at.send()
        assert len(at.seen) == 1
        at.assert_granted(1)


@every(RETRIES)
async def test_spent_budget_ends_further_attempts(integration: Integration) -> None:
    retry = Retry(attempts=10, backoff=0.001, budget=RetryBudget(capacity=30, cost=14))
    async with integration.serve(answer(502), retry=retry) as at:
        for requests in (3, 4):  # 28 of 30 are spent by the first request
            assert (await at.send()).status == 502
            assert len(at.seen) == requests


@every(RETRIES)
async def test_success_refunds_the_retry_budget(integration: Integration) -> None:
    retry = Retry(backoff=0.001, budget=RetryBudget(capacity=14, cost=14))
    script = [answer(502), answer(), answer(502), answer()]
    async with integration.serve(*script, retry=retry) as at:
        for _ in range(2):
            assert (await at.send()).status == 200
        assert len(at.seen) == 4


# ---- should_retry ------------------------------------------------------------------------------


async def by_body(response: Any) -> bool:  # noqa: ANN401
    assert response.url.path == "/"
    body = await (response.aread() if hasattr(response, "aread") else response.read())
    return b"slow down" in body


async def slow_down(_: web.Request) -> web.Response:
    return web.Response(text="slow down", headers={"X-Busy": "1"})


def by_header(response: Any) -> bool | None:  # noqa: ANN401
    return True if response.headers.get("X-Busy") else None


Judge = Callable[[Any], bool | Awaitable[bool] | None]


@pytest.mark.parametrize("judge", [by_header, by_body])
@every(RETRIES)
async def test_should_retry_decides_for_any_status(integration: Integration, judge: Judge) -> None:
    retry = Retry(backoff=0.001, should_retry=judge)
    async with integration.serve(slow_down, answer(), retry=retry) as at:
        assert await at.send(method="POST") == (200, b"body")
        async with await at.open() as stream:  # the body that was judged is read once more
            assert [chunk async for chunk in stream.chunks()] == [b"body"]
        assert len(at.seen) == 3
        # Throttled, as a 429 is.
        assert (at.limiter._engine.pause.began_at > 0) == integration.has(LIMITS)
        at.assert_granted(3)


@every(RETRIES)
async def test_should_retry_false_makes_a_429_final(integration: Integration) -> None:
    retry = Retry(backoff=0.001, should_retry=lambda _: False)
    async with integration.serve(answer(429, Retry_After="30"), retry=retry) as at:
        assert (await at.send()).status == 429
        assert len(at.seen) == 1
        assert at.paused_for == 0


@every()
async def test_raising_should_retry_returns_slot_and_connection(integration: Integration) -> None:
    def judge(_: object) -> bool:
        if not at.seen[1:]:
            raise LookupError("no such field")
        return False

    unread = endless(200)
    async with integration.serve(unread, answer(), retry=Retry(should_retry=judge)) as at:
        with pytest.raises(LookupError, match="no such field"):
            await at.send()
        assert at.held == 0
        assert await at.send() == (200, b"body")


# ---- bodies ------------------------------------------------------------------------------------


async def generated() -> AsyncIterator[bytes]:
    yield b"only "
    yield b"once"


@pytest.mark.parametrize("buffer_body", [False, True])
@every(RETRIES)
async def test_single_use_body_is_repeated_only_if_buffered(
    integration: Integration, buffer_body: bool
) -> None:
    attempts = 2 if buffer_body else 1
    async with integration.serve(answer(429), answer(), buffer_body=buffer_body) as at:
        reply = await at.send(method="POST", body=generated())
        assert reply == (200 if buffer_body else 429, b"body")
        assert at.seen == [("POST", b"only once")] * attempts
        at.assert_granted(attempts)


@pytest.mark.parametrize("buffer_body", [False, True])
@every(RETRIES)
async def test_failing_body_returns_slot_and_connection(
    integration: Integration, buffer_body: bool
) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError

    # While it sends, aiohttp raises an error of its own.
    wrapped = integration.url is URL and not buffer_body
    async with integration.serve(answer(), buffer_body=buffer_body) as at:
        with pytest.raises(CONNECTION_ERRORS if wrapped else LookupError):
            await at.send(method="POST", body=failing())
        assert at.held == 0
        assert await at.send() == (200, b"body")
