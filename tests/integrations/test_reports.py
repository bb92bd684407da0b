"""What the integrations report to the limiter: throttled, failed, cancelled, and its effect.

After a pause one request goes ahead, and what the others do depends on the report about it;
adaptive slots learn from failures.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import AdaptiveConcurrency, RateLimiter
from aiothrottle.aiohttp import Retry
from tests.integrations.clients import CONNECTION_ERRORS, Feature, Integration, Scene, every
from tests.serving import Handler, answer, hang_up, never, until

LIMITS = Feature.LIMITS
WORKERS = 6
#: One attempt, and short pauses.
ONCE: dict[str, Any] = {
    "retry": Retry(attempts=1, backoff=0.05, max_backoff=0.05, pause_jitter=0),
    "connections": WORKERS,
}


class Gate:
    """A handler that answers when it is opened."""

    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.opened = asyncio.Event()

    async def __call__(self, _: web.Request) -> web.Response:
        await self.opened.wait()
        return web.Response(status=self._status)


async def empty_429(_: web.Request) -> web.Response:
    """Throttle without a body: some clients release the connection with the headers."""
    return web.Response(status=429)


async def waiting(at: Scene) -> list[asyncio.Task[Any]]:
    """Be throttled once, and start tasks that wait until the pause is over."""
    assert (await at.send()).status == 429
    return [at.start() for _ in range(WORKERS)]


@pytest.mark.parametrize("status", [200, 404, 500])
@every(LIMITS)
async def test_others_follow_the_answer_to_the_first(integration: Integration, status: int) -> None:
    gate = Gate(status)
    limiter = RateLimiter(1000)
    async with integration.serve(empty_429, gate, limiter=limiter, **ONCE) as at:
        tasks = await waiting(at)
        await until(lambda: len(at.seen) == 2)
        await asyncio.sleep(0.02)
        assert len(at.seen) == 2
        gate.opened.set()
        replies = await asyncio.gather(*tasks)
        assert [reply.status for reply in replies] == [status] * WORKERS


@pytest.mark.parametrize("throttled", [empty_429, answer(429), answer(503)])
@every(LIMITS)
async def test_each_pause_costs_one_throttled_request(
    integration: Integration, throttled: Handler
) -> None:
    ends_at = asyncio.get_running_loop().time() + 0.17

    async def handle(request: web.Request) -> web.StreamResponse:
        if asyncio.get_running_loop().time() < ends_at:
            return await throttled(request)
        return web.Response()

    limiter = RateLimiter(1000)
    async with integration.serve(handle, limiter=limiter, **ONCE) as at:
        assert (await at.send()).status in {429, 503}
        replies = await asyncio.gather(*(at.send() for _ in range(2 * WORKERS)))
        assert sum(reply.status != 200 for reply in replies) <= 3


@every(LIMITS)
async def test_cut_connection_passes_the_role_on(integration: Integration) -> None:
    gate = Gate()
    limiter = RateLimiter(1000)
    async with integration.serve(answer(429), hang_up, gate, limiter=limiter, **ONCE) as at:
        tasks = await waiting(at)
        await until(lambda: len(at.seen) == 3)
        await asyncio.sleep(0.02)
        assert len(at.seen) == 3  # one in its place
        gate.opened.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, CONNECTION_ERRORS) for result in results) == 1


@every(LIMITS)
async def test_cancelled_request_passes_the_role_on(integration: Integration) -> None:
    gate = Gate()
    limiter = RateLimiter(1000)
    async with integration.serve(answer(429), never, gate, limiter=limiter, **ONCE) as at:
        tasks = await waiting(at)
        await until(lambda: len(at.seen) == 2)
        tasks[0].cancel()
        await until(lambda: len(at.seen) == 3)
        await asyncio.sleep(0.02)
        assert len(at.seen) == 3  # one in its place
        gate.opened.set()
        replies = await asyncio.gather(*tasks[1:])
        assert [reply.status for reply in replies] == [200] * (WORKERS - 1)


# ---- adaptive slots ------------------------------------------------------------------------------


def adaptive() -> RateLimiter:
    return RateLimiter(concurrency_limit=AdaptiveConcurrency(4, 1, 16))


@pytest.mark.parametrize("handler", [answer(500), answer(502), hang_up])
@every(LIMITS)
async def test_failures_are_no_fast_successes(integration: Integration, handler: Handler) -> None:
    limiter = adaptive()
    async with integration.serve(handler, limiter=limiter, **ONCE) as at:
        for _ in range(10):
            await asyncio.gather(*(at.send() for _ in range(4)), return_exceptions=True)
        concurrency_limit = limiter.statistics().concurrency_limit
        assert concurrency_limit is not None
        assert concurrency_limit <= 4


@every(LIMITS)
async def test_bare_429_lowers_adaptive_slots_without_a_pause(integration: Integration) -> None:
    limiter = adaptive()
    async with integration.serve(answer(429), limiter=limiter, **ONCE) as at:
        await asyncio.gather(*(at.send() for _ in range(4)))
        assert at.paused_for == 0.0
        concurrency_limit = limiter.statistics().concurrency_limit
        assert concurrency_limit is not None
        assert concurrency_limit < 4


@every(LIMITS)
async def test_retry_after_pauses_adaptive_slots(integration: Integration) -> None:
    async with integration.serve(answer(429, Retry_After="7"), limiter=adaptive(), **ONCE) as at:
        await at.send()
        assert 6.0 < at.paused_for <= 7.0


@pytest.mark.parametrize(
    "limiter",
    [
        lambda: RateLimiter(concurrency_limit=4),
        lambda: RateLimiter(100, concurrency_limit=AdaptiveConcurrency(4, 1, 16)),
    ],
    ids=["no adaptive slots", "a rate"],
)
@every(LIMITS)
async def test_bare_429_pauses_any_other_limit(
    integration: Integration, limiter: Callable[[], RateLimiter]
) -> None:
    async with integration.serve(answer(429), limiter=limiter(), **ONCE) as at:
        await at.send()
        assert 0.0 < at.paused_for <= 0.05
