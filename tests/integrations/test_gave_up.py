"""An error that prevents an attempt has the outcome of the attempt before as its cause."""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import web

import aiothrottle.httpx
import aiothrottle.httpx2
from aiothrottle import AttemptThrottled, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, ThrottleMiddleware
from tests.integrations.clients import (
    CONNECTION_ERRORS,
    AiohttpClient,
    Client,
    Feature,
    HttpxClient,
    Integration,
    every,
    send,
)
from tests.serving import answer, hang_up, serving

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)


# ---- one integration ---------------------------------------------------------------------------


async def unavailable(_: web.Request) -> web.Response:
    return web.Response(status=503, text="x" * 100_000)


@every(LIMITS, RETRIES)
async def test_response_before_is_the_cause_of_timeouts(integration: Integration) -> None:
    limiter = RateLimiter("1/h", concurrency_limit=1)
    async with integration.serve(unavailable, limiter=limiter, queue_timeout=1) as at:
        with pytest.raises(ThrottleTimeout) as caught:
            await at.send()
    cause = caught.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert "got a response with status 503" in str(cause)


@every(LIMITS, RETRIES)
async def test_failure_before_is_the_cause_of_timeouts(integration: Integration) -> None:
    async with integration.serve(hang_up, limiter=RateLimiter("1/h"), queue_timeout=1) as at:
        with pytest.raises(ThrottleTimeout) as caught:
            await at.send()
    assert isinstance(caught.value.__cause__, CONNECTION_ERRORS)


@every(LIMITS)
async def test_first_attempt_has_no_cause(integration: Integration) -> None:
    limiter = RateLimiter("1/h")
    await limiter.record()
    async with integration.serve(answer(), limiter=limiter, queue_timeout=1) as at:
        with pytest.raises(ThrottleTimeout) as caught:
            await at.send()
    assert caught.value.__cause__ is None


# ---- a retrying integration around one with a limiter ------------------------------------------

ALL = Retry(attempts=3, backoff=0.001, pause_jitter=0, exceptions=(Exception,))
Nested = Callable[[RateLimiter], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def session(limiter: RateLimiter) -> AsyncGenerator[Client]:
    inner = aiohttp.ClientSession(middlewares=[ThrottleMiddleware(limiter, queue_timeout=0.01)])
    async with ThrottledSession(
        RateLimiter(), session=inner, owns_session=True, retry=ALL
    ) as outer:
        yield AiohttpClient(outer)


@asynccontextmanager
async def middlewares(limiter: RateLimiter) -> AsyncGenerator[Client]:
    inner = ThrottleMiddleware(limiter, queue_timeout=0.01)
    async with aiohttp.ClientSession(middlewares=[RetryMiddleware(ALL), inner]) as outer:
        yield AiohttpClient(outer)


def transports(library: Any, transport: Any) -> Nested:  # noqa: ANN401 - a module, and its class
    @asynccontextmanager
    async def nested(limiter: RateLimiter) -> AsyncGenerator[Client]:
        inner = transport(limiter, queue_timeout=0.01, retry=Retry(attempts=1))
        around = transport(RateLimiter(), transport=inner, retry=ALL)
        async with library.AsyncClient(transport=around) as outer:
            yield HttpxClient(outer)

    return nested


every_nested = pytest.mark.parametrize(
    "nested",
    [
        session,
        middlewares,
        transports(httpx, aiothrottle.httpx.ThrottledTransport),
        transports(httpx2, aiothrottle.httpx2.ThrottledTransport),
    ],
    ids=["session", "middlewares", "httpx", "httpx2"],
)


@every_nested
async def test_inner_limiter_is_asked_once(nested: Nested) -> None:
    limiter = RateLimiter("1/h")
    async with serving(answer()) as (url, seen), nested(limiter) as client:
        (await limiter.acquire()).release()
        with pytest.raises(ThrottleTimeout) as caught:
            await send(client, url)
        assert caught.value.__cause__ is None
        assert limiter.statistics().rejected == 1
        assert not seen


@every_nested
async def test_response_before_is_the_cause_when_nested(nested: Nested) -> None:
    async with serving(answer(502)) as (url, seen), nested(RateLimiter("1/h")) as client:
        with pytest.raises(ThrottleTimeout) as caught:
            await send(client, url)
        assert len(seen) == 1
    cause = caught.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert cause.status == 502


@every_nested
async def test_failure_before_is_the_cause_when_nested(nested: Nested) -> None:
    async with serving(hang_up) as (url, seen), nested(RateLimiter("1/h")) as client:
        with pytest.raises(ThrottleTimeout) as caught:
            await send(client, url)
        assert len(seen) == 1
    assert isinstance(caught.value.__cause__, CONNECTION_ERRORS)
