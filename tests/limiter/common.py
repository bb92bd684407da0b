"""What several tests of limiters use."""

import asyncio
from collections.abc import Iterable
from typing import Any, TypeAlias

import pytest

from aiothrottle import Permit, RateLimiter
from tests.support.virtually import turns, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


async def remaining(limiter: RateLimiter) -> float:
    return (await limiter.peek()).remaining


async def left_of_each(limiter: RateLimiter) -> dict[str, float]:
    decision = await limiter.peek()
    return {name: resource.remaining for name, resource in decision.resources.items()}


async def queued(
    limiter: RateLimiter, count: int = 1, *cost: Unchecked, **options: Unchecked
) -> list[asyncio.Task[float]]:
    """Start visits, and return when they wait."""
    tasks = visits(limiter, count, *cost, **options)
    await turns()
    return tasks


async def together(*tasks: asyncio.Task[float]) -> list[float]:
    """Wait for all visits, and return the times of their grants."""
    return await asyncio.gather(*tasks)


async def starts(limiter: RateLimiter, count: int, *cost: Unchecked) -> list[float]:
    """Start visits at once, and return the times of their grants."""
    return await together(*visits(limiter, count, *cost))


async def order_of(guests: str, limiters: dict[str, RateLimiter]) -> str:
    """Start guests of the named limiters at once, and return the order in which they enter."""
    order: list[str] = []

    async def guest(name: str) -> None:
        async with limiters[name].throttle():
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*map(guest, guests))
    return "".join(order)


async def errors_of(tasks: Iterable[asyncio.Task[float]]) -> tuple[object, ...]:
    """Wait for all visits, and return the types of what they return or raise."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return tuple(type(outcome) for outcome in outcomes)


async def send(limiter: RateLimiter, *cost: Unchecked, took: float = 0.1) -> None:
    """Send one request that succeeds."""
    async with limiter.throttle(*cost) as permit:
        await asyncio.sleep(took)
        permit.report_success()


async def throttle_one(
    limiter: RateLimiter, retry_after: float | None = None, took: float = 0.1
) -> float:
    """Send one request that the server throttles; return the seconds of the pause."""
    async with limiter.throttle() as permit:
        await asyncio.sleep(took)
        permit.report_throttled(retry_after)
    return limiter.statistics().paused_for


async def each_rejects(
    limiter: RateLimiter, permit: Permit, cost: Unchecked, error: type[Exception], message: str
) -> None:
    """Give the wrong cost to each method that takes one."""
    for call in (limiter.throttle, limiter.throttled, permit.settle):
        with pytest.raises(error, match=message):
            call(cost)
    for ask in (limiter.acquire, limiter.try_acquire, limiter.peek, limiter.record):
        with pytest.raises(error, match=message):
            await ask(cost)
