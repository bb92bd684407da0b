"""Prefetched tokens, and the short path of a single waiter."""

import asyncio
from typing import Any

import pytest

from aiothrottle import RateLimiter
from aiothrottle.algorithms import Algorithm, SlidingWindowLog
from aiothrottle.stores import Answer, Key, MemoryStore
from aiothrottle.testing.audit import greatest_count
from tests.stores.test_shared import Watched, cancel, others, rest
from tests.virtually import now, turns, virtual, visit, visits


@virtual
async def test_request_during_prefetch_needs_no_call() -> None:
    store = Watched(latency=0.01)
    limiter = RateLimiter("1000/s", store=store, key="k", prefetch="50/200ms")
    for _ in range(51):
        await visit(limiter)
    assert store.costs == [[1, 50]]
    await visit(limiter)
    assert store.calls == {"reserve": 2}


@virtual
async def test_unused_prefetch_is_refunded_when_it_expires() -> None:
    store = Watched()
    limiter = RateLimiter("1000/h", store=store, key="k", prefetch="50/200ms")
    for _ in range(11):
        await visit(limiter)
    await asyncio.sleep(0.15)
    assert not store.refunds
    await asyncio.sleep(0.1)
    assert store.refunds == [(0.0, 40)]
    await asyncio.sleep(10)
    assert await store.remaining("1000/h") == 1000 - 11
    assert store.calls.total() == 2
    assert not others()


@virtual
async def test_prefetch_is_refunded_when_the_limiter_closes() -> None:
    store = Watched()
    async with RateLimiter("1000/h", store=store, key="k", prefetch="50/1h") as limiter:
        await visit(limiter)
    assert await store.remaining("1000/h") == 1000 - 1


@virtual
async def test_prefetch_is_bounded_by_the_remaining_tokens() -> None:
    store = Watched()
    limiter = RateLimiter("10/h", store=store, key="k", prefetch="50/1s")
    await visit(limiter)
    assert store.costs == [[1, 9]]
    await asyncio.gather(*visits(limiter, 9))
    (late,) = visits(limiter, 1)
    await turns(30)
    assert store.costs[1:] == [[1]]
    await cancel(late)


@virtual
async def test_prefetches_exceed_the_limit_by_their_size_only() -> None:
    store = Watched(latency=0.002)
    limiters = [RateLimiter("200/s", store=store, key="k", prefetch="10/500ms") for _ in range(3)]
    granted_at: list[float] = []

    async def come(limiter: RateLimiter, every: float) -> None:
        while now() < 5:
            granted_at.append(await visit(limiter))
            await asyncio.sleep(every)

    await asyncio.gather(*(come(limiter, every / 1000) for limiter in limiters for every in (3, 7)))
    assert greatest_count(sorted(granted_at), 1.0) <= 200 + 3 * 10
    assert greatest_count(sorted(granted_at), 1.0) > 180


@virtual
async def test_prefetch_that_expires_takes_nothing_from_waiters() -> None:
    store = Watched()
    limiter = RateLimiter("10/10s", store=store, key="k", prefetch="2/1s", max_reservation=20)
    await asyncio.gather(*visits(limiter, 15))
    assert now() == 10.0
    await asyncio.sleep(2)
    assert await store.remaining("10/10s") == 5


@pytest.mark.parametrize("prefetch", ["0.5/s", "none", 0, -1])
def test_prefetch_must_be_tokens_per_time(prefetch: str | float) -> None:
    with pytest.raises(ValueError, match=r"token|rate|limit"):
        RateLimiter("1/s", store=Watched(), key="k", prefetch=prefetch)


def test_prefetch_needs_a_store() -> None:
    with pytest.raises(ValueError, match="give a store"):
        RateLimiter("1/s", prefetch="50/s")


def test_grants_on_a_closed_loop_used_prefetched_tokens() -> None:
    class Counting(MemoryStore):
        recorded = 0.0

        async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
            self.recorded += cost
            return await super().record(key, algorithm, cost)

    store = Counting()
    limiter = RateLimiter("100/h", store=store, key="k", prefetch="50/100s")

    async def go() -> None:
        for _ in range(3):
            await limiter.acquire()
            await turns(3)
        await limiter.acquire()

    async def end() -> float:
        await go()
        await limiter.aclose()
        return (await store.peek("k", SlidingWindowLog("100/h"))).remaining

    asyncio.run(go())
    assert asyncio.run(end()) == 92
    assert store.recorded == 0


# ---- a single waiter -----------------------------------------------------------------------------


@virtual
async def test_single_waiter_needs_one_consumer_and_one_reserver() -> None:
    store = Watched(latency=0.1)
    limiter = RateLimiter("10/s", store=store, key="k")
    (alone,) = visits(limiter, 1)
    await asyncio.sleep(0.05)
    assert others() == {"aiothrottle consumer", "aiothrottle reserver"}
    assert await alone == 0.1
    assert limiter.statistics().granted == 1
    assert limiter.statistics().in_flight == 0


@virtual
async def test_single_waiter_cancelled_during_store_call_takes_nothing() -> None:
    store = Watched(latency=0.1)
    limiter = RateLimiter("10/h", concurrency_limit=1, store=store, key="k")
    (alone,) = visits(limiter, 1)
    await asyncio.sleep(0.05)
    await cancel(alone)
    await rest()
    assert await store.remaining("10/h") == 10
    assert limiter.statistics().in_flight == 0
    await visit(limiter)


@virtual
async def test_single_waiter_cancelled_when_granted_takes_nothing() -> None:
    store = Watched()
    limiter = RateLimiter("10/h", concurrency_limit=1, store=store, key="k")
    done = False
    for number in range(30):  # cancel after each turn; after some it is granted, not yet resumed
        (alone,) = visits(limiter, 1)
        await turns(number)
        done = alone.done()
        await cancel(alone)
        await rest()
        assert await store.remaining("10/h") == (9 if done else 10), number
        assert limiter.statistics().in_flight == 0
        if done:
            break
    assert done


@virtual
async def test_single_waiter_stays_ahead_of_later_arrivals() -> None:
    store = Watched(latency=0.1)
    limiter = RateLimiter("1/10s", store=store, key="k")
    await visit(limiter)
    order: list[int] = []

    async def go(number: int) -> None:
        async with limiter.throttle():
            order.append(number)

    first = asyncio.create_task(go(1))
    await asyncio.sleep(0.05)
    await asyncio.gather(first, go(2))
    assert order == [1, 2]
    assert 20 <= now() < 20.5


@virtual
async def test_pause_during_store_call_holds_a_single_waiter() -> None:
    store = Watched(latency=0.1)
    limiter = RateLimiter("10/s", store=store, key="k")
    (alone,) = visits(limiter, 1)
    await asyncio.sleep(0.05)
    limiter.pause(5)
    assert 5.05 <= await alone < 5.5


def tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task.get_name().startswith("aiothrottle")}


@virtual
async def test_immediate_next_request_reuses_the_consumer() -> None:
    store = Watched(latency=0.001)
    limiter = RateLimiter("10/s", store=store, key="k")
    seen: set[asyncio.Task[object]] = set()
    for _ in range(5):
        async with limiter.throttle():
            seen |= {task for task in tasks() if task.get_name() == "aiothrottle consumer"}
    assert len(seen) == 1
    assert store.calls == {"reserve": 5}
    await turns(2)
    assert not tasks()


@virtual
async def test_immediate_next_request_survives_a_task_sweep() -> None:
    store = Watched()
    limiter = RateLimiter("10/s", store=store, key="k")
    async with limiter.throttle():
        for task in tasks():
            task.cancel()
    assert await visit(limiter) == 0.0
    await rest()
    assert await store.remaining("10/s") == 8
