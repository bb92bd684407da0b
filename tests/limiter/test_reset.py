"""`reset()` forgets the tokens that were spent, and nothing else."""

import asyncio
from typing import Any

import pytest

from aiothrottle import (
    AdaptiveRate,
    Cooldown,
    FixedWindow,
    KeyedRateLimiter,
    LeakyBucket,
    RateLimiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Key, MemoryStore
from tests.virtually import now, turns, virtual, visit, visits

ALGORITHMS: list[Algorithm[Any]] = [
    SlidingWindowLog("5/min"),
    SlidingWindowCounter("5/min"),
    FixedWindow("5/min"),
    TokenBucket("5/min"),
    LeakyBucket("5/min"),
    Cooldown(5, 60),
    WaitUntil(12, limit=60, raise_after=30),
]


class Store(MemoryStore):
    """The store that several processes reach; it can fail, and its `clear` can be held up."""

    def __init__(self) -> None:
        super().__init__(clock=now)
        self.error: Exception | None = None
        self.may_clear = asyncio.Event()
        self.may_clear.set()

    async def clear(self, key: Key) -> None:
        await self.may_clear.wait()
        if self.error is not None:
            raise self.error
        await super().clear(key)


async def spend(limiter: RateLimiter) -> int:
    """Take tokens until the limiter rejects a request. Returns how many."""
    count = 0
    while (decision := await limiter.try_acquire()).permit is not None:
        decision.permit.release()
        count += 1
    return count


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shared", [False, True], ids=["local", "store"])
@virtual
async def test_reset_limiter_grants_as_a_new_one(
    algorithm: Algorithm[Any], *, shared: bool
) -> None:
    store: dict[str, Any] = {"store": Store(), "key": "k"} if shared else {}
    limiter = RateLimiter(algorithm=algorithm, **store)
    fresh = await spend(limiter)
    assert fresh
    assert not await spend(limiter)
    await limiter.reset()
    assert await spend(limiter) == fresh
    await limiter.aclose()


@virtual
async def test_waiters_are_granted_at_once() -> None:
    limiter = RateLimiter("2/h")
    await visit(limiter, 2)
    waiting = visits(limiter, 3)
    await turns()
    await limiter.reset()
    await turns()
    assert [each.done() for each in waiting] == [True, True, False]
    waiting[2].cancel()
    assert now() == 0.0


@virtual
async def test_slots_pause_and_quota_stay() -> None:
    limiter = RateLimiter("2/h", concurrency_limit=2)
    permit = await limiter.acquire()
    permit.update_quota(1, reset_after=50.0)
    limiter.pause(5.0)
    await limiter.reset()
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.paused_for) == (1, 5.0)
    assert statistics.quota_remaining == 1
    permit.release()


@virtual
async def test_refund_after_a_reset_adds_no_tokens() -> None:
    for algorithm in ALGORITHMS[:-1]:
        limiter = RateLimiter(algorithm=algorithm)
        permit = await limiter.acquire()
        await limiter.reset()
        permit.settle(0)
        permit.release()
        assert (await limiter.peek()).remaining == RateLimiter(algorithm=algorithm)._entry.capacity
        before = await spend(limiter)
        assert before <= 5


@virtual
async def test_requests_on_credit_are_forgotten_too() -> None:
    limiter = RateLimiter("3/h")
    await visit(limiter)
    async with limiter.throttle():  # on the fast path: its timestamp is pending
        await limiter.reset()
        assert (await limiter.peek()).remaining == 3


@virtual
async def test_adaptive_rate_stays_as_learned() -> None:
    limiter = RateLimiter(AdaptiveRate(10, minimum=1, maximum=100))
    async with limiter.throttle() as permit:
        permit.report_throttled(0.1)
    learned = limiter.statistics().rate_limit
    assert learned is not None
    assert learned < 10
    await limiter.reset()
    assert limiter.statistics().rate_limit == learned
    await asyncio.sleep(1.0)
    started = now()
    for _ in range(21):
        await visit(limiter)
    assert now() - started == pytest.approx(20 / learned, rel=0.1)


@virtual
async def test_parent_keeps_its_tokens() -> None:
    parent = RateLimiter("4/h")
    limiter = RateLimiter("2/h", parent=parent)
    await visit(limiter, 2)
    await limiter.reset()
    assert (await parent.peek()).remaining == 2
    assert await spend(limiter) == 2
    assert not await spend(limiter)


@virtual
async def test_one_key_is_reset() -> None:
    limiter = KeyedRateLimiter("2/h")
    for key in ("a", "b"):
        assert await spend(limiter[key]) == 2
    await limiter.reset("a")
    assert await spend(limiter["a"]) == 2
    assert await spend(limiter["b"]) == 0


@virtual
async def test_record_in_the_store_is_deleted_for_all_processes() -> None:
    store = Store()
    one, two = (RateLimiter("5/h", store=store, key="k") for _ in range(2))
    assert await spend(one) == 5
    assert await spend(two) == 0
    await one.reset()
    assert await spend(two) == 5
    for limiter in (one, two):
        await limiter.aclose()


@virtual
async def test_tokens_of_the_old_record_are_not_refunded() -> None:
    limiter = RateLimiter(algorithm=TokenBucket("5/h"), store=Store(), key="k")
    permit = await limiter.acquire(2)
    await asyncio.sleep(0.1)  # each token is refunded at its instant
    await limiter.reset()
    await visit(limiter, 3)
    permit.settle(0)
    permit.release()
    await asyncio.sleep(0.1)
    assert (await limiter.peek()).remaining < 2.01
    await limiter.aclose()


@virtual
async def test_waiter_of_a_store_is_granted_after_the_reset() -> None:
    limiter = RateLimiter("1/h", store=Store(), key="k")
    await visit(limiter)
    (waiting,) = visits(limiter, 1)
    await turns()
    await limiter.reset()
    await waiting
    assert now() < 1.0
    await limiter.aclose()


@virtual
async def test_failing_store_changes_nothing() -> None:
    store = Store()
    limiter = RateLimiter("5/h", store=store, key="k", on_store_error="open")
    permit = await limiter.acquire(2)
    store.error = StoreUnavailable("unreachable")
    with pytest.raises(StoreUnavailable, match="unreachable"):
        await limiter.reset()
    store.error = None
    permit.settle(1)  # can still be refunded
    permit.release()
    await asyncio.sleep(0.1)
    assert (await limiter.peek()).remaining == 4
    await limiter.aclose()


@virtual
async def test_cancelled_reset_changes_nothing_here() -> None:
    store = Store()
    limiter = RateLimiter("5/h", store=store, key="k")
    await visit(limiter, 2)
    store.may_clear.clear()
    reset = asyncio.create_task(limiter.reset())
    await turns()
    reset.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reset
    assert (await limiter.peek()).remaining == 3
    await limiter.aclose()
