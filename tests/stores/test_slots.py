"""Limiters that share slots: who gets one, which calls the store gets, and how failures end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    KeyedRateLimiter,
    LimiterClosed,
    Permit,
    RateLimiter,
    SharedConcurrency,
    StoreUnavailable,
)
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.shared_semaphore import SharedSemaphore
from aiothrottle.testing import VirtualTimeLoop
from tests.sharing import Link, Shared, share
from tests.virtually import now, turns, virtual

Unchecked: TypeAlias = Any  # an argument of a caller that does not check its types


def started(*coroutines: Coroutine[Any, Any, Permit]) -> list[asyncio.Task[Permit]]:
    return [asyncio.create_task(coroutine) for coroutine in coroutines]


@virtual
async def test_all_processes_together_keep_the_limit() -> None:
    shared = Shared()
    limiters = [share(Link(shared, wakes=place > 0)) for place in range(4)]
    inside = most = 0

    async def work(limiter: RateLimiter) -> None:
        nonlocal inside, most
        async with limiter.throttle():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(1)
            inside -= 1

    await asyncio.gather(*(work(limiters[place % 4]) for place in range(60)))
    assert most == 3
    assert now() >= 20
    await turns()
    assert shared.is_empty
    assert not shared.wakes


@virtual
async def test_waiters_of_all_processes_are_served_in_order() -> None:
    shared = Shared()
    limiters = [share(Link(shared), 1) for _ in range(3)]
    order: list[int] = []

    async def work(place: int) -> None:
        async with limiters[place * place % 3].throttle():
            order.append(place)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for place in range(20):
            group.create_task(work(place))
            await turns()
    assert order == list(range(20))


@virtual
async def test_immediate_return_queues_behind_waiters() -> None:
    shared = Shared()
    greedy, patient = share(Link(shared), 1), share(Link(shared), 1)

    async def take(limiter: RateLimiter, times: int) -> None:
        for _ in range(times):
            async with limiter.throttle():
                await asyncio.sleep(1)

    busy = asyncio.create_task(take(greedy, 10))
    await turns()
    await take(patient, 1)
    assert now() == pytest.approx(2.0)
    await busy


@virtual
async def test_one_call_is_under_way_and_carries_all() -> None:
    link = Link(Shared())
    link.latency = 0.1
    limiter = share(link, 100)
    permits = await asyncio.gather(*(limiter.acquire() for _ in range(40)))
    assert now() == pytest.approx(0.1)
    for permit in permits:
        permit.release()
    await limiter.aclose()
    assert link.most_under_way == 1
    assert [(claim.held, claim.wanted) for claim in link.claims] == [(0, 40), (0, 0)]


@virtual
async def test_requested_slots_are_bounded() -> None:
    link = Link(Shared())
    limiter = share(link, 1000)
    await asyncio.gather(*(limiter.acquire() for _ in range(200)))
    assert max(claim.wanted for claim in link.claims) == 64
    capped = share(link, 1000, per_process=5)
    tasks = started(*(capped.acquire() for _ in range(10)))
    await turns()
    assert sum(task.done() for task in tasks) == 5
    tasks[0].result().release()
    await turns()
    assert sum(task.done() for task in tasks) == 6


@virtual
async def test_long_hold_is_renewed_each_third_of_lease() -> None:
    shared = Shared()
    link = Link(shared)
    limiter, other = share(link, 1), share(Link(shared), 1)
    async with limiter.throttle():
        (waiter,) = started(other.acquire())
        await asyncio.sleep(30.5)
        assert not waiter.done()
    assert len(link.claims) == pytest.approx(31, abs=1)
    await waiter


@virtual
async def test_idle_limiter_makes_no_calls() -> None:
    link = Link(Shared())
    limiter = share(link)
    async with limiter.throttle():
        pass
    await asyncio.sleep(0.1)
    asked = len(link.claims)
    await asyncio.sleep(1000)
    assert len(link.claims) == asked == 2
    assert len(asyncio.all_tasks()) == 1


@virtual
async def test_slots_of_dead_process_expire_with_lease() -> None:
    shared = Shared()
    dying, living = Link(shared), Link(shared, wakes=False)
    first, other = share(dying, 2), share(living, 2)
    _held = [await first.acquire(), await first.acquire()]
    started(first.acquire())
    await turns()
    dying.may_answer.clear()
    await other.acquire()
    assert 2.0 < now() <= 3.1


@virtual
async def test_hold_with_an_expired_lease_continues_and_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = Shared()
    slow = Link(shared)
    late, other = share(slow, 2), share(Link(shared), 2)
    permits = [await late.acquire(), await late.acquire()]
    slow.may_answer.clear()
    _held = await other.acquire()  # the store has given up the slots of the other
    with caplog.at_level(logging.WARNING, "aiothrottle"):
        slow.may_answer.set()
        await asyncio.sleep(2.0)
    (record,) = caplog.records
    assert "2 of the shared slots of 'x' were not renewed in time" in record.getMessage()
    (waiter,) = started(other.acquire())
    permits[0].release()
    await asyncio.sleep(5.0)
    assert not waiter.done()  # there are two still
    permits[1].release()
    await waiter


# ---- cancelled, closed, failed -------------------------------------------------------------------


@pytest.mark.parametrize("after", range(12))
@virtual
async def test_cancellation_at_any_point_returns_everything(after: int) -> None:
    shared = Shared()
    link = Link(shared)
    limiter, other = share(link, 1), share(Link(shared), 1)
    (task,) = started(limiter.acquire())
    await turns(after)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result().release()
    async with asyncio.timeout(1.0):
        (await other.acquire()).release()
    await asyncio.sleep(0.1)
    assert shared.is_empty
    assert limiter.statistics().in_flight == 0


@virtual
async def test_cancellation_during_the_call_returns_everything() -> None:
    shared = Shared()
    link = Link(shared)
    link.latency = 0.5
    limiter, trying = share(link, 1), share(link, 1)
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(2)]
    tries = [asyncio.create_task(method()) for method in (trying.try_acquire, trying.peek)]
    await asyncio.sleep(0.3)
    for task in (*tasks, *tries):
        task.cancel()
    await asyncio.sleep(2.0)
    assert shared.is_empty
    assert all(task.cancelled() for task in (*tasks, *tries))


@virtual
async def test_cancelled_waiter_does_not_block_the_queue() -> None:
    shared = Shared()
    holder, leaver, other = (share(Link(shared), 1) for _ in range(3))
    permit = await holder.acquire()
    first, second = started(leaver.acquire(), other.acquire())
    await turns()
    first.cancel()
    await turns()
    permit.release()
    await turns(20)
    assert second.done()
    assert now() == 0.0


@virtual
async def test_closing_returns_unused_slots() -> None:
    shared = Shared()
    link = Link(shared)
    link.latency = 0.1
    limiter, other = share(link, 2), share(Link(shared), 2)
    held = await limiter.acquire()
    (waiter,) = started(limiter.acquire())
    await turns()  # the call is under way
    await limiter.aclose()
    with pytest.raises(LimiterClosed):
        await waiter
    with pytest.raises(LimiterClosed):
        await limiter.acquire()
    with pytest.raises(LimiterClosed):
        await limiter.try_acquire()
    assert link.free(2) == 1
    # What is held stays held, and is renewed.
    await asyncio.sleep(10)
    assert link.free(2) == 1
    held.release()
    await asyncio.sleep(1)
    assert shared.is_empty
    await other.aclose()


@virtual
async def test_drain_serves_all_waiters() -> None:
    shared = Shared()
    limiter = share(Link(shared), 1)

    async def work() -> None:
        async with limiter.throttle():
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await turns()
    await limiter.aclose(drain=True)
    await asyncio.gather(*tasks)
    await turns()
    assert shared.is_empty


@virtual
async def test_store_error_is_raised_in_all_waiters() -> None:
    link = Link(Shared())
    link.error = StoreUnavailable("unreachable")
    limiter = share(link, 5)
    errors = await asyncio.gather(*(limiter.acquire() for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [StoreUnavailable] * 3
    assert len(set(map(id, errors))) == 3
    for method in (limiter.try_acquire, limiter.peek):
        with pytest.raises(StoreUnavailable):
            await method()
    link.error = None
    (await limiter.acquire()).release()
    await limiter.aclose()
    assert link.shared.is_empty


@virtual
async def test_held_slot_is_renewed_when_the_store_returns() -> None:
    shared = Shared()
    link = Link(shared)
    limiter, other = share(link, 1, lease=30.0), share(Link(shared), 1, lease=30.0)
    _held = await limiter.acquire()
    (waiter,) = started(other.acquire())
    link.error = StoreUnavailable("unreachable")
    await asyncio.sleep(25)
    link.error = None
    await asyncio.sleep(100)
    assert not waiter.done()


@virtual
async def test_failed_release_is_retried() -> None:
    link = Link(Shared())
    limiter = share(link, 1, lease=30.0)
    permit = await limiter.acquire()
    link.error = StoreUnavailable("unreachable")
    permit.release()
    await limiter.aclose()  # it does not wait for the store to come back
    assert now() == 0.0
    link.error = None
    await asyncio.sleep(1)
    assert link.shared.is_empty


@virtual
async def test_failing_store_is_not_called_per_release() -> None:
    link = Link(Shared())
    limiter = share(link, 10)
    permits = [await limiter.acquire() for _ in range(10)]
    link.error = StoreUnavailable("unreachable")
    asked = len(link.claims)
    for permit in permits:
        permit.release()
        await turns()
    assert len(link.claims) == asked + 1


@virtual
async def test_release_is_not_retried_after_the_lease() -> None:
    link = Link(Shared())
    limiter = share(link, 1)
    permit = await limiter.acquire()
    link.error = StoreUnavailable("unreachable")
    permit.release()
    await asyncio.sleep(10)
    asked = len(link.claims)
    await asyncio.sleep(1000)
    assert len(link.claims) == asked
    assert limiter._engine.is_forgettable()


# ---- event loops ---------------------------------------------------------------------------------


def test_limiter_on_another_loop_keeps_slots_in_flight() -> None:
    store = MemoryStore()
    limiter = RateLimiter(concurrency_limit=SharedConcurrency(2), store=store, key="x")
    permits: list[Permit] = []

    async def take() -> None:
        permits.append(await limiter.acquire())

    asyncio.run(take())
    asyncio.run(take())

    async def release() -> None:
        assert not await limiter.try_acquire()
        for permit in permits:
            permit.release()
        decision = await limiter.try_acquire()
        assert decision.permit is not None
        decision.permit.release()
        await limiter.aclose()

    asyncio.run(release())
    assert not store._tables


# At 0.5 s no call is under way; at 1.25 s the held slots are being renewed.
@pytest.mark.parametrize("seconds", [0.5, 1.25])
def test_closed_loop_leaves_no_task(seconds: float) -> None:
    kept: list[RateLimiter] = []

    async def main() -> None:
        link = Link(Shared())
        limiter = share(link, 1)
        kept.append(limiter)

        async def work() -> None:
            async with limiter.throttle():
                await asyncio.sleep(1000)

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        link.latency = 0.1
        await asyncio.sleep(seconds)
        assert len(tasks) == 3
        assert link.under_way == (seconds == 1.25)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
        loop = runner.get_loop()
    assert not asyncio.all_tasks(loop)
    leased = kept[0]._engine.leased
    assert isinstance(leased, SharedSemaphore)
    assert leased._task is None


# ---- with the rest -------------------------------------------------------------------------------


@virtual
async def test_peek_and_try_acquire_count_all_slots() -> None:
    shared = Shared()
    limiter, other = share(Link(shared), 1), share(Link(shared), 1)
    assert await limiter.peek()
    await turns()
    assert shared.is_empty
    decision = await limiter.try_acquire()
    assert decision.permit is not None
    assert not await other.peek()
    assert not await other.try_acquire()
    await turns()
    assert len(next(iter(shared._tables.values())).owners) == 1  # nobody else is in the queue
    decision.permit.release()
    await turns()
    assert await other.peek()


@virtual
async def test_rate_is_shared_as_well() -> None:
    link = Link(Shared())
    limiters = [
        RateLimiter("10/s", concurrency_limit=SharedConcurrency(3), store=link, key="x")
        for _ in range(2)
    ]
    inside = most = 0

    async def work(limiter: RateLimiter) -> None:
        nonlocal inside, most
        async with limiter.throttle():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.2)
            inside -= 1

    await asyncio.gather(*(work(limiters[place % 2]) for place in range(30)))
    assert most == 3
    assert 2.0 <= now() <= 4.0
    for limiter in limiters:
        await limiter.aclose()
    assert link.shared.is_empty


@virtual
async def test_waiter_cancelled_for_the_rate_returns_its_slot() -> None:
    link = Link(Shared())
    limiter = RateLimiter("10/s", concurrency_limit=SharedConcurrency(3), store=link, key="x")
    await limiter.record(10)
    tasks = started(*(limiter.acquire() for _ in range(3)))
    await turns(20)
    assert link.free(3) == 0
    for task in tasks[1:]:
        task.cancel()
    await asyncio.sleep(0.1)
    assert link.free(3) == 2
    await tasks[0]
    assert now() == pytest.approx(1.0)


@virtual
async def test_pause_returns_unused_slots() -> None:
    shared = Shared()
    limiter = RateLimiter(
        "1/s", concurrency_limit=SharedConcurrency(1), store=Link(shared), key="x"
    )
    other = share(Link(shared), 1)
    (await limiter.acquire()).release()
    (waiter,) = started(limiter.acquire())
    await asyncio.sleep(0.1)
    limiter.pause(100)
    (await other.acquire()).release()
    assert now() < 1.0
    await waiter
    assert now() >= 100


@virtual
async def test_each_key_has_slots_of_its_own() -> None:
    shared = Shared()
    keyed = KeyedRateLimiter(
        concurrency_limit=SharedConcurrency(1), store=Link(shared), key="action"
    )
    other = KeyedRateLimiter(
        concurrency_limit=SharedConcurrency(1), store=Link(shared), key="action"
    )
    permit = await keyed.acquire("ann")
    _held = await keyed.acquire("bob")
    assert not await other.try_acquire("ann")
    permit.release()
    (await other.acquire("ann")).release()
    await asyncio.sleep(200)
    assert "ann" not in keyed
    assert "bob" in keyed  # it is held


@virtual
async def test_updated_limit_applies() -> None:
    shared = Shared()
    limiter = share(Link(shared), 1)
    _held = await limiter.acquire()
    (waiter,) = started(limiter.acquire())
    await turns()
    limiter.update(concurrency_limit=SharedConcurrency(2))
    await waiter
    assert limiter.statistics().concurrency_limit == 2
    with pytest.raises(ValueError, match="cannot change between"):
        limiter.update(concurrency_limit=3)
    with pytest.raises(ValueError, match="shares only its slots"):
        limiter.update(rate_limit=3)
    with pytest.raises(ValueError, match="cannot change between"):
        RateLimiter(1, concurrency_limit=1).update(concurrency_limit=SharedConcurrency(2))


def test_wrong_arguments_are_rejected() -> None:
    unchecked: Unchecked = SharedConcurrency
    with pytest.raises(TypeError, match="limit must be a whole number"):
        unchecked(2.5)
    with pytest.raises(TypeError, match="limit must be a whole number"):
        unchecked(True)
    with pytest.raises(TypeError, match="per_process must be a whole number"):
        unchecked(2, per_process="2")
    with pytest.raises(ValueError, match="limit must be a whole number of slots, 1 or more, got 0"):
        unchecked(0)
    with pytest.raises(ValueError, match="per_process must be a whole number of slots, 1 or"):
        unchecked(2, per_process=0)
    with pytest.raises(TypeError, match="lease must be a finite number of seconds, above 0"):
        unchecked(2, "30")
    for lease in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="lease must be a finite number"):
            unchecked(2, lease)
    with pytest.raises(ValueError, match="give a store"):
        RateLimiter(10, concurrency_limit=SharedConcurrency(2))
    with pytest.raises(ValueError, match="with a store, give a fixed rate"):
        RateLimiter("server", concurrency_limit=SharedConcurrency(2), store=MemoryStore(), key="k")
    with pytest.raises(ValueError, match="max_reservation"):
        RateLimiter(
            concurrency_limit=SharedConcurrency(2), store=MemoryStore(), key="k", max_reservation=1
        )
    limiter = RateLimiter(concurrency_limit=SharedConcurrency(2), store=MemoryStore(), key="k")
    with pytest.raises(ValueError, match="cannot be a parent"):
        RateLimiter(1, parent=limiter)
    with pytest.raises(ValueError, match="has no parent"):
        RateLimiter(
            concurrency_limit=SharedConcurrency(2),
            store=MemoryStore(),
            key="k",
            parent=RateLimiter(1),
        )
