"""Limiters on a store: which calls they make, when, and how they use the answers."""

import asyncio
import gc
import itertools
import math
import random
from typing import Any, TypeAlias

import pytest

from aiothrottle import AdaptiveRate, KeyedRateLimiter, RateLimiter, SharedConcurrency
from aiothrottle.algorithms import AllOf, SlidingWindowLog, WaitUntil
from aiothrottle.errors import CostTooHigh, LimiterClosed, StoreUnavailable, ThrottleTimeout
from aiothrottle.stores import MemoryStore, Store
from aiothrottle.testing import greatest_count
from tests.support.virtually import cancel, now, turns, visit, visits
from tests.support.watching import Watched, others, rest, sweep, watched

Unchecked: TypeAlias = Any  # an argument of a caller that does not check its types


# ---- the queue and its calls ---------------------------------------------------------------------


async def test_only_calls_that_may_be_granted_are_made() -> None:
    store, limiter = watched("1/10s", max_reservation=2.0)
    await visit(limiter)
    await visit(limiter)
    assert store.asked_at == [0.0, 0.0, 8.0]
    assert now() == 10.0
    store, limiter = watched("1000/s", concurrency_limit=2)
    await asyncio.gather(*visits(limiter, 6, stay=1))
    assert now() == 13.0
    assert sum(map(len, store.costs)) == 6, "waiters without a slot reserve nothing"
    assert not store.refunds
    store, limiter = watched("1000/s")
    await visit(limiter, 0)
    assert store.calls.total() == 0
    await asyncio.gather(visit(limiter, 10), visit(limiter, 0))
    await turns()
    assert not others()
    await asyncio.sleep(100)
    assert (store.costs, store.calls) == ([[10]], {"reserve": 1}), "an idle one makes none"


async def test_heavy_head_is_not_starved_by_small_reservations() -> None:
    store, limiter = watched("100/s", burst=5)
    await asyncio.gather(*visits(limiter, 5))
    light = visits(limiter, 3)
    await turns()
    (heavy,) = visits(limiter, 1, 5)
    await cancel(*light)
    await turns(30)
    assert {cost for _, cost in store.refunds} == {1}
    assert store.costs[-1] == [5]
    assert await heavy < 0.2


# ---- cancellation ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["acquire", "try_acquire"])
async def test_answer_without_a_caller_is_refunded(method: str) -> None:
    store = Watched()
    store.may_answer.clear()
    keyed = KeyedRateLimiter("2/h", concurrency_limit=1, store=store, key="k")
    asking = asyncio.create_task(getattr(keyed, method)("ann"))
    await turns()
    await cancel(asking)
    del asking
    gc.collect()
    await asyncio.sleep(100)
    assert len(keyed) == 1, "it is not forgotten while a call is under way"
    store.may_answer.set()
    await rest()
    assert store.calls == {"reserve": 1, "refund": 1}
    assert (await keyed.peek("ann")).remaining == 2
    assert await keyed.try_acquire("ann"), "its slot is free"
    store = Watched(latency=1.0)  # the limiter is dropped as well
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(getattr(RateLimiter("2/h", store=store, key="k"), method)(), 0.1)
    gc.collect()
    await asyncio.sleep(2)
    assert await store.remaining("2/h") == 2


@pytest.mark.parametrize("end", ["cancelled", "closed"])
async def test_turn_of_other_processes_ends_well(end: str) -> None:
    """A process that lets others call first is not stuck, and leaves no task, in that time."""
    store = Watched()
    await store.record("k", SlidingWindowLog("10/s"), 10)  # of another process
    limiter = RateLimiter("10/s", store=store, key="k", guard=0.0)
    first, second = visits(limiter, 2)
    assert await first == 1.0
    await turns()
    assert len(store.asked_at) == 1, "it lets the other process call first"
    if end == "cancelled":
        sweep()
        assert await second == pytest.approx(1.0, abs=0.01)
        await rest()
    else:
        await limiter.aclose()
        with pytest.raises(LimiterClosed):
            await second
        assert now() == pytest.approx(1.0, abs=0.01)
    assert not others()


# ---- errors --------------------------------------------------------------------------------------


async def test_store_error_is_raised_in_each_waiter() -> None:
    store = Watched()
    store.error = StoreUnavailable("it is out")
    store.error.__cause__ = cause = OSError("of the driver")
    limiter = RateLimiter("10/s", concurrency_limit=5, store=store, key="k")
    results = await asyncio.gather(*visits(limiter, 3), return_exceptions=True)
    errors = [result for result in results if isinstance(result, StoreUnavailable)]
    assert len(errors) == len(set(map(id, errors))) == 3
    said = "it is out; requests with key 'k' fail until it answers (limiter '10/s')"
    assert {(str(error), error.__cause__) for error in errors} == {(said, cause)}
    assert store.calls["reserve"] == 1
    with pytest.raises(StoreUnavailable):
        await limiter.try_acquire()
    assert limiter.statistics().in_flight == 0
    store.error = None
    assert await visit(limiter) == 0.0
    await rest()


async def test_task_sweep_stops_no_waiter_and_loses_no_debt() -> None:
    store = Watched()
    store.may_answer.clear()
    keyed = KeyedRateLimiter("10/min", store=store, key="k")
    limiter = keyed["ann"]
    (waiting,) = visits(limiter, 1)
    await turns()
    sweep()
    await turns()
    store.may_answer.set()
    assert await waiting == 0.0
    await limiter.reset()
    async with limiter.throttle() as permit:
        store.may_answer.clear()
        permit.settle(6)
        permit.settle(5)  # a refund of what is still being counted
        await turns()
        sweep()
        await turns()
        store.may_answer.set()
    await visit(limiter)  # no task is started until then: the loop may be closing
    await rest()
    assert (await limiter.peek()).remaining == 4


@pytest.mark.parametrize("latency", [0.0, 0.2])
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
    (message,) = [it.getMessage() for it in caplog.records if it.name == "aiothrottle"]
    assert message.startswith("tokens of 'k\\n' could not be returned")
    assert "no room" in message
    assert "\n" not in message


async def test_unknown_error_of_a_charge_gives_up_the_others() -> None:
    store, limiter = watched("100/s")
    permits = [await limiter.acquire() for _ in range(3)]
    store.error = OSError("no room on the disk")
    for permit in permits:
        permit.settle(5)
    await rest()
    assert store.calls["record"] == 1


# ---- closing -----------------------------------------------------------------------------------


async def test_closing_rejects_waiters_and_refunds_reservations() -> None:
    store, limiter = watched("1/s")
    await visit(limiter)
    waiting = visits(limiter, 2)
    await turns()
    await limiter.aclose()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [LimiterClosed] * 2
    assert store.refunds == [(1.0, 1)]
    for method in (limiter.try_acquire, limiter.peek):
        with pytest.raises(LimiterClosed):
            await method()
    store, limiter = watched("10/s", latency=0.5)
    waiting = visits(limiter, 1)
    await turns()  # the call is under way
    await limiter.aclose()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await store.remaining("10/s") == 10
    assert not others()


# ---- the other methods -------------------------------------------------------------------------


async def test_try_acquire_spends_what_fits_and_never_waits() -> None:
    store, limiter = watched("2/s", concurrency_limit=5)
    first, second, third = [await limiter.try_acquire() for _ in range(3)]
    assert [bool(each) for each in (first, second, third)] == [True, True, False]
    assert (second.remaining, third.retry_after, third.limit) == (0, 1.0, 2)
    assert first.permit is not None
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.rejected, statistics.in_flight) == (2, 1, 2)
    first.permit.settle(0)
    await rest()
    assert await limiter.try_acquire()
    (waiting,) = visits(limiter, 1, 2)  # behind it, although the record was deleted
    await turns()
    await store.clear("k")
    decision = await limiter.try_acquire()
    assert not decision
    assert decision.retry_after == pytest.approx(1.0, abs=0.01)
    assert not await limiter.peek()
    assert await waiting <= 0.25, "it asks again, as tokens have come back before"
    store, limiter = watched("1/10s")
    store.may_answer.clear()
    trying = asyncio.create_task(limiter.try_acquire())
    await turns()
    (waiting,) = visits(limiter, 1)  # it gets its answer first
    await turns()
    store.may_answer.set()
    assert await trying
    assert await waiting == pytest.approx(10.0, abs=0.5)
    await rest()
    assert store.calls == {"reserve": 2}, "each has used its own token"


async def test_try_acquire_and_peek_keep_to_the_server_quota() -> None:
    store, limiter = watched("100/s")
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
    asked = store.calls["reserve"]
    (waiting,) = visits(limiter, 1, timeout=8)
    await asyncio.sleep(6)
    assert store.calls["reserve"] == asked
    assert await waiting == 7


async def test_refunds_and_debts_reach_the_store() -> None:
    store, limiter = watched("10/h", latency=0.1)
    async with limiter.throttle() as early:
        early.settle(6)
        await asyncio.sleep(0.03)  # the call to the store is under way
        early.settle(2)
        await rest()
        assert await store.remaining("10/h") == 8
        store.may_answer.clear()
        early.settle(4)
        await asyncio.sleep(0.1)
        (waiting,) = visits(limiter, 1)
        await turns()
        store.may_answer.set()
        await waiting
        async with limiter.throttle() as late:
            late.settle(0)
            early.settle(1)
        await rest()
    assert await store.remaining("10/h") == 8
    store, limiter = watched("2/s")
    async with limiter.throttle() as permit:
        (waiting,) = visits(limiter, 1, 2)
        await turns()
        permit.settle(3)
    assert await waiting >= 1.0
    assert greatest_count(store.instants, 1.0) <= 2


@pytest.mark.parametrize("period", [1, 60])
@pytest.mark.parametrize("processes", [1, 5])
async def test_refunds_go_to_the_waiters_of_all_processes(processes: int, period: int) -> None:
    random.seed(5)  # of when they ask again
    store, ends = Watched(), list[float]()

    async def work(limiter: RateLimiter) -> None:
        for _ in range(20):
            async with limiter.throttle(10) as permit:
                await asyncio.sleep(period / 30)
                permit.settle(2)
        ends.append(now())

    rate = f"100/{period}s"
    limiters = [RateLimiter(rate, store=store, key="k") for _ in range(processes)]
    await asyncio.gather(*(work(limiters[place % processes]) for place in range(10)))
    assert max(ends) <= 7 * period, "it is 4 periods for the final costs, 20 for those before"
    assert min(ends) >= 0.4 * max(ends), "each process gets its part"
    assert store.calls["reserve"] <= 8 * 200


async def test_refund_finds_its_reservation_by_a_moving_clock() -> None:
    clock = itertools.count(0.0, 1e-6).__next__
    limiter = RateLimiter("10/h", store=MemoryStore(), key="k", clock=clock)
    async with limiter.throttle(5) as permit:
        permit.settle(2)
    await rest()
    assert (await limiter.peek()).remaining == 8


@pytest.mark.parametrize("latency", [0.0, 0.05])
async def test_wait_that_the_store_tells_rejects_those_that_cannot_wait_so_long(
    latency: float,
) -> None:
    _, limiter = watched("3/10s", latency=latency)
    waiting = [visits(limiter, 1, timeout=it)[0] for it in (3, None, 3, 3, 12, None, 9, 15, 15)]
    await asyncio.sleep(0.5)
    assert [await task < 0.2 for task in waiting[:3]] == [True, True, True]
    rejected = [task for task in waiting[3:] if task.done()]
    assert rejected == [waiting[3], waiting[6]]
    for task in rejected:
        with pytest.raises(ThrottleTimeout) as error:
            await task
        assert error.value.retry_after == pytest.approx(10, abs=0.3)
    with pytest.raises(ThrottleTimeout):
        await waiting[-1]
    assert (limiter.statistics().rejected, now() < 12) == (3, True)


async def test_reset_by_another_process_is_noticed_within_a_minute() -> None:
    store = MemoryStore(clock=now)
    limiter, other = (RateLimiter("1/d", store=store, key="k") for _ in range(2))
    await visit(limiter)
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(1000)
    await other.reset()
    assert 1000 < await waiting < 1060
    with pytest.raises(ThrottleTimeout, match="23 h"):
        await visit(limiter, timeout=5)
    await other.reset()
    await asyncio.sleep(60)
    await visit(limiter, timeout=5)


async def test_update_changes_the_calls_and_keeps_the_record() -> None:
    _, limiter = watched("1/10s", max_reservation=0)
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
    with pytest.raises(ValueError, match="make a limiter with another key"):
        limiter.update(rate_limit=["1/10s", "5/min"])
    assert await visit(limiter) == 11.0
    assert limiter.statistics().utilisation == 1.0
    await asyncio.sleep(10.0)
    assert limiter.statistics().utilisation == 0.0


async def test_order_of_the_rates_makes_no_difference() -> None:
    store = MemoryStore(clock=now)
    rates: dict[str, Any] = {"requests": ["2/s", "3/min"], "tokens": "9/s"}
    in_another_order = {"tokens": "9/s", "requests": ["3/min", "2/s"]}
    first, second = (RateLimiter(each, store=store, key="k") for each in (rates, in_another_order))
    starts = [await visit(limiter) for limiter in (first, second, first, second)]
    assert starts == [0.0, 0.0, 1.0, 60.0]


# ---- keys and arguments --------------------------------------------------------------------------


async def test_each_key_has_its_own_record() -> None:
    store = Watched()
    keyed, other = (KeyedRateLimiter("1/10s", store=store, key="mail") for _ in range(2))
    for actor in ("ann", 7):
        assert await keyed.try_acquire(actor)
    assert not await other.try_acquire("ann")
    assert not await RateLimiter("1/10s", store=store, key=("mail", "7")).try_acquire()
    assert await other.try_acquire("bob")
    assert store.keys == {("mail", "ann"), ("mail", "7"), ("mail", "bob")}
    await asyncio.sleep(100)
    assert len(keyed) == 0
    await keyed.aclose()


WAIT_UNTIL = {"algorithm": WaitUntil(1, 5, 10)}
SLOTS: dict[str, Any] = {"concurrency_limit": SharedConcurrency(2)}
ALONE: dict[str, Any] = {"store": None, "key": None}  # without a store
LOCAL: dict[str, Any] = {"on_store_error": "local"}
PARTS = [0, -1, 1.5, math.nan]  # which are none
STORED: list[dict[str, Any]] = [
    {"store": MemoryStore(), "key": "k", **it} for it in ({"rate_limit": 1}, SLOTS)
]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "give a rate_limit, or a SharedConcurrency"),
        ({"rate_limit": "server"}, "with a store, give a fixed rate"),
        ({"rate_limit": AdaptiveRate(1, 1, 1)}, "a store needs a fixed rate"),
        ({"rate_limit": 1, "guard": "auto"}, "a store needs a fixed rate and guard"),
        ({"rate_limit": 1, "parent": RateLimiter(1)}, "a limiter with a store has no parent"),
        ({"rate_limit": 1, "max_reservation": -1}, "max_reservation must be a finite number of"),
        ({"rate_limit": 1, "store": "redis"}, "store must be a Store"),
        ({"rate_limit": 1, "key": 7}, "key is a text"),
        *(({**it, "key": None}, r"key is required with store.*write key='") for it in STORED),
        ({"rate_limit": 1, "store": None}, "give a store"),
        ({"rate_limit": 1, **ALONE, "max_reservation": 1}, "give a store"),
        ({"rate_limit": 1, **ALONE, "prefetch": "50/s"}, "give a store"),
        *(({"rate_limit": 1, "prefetch": it}, "token|rate|limit") for it in ("0.5/s", "none", 0)),
        ({"rate_limit": {"tokens": 1}, "prefetch": "5/s"}, "prefetch is for limiters without res"),
        ({"algorithm": AllOf(WaitUntil(1, 5, 10))}, "a WaitUntil only, alone"),
        ({**WAIT_UNTIL, "max_reservation": 5}, "no max_reservation and no prefetch"),
        ({**WAIT_UNTIL, "prefetch": "2/s"}, "no max_reservation and no prefetch"),
        ({**WAIT_UNTIL, "rate_limit": "1/s"}, "two rates"),
        ({**SLOTS, **ALONE}, "give a store"),
        ({**SLOTS, "store": type("Tokens", (Store,), {"clear": None})()}, "through a SlotStore"),
        ({**SLOTS, "rate_limit": "server"}, "with a store, give a fixed rate"),
        ({**SLOTS, "max_reservation": 1}, "max_reservation"),
        ({**SLOTS, "parent": RateLimiter(1)}, "has no parent"),
        *(({**ALONE, "parent": RateLimiter(**it)}, "cannot be a parent") for it in STORED),
        ({"rate_limit": 1, "on_store_error": "ignore"}, "on_store_error must be one of"),
        ({"rate_limit": 1, **ALONE, "on_store_error": "local"}, "give a store"),
        ({"rate_limit": 1, **ALONE, **LOCAL, "local_share": 0.5}, "give a store"),
        ({"rate_limit": 1, "local_share": 0.5}, "write on_store_error='local' too"),
        *(({"rate_limit": 1, "local_share": it}, "above 0, at most 1, .*1/8") for it in PARTS),
        *(
            ({**SLOTS, **LOCAL, "local_share": it}, "must be a finite number, .*1/8")
            for it in ("x", True)
        ),
    ],
)
def test_arguments_that_cannot_be_shared_are_rejected(options: Unchecked, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        RateLimiter(**({"store": MemoryStore(), "key": "k"} | options))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), "limit must be a whole number of slots, 1 or more, got 0"),
        ((2, 30, 0), "per_process must be a whole number of slots, 1 or"),
        ((2, 0), "lease must be a finite number of seconds, above 0"),
    ],
)
def test_wrong_numbers_of_slots_are_rejected(arguments: tuple[Any, ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SharedConcurrency(*arguments)
