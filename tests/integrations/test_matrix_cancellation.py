"""A cancelled request leaves no slot, no waiter and no connection behind, in any integration.

Each scene checks at its end that no slot is held and nothing waits.
"""

import asyncio
from contextlib import suppress

import pytest

from tests.integrations.clients import Feature, Integration, every
from tests.serving import answer, never, until
from tests.virtually import turns

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES

pytestmark = pytest.mark.uvloop


async def cancel(task: "asyncio.Task[object]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@every(LIMITS)
async def test_request_cancelled_in_the_queue_leaves_it(integration: Integration) -> None:
    async with integration.serve(answer()) as at:
        async with at.limiter.throttle():
            task = at.start()
            await until(lambda: at.waiting)
            await cancel(task)
            assert (at.held, at.waiting) == (1, 0)
        assert not at.seen
        assert await at.send() == (200, b"body")


@every(LIMITS)
async def test_request_cancelled_before_the_headers_returns_its_slot(
    integration: Integration,
) -> None:
    async with integration.serve(never, answer()) as at:
        task = at.start()
        await until(lambda: at.seen)
        await cancel(task)
        assert at.held == 0
        assert await at.send() == (200, b"body")


@every(LIMITS, RETRIES)
async def test_request_cancelled_between_attempts_holds_nothing(integration: Integration) -> None:
    async with integration.serve(answer(429, Retry_After="30")) as at:
        task = at.start()
        await until(lambda: at.paused_for and not at.held)
        await turns(20)
        assert len(at.seen) == 1
        await cancel(task)
        assert (at.held, at.waiting) == (0, 0)


@every(LIMITS, RETRIES)
async def test_request_cancelled_at_any_turn_returns_its_slot(integration: Integration) -> None:
    # httpx 0.28 itself loses a connection that is cancelled at certain turns.
    async with integration.misbehave(connections=100) as (server, at):
        server.retry_after = "Retry-After: 0.001\r\n"
        for count in range(60):
            task = at.start("throttled-large" if count % 2 else "throttled")
            await turns(count)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            server.hits.clear()
            await until(lambda: not at.held)
