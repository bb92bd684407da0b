"""Prefetched tokens: those of `prefetch=`, and those for a task that returns within the turn.

Of a store that is further away more is prefetched: see `test_far_store`.
"""

import asyncio

import pytest

from aiothrottle import RateLimiter, StoreUnavailable
from aiothrottle.testing.store_contract import ManualClock
from tests.support.observing import observed
from tests.support.virtually import cancel, now, turns, visit, visits
from tests.support.watching import Watched, others, own_tasks, rest, sweep, watched

# At most so many are prefetched in one call: those of 30 ms.
RATE, MOST = "1000/s", 30
NEAR = 0.004  # seconds


async def hurry(limiter: RateLimiter, count: int) -> None:
    for _ in range(count):
        await visit(limiter)


async def asked(store: Watched, times: int) -> None:
    while len(store.costs) < times:  # noqa: ASYNC110
        await asyncio.sleep(store.latency / 10)


async def returned() -> None:
    """Wait until unused tokens are returned, which a timer begins."""
    await asyncio.sleep(0.02)
    await rest()


async def has_spent(store: Watched, tokens: int) -> None:
    """Fail unless, after a rest, `tokens` are spent: no prefetched token is kept."""
    await returned()
    assert await store.remaining(RATE) == 1000 - tokens


def sizes(store: Watched) -> list[int]:
    return [len(costs) for costs in store.costs]


async def test_prefetched_tokens_need_no_call_and_are_refunded_when_they_expire() -> None:
    store, limiter = watched("1000/h", latency=0.01, prefetch="50/200ms")
    for _ in range(11):
        await visit(limiter)
    assert store.costs == [[1, 50]]
    await asyncio.sleep(0.15)
    assert not store.refunds
    await asyncio.sleep(0.1)
    assert store.refunds == [(0.0, 40)]
    await asyncio.sleep(10)
    assert await store.remaining("1000/h") == 1000 - 11
    assert store.calls.total() == 2
    assert not others()
    for _ in range(51):
        await visit(limiter)
    assert store.calls["reserve"] == 2
    await visit(limiter)
    assert store.calls["reserve"] == 3
    clock = ManualClock()
    store, limiter = watched("1000/h", prefetch="50/200ms", clock=clock)
    for _ in range(2):
        await visit(limiter)
        clock.advance(0.3)  # the loop was blocked: no timer was on time
    assert store.calls["reserve"] == 2, "what is too old serves no new request"
    store, limiter = watched("1/10s", prefetch="5/1s", max_reservation=20.0)
    await visit(limiter)
    (waiting,) = visits(limiter, 1)
    await turns()
    await cancel(waiting)
    await returned()
    assert store.refunds == [(store.instants[-1], 1.0)], "nor is kept for nobody"


async def test_prefetch_is_bounded_by_the_remaining_tokens() -> None:
    store, limiter = watched("10/h", prefetch="50/1s")
    await visit(limiter)
    assert store.costs == [[1, 9]]
    await asyncio.gather(*visits(limiter, 9))
    (late,) = visits(limiter, 1)
    await turns(30)
    assert store.costs[1:] == [[1]]
    await cancel(late)
    store, limiter = watched("100/s")
    await hurry(limiter, 99)
    assert sizes(store)[:4] == [1, 2, 3, 3]
    await hurry(limiter, 2)
    assert now() == pytest.approx(1.0)
    assert sizes(store)[-2:] == [1, 1]
    assert max(store.instants) <= now()
    store, limiter = watched("20/s")  # too small a limit
    await hurry(limiter, 20)
    assert store.costs == [[1.0]] * 20


async def test_try_acquire_uses_prefetched_tokens() -> None:
    store, limiter = watched("10/h", prefetch="9/1s")
    await visit(limiter)
    assert await limiter.peek()
    tries = [await limiter.try_acquire() for _ in range(10)]
    assert [each.allowed for each in tries] == [True] * 9 + [False]
    assert store.calls["reserve"] == 2
    assert (await limiter.peek()).retry_after == 3600


def test_grants_on_a_closed_loop_used_prefetched_tokens() -> None:
    store, limiter = watched("100/h", prefetch="50/100s")

    async def go() -> None:
        for _ in range(3):
            await limiter.acquire()
            await turns(3)
        await limiter.acquire()

    async def end() -> float:
        await go()
        await limiter.aclose()
        return await store.remaining("100/h")

    asyncio.run(go())
    assert asyncio.run(end()) == 92
    assert store.calls["record"] == 0


async def test_prefetch_doubles_while_used_and_else_is_refunded() -> None:
    store, limiter = watched(RATE, latency=NEAR)
    events = observed(limiter)
    await hurry(limiter, 100)
    assert sizes(store) == [1, 2, 4, 8, 16, MOST, MOST, MOST]
    assert store.most_open == 1
    await has_spent(store, 100)
    assert limiter.statistics().granted == len(events) == 100
    store, limiter = watched(RATE)
    await hurry(limiter, 4)  # one, two, and the first of four
    await has_spent(store, 4)
    assert sizes(store) == [1, 2, 4]
    assert store.refunds == [(store.instants[-1], 3.0)]
    for _ in range(5):  # one that rests gets one token per call
        await visit(limiter)
        await turns(3)
    assert sizes(store)[3:] == [1] * 5


async def test_tasks_that_return_at_once_share_the_prefetch_while_slots_are_free() -> None:
    store, limiter = watched(RATE, latency=NEAR)
    await asyncio.gather(*(hurry(limiter, 12) for _ in range(5)))
    assert sizes(store) == [5, 10, 20, MOST]
    await has_spent(store, 60)
    store, limiter = watched(RATE, latency=NEAR, concurrency_limit=4)
    await asyncio.gather(*(hurry(limiter, 12) for _ in range(5)))
    assert sizes(store) == [4] * 15, "others wait for the next slots"
    assert not store.refunds


async def test_store_error_and_closing_end_the_prefetch() -> None:
    store, limiter = watched(RATE)
    hurrying = asyncio.create_task(hurry(limiter, 100))
    await asked(store, 5)
    store.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await hurrying
    store.error = None
    await rest()
    for _ in range(3):
        await hurry(limiter, 1)
        assert sizes(store)[-1] == 1
        await rest()
    store, limiter = watched(RATE)
    hurrying = asyncio.create_task(hurry(limiter, 100))
    await asked(store, 5)
    await limiter.aclose()
    await cancel(hurrying)
    assert not others()
    assert await store.remaining(RATE) == 1000 - limiter.statistics().granted


async def test_immediate_next_request_reuses_the_consumer() -> None:
    store, limiter = watched("10/s", latency=0.001)
    seen: set[asyncio.Task[object]] = set()
    for _ in range(5):
        async with limiter.throttle():
            seen |= {task for task in own_tasks() if task.get_name() == "aiothrottle consumer"}
    assert len(seen) == 1
    assert store.calls == {"reserve": 5}
    await turns(2)
    async with limiter.throttle():
        sweep()
    assert await visit(limiter) < 0.02, "it survives a sweep of all tasks"
    await rest()
    assert await store.remaining("10/s") == 3
