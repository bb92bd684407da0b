"""A request that could not be sent again says what its attempt before came to."""

import random

import pytest
from aiohttp import web

from aiothrottle import AttemptThrottled, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry
from aiothrottle.testing import RateLimitedServer
from tests.integrations.test_adaptive_throttling import FRONTS, Front


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)


@pytest.mark.parametrize("front", FRONTS)
async def test_the_response_before_is_the_cause_of_a_timeout(front: Front) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503, text="x" * 100_000)

    limiter = RateLimiter("1/h", concurrency_limit=1)
    async with (
        RateLimitedServer(None, handler=refuse) as server,
        front(limiter, retry=Retry(), queue_timeout=1) as get,
    ):
        with pytest.raises(ThrottleTimeout) as raised:
            await get(str(server.url))
    cause = raised.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert "got a response with status 503" in str(cause)
    assert limiter.statistics().in_flight == 0


@pytest.mark.parametrize("front", FRONTS)
async def test_the_failure_before_is_the_cause_of_a_timeout(front: Front) -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport
        request.transport.abort()
        return web.Response()

    async with (
        RateLimitedServer(None, handler=hang_up) as server,
        front(RateLimiter("1/h"), retry=Retry(), queue_timeout=1) as get,
    ):
        with pytest.raises(ThrottleTimeout) as raised:
            await get(str(server.url))
    assert raised.value.__cause__ is not None
    assert not isinstance(raised.value.__cause__, AttemptThrottled)


@pytest.mark.parametrize("front", FRONTS)
async def test_at_the_first_attempt_there_is_none(front: Front) -> None:
    limiter = RateLimiter("1/h")
    await limiter.record()
    async with front(limiter, queue_timeout=1) as get:
        with pytest.raises(ThrottleTimeout) as raised:
            await get("http://127.0.0.1:9/")
    assert raised.value.__cause__ is None
