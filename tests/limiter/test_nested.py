"""Specifies the errors and warnings of a program whose requests wait for slots that it keeps."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, ThrottleTimeout
from aiothrottle.httpx import ThrottledTransport
from tests.limiter.common import queued, starts, together
from tests.support.virtually import counts, now, visit, visits


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]


async def test_slots_kept_for_long_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    limiters = KeyedRateLimiter(concurrency_limit=1)
    for limiter, slots in ((RateLimiter(concurrency_limit=2, name="api"), 2), (limiters["ann"], 1)):
        kept = [await limiter.acquire() for _ in range(slots)]  # such as unread responses
        waiting = visits(limiter, 3)
        await visit(limiters["bob"])
        await asyncio.sleep(29)
        assert warnings_of(caplog) == []
        await asyncio.sleep(300)
        (line,) = warnings_of(caplog)
        name = "api" if slots == 2 else "ann"
        assert line.startswith(f"'{name}': no slot was released for ")
        assert "while requests wait for one (3): a response keeps its slot until it is read" in line
        kept.pop().release()
        await together(*waiting)
        caplog.clear()


async def test_slow_requests_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    limiter = RateLimiter("1/min", concurrency_limit=1)
    for _ in range(4):
        await visit(limiter, stay=25)
    await together(*visits(RateLimiter(concurrency_limit=1), 20, stay=25))
    assert now() > 500
    assert warnings_of(caplog) == []


# ---- throttle() inside throttle() ---------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("begun", [False, True])
async def test_nested_block_without_a_slot_is_an_error(limit: int, begun: bool) -> None:
    limiter = RateLimiter(concurrency_limit=limit, name="api")
    await starts(limiter, 3 * begun)

    async def nest(depth: int) -> None:
        async with limiter.throttle():
            if depth:
                await nest(depth - 1)

    await nest(limit - 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this task holds a slot of the limiter 'api'"):
            await nest(limit)
        assert counts(limiter) == (0, 0)
    assert now() == 0.0
    await together(*visits(limiter, 3 * limit, stay=1))
    assert now() == 3.0


async def test_wait_that_can_end_is_no_error() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with limiter.throttle():
        with pytest.raises(ThrottleTimeout):
            await visit(limiter, timeout=1)
    for way in ("acquire", "try_acquire"):
        held = await limiter.acquire() if way == "acquire" else (await limiter.try_acquire()).permit
        assert held is not None
        begun = now()
        asyncio.get_running_loop().call_later(1, held.release)  # as another task may
        assert await visit(limiter) == begun + 1
    async with limiter.throttle() as permit:
        permit.release()
        (other,) = await queued(limiter, stay=1)
        assert await visit(limiter) == await other + 1
    async with limiter.throttle():
        limiter.update(concurrency_limit=2)
        assert await visit(limiter) == now()
    assert counts(limiter) == (0, 0)
    unlimited = RateLimiter()
    ThrottledTransport(unlimited)  # it begins with one slot, and opens the others within a second
    async with unlimited.throttle():
        begun = now()
        assert await visit(unlimited) == begun + 1


async def test_nesting_across_a_parent_is_an_error() -> None:
    parent = RateLimiter(concurrency_limit=1, name="account")
    child = RateLimiter("100/s", parent=parent)
    async with parent.throttle():
        with pytest.raises(RuntimeError, match="holds a slot of the limiter 'account'"):
            await visit(child)
        with pytest.raises(ThrottleTimeout, match="all slots are taken, limited by 'account'"):
            await visit(child, timeout=1)
    assert (counts(parent), counts(child)) == ((0, 0), (0, 0))
    assert await visit(child) == now()


async def test_block_of_a_generator_may_be_garbage_and_is_no_error() -> None:
    limiter = RateLimiter(concurrency_limit=1)

    @asynccontextmanager
    async def slot() -> AsyncGenerator[None]:
        async with limiter.throttle(timeout=9):
            yield

    async with slot():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await limiter.acquire()
    assert counts(limiter) == (0, 0)


async def test_exit_stack_may_be_closed_by_another_task() -> None:
    limiter = RateLimiter(concurrency_limit=2)

    async def answer(stack: AsyncExitStack) -> None:
        async with stack:
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(limiter.throttle())
                assert now() == number // 2
                group.create_task(answer(stack.pop_all()))
    assert counts(limiter) == (0, 0)
