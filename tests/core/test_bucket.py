"""The bucket: each token is counted once, and refunded at the instant of its charge."""

import asyncio

import pytest

from aiothrottle import RateLimiter, SlidingWindowLog
from aiothrottle._core.bucket import LocalBucket
from tests.support.virtually import virtual


def bucket_of(limit: float = 4) -> LocalBucket:
    return LocalBucket(SlidingWindowLog(limit), lambda: 0.0)


def start_on_credit(bucket: LocalBucket, *instants: float) -> None:
    """Do what the fast path of `Permit` does."""
    for now in instants:
        bucket.credit -= 1
        bucket.timestamps.append(now)


@pytest.mark.parametrize(("limit", "credit"), [(4, 3), (1_000_000, 256)])
def test_credit_is_the_bounded_number_that_may_start(limit: float, credit: int) -> None:
    bucket = bucket_of(limit)
    bucket.take(0.0, 1.0, opens_credit=True)
    assert bucket.credit == credit


def test_flush_ends_the_credit_and_takes_each_token_once() -> None:
    bucket = bucket_of(4)
    bucket.take(0.0, 0.0, opens_credit=True)
    bucket.flush()
    assert bucket.credit == 0
    bucket.take(0.0, 0.0, opens_credit=True)
    start_on_credit(bucket, 0.0, 0.25)
    bucket.flush()
    bucket.flush()
    assert (bucket.credit, bucket.timestamps) == (0, [])
    assert (bucket.granted, bucket.remaining(0.5)) == (4, 2)


@virtual
async def test_tokens_charged_later_are_refunded_first() -> None:
    limiter = RateLimiter("10/s")
    remaining: list[float] = []
    permit = await limiter.acquire(4)
    # Four at the start, three more at 0.5, of which two and then one are refunded.
    for at, cost in ((0.5, 7), (0.25, 5), (0.5, 5), (0.125, 4)):
        await asyncio.sleep(at)
        permit.settle(cost)
        remaining.append((await limiter.peek()).remaining)
    assert remaining == [3, 5, 9, 10]
