"""Specifies `aclose()`: which requests are rejected, which continue, and what draining serves."""

import asyncio
import re

import pytest

from aiothrottle import (
    KeyedRateLimiter,
    LimiterClosed,
    RateLimiter,
    ThrottleError,
    ThrottleTimeout,
    WaitUntil,
)
from tests.limiter.common import errors_of, queued, together
from tests.support.virtually import counts, now, turns, visit, visits


async def test_aclose_rejects_waiters_and_newcomers() -> None:
    limiter = RateLimiter(1)
    limiter.pause(3600)  # which it does not wait for
    waiting = visits(limiter, 600)
    await asyncio.sleep(0.5)
    await asyncio.gather(limiter.aclose(), limiter.aclose())
    assert set(await errors_of(waiting)) == {LimiterClosed}
    assert (counts(limiter), now()) == ((0, 0), 0.5)
    await limiter.aclose()
    enter = limiter.throttle().__aenter__
    for ask in (limiter.acquire, limiter.try_acquire, limiter.peek, enter):
        with pytest.raises(LimiterClosed, match="closed"):
            await ask()
    assert issubclass(LimiterClosed, ThrottleError)
    assert issubclass(LimiterClosed, RuntimeError)


async def test_aclose_waits_for_no_pause_to_charge_a_rejected_request() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 1, 10))
    started, waiter, rejected = await queued(limiter, 3)
    limiter.pause(3600)
    await limiter.aclose()
    assert now() == 0.0
    outcomes = await errors_of([started, waiter, rejected])
    assert outcomes == (float, LimiterClosed, ThrottleTimeout)


async def test_running_requests_survive_aclose() -> None:
    limiter = RateLimiter(10, concurrency_limit=1)
    await visit(limiter)  # the fast path is open
    running, waiter = visits(limiter, 2, stay=5)
    await asyncio.sleep(1)
    await limiter.aclose()
    assert counts(limiter) == (1, 0)
    with pytest.raises(LimiterClosed):
        await visit(limiter)
    assert await errors_of([running, waiter]) == (float, LimiterClosed)
    assert (counts(limiter), now()) == ((0, 0), 5.0)


async def test_draining_serves_the_waiters_and_rejects_newcomers() -> None:
    for ends, expected in ((None, [0.0, 1.0, 2.0]), (1.5, [0.0, 1.0])):
        limiter, began = RateLimiter("1/s"), now()
        waiting = await queued(limiter, 3)
        closing = asyncio.create_task(limiter.aclose(drain=True))
        await turns()
        with pytest.raises(LimiterClosed):
            await visit(limiter)
        assert now() == began
        if ends is not None:
            await asyncio.sleep(ends)
            await limiter.aclose()  # ends the draining
            assert await errors_of(waiting) == (float, float, LimiterClosed)
        await closing
        assert now() - began == (ends or 2.0)
        assert await together(*waiting[: len(expected)]) == [began + at for at in expected]


async def test_number_in_place_of_drain_closes_nothing() -> None:
    keyed = KeyedRateLimiter()
    for limiter in (keyed["a"], keyed):
        with pytest.raises(ValueError, match="drain must be one of True, False, got 5"):
            await limiter.aclose(drain=5)  # type: ignore[arg-type]
        await visit(keyed["a"])


@pytest.mark.parametrize("keyed", [False, True])
async def test_async_with_closes_the_limiter_and_is_not_for_each_request(keyed: bool) -> None:
    """Other limiters are used like this; here it would limit nothing, and silently."""
    all_keys, failed = KeyedRateLimiter("1/s"), KeyedRateLimiter("1/s")
    one, other = (all_keys["a"], failed["a"]) if keyed else (RateLimiter("1/s"), RateLimiter("1/s"))
    call = "throttle(key)" if keyed else "throttle()"
    advice = re.escape(f"around each request write `async with limiter.{call}:`")
    limiter = all_keys if keyed else one
    async with limiter:
        waiting = await queued(one, 2)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=advice):
                await limiter.__aenter__()
    assert await errors_of(waiting) == (float, LimiterClosed)
    with pytest.raises(RuntimeError, match=advice):  # not one after the other either
        await limiter.__aenter__()
    with pytest.raises(KeyError):
        async with failed if keyed else other:
            raise KeyError
    with pytest.raises(LimiterClosed):
        await other.acquire()
