"""Adaptive throttling: every integration drops requests to a failing origin, and to that one only.

The random number is always 0.0, so that any dropped share above 0 drops the next request.
"""

import asyncio
import random
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import web

from aiothrottle import (
    AdaptiveThrottling,
    AttemptThrottled,
    RateLimiter,
    RequestDropped,
    ThrottleTimeout,
)
from aiothrottle._http.throttling import OriginThrottling
from aiothrottle.aiohttp import Retry, ThrottledSession
from aiothrottle.testing import RateLimitedServer
from tests.integrations.clients import (
    CONNECTION_ERRORS,
    ONCE,
    TIMEOUTS,
    Clock,
    Feature,
    Integration,
    every,
)
from tests.serving import answer, never, until
from tests.virtually import turns

STRICT = AdaptiveThrottling(k=1.0)
LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES


@pytest.fixture(autouse=True)
def _drop_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)


async def status_in_the_path(request: web.Request) -> web.Response:
    return web.Response(status=int(request.path.strip("/")))


def serve() -> RateLimitedServer:
    return RateLimitedServer(None, handler=status_in_the_path)


@every(LIMITS)
async def test_request_to_a_failing_origin_is_not_sent(integration: Integration) -> None:
    limiter = RateLimiter(1000, concurrency_limit=10)
    async with (
        serve() as failing,
        serve() as healthy,
        integration.scene(failing.url, [], limiter, retry=ONCE, adaptive_throttling=STRICT) as at,
    ):
        assert (await at.send("500")).status == 500
        with pytest.raises(RequestDropped, match="is failing: the request was dropped") as caught:
            await at.send("200")
        for _ in range(2):
            assert (await at.send(f"{healthy.url}200")).status == 200
        assert len(failing.audit.requests) == 1
        at.assert_granted(3)
    assert caught.value.dropped_share == 0.5
    assert caught.value.origin == f"127.0.0.1:{failing.url.port}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("status", [200, 304, 404, 429])
@every(LIMITS)
async def test_client_error_counts_as_accepted(integration: Integration, status: int) -> None:
    async with integration.serve(answer(status), retry=ONCE, adaptive_throttling=STRICT) as at:
        for _ in range(3):
            assert (await at.send()).status == status


@every(LIMITS, RETRIES)
async def test_dropped_retry_has_the_response_before_as_cause(integration: Integration) -> None:
    retry = Retry(backoff=0.001)
    async with integration.serve(answer(502), retry=retry, adaptive_throttling=STRICT) as at:
        with pytest.raises(RequestDropped) as caught:
            await at.send()
        assert len(at.seen) == 1
    cause = caught.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert (cause.status, cause.retry_after) == (502, None)


@every(LIMITS)
async def test_failed_connection_counts_as_failure(integration: Integration) -> None:
    async with serve() as server:
        url = server.url
    async with integration.scene(url, [], retry=ONCE, adaptive_throttling=STRICT) as at:
        with pytest.raises(CONNECTION_ERRORS):
            await at.send()
        with pytest.raises(RequestDropped):
            await at.send()


@every(LIMITS)
async def test_timeout_in_the_queue_is_not_counted(integration: Integration) -> None:
    options: dict[str, Any] = {"adaptive_throttling": STRICT, "queue_timeout": 0}
    async with integration.serve(answer(), retry=ONCE, **options) as at:
        async with at.limiter.throttle():
            with pytest.raises(ThrottleTimeout):
                await at.send()
        assert (await at.send()).status == 200


@pytest.mark.parametrize("count", [1, 2, 10, 50, 200])
@every(LIMITS)
async def test_requests_in_flight_are_not_dropped(integration: Integration, count: int) -> None:
    arrived = 0
    together = asyncio.Event()

    async def wait_for_others(_: web.Request) -> web.Response:
        nonlocal arrived
        arrived += 1
        if arrived == min(count, 50):
            together.set()
        await together.wait()
        return web.Response()

    options: dict[str, Any] = {"adaptive_throttling": STRICT, "connections": 100}
    limiter = RateLimiter()
    async with integration.serve(wait_for_others, limiter=limiter, retry=ONCE, **options) as at:
        for _ in range(2):
            replies = await asyncio.gather(*(at.send() for _ in range(count)))
            assert [reply.status for reply in replies] == [200] * count


@every(LIMITS)
async def test_cancelled_request_is_not_counted(integration: Integration) -> None:
    script = [never, never, never, answer()]
    async with integration.serve(*script, retry=ONCE, adaptive_throttling=STRICT) as at:
        for count in (1, 2, 3):
            task = at.start()
            while len(at.seen) < count:
                await turns(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await at.send()).status == 200


@every(LIMITS)
async def test_timeout_of_the_client_counts_as_failure(
    integration: Integration, clock: Clock
) -> None:
    async with integration.serve(never, retry=ONCE, adaptive_throttling=STRICT) as at:
        task = at.start(timeout=60)
        await until(lambda: at.seen)
        await turns(20)
        await clock.skip(61)
        with pytest.raises(TIMEOUTS):
            await task
        with pytest.raises(RequestDropped):
            await at.send()


@every(LIMITS)
async def test_unsendable_request_is_not_counted(integration: Integration) -> None:
    async with integration.serve(answer(), retry=ONCE, adaptive_throttling=STRICT) as at:
        for _ in range(2):
            with pytest.raises((ValueError, httpx.LocalProtocolError, httpx2.LocalProtocolError)):
                await at.send(headers={"X": "a\r\nb"})
        assert not at.seen


async def test_raised_response_counts_by_its_status() -> None:
    async with (
        serve() as server,
        ThrottledSession(
            RateLimiter(None), retry=ONCE, adaptive_throttling=STRICT, raise_for_status=True
        ) as session,
    ):
        for path in ("404", "404", "404", "503"):
            with pytest.raises(aiohttp.ClientResponseError):
                await session.get(server.url / path)
        with pytest.raises(RequestDropped):
            await session.get(server.url / "200")


async def test_number_of_remembered_origins_is_bounded() -> None:
    throttling = OriginThrottling(STRICT)
    for number in range(3000):
        throttling.count("first.example", None)
        throttling.count(f"{number}.example", None)
    assert len(throttling._states) == 1024
    for known in ("first.example", "2999.example"):
        with pytest.raises(RequestDropped):
            throttling.check(known)
    throttling.check("1.example")
