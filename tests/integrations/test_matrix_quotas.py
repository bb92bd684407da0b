"""What servers report, and what every integration makes of it: pauses and server quotas."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import AdaptiveRate, RateLimiter
from aiothrottle.aiohttp import Retry
from aiothrottle.headers import Profile
from tests.integrations.clients import ONCE, Clock, Feature, Integration, every
from tests.serving import Handler, answer, until
from tests.virtually import turns

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


YEAR = 365 * 86400.0


# ---- pauses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (lambda: {"Retry_After": "30"}, 30),
        (lambda: {"Retry_After": http_date(30)}, 30),
        # The clock of this server is a year behind, and 20 s are 20 s all the same.
        (lambda: {"Date": http_date(-YEAR), "Retry_After": http_date(20 - YEAR)}, 20),
    ],
    ids=["seconds", "date", "date of another clock"],
)
@every(LIMITS)
async def test_throttled_response_pauses_the_limiter(
    integration: Integration, headers: Callable[[], dict[str, str]], seconds: float
) -> None:
    limiter = RateLimiter(100, concurrency_limit=2, guard=0.0)
    retry = Retry(pause_jitter=0)
    async with integration.serve(answer(429, **headers()), limiter=limiter, retry=retry) as at:
        at.start()
        await until(lambda: at.paused_for)
        assert seconds - 2 < (await limiter.try_acquire()).retry_after <= seconds
        await turns(20)
        at.start()
        await until(lambda: at.waiting)
        await turns(20)
        assert at.held == 0
        assert len(at.seen) == 1


@every(LIMITS, RETRIES)
async def test_attempt_is_not_sent_before_retry_after(
    integration: Integration, clock: Clock
) -> None:
    throttled = answer(429, Retry_After="30")
    async with integration.serve(throttled, throttled, answer(), limiter=clock.limiter()) as at:
        task = at.start()
        for attempts in (1, 2):
            await until(lambda: at.paused_for > 29)
            await clock.skip(29)
            assert len(at.seen) == attempts
            await clock.skip(1)
        assert (await task).status == 200
        at.assert_granted(3)


@pytest.mark.parametrize("retry_after", ["11", "3600", "Fri, 31 Dec 9999 23:59:59 GMT"])
@every()
async def test_too_long_retry_after_is_not_waited_for(
    integration: Integration, retry_after: str
) -> None:
    retry = Retry(max_retry_after=10)
    async with integration.serve(answer(429, Retry_After=retry_after), retry=retry) as at:
        assert await at.send() == (429, b"body")
        assert len(at.seen) == 1
        # Other requests wait too, but no longer than was allowed.
        assert (8 < at.paused_for <= 10) == integration.has(LIMITS)


class Throttling:
    """Holds the first requests, and throttles each when its event is set."""

    def __init__(self, count: int, **headers: str) -> None:
        self.arrived = 0
        self.throttle = [asyncio.Event() for _ in range(count)]
        self._handlers = answer(429, **headers), answer()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        number = self.arrived
        self.arrived += 1
        throttled, served = self._handlers
        if number < len(self.throttle):
            await self.throttle[number].wait()
            return await throttled(request)
        return await served(request)


@every(LIMITS)
async def test_throttled_sibling_does_not_extend_a_backoff(integration: Integration) -> None:
    throttling = Throttling(2)
    retry = Retry(backoff=1000, max_backoff=1000, max_retry_after=2000)
    limiter = RateLimiter(concurrency_limit=2)
    async with integration.serve(throttling, limiter=limiter, retry=retry, connections=2) as at:
        for _ in range(2):
            at.start()
        await until(lambda: throttling.arrived == 2)
        throttling.throttle[0].set()
        await until(lambda: at.paused_for)
        ends_at = limiter._engine.pause.ends_at
        throttling.throttle[1].set()
        await until(lambda: not at.held)
        await turns(20)
        assert limiter._engine.pause.ends_at == ends_at


@every(LIMITS)
async def test_reported_pauses_are_not_summed(integration: Integration) -> None:
    throttling = Throttling(2, Retry_After="30")
    limiter = RateLimiter(concurrency_limit=2)
    async with integration.serve(throttling, limiter=limiter, connections=2) as at:
        for _ in range(2):
            at.start()
        await until(lambda: throttling.arrived == 2)
        for event in throttling.throttle:
            event.set()
        await until(lambda: not at.held)
        await turns(20)
        assert 29 < at.paused_for <= 31


@every(LIMITS)
async def test_pause_is_jittered_for_each_client(integration: Integration) -> None:
    pauses: set[float] = set()
    for _ in range(5):
        async with integration.serve(answer(429, Retry_After="5"), retry=Retry(attempts=1)) as at:
            await at.send()
            pause = at.limiter._engine.pause
            pauses.add(pause.ends_at - pause.began_at)
    assert all(5.0 <= pause <= 5.5 for pause in pauses)
    assert len(pauses) > 1


# ---- server quotas -----------------------------------------------------------------------------


def reporting(remaining: int, reset: float) -> Handler:
    return answer(X_RateLimit_Remaining=str(remaining), X_RateLimit_Reset=str(reset))


async def send_once(
    integration: Integration,
    limiter: RateLimiter,
    *script: Handler,
    **options: Any,  # noqa: ANN401 - those of the integration
) -> None:
    async with integration.serve(*script, limiter=limiter, retry=ONCE, **options) as at:
        for _ in script:
            await at.send()


@every(LIMITS)
async def test_limiter_gets_the_reported_quota(integration: Integration) -> None:
    limiter = RateLimiter(1000)
    for remaining, reset in [(7, 60), (1, 55), (0, 50)]:
        await send_once(integration, limiter, reporting(remaining, reset))
        assert limiter.statistics().quota_remaining == remaining
    assert 49 < (await limiter.peek()).retry_after <= 60


@every(LIMITS)
async def test_server_quota_none_ignores_the_quota(integration: Integration) -> None:
    limiter = RateLimiter(1000)
    await send_once(integration, limiter, reporting(0, 50), server_quota=None)
    assert limiter.statistics().quota_remaining is None


@every(LIMITS)
async def test_quota_counts_no_longer_than_a_pause(integration: Integration) -> None:
    limiter = RateLimiter(1000)
    await send_once(integration, limiter, reporting(0, 86400))
    assert 115 < (await limiter.peek()).retry_after <= 120


@every(LIMITS)
async def test_following_limiter_takes_the_reported_rate(integration: Integration) -> None:
    limiter = RateLimiter("server", concurrency_limit=10, guard=0.0)
    policy = answer(RateLimit_Policy='"a";q=50;w=10, "b";q=1000;w=3600')
    await send_once(integration, limiter, policy)
    expected = RateLimiter(["50/10s", "1000/h"], guard=0.0)
    assert limiter._engine.bucket.algorithm == expected._engine.bucket.algorithm
    assert limiter._engine.semaphore.limit == 10


@every(LIMITS)
async def test_adaptive_rate_adopts_the_shortest_rate(integration: Integration) -> None:
    limiter = RateLimiter(AdaptiveRate(100, 1, 1000))
    policy = answer(RateLimit_Policy='"a";q=50;w=10, "b";q=1000;w=3600')
    await send_once(integration, limiter, policy)
    assert limiter.statistics().rate_limit == pytest.approx(0.97 * 5)


@every(LIMITS)
async def test_given_profile_is_used(integration: Integration) -> None:
    limiter = RateLimiter(1000)
    profile = Profile(name="ours", hosts=("127.0.0.1",), refusals=frozenset({418}))
    await send_once(integration, limiter, answer(418, Retry_After="9"))
    assert limiter.statistics().paused_for == 0
    await send_once(integration, limiter, answer(418, Retry_After="9"), profiles=[profile])
    assert 8 < limiter.statistics().paused_for <= 10


async def throttled_by_its_body(_: web.Request) -> web.Response:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "9s"}]
    return web.json_response({"error": {"code": 429, "details": details}}, status=429)


@pytest.mark.parametrize(
    "handler",
    [answer(403, X_RateLimit_Remaining="0", X_RateLimit_Reset="9"), throttled_by_its_body],
    ids=["403", "body"],
)
@every(LIMITS)
async def test_headers_or_body_may_report_throttling(
    integration: Integration, handler: Handler
) -> None:
    limiter = RateLimiter(1000)
    await send_once(integration, limiter, handler)
    assert 8 < limiter.statistics().paused_for <= 10


@pytest.mark.parametrize(("headers", "attempts"), [({"X_RateLimit_Remaining": "0"}, 2), ({}, 1)])
@every(RETRIES)
async def test_403_is_retried_if_it_is_throttled(
    integration: Integration, headers: dict[str, str], attempts: int
) -> None:
    retry_after = {"Retry_After": "0.001"} if headers else {}
    options: dict[str, Any] = {"server_quota": None} if integration.has(LIMITS) else {}
    throttled = answer(403, **headers, **retry_after)
    async with integration.serve(throttled, answer(), **options) as at:
        assert (await at.send(method="POST")).status == (200 if attempts == 2 else 403)
        assert len(at.seen) == attempts
