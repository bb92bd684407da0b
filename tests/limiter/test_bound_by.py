"""`Statistics.bound_by` says why a request would have to wait."""

import asyncio

from aiothrottle import AdaptiveRate, RateLimiter, SharedConcurrency
from aiothrottle.stores import MemoryStore
from tests.limiter.common import throttle_one
from tests.support.virtually import turns


def reason(limiter: RateLimiter) -> str | None:
    return limiter.statistics().bound_by


async def test_each_limit_is_named() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=2)
    assert reason(limiter) is None
    first, second = await limiter.acquire(), await limiter.acquire()
    assert reason(limiter) == "slots"
    first.release()
    assert reason(limiter) == "rate"
    limiter.pause(3)
    assert reason(limiter) == "pause"
    await asyncio.sleep(3)
    assert reason(limiter) is None
    second.update_quota(0, 60)
    assert reason(limiter) == "quota"
    adaptive = RateLimiter(AdaptiveRate(10, 1, 100))
    await adaptive.acquire()
    assert reason(adaptive) == "learned rate"
    of_resources = RateLimiter({"requests": "2/s", "tokens": "100/s"})
    await of_resources.acquire({"tokens": 100})
    assert reason(of_resources) is None  # a request that takes no tokens could start
    await of_resources.acquire()
    assert reason(of_resources) == "rate"


async def test_trial_after_a_pause_counts_as_the_pause() -> None:
    limiter = RateLimiter()
    await throttle_one(limiter, 1.0, took=0.0)
    await asyncio.sleep(1.2)
    async with limiter.throttle():
        assert reason(limiter) == "pause"
    assert reason(limiter) is None


async def test_first_waiter_counts_also_above_where_the_own_limits_allow_it() -> None:
    parent = RateLimiter("3/s")
    limiter, other = RateLimiter("3/s", parent=parent), RateLimiter(parent=parent)
    await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire(3))
    await turns()
    assert (reason(limiter), reason(other)) == ("rate", None)
    await asyncio.sleep(1)
    await waiting
    above = asyncio.create_task(other.acquire(3))
    await turns()
    assert (reason(parent), reason(other)) == ("rate", "rate")
    await above
    parent.pause(5)
    assert reason(other) == "pause"


async def test_learned_burst_is_named() -> None:
    limiter = RateLimiter("20/s")
    permits = [await limiter.acquire() for _ in range(8)]
    permits[0].report_throttled(1.0)
    await asyncio.sleep(1.2)
    for _ in range(4):
        (await limiter.acquire()).report_success()
    assert limiter.statistics().burst == 4.0
    assert reason(limiter) == "learned burst"


async def test_with_a_store_it_counts_only_while_requests_wait() -> None:
    store = MemoryStore()
    limiter = RateLimiter(
        "1/s", concurrency_limit=SharedConcurrency(1), store=store, key="k", guard=0
    )
    assert reason(limiter) is None
    permit = await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire())
    await turns()
    assert reason(limiter) == "slots"
    permit.release()
    await turns(20)
    assert reason(limiter) in {"rate", "slots"}
    (await waiting).release()
    assert reason(limiter) is None
