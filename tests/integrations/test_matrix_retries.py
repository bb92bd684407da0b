"""Retries: the same for every integration that retries.

An error that prevents an attempt has the outcome of the attempt before as its cause.
"""

import asyncio
import gc
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NamedTuple, cast

import aiohttp
import pytest
import trustme
from aiohttp import ClientSession
from yarl import URL

from aiothrottle import AttemptThrottled, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottleMiddleware
from tests.integrations.clients import (
    CONNECTION_ERRORS,
    QUICK,
    Clock,
    Integration,
    body_of,
    cancel,
    every,
    pair,
    transports,
)
from tests.support.misbehaving_server import BOMB, MisbehavingServer
from tests.support.serving import (
    Handler,
    answer,
    cut,
    endless,
    generated,
    hang_up,
    in_chunks,
    serving,
    until,
    without_end,
)
from tests.support.virtually import turns

OK = answer()
SLOW_DOWN = in_chunks(b"slow down", Content_Length="9")


async def by_body(response: Any) -> bool:
    assert response.url.path == "/"
    return b"slow down" in await body_of(response)


def retry(**options: Any) -> dict[str, Any]:
    quick: dict[str, Any] = {"backoff": 0.001, "pause_jitter": 0, "attempts": 4}
    return {"retry": Retry(**quick | options)}


class Exchange(NamedTuple):
    method: str
    script: list[Handler]
    #: The last status, or the error that is raised.
    end: Any
    attempts: int
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    body: Callable[[], Any] = lambda: b"same body"


SINGLE_USE = partial(generated, b"same ", b"body")
THROTTLED_403 = answer(403, X_RateLimit_Remaining="0", Retry_After="0.001")
LARGE = in_chunks(b"x" * 1_000_000, status=429, Content_Length="1000000")
CUT_OFF = in_chunks(status=429, Content_Length="1000", then=cut)
EXCHANGES: dict[str, Exchange] = {
    "429": Exchange("POST", [answer(429), answer(429), OK], 200, 3),
    "bare 503": Exchange("POST", [answer(503), OK], 503, 1),
    "throttled 403": Exchange("POST", [THROTTLED_403, OK], 200, 2),
    "no attempts left": Exchange("POST", [answer(429)], 429, QUICK.attempts),
    "large body": Exchange("POST", [LARGE, OK], 200, 2),
    "endless body": Exchange("POST", [without_end(429), OK], 200, 2),
    "body cut off": Exchange("POST", [CUT_OFF, OK], 200, 2),
    "lost, POST": Exchange("POST", [hang_up, OK], CONNECTION_ERRORS, 1),
    # By itself aiohttp sends a GET whose connection was cut once more, without a token.
    "lost, GET": Exchange("GET", [hang_up, hang_up, OK], 200, 3),
    "always lost": Exchange("GET", [hang_up], CONNECTION_ERRORS, QUICK.attempts),
    "no exceptions": Exchange("GET", [hang_up, OK], CONNECTION_ERRORS, 1, retry(exceptions=())),
    "by body": Exchange("POST", [SLOW_DOWN, OK], 200, 2, retry(should_retry=by_body)),
    "generator": Exchange("POST", [answer(429), OK], 429, 1, {}, SINGLE_USE),
    "buffered": Exchange("POST", [answer(429), OK], 200, 2, {"buffer_body": True}, SINGLE_USE),
}


@pytest.mark.parametrize("name", EXCHANGES)
@every()
async def test_request_is_retried_or_not(integration: Integration, name: str) -> None:
    method, script, end, attempts, options, body = EXCHANGES[name]
    async with integration.serve(*script, **options) as at:
        if isinstance(end, int):
            assert (await at.send(method=method, body=body())).status == end
        else:
            with pytest.raises(end):
                await at.send(method=method, body=body())
        assert at.seen == [(method, b"same body")] * attempts
        at.assert_granted(attempts)


async def test_each_middleware_works_alone() -> None:
    throttle = ThrottleMiddleware(limiter := RateLimiter())
    async with (
        serving(answer(429)) as (url, seen),
        ClientSession(middlewares=[throttle]) as session,
    ):
        assert (await session.get(url)).status == 429
    assert len(seen) == limiter.statistics().granted == 1

    def judge(_: object) -> None:
        raise LookupError

    middleware = RetryMiddleware(policy := Retry(should_retry=judge))
    assert repr(policy) in repr(middleware)
    async with serving(OK) as (url, _), ClientSession(middlewares=[middleware]) as session:
        with pytest.raises(LookupError):
            await session.get(url)
    middlewares = [RetryMiddleware()]
    async with serving(answer(403)) as (url, _), ClientSession(middlewares=middlewares) as session:
        for _ in range(21):  # from the 20th on the host is suspected
            assert (await session.get(url)).status == 403


# ---- bodies of throttled responses ---------------------------------------------------------------


@pytest.mark.parametrize("path", ["throttled-and-stalled", "throttled-and-trickling"])
@every()
async def test_unfinished_body_of_a_throttled_response_is_closed(
    integration: Integration, path: str, clock: Clock
) -> None:
    async with integration.misbehave(clock.limiter()) as (server, at):
        task = at.start(path)
        await until(lambda: server.hits)
        await turns(50)
        assert not task.done()
        while not task.done():
            await clock.skip(1.0)
        assert await task == (200, b"body")
        at.assert_granted(2)


@every()
async def test_late_body_of_a_403_is_returned(integration: Integration, clock: Clock) -> None:
    async with integration.misbehave(clock.limiter()) as (server, at):
        server.go.clear()
        task = at.start("forbidden-later")
        await until(lambda: server.hits)
        await turns(50)
        await clock.skip(2.0)
        server.go.set()
        assert await task == (403, b"xxxx")


@transports
async def test_403_that_is_longer_than_it_says_is_returned(integration: Integration) -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 16)
            await asyncio.sleep(0)

    def respond(_: object) -> Any:
        return integration.library.Response(403, headers={"Content-Length": "9"}, content=body())

    async with asyncio.timeout(2), integration.mock(respond) as at, await at.open() as stream:
        assert stream.status == 403


@every()
async def test_throttled_response_is_not_unpacked_and_keeps_its_connection(
    integration: Integration,
) -> None:
    assert len(BOMB) < 1 << 16  # otherwise it would not be read at all
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
        # For what it is sent as, the body is short; aiohttp has only read it when it is unpacked.
        assert server.connections == (2 if integration.library is None else 1)
    async with integration.misbehave() as (server, at):
        server.throttled_times, server.retry_after = 2, ""
        assert (await at.send("throttled")).status == 200
        assert (server.hits["/throttled"], server.connections) == (3, 1)


# ---- failures ----------------------------------------------------------------------------------


@every()
async def test_half_closed_and_early_answer_are_retried(integration: Integration) -> None:
    async with integration.misbehave() as (_, at):
        assert (await at.send("half-closed-early")).status == 200
        at.assert_granted(2)
        assert await at.send("throttled-early", "POST", body=b"x" * 500_000) == (200, b"500000")
        at.assert_granted(4)


@every()
async def test_refused_connection_is_retried_and_raises_at_last(integration: Integration) -> None:
    async with MisbehavingServer() as server:
        url = server.url
    async with integration.scene(url, []) as at:
        with pytest.raises(CONNECTION_ERRORS):
            await at.send()
        at.assert_granted(QUICK.attempts)


@every()
async def test_wrong_certificate_is_not_retried(integration: Integration) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cast("Any", trustme.CA().issue_cert("127.0.0.1")).configure_cert(context)
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, "127.0.0.1", 0, ssl=context
    )
    url = URL(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    async with server, integration.scene(url, []) as at:
        with pytest.raises(Exception, match="certificate verify failed"):
            await at.send()
        at.assert_granted(1)
        if integration.library is None:
            with pytest.raises(aiohttp.ServerFingerprintMismatch):
                await at.client.raw.get(url, ssl=aiohttp.Fingerprint(bytes(32)))
            at.assert_granted(2)


@pytest.mark.parametrize("buffer_body", [False, True])
@every()
async def test_failing_body_returns_its_slot(integration: Integration, buffer_body: bool) -> None:
    # While it sends, aiohttp raises an error of its own.
    wrapped = integration.library is None and not buffer_body
    async with integration.serve(OK, buffer_body=buffer_body) as at:
        with pytest.raises(CONNECTION_ERRORS if wrapped else LookupError):
            await at.send(method="POST", body=generated(b"x", LookupError()))
        assert at.held == 0
        assert await at.send() == (200, b"body")


@every()
async def test_cancelled_buffering_takes_no_token_and_ends_a_body(integration: Integration) -> None:
    ended = asyncio.Event()

    async def endless_body() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    async with integration.serve(OK, buffer_body=True) as at:
        sending = asyncio.create_task(at.send(method="POST", body=endless_body()))
        await asyncio.sleep(0.02)
        await cancel(sending)
        await asyncio.wait_for(ended.wait(), 5.0)
        at.assert_granted(0)
        assert await at.send() == (200, b"body")


@every()
async def test_raising_should_retry_returns_slot_and_connection(integration: Integration) -> None:
    def judge(_: object) -> bool:
        if not at.seen[1:]:
            raise LookupError("no such field")
        return False

    async with integration.serve(endless, OK, **retry(should_retry=judge)) as at:
        with pytest.raises(LookupError, match="no such field"):
            await at.send()
        assert at.held == 0
        assert await at.send() == (200, b"body")


@pytest.mark.parametrize(
    ("handler", "status"),
    [(answer(503, Retry_After="7"), 503), (hang_up, None)],
    ids=["503", "lost"],
)
@pair
async def test_rejection_is_final_and_the_outcome_before_is_its_cause(
    integration: Integration, handler: Handler, status: int | None
) -> None:
    limiter, options = RateLimiter("1/h", concurrency_limit=1), retry(exceptions=(Exception,))
    async with integration.serve(handler, limiter=limiter, queue_timeout=1, **options) as at:
        with pytest.raises(ThrottleTimeout) as caught:
            await at.send()
        assert (len(at.seen), at.limiter.statistics().rejected) == (1, 1)
    cause = caught.value.__cause__
    if status is None:
        assert isinstance(cause, CONNECTION_ERRORS)
    else:
        assert isinstance(cause, AttemptThrottled)
        assert cause.retry_after == 7
        assert f"got a response with status {status}" in str(cause)
