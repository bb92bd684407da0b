"""The one retry loop, by what has to be the same in all integrations, over real HTTP."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import aiohttp
import httpx
import httpx2
import pytest

import aiothrottle.httpx
import aiothrottle.httpx2
from aiothrottle import AttemptThrottled, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, ThrottleMiddleware
from tests.serving import answer, hang_up, serving

ALL = Retry(attempts=3, backoff=0.001, pause_jitter=0, exceptions=(Exception,))

Get: TypeAlias = Callable[[str], Awaitable[Any]]
# An integration that retries, around one that has a limiter of its own.
Around: TypeAlias = Callable[[RateLimiter], AbstractAsyncContextManager[Get]]


@asynccontextmanager
async def session(limiter: RateLimiter) -> AsyncGenerator[Get]:
    inner = aiohttp.ClientSession(middlewares=[ThrottleMiddleware(limiter, queue_timeout=0.01)])
    async with ThrottledSession(
        RateLimiter(), session=inner, owns_session=True, retry=ALL
    ) as outer:
        yield outer.get


@asynccontextmanager
async def middlewares(limiter: RateLimiter) -> AsyncGenerator[Get]:
    inner = ThrottleMiddleware(limiter, queue_timeout=0.01)
    async with aiohttp.ClientSession(middlewares=[RetryMiddleware(ALL), inner]) as outer:
        yield outer.get


@asynccontextmanager
async def transport(limiter: RateLimiter) -> AsyncGenerator[Get]:
    of = aiothrottle.httpx.ThrottledTransport
    inner = of(limiter, queue_timeout=0.01, retry=Retry(attempts=1))
    async with httpx.AsyncClient(transport=of(RateLimiter(), transport=inner, retry=ALL)) as outer:
        yield outer.get


@asynccontextmanager
async def transport2(limiter: RateLimiter) -> AsyncGenerator[Get]:
    of = aiothrottle.httpx2.ThrottledTransport
    inner = of(limiter, queue_timeout=0.01, retry=Retry(attempts=1))
    async with httpx2.AsyncClient(transport=of(RateLimiter(), transport=inner, retry=ALL)) as outer:
        yield outer.get


all_of_them = pytest.mark.parametrize("around", [session, middlewares, transport, transport2])


@all_of_them
async def test_limiter_further_in_is_asked_once(around: Around) -> None:
    limiter = RateLimiter("1/h")
    async with serving(answer()) as (url, seen), around(limiter) as get:
        (await limiter.acquire()).release()
        with pytest.raises(ThrottleTimeout) as raised:
            await get(str(url))
        assert raised.value.__cause__ is None
        assert limiter.statistics().rejected == 1
        assert not seen


@all_of_them
async def test_response_before_is_the_cause(around: Around) -> None:
    async with serving(answer(502)) as (url, seen), around(RateLimiter("1/h")) as get:
        with pytest.raises(ThrottleTimeout) as raised:
            await get(str(url))
        assert len(seen) == 1
    cause = raised.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert cause.status == 502


@all_of_them
async def test_exception_before_is_the_cause(around: Around) -> None:
    async with serving(hang_up) as (url, seen), around(RateLimiter("1/h")) as get:
        with pytest.raises(ThrottleTimeout) as raised:
            await get(str(url))
        assert len(seen) == 1
    assert isinstance(
        raised.value.__cause__,
        aiohttp.ClientConnectionError | httpx.TransportError | httpx2.TransportError,
    )
