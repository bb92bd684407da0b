"""Limiters on a store: which calls they make, when, and how they use the answers."""

import asyncio
import gc
import math
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    AdaptiveRate,
    CostTooHigh,
    KeyedRateLimiter,
    LeakyBucket,
    LimiterClosed,
    Permit,
    QueueFull,
    RateLimiter,
    SharedConcurrency,
    StoreUnavailable,
    ThrottleTimeout,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf, SlidingWindowLog
from aiothrottle.stores import Answer, Key, MemoryStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.reserved import Reserved
from aiothrottle.testing import VirtualTimeLoop
from aiothrottle.testing.audit import greatest_count
from tests.background import ENVIRONMENT
from tests.servers import Valkey
from tests.virtually import now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # an argument of a caller that does not check its types


class Watched(MemoryStore):
    """A store that records its calls, and answers after `latency`, or when `may_answer` is set.

    A reservation is decided `way` seconds after its call.
    """

    def __init__(self, *, latency: float = 0.0, way: float = 0.0) -> None:
        super().__init__(clock=now)
        self.latency = latency
        self.way = way
        self.calls = Counter[str]()
        self.costs: list[list[float]] = []
        self.asked_at: list[float] = []
        self.refunds: list[tuple[float, float]] = []
        self.instants: list[float] = []
        self.keys: set[Key] = set()
        self.open = self.most_open = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    async def answer(self, method: str, key: Key) -> None:
        self.calls[method] += 1
        self.keys.add(key)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.latency / 2)
            await self.may_answer.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.open -= 1

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        self.costs.append(list(costs))
        self.asked_at.append(now())
        if self.way:
            await asyncio.sleep(self.way)
        answer = await super().reserve(key, algorithm, costs, horizon=horizon)
        self.instants += answer.instants
        await self.answer("reserve", key)
        await asyncio.sleep(self.latency / 2)
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        await self.answer("refund", key)
        self.refunds.append((instant, cost))
        await super().refund(key, algorithm, cost, instant)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        await self.answer("peek", key)
        return await super().peek(key, algorithm, cost)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        await self.answer("record", key)
        return await super().record(key, algorithm, cost)

    async def remaining(self, algorithm: str) -> float:
        return (await MemoryStore.peek(self, "k", SlidingWindowLog(algorithm))).remaining


def others() -> set[str]:
    """Name the tasks that are not the test's own."""
    return {task.get_name() for task in asyncio.all_tasks()} & {
        "aiothrottle consumer",
        "aiothrottle newcomers",
        "aiothrottle reserver",
        "aiothrottle store",
    }


async def rest() -> None:
    """Wait until the background tasks have ended."""
    for _ in range(1000):
        if not others():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{others()} did not end")


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the queue and its calls ---------------------------------------------------------------------


@virtual
async def test_waiters_are_served_in_order_with_one_call() -> None:
    store = Watched(latency=0.01)
    limiter = RateLimiter("100/s", store=store, key="k")
    granted: list[int] = []

    async def go(number: int) -> None:
        async with limiter.throttle():
            granted.append(number)

    await asyncio.gather(*map(go, range(250)))
    assert granted == list(range(250))
    assert store.most_open == 1
    assert greatest_count(store.instants, 1.0) == 100
    assert now() < 2.2


@virtual
async def test_thousand_waiters_need_few_calls() -> None:
    store = Watched(latency=0.01)
    limiter = RateLimiter("1000000/s", store=store, key="k")
    await asyncio.gather(*visits(limiter, 1000))
    assert store.calls == {"reserve": 1}


@virtual
async def test_memory_store_follows_the_time_of_its_loop() -> None:
    async with asyncio.timeout(60), RateLimiter("10/s", store=MemoryStore(), key="k") as limiter:
        await asyncio.gather(*visits(limiter, 30))
    assert 2.0 <= now() <= 2.1


@virtual
async def test_next_reservation_is_made_at_half_the_batch() -> None:
    store = Watched()
    limiter = RateLimiter("1000000/s", store=store, key="k")
    granted = 0
    granted_at_call: list[int] = []

    async def reserve(*args: Any, **options: Any) -> Answer:  # noqa: ANN401 - passed on
        granted_at_call.append(granted)
        return await Watched.reserve(store, *args, **options)

    store.reserve = reserve  # type: ignore[method-assign]

    async def visitor() -> None:
        nonlocal granted
        async with limiter.throttle():
            granted += 1

    await asyncio.gather(*(visitor() for _ in range(2000)))
    # 1,024 in a call, of which 256 are granted in a turn: the server has two turns for its answer.
    assert granted_at_call == [0, 512]


@virtual
async def test_small_limit_is_shared_by_single_reservations() -> None:
    store = Watched()
    limiters = [RateLimiter("20/s", algorithm=LeakyBucket, store=store, key="k") for _ in range(16)]
    await asyncio.gather(*(task for limiter in limiters for task in visits(limiter, 5)))
    assert {len(costs) for costs in store.costs} == {1}
    assert store.calls["reserve"] <= 1.5 * 80
    assert now() == pytest.approx(79 / 20, abs=0.01)


@virtual
async def test_four_limiters_of_one_key_use_the_limit() -> None:
    store = Watched(latency=0.002)
    limiters = [RateLimiter("2000/s", store=store, key="k") for _ in range(4)]
    await asyncio.gather(*(task for limiter in limiters for task in visits(limiter, 2000)))
    assert now() < 3.1
    assert greatest_count(store.instants, 1.0) == 2000
    assert store.calls["reserve"] < 200


@virtual
async def test_tokens_that_are_left_over_go_to_each_process_in_turn() -> None:
    counts = [0] * 8
    # One store, from which each process is a little further away.
    latencies = [0.001 + 0.0001 * process for process in range(len(counts))]
    stores = [Watched(latency=latency, way=latency / 2) for latency in latencies]
    for store in stores:
        store._entries = stores[0]._entries

    async def ask(process: int, limiter: RateLimiter) -> None:
        while True:
            async with limiter.throttle():
                counts[process] += 1

    limiters = [RateLimiter("10/s", store=store, key="k", guard=0.0) for store in stores]
    tasks = [
        asyncio.create_task(ask(process, limiter))
        for process, limiter in enumerate(limiters)
        for _ in range(2)
    ]
    await asyncio.sleep(60.0)
    await cancel(*tasks)
    assert sum(counts) >= 595
    assert sum(counts) ** 2 / (len(counts) * sum(it**2 for it in counts)) >= 0.97  # Jain's index


@virtual
async def test_turn_that_is_cancelled_costs_no_waiter_its_token() -> None:
    store = Watched()
    await store.record("k", SlidingWindowLog("10/s"), 10)  # of another process
    limiter = RateLimiter("10/s", store=store, key="k", guard=0.0)
    first, second = visits(limiter, 1), visits(limiter, 1)
    assert await asyncio.gather(*first) == [1.0]
    await turns()
    assert len(store.asked_at) == 1, "it lets the other process call first"
    (turn,) = [it for it in asyncio.all_tasks() if it.get_name() == "aiothrottle reserver"]
    turn.cancel()
    assert await asyncio.gather(*second) == pytest.approx([1.0], abs=0.01)
    await rest()


@virtual
async def test_limiter_that_is_closed_in_a_turn_leaves_no_task() -> None:
    store = Watched()
    await store.record("k", SlidingWindowLog("10/s"), 10)  # of another process
    limiter = RateLimiter("10/s", store=store, key="k", guard=0.0)
    first, second = visits(limiter, 1), visits(limiter, 1)
    assert await asyncio.gather(*first) == [1.0]
    await turns()
    assert len(store.asked_at) == 1, "it lets the other process call first"
    assert "aiothrottle reserver" in others()
    await limiter.aclose()
    with pytest.raises(LimiterClosed):
        await second[0]
    assert not others()
    assert now() == pytest.approx(1.0, abs=0.01)


@virtual
async def test_rejection_is_not_retried_before_its_time() -> None:
    store = Watched()
    limiter = RateLimiter("1/10s", store=store, key="k", max_reservation=2.0)
    await visit(limiter)
    await asyncio.gather(*visits(limiter, 1))
    assert store.asked_at == [0.0, 0.0, 8.0]
    assert now() == 10.0


@virtual
async def test_rejection_of_a_heavy_request_spares_lighter_ones() -> None:
    store = Watched()
    limiter = RateLimiter("10/10s", store=store, key="k", max_reservation=0)
    await visit(limiter, 5)
    (heavy,) = visits(limiter, 1, 6)
    await turns()
    await cancel(heavy)
    assert await visit(limiter, 5) == 0.0


@virtual
async def test_late_answer_grants_nobody_too_early() -> None:
    store = Watched(latency=0.2)
    limiter = RateLimiter("10/s", algorithm=LeakyBucket, store=store, key="k")
    granted_at = await asyncio.gather(*visits(limiter, 4))
    assert all(a >= b for a, b in zip(sorted(granted_at), sorted(store.instants), strict=True))


@virtual
async def test_idle_limiter_has_no_calls_and_tasks() -> None:
    store = Watched()
    limiter = RateLimiter("10/s", store=store, key="k")
    assert store.calls.total() == 0
    await visit(limiter)
    await turns()
    assert not others()
    await asyncio.sleep(100)
    assert store.calls == {"reserve": 1}


@virtual
async def test_zero_cost_makes_no_call() -> None:
    store = Watched()
    limiter = RateLimiter("1000/s", store=store, key="k")
    await visit(limiter, 0)
    assert store.calls.total() == 0
    await asyncio.gather(visit(limiter, 10), visit(limiter, 0))
    assert store.costs == [[10]]


@virtual
async def test_waiters_without_a_slot_reserve_nothing() -> None:
    store = Watched()
    limiter = RateLimiter("1000/s", concurrency_limit=2, store=store, key="k")

    async def stay() -> None:
        async with limiter.throttle():
            await asyncio.sleep(1)

    await asyncio.gather(*(stay() for _ in range(6)))
    assert now() == 3.0
    assert sum(map(len, store.costs)) == 6
    assert not store.refunds


@virtual
async def test_costs_are_reserved_whole() -> None:
    store = Watched()
    limiter = RateLimiter("10/s", store=store, key="k")
    granted_at = await asyncio.gather(visit(limiter, 4), visit(limiter, 5), visit(limiter, 3))
    assert list(granted_at) == [0.0, 0.0, 1.0]
    assert {cost for costs in store.costs for cost in costs} == {4, 5, 3}
    with pytest.raises(CostTooHigh):
        limiter.throttle(11)


@virtual
async def test_heavy_head_is_not_starved_by_small_reservations() -> None:
    store = Watched()
    limiter = RateLimiter("100/s", burst=5, store=store, key="k")
    await asyncio.gather(*visits(limiter, 5))
    light = visits(limiter, 3)
    await turns()
    (heavy,) = visits(limiter, 1, 5)
    await cancel(*light)
    await turns(30)
    assert {cost for _, cost in store.refunds} == {1}
    assert store.costs[-1] == [5]
    assert await heavy < 0.2


@virtual
async def test_several_limits_and_a_guard_hold() -> None:
    store = Watched()
    limiter = RateLimiter(["10/s", "15/10s"], guard=0.5, store=store, key="k")
    granted_at = await asyncio.gather(*visits(limiter, 20))
    # After the long wait the store may be called 10 ms late: see Reserver._note_others.
    expected = [*[0.0] * 10, *[1.5] * 5, *[10.5] * 5]
    assert sorted(granted_at) == pytest.approx(expected, abs=0.01)


@virtual
async def test_priority_and_queue_limit_hold() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k", max_queue=2)
    await visit(limiter)
    (low,) = visits(limiter, 1)
    await turns()
    (high,) = visits(limiter, 1, priority=1)
    await turns()
    with pytest.raises(QueueFull):
        await visit(limiter)
    assert (await high, await low) == (1.0, 2.0)


class Scripted(Watched):
    """A store that grants one cost of each call, at an instant from its script."""

    def __init__(self, *instants: tuple[float, float]) -> None:
        super().__init__()
        self.script = list(instants)

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],  # noqa: ARG002 - the script decides
        costs: Sequence[float],
        *,
        horizon: float = 0.0,  # noqa: ARG002
    ) -> Answer:
        asked, instant = self.script.pop(0)
        self.costs.append(list(costs))
        await self.answer("reserve", key)
        return Answer(asked, (instant,), 0.001, 0.0, 10.0)


@virtual
async def test_granted_waiter_keeps_its_reservation_during_an_answer() -> None:
    # Two calls get the same instant; the second answer takes longer.
    store = Scripted((0.0, 1.0), (0.5, 1.0))
    limiter = RateLimiter("100/s", store=store, key="k")
    # It is read when the first one is granted and has not resumed.
    asyncio.get_running_loop().call_later(1.0, store.may_answer.set)
    granted_at = visits(limiter, 2)
    await asyncio.sleep(0.0005)
    store.may_answer.clear()
    assert await asyncio.gather(*granted_at) == [1.0, 1.5]
    await rest()
    assert store.calls == {"reserve": 2}, "nothing was granted without a reservation"


@virtual
async def test_urgent_heavy_request_takes_nothing_from_granted_waiters() -> None:
    store = Scripted((0.0, 1.0), (0.5, 1.2), (1.0, 2.0), (2.0, 2.5))
    limiter = RateLimiter("100/s", store=store, key="k")
    comes = asyncio.Event()

    async def come() -> float:
        await comes.wait()
        return await visit(limiter, 3, priority=1)

    heavy = asyncio.create_task(come())
    # Both happen when the first one is granted and has not resumed.
    asyncio.get_running_loop().call_later(1.0, comes.set)
    asyncio.get_running_loop().call_later(1.0, store.may_answer.set)
    light = visits(limiter, 2)
    await asyncio.sleep(0.0005)
    store.may_answer.clear()
    # After a wait of more than its part the process may call 10 ms late.
    assert await asyncio.gather(*light, heavy) == pytest.approx([1.0, 2.5, 2.0], abs=0.01)
    await rest()
    assert store.calls["record"] == 0, "nothing was granted without a reservation"


# ---- cancellation ------------------------------------------------------------------------------


@virtual
async def test_cancelled_during_store_call_leaves_reservation_to_next() -> None:
    store = Watched()
    store.may_answer.clear()
    limiter = RateLimiter("1/10s", store=store, key="k")
    (first,) = visits(limiter, 1)
    await turns()
    (second,) = visits(limiter, 1)
    await turns()
    await cancel(first)
    store.may_answer.set()
    assert await second == 0.0
    assert store.calls == {"reserve": 1}


@virtual
async def test_cancelled_before_its_instant_leaves_reservation_to_next() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k")
    await visit(limiter)
    first, second = visits(limiter, 2)
    await asyncio.sleep(0.5)
    await cancel(first)
    assert await second == 1.0
    await rest()
    assert not store.refunds


@virtual
async def test_cancelled_when_granted_leaves_reservation_to_next() -> None:
    store = Watched()
    store.may_answer.clear()
    limiter = RateLimiter("1/10s", concurrency_limit=1, store=store, key="k")
    first, second = visits(limiter, 2)
    await turns()
    store.may_answer.set()
    for _ in range(20):
        await asyncio.sleep(0)
        if limiter._engine.resuming:
            break
    await cancel(first)
    assert await second == 0.0
    assert limiter.statistics().in_flight == 0


@virtual
async def test_unneeded_reservations_are_refunded_latest_first() -> None:
    store = Watched()
    limiter = RateLimiter("100/s", algorithm=LeakyBucket, store=store, key="k")
    await visit(limiter)
    waiting = visits(limiter, 3)
    await turns()
    reserved = store.instants[1:]
    assert len(reserved) == 3
    await cancel(*waiting)
    await rest()
    assert [instant for instant, _ in store.refunds] == reserved[::-1]


@virtual
async def test_answer_without_waiters_is_refunded() -> None:
    store = Watched()
    store.may_answer.clear()
    limiter = RateLimiter("10/s", store=store, key="k")
    waiting = visits(limiter, 1)
    await turns()
    await cancel(*waiting)
    await turns()
    assert not limiter._engine.is_forgettable()
    store.may_answer.set()
    await rest()
    assert await store.remaining("10/s") == 10


@virtual
async def test_expired_reservation_is_refunded() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k")
    await visit(limiter)
    (waiting,) = visits(limiter, 1)
    await turns()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._set_time(1.5)  # the process stood still
    assert await waiting == 1.5
    assert store.refunds == [(1.0, 1)]
    assert store.instants == [0.0, 1.0, 1.5]


@virtual
async def test_pause_refunds_reservations() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k")
    await visit(limiter)
    (waiting,) = visits(limiter, 1)
    await turns()
    limiter.pause(5)
    await turns(30)
    assert store.refunds == [(1.0, 1)]
    assert await waiting == 5.0


@virtual
async def test_exhausted_server_quota_delays_the_next_call() -> None:
    store = Watched()
    limiter = RateLimiter("10/s", store=store, key="k")
    async with limiter.throttle() as permit:
        permit.update_quota(0, reset_after=7)
    asked = store.calls["reserve"]
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(6)
    assert store.calls["reserve"] == asked
    assert await waiting == 7.0


# ---- errors --------------------------------------------------------------------------------------


@virtual
async def test_try_acquire_and_peek_keep_to_the_server_quota() -> None:
    store = Watched()
    limiter = RateLimiter("100/s", store=store, key="k")
    async with limiter.throttle() as permit:
        permit.update_quota(2, reset_after=7)
    assert await limiter.peek(2)
    assert not await limiter.peek(3)
    for left in (1, 0):
        assert await limiter.try_acquire()
        assert limiter.statistics().quota_remaining == left
    assert await limiter.try_acquire(0)
    for decision in (await limiter.peek(), await limiter.try_acquire()):
        assert (decision.allowed, decision.retry_after) == (False, 7)
    assert limiter.statistics().granted == 4
    assert await store.remaining("100/s") == 97
    with pytest.raises(ThrottleTimeout) as error:
        await limiter.acquire(timeout=6)
    assert (now(), error.value.retry_after) == (0, 7)
    assert await visit(limiter, timeout=8) == 7


@virtual
async def test_store_error_is_raised_in_each_waiter() -> None:
    store = Watched()
    store.error = StoreUnavailable("it is out")
    limiter = RateLimiter("10/s", store=store, key="k")
    results = await asyncio.gather(*visits(limiter, 3), return_exceptions=True)
    errors = [result for result in results if isinstance(result, StoreUnavailable)]
    assert len(errors) == len(set(map(id, errors))) == 3
    assert {str(error) for error in errors} == {"it is out"}
    assert {error.__cause__ for error in errors} == {store.error}
    assert store.calls["reserve"] == 1
    store.error = None
    assert await visit(limiter) == 0.0
    await rest()


@virtual
async def test_key_of_another_algorithm_is_raised_in_waiters() -> None:
    store = Watched()
    await visit(RateLimiter("10/s", store=store, key="k"))
    with pytest.raises(ValueError, match="another algorithm"):
        await visit(RateLimiter("10/s", algorithm=TokenBucket, store=store, key="k"))


@virtual
async def test_failed_refund_loses_only_its_tokens() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k")
    await visit(limiter)
    waiting = visits(limiter, 1)
    await turns()
    store.error = StoreUnavailable("it is out")
    await cancel(*waiting)
    await rest()
    store.error = None
    assert await visit(limiter) == 2.0


@virtual
async def test_task_sweep_does_not_stop_later_waiters() -> None:
    store = Watched()
    store.may_answer.clear()
    limiter = RateLimiter("10/s", store=store, key="k")
    (waiting,) = visits(limiter, 1)
    await turns()
    for task in asyncio.all_tasks():
        if task.get_name().startswith("aiothrottle"):
            task.cancel()
    await turns()
    store.may_answer.set()
    assert await waiting == 0.0


@virtual
async def test_task_sweep_loses_no_debt() -> None:
    store = Watched()
    limiter = RateLimiter("10/min", store=store, key="k")
    async with limiter.throttle() as permit:
        store.may_answer.clear()
        permit.settle(6)
        permit.settle(5)  # a refund of what is still being counted
        await turns()
        for task in asyncio.all_tasks():
            if task.get_name().startswith("aiothrottle"):
                task.cancel()
        await turns()
        store.may_answer.set()
    assert not limiter._engine.is_forgettable()
    await visit(limiter)  # no task is started until then: the loop may be closing
    await rest()
    assert await store.remaining("10/min") == 4


@pytest.mark.parametrize("latency", [0.0, 0.2])
@virtual
async def test_first_unknown_error_of_a_refund_is_logged(
    latency: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = Watched(latency=latency)
    limiter = RateLimiter("100/s", store=store, key="k\n")
    await asyncio.gather(*visits(limiter, 100))  # of a far store several are returned at once
    for _ in range(2):
        async with limiter.throttle(5) as one, limiter.throttle(5) as two:
            store.error = OSError("no room\non the disk")
            one.settle(1)
            two.settle(1)
            await rest()
            store.error = None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("tokens of 'k\\n' could not be returned")
    assert "no room" in caplog.messages[0]
    assert "\n" not in caplog.messages[0]


# ---- closing -----------------------------------------------------------------------------------


@virtual
async def test_closing_rejects_waiters_and_refunds_reservations() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k")
    await visit(limiter)
    waiting = visits(limiter, 2)
    await turns()
    await limiter.aclose()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [LimiterClosed] * 2
    assert store.refunds == [(1.0, 1)]
    assert not others()
    for method in (limiter.try_acquire, limiter.peek):
        with pytest.raises(LimiterClosed):
            await method()


@virtual
async def test_closing_awaits_the_answer_and_refunds_it() -> None:
    store = Watched(latency=0.5)
    limiter = RateLimiter("10/s", store=store, key="k")
    waiting = visits(limiter, 1)
    await turns()
    await limiter.aclose()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await store.remaining("10/s") == 10
    assert not others()


@virtual
async def test_drain_serves_all_waiters() -> None:
    store = Watched(latency=0.01)
    limiter = RateLimiter("2/s", store=store, key="k")
    waiting = visits(limiter, 5)
    await turns()
    await limiter.aclose(drain=True)
    assert all(task.done() for task in waiting)
    assert (await waiting[-1]) == pytest.approx(2.0, abs=0.1)
    assert not others()


def test_second_loop_keeps_the_record_and_refunds_reservations() -> None:
    limiter = RateLimiter("2/h", store=MemoryStore(), key="k", max_reservation=3600)
    waiting: list[asyncio.Task[Permit]] = []

    async def leave_some_waiting() -> None:
        await limiter.record(2)
        waiting.extend(asyncio.create_task(limiter.acquire()) for _ in range(2))
        await turns()

    async def go_on() -> float:
        remaining = (await limiter.peek()).remaining
        assert not reserved.ready
        await limiter.aclose()
        return remaining

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_some_waiting())
    loop.close()
    reserved = limiter._engine.bucket.state
    assert reserved.tokens == 1
    assert asyncio.run(go_on()) == 0
    assert not reserved.returned


class Stuck(MemoryStore):
    """A store whose first record call has no answer."""

    is_stuck = True

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        if self.is_stuck:
            self.is_stuck = False
            await asyncio.Event().wait()
        return await super().record(key, algorithm, cost)


def test_loop_that_is_closed_meanwhile_loses_no_debt() -> None:
    limiter = RateLimiter("10/h", store=Stuck(), key="k")

    async def owe() -> None:
        async with limiter.throttle() as permit:
            permit.settle(6)
            await turns()

    async def remaining() -> float:
        await visit(limiter)
        await rest()
        return (await limiter.peek()).remaining

    loop = asyncio.new_event_loop()
    loop.run_until_complete(owe())
    loop.close()
    assert asyncio.run(remaining()) == 3


class Slow(MemoryStore):
    """A store that takes a while to refund."""

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        await asyncio.sleep(0.01)
        await super().refund(key, algorithm, cost, instant)


def test_loop_that_ends_early_leaves_no_task(caplog: pytest.LogCaptureFixture) -> None:
    async def leave_some_waiting() -> None:
        limiter = RateLimiter("2/h", store=Slow(), key="k", max_reservation=3600)
        await limiter.record(2)
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(2)]
        await turns()
        assert limiter._engine.bucket.state.tokens == len(waiting) - 1

    asyncio.run(leave_some_waiting())
    gc.collect()
    assert "aiothrottle store" not in caplog.text


# ---- the other methods -------------------------------------------------------------------------


@virtual
async def test_try_acquire_spends_what_fits_and_never_waits() -> None:
    store = Watched()
    limiter = RateLimiter("2/s", concurrency_limit=5, store=store, key="k")
    first, second, third = [await limiter.try_acquire() for _ in range(3)]
    assert first
    assert second
    assert not third
    assert (second.remaining, third.retry_after, third.limit) == (0, 1.0, 2)
    assert first.permit is not None
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.rejected, statistics.in_flight) == (2, 1, 2)
    first.permit.settle(0)
    await rest()
    assert await limiter.try_acquire()
    first.permit.release()
    assert limiter.statistics().in_flight == 2


@virtual
async def test_try_acquire_behind_waiters_reports_their_wait() -> None:
    store = Watched()
    limiter = RateLimiter("2/s", store=store, key="k")
    await visit(limiter)
    (waiting,) = visits(limiter, 1, 2)
    await turns()
    await MemoryStore.clear(store, "k")
    decision = await limiter.try_acquire()
    assert not decision
    assert decision.retry_after >= 1.0
    assert not await limiter.peek()
    assert await waiting == 1.0


@virtual
async def test_cancelled_try_acquire_costs_nothing() -> None:
    store = Watched()
    store.may_answer.clear()
    limiter = RateLimiter("2/s", concurrency_limit=1, store=store, key="k")
    trying = asyncio.create_task(limiter.try_acquire())
    await turns()
    trying.cancel()
    await asyncio.gather(trying, return_exceptions=True)
    assert limiter.statistics().in_flight == 0
    assert not limiter._engine.is_forgettable()
    store.may_answer.set()
    await rest()
    assert await store.remaining("2/s") == 2
    store.error = StoreUnavailable("it is out")
    with pytest.raises(StoreUnavailable):
        await limiter.try_acquire()
    assert limiter.statistics().in_flight == 0


@virtual
async def test_cancelled_try_acquire_of_a_dropped_limiter_costs_nothing() -> None:
    store = Watched(latency=1.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(RateLimiter("2/h", store=store, key="k").try_acquire(), 0.1)
    gc.collect()
    await asyncio.sleep(2)
    assert await store.remaining("2/h") == 2


@virtual
async def test_peek_spends_nothing_and_record_is_counted() -> None:
    store = Watched()
    limiter, other = (
        RateLimiter("2/s", store=store, key="k"),
        RateLimiter("2/s", store=store, key="k"),
    )
    assert (await limiter.peek(2)).allowed
    await other.record(2)
    decision = await limiter.peek()
    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 0, 1.0)
    assert limiter.statistics().utilisation == 1.0
    assert await visit(limiter) == 1.0


@virtual
async def test_settle_refunds_or_records_the_difference() -> None:
    store = Watched()
    limiter = RateLimiter("10/s", store=store, key="k")
    async with limiter.throttle(4) as permit:
        permit.settle(1)
        await rest()
        assert await store.remaining("10/s") == 9
        permit.settle(8)
        await rest()
        assert await store.remaining("10/s") == 2
        permit.settle(2)
        await rest()
        assert await store.remaining("10/s") == 8
    assert store.calls["record"] == 1


@virtual
async def test_refund_during_its_record_call_is_kept() -> None:
    store = Watched(latency=0.1)
    limiter = RateLimiter("10/h", store=store, key="k")
    async with limiter.throttle() as permit:
        permit.settle(6)
        await asyncio.sleep(0.03)  # the call to the store is under way
        permit.settle(2)
    await rest()
    assert await store.remaining("10/h") == 8


@virtual
async def test_debt_is_paid_before_the_next_grant() -> None:
    store = Watched()
    limiter = RateLimiter("2/s", store=store, key="k")
    async with limiter.throttle() as permit:
        (waiting,) = visits(limiter, 1, 2)
        await turns()
        permit.settle(3)
    assert await waiting >= 1.0
    assert greatest_count(store.instants, 1.0) <= 2


@virtual
async def test_timeout_shorter_than_a_known_wait_rejects_immediately() -> None:
    store = Watched()
    limiter = RateLimiter("1/10s", store=store, key="k", max_reservation=0.5)
    await visit(limiter)
    waiting = visits(limiter, 1)
    await turns()
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, timeout=5)
    assert (now(), error.value.retry_after) == (0.0, 10.0)
    await cancel(*waiting)


@virtual
async def test_timeout_behind_reservations_rejects_immediately() -> None:
    store = Watched()
    limiter = RateLimiter("1/s", store=store, key="k")
    await visit(limiter)
    waiting = visits(limiter, 1)
    await turns()
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, timeout=0.5)
    assert (now(), error.value.retry_after) == (0.0, 1.0)
    await cancel(*waiting)
    limiter.pause(5)
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, timeout=4)
    assert now() == 0.0


@virtual
async def test_timeout_of_unforeseen_wait_expires_in_time() -> None:
    store = Watched()
    limiter = RateLimiter("1/10s", store=store, key="k")
    await RateLimiter("1/10s", store=store, key="k").record()
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, timeout=3)
    assert now() == pytest.approx(3, abs=0.01)
    assert error.value.retry_after == pytest.approx(7, abs=0.01)
    await rest()


@virtual
async def test_update_changes_the_calls_and_keeps_the_record() -> None:
    store = Watched()
    limiter = RateLimiter("1/10s", store=store, key="k", max_reservation=0)
    await visit(limiter)
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(1)
    limiter.update(rate_limit="2/10s")
    assert await waiting == 1.0
    (waiting,) = visits(limiter, 1, 2)
    await turns()
    limiter.update(rate_limit="1/10s")
    with pytest.raises(CostTooHigh):
        await waiting
    with pytest.raises(ValueError, match="give a rate_limit"):
        limiter.update(rate_limit=None)


# ---- a key for each actor ------------------------------------------------------------------------


@virtual
async def test_each_key_has_its_own_record() -> None:
    store = Watched()
    keyed = KeyedRateLimiter("1/10s", store=store, key="mail")
    other = KeyedRateLimiter("1/10s", store=store, key="mail")
    for actor in ("ann", "7"):
        async with keyed.throttle(actor):
            pass
    assert not await other.try_acquire("ann")
    assert await other.try_acquire("bob")
    assert store.keys == {("mail", "ann"), ("mail", "7"), ("mail", "bob")}
    await asyncio.sleep(100)
    assert len(keyed) == 0
    await keyed.aclose()


async def test_key_of_any_type_is_stored_as_text() -> None:
    store = MemoryStore()
    keyed = KeyedRateLimiter("1/h", store=store, key="mail")
    assert await keyed.try_acquire(7)
    assert not await RateLimiter("1/h", store=store, key=("mail", "7")).try_acquire()


@pytest.mark.parametrize("kind", [RateLimiter, KeyedRateLimiter])
@pytest.mark.parametrize(
    "limits", [{"rate_limit": "1/s"}, {"concurrency_limit": SharedConcurrency(1)}]
)
@pytest.mark.parametrize("named", [{}, {"key": None}])
def test_store_without_a_key_is_rejected(
    kind: Unchecked, limits: dict[str, Unchecked], named: dict[str, None]
) -> None:
    """Two limiters that name no record must not share one."""
    with pytest.raises(TypeError, match=r"key is required with store.*write key='"):
        kind(**limits, **named, store=MemoryStore())


# ---- invalid arguments -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((), {}, "give a rate_limit, or a SharedConcurrency"),
        (("server",), {}, "with a store, give a fixed rate"),
        ((AdaptiveRate(1, 1, 1),), {}, "a store needs a fixed rate"),
        (("1/s",), {"guard": "auto"}, "a store needs a fixed rate and guard"),
        ((), {"algorithm": AllOf(WaitUntil(1, 5, 10))}, "a WaitUntil only, alone"),
        (("1/s",), {"parent": RateLimiter(1)}, "a limiter with a store has no parent"),
        (
            ("1/s",),
            {"max_reservation": -1},
            "max_reservation must be a finite number of seconds, 0 or more",
        ),
        (
            ("1/s",),
            {"max_reservation": math.nan},
            "max_reservation must be a finite number of seconds, 0 or more",
        ),
    ],
)
def test_combination_that_cannot_be_shared_is_rejected(
    arguments: Unchecked, options: Unchecked, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        RateLimiter(*arguments, store=MemoryStore(), key="k", **options)


def test_wrong_arguments_are_rejected() -> None:
    unchecked: Unchecked = RateLimiter
    with pytest.raises(TypeError, match="store must be a Store"):
        unchecked(1, store="redis")
    with pytest.raises(TypeError, match="key is a text"):
        unchecked(1, store=MemoryStore(), key=7)
    with pytest.raises(ValueError, match="give a store"):
        unchecked(1, key="mail")
    with pytest.raises(ValueError, match="give a store"):
        RateLimiter(1, max_reservation=1)
    with pytest.raises(ValueError, match="cannot be a parent"):
        RateLimiter(1, parent=RateLimiter(1, store=MemoryStore(), key="k"))


def test_reservations_are_an_algorithm() -> None:
    algorithm = Reserved(SlidingWindowLog("10/s"))
    state = algorithm.start()
    algorithm.hold(state, 5.0, [1, 1, 0, 2], [1.0, 1.0, 1.0, 2.0], 1.0)
    assert [slot.cost for slot in state.ready] == [2, 2]
    assert (algorithm.allowance(state, 5.0, 9), algorithm.allowance(state, 6.0, 3)) == (2, 3)
    assert algorithm.delay_behind(state, 5.0, 1, 2) == 1.0
    assert algorithm.delay(state, 5.0, 5) == math.inf
    algorithm.take(state, 6.0, 3)
    algorithm.refund(state, 6.0, 2, 6.0)
    assert [(slot.cost, slot.instant) for slot in state.returned] == [(1, 2.0), (1, 1.0)]
    algorithm.take(state, 6.0, 2)
    algorithm.refund(state, 6.0, 1, 6.0)
    assert [slot.cost for slot in state.owed] == [0]


@virtual
async def test_refund_finds_a_late_record_behind_later_use() -> None:
    store = Watched()
    limiter = RateLimiter("10/s", store=store, key="k")
    async with limiter.throttle() as early:
        store.may_answer.clear()
        early.settle(3)
        await asyncio.sleep(0.1)
        (waiting,) = visits(limiter, 1)
        await turns()
        store.may_answer.set()
        await waiting
        async with limiter.throttle() as late:
            late.settle(0)
            early.settle(1)
        await rest()
    assert await store.remaining("10/s") == 8


# ---- a real server -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.stop()


class Noting(RedisStore):
    """Records the instants that the server granted, the refunds, and the tokens recorded late."""

    __slots__ = ("instants", "recorded")

    instants: list[float]
    recorded: float

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        answer = await super().reserve(key, algorithm, costs, horizon=horizon)
        self.instants += answer.instants
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        await super().refund(key, algorithm, cost, instant)
        for _ in range(round(cost)):
            self.instants.remove(instant)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        self.recorded += cost
        return await super().record(key, algorithm, cost)


async def test_limiters_on_a_server_key_keep_its_limit(
    valkey: Valkey,
) -> None:
    async with valkey.connect() as client:
        store = Noting(client, "shared", timeout=5)
        store.instants, store.recorded = [], 0.0
        limiters = [RateLimiter("200/500ms", store=store, key="k") for _ in range(4)]
        await asyncio.gather(*(visit(limiter) for limiter in limiters for _ in range(200)))
        for limiter in limiters:
            await limiter.aclose()
    assert len(store.instants) == 800
    assert store.recorded == 0, "nothing was granted without a reservation"
    assert greatest_count(store.instants, 0.5) <= 200


WORKER = """
import asyncio, sys
from redis.asyncio import Redis
from aiothrottle import RateLimiter
from tests.stores.test_shared import Noting

async def main():
    async with Redis(port=int(sys.argv[1])) as client:
        store = Noting(client, "workers", timeout=5)
        store.instants, store.recorded = [], 0.0
        async with RateLimiter("500/s", store=store, key="k") as limiter:
            await limiter.peek()
            print("ready", flush=True)
            sys.stdin.readline()

            async def work():
                while True:
                    async with limiter.throttle():
                        pass

            workers = [asyncio.create_task(work()) for _ in range(100)]
            await asyncio.sleep(2.5)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        print(*map(repr, store.instants))

asyncio.run(main())
"""


async def test_processes_on_a_server_key_use_the_limit(valkey: Valkey) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, str(valkey.port)),
            env=ENVIRONMENT,
            stdin=PIPE,
            stdout=PIPE,
            limit=1 << 20,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    instants = [float(word) for output, _ in outputs for word in output.split()]
    assert greatest_count(instants, 1.0) <= 500
    used = [instant for instant in instants if instant < min(instants) + 2.0]
    assert len(used) >= 0.95 * 1000
