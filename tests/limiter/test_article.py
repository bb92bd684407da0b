"""Specifies that the article "Async Python client rate limiter" works with its own usage."""

import asyncio

import pytest

from aiothrottle import RateLimiter
from aiothrottle.testing import greatest_count
from tests.virtually import now, virtual


@virtual
async def test_usage_of_the_article_works_unchanged() -> None:
    sent: list[float] = []
    in_flight: list[int] = []
    under_way = 0

    async def request(limiter: RateLimiter) -> None:
        nonlocal under_way
        async with limiter.throttle():
            under_way += 1
            sent.append(now())
            in_flight.append(under_way)
            await asyncio.sleep(0.3)
            under_way -= 1

    async with RateLimiter(rate_limit=20, concurrency_limit=10) as limiter:
        await asyncio.gather(*(request(limiter) for _ in range(100)))

    assert len(sent) == 100
    assert greatest_count(sent, period=1.0) == 20
    assert max(in_flight) == 10


@virtual
async def test_cancelled_waiter_keeps_no_slot() -> None:
    async with RateLimiter(rate_limit=1, concurrency_limit=5) as limiter:

        async def request() -> None:
            async with limiter.throttle():
                pass

        await request()
        waiting = [asyncio.create_task(request()) for _ in range(5)]
        await asyncio.sleep(0.1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0.9)
        async with asyncio.timeout(0.001):
            await request()


@pytest.mark.parametrize(("rate", "slots"), [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_errors_are_those_of_the_article(rate: int, slots: int) -> None:
    with pytest.raises(ValueError, match=r"rate|limit"):
        RateLimiter(rate_limit=rate, concurrency_limit=slots)
