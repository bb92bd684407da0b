"""`WaitUntil` through a store: requests are granted or rejected on arrival; rejected ones count."""

import asyncio
from itertools import pairwise

import pytest

from aiothrottle import (
    KeyedRateLimiter,
    LimiterClosed,
    RateLimiter,
    SharedConcurrency,
    ThrottleTimeout,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import AllOf
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.store import Store
from tests.limiter.test_timeout import outcomes
from tests.sharing import Link, Shared
from tests.stores.test_shared import Unchecked, Watched, cancel, others, rest
from tests.virtually import now, turns, virtual, visit, visits

ALGORITHM = WaitUntil(interval=1, raise_after=5, limit=10)
TABLE: list[float | str] = [0, 1, 2, 3, 4, 5, "6", "7", "8", "9"]


def limiter_on(store: Store, algorithm: WaitUntil = ALGORITHM, **options: Unchecked) -> RateLimiter:
    return RateLimiter(algorithm=algorithm, store=store, key="k", **options)


# ---- the algorithm -------------------------------------------------------------------------------


@virtual
async def test_simultaneous_requests_are_one_call_rejected_ones_count() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = visits(limiter, 10)
    await turns()
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.waiting, statistics.rejected) == (1, 5, 4)
    assert store.calls == {"reserve": 1}
    assert await outcomes(tasks) == TABLE
    assert store.calls == {"reserve": 1}
    # The rejected ones count: the next one at 5 waits until 10.
    assert (await limiter.peek()).retry_after == 5
    assert await visit(limiter) == 10
    assert not store.refunds


@virtual
async def test_reported_wait_never_exceeds_the_limit() -> None:
    store = Watched(latency=0.25)
    limiter = limiter_on(store)
    tasks = visits(limiter, 15)
    await asyncio.sleep(0.1)  # the call for the first fifteen is under way
    tasks += visits(limiter, 15)
    answers = await outcomes(tasks)
    assert answers[:10] == [
        each + 0.25 if isinstance(each, float | int) else each for each in TABLE
    ]
    assert set(answers[10:15]) == {"10"}
    assert all(9 < float(each) <= 10 for each in answers[15:])


@virtual
async def test_more_simultaneous_requests_than_one_call_takes() -> None:
    store = Watched()
    answers = await outcomes(visits(limiter_on(store), 1200))
    assert answers == [*TABLE, *["10"] * 1190]
    assert store.calls == {"reserve": 2}


@virtual
async def test_all_processes_share_one_grant_per_interval() -> None:
    store = Watched(latency=0.02)
    limiters = [limiter_on(store, WaitUntil(0.1, 2, 4)) for _ in range(4)]
    answers: list[float | str] = []
    for _ in range(5):
        answers += await outcomes([task for each in limiters for task in visits(each, 20)])
    granted_at = sorted(each for each in answers if isinstance(each, float))
    assert len(granted_at) >= 21
    assert all(later - first >= 0.1 - 1e-6 for first, later in pairwise(store.instants))
    assert all(later - first >= 0.1 - 0.02 for first, later in pairwise(granted_at))
    assert len(granted_at) + sum(each.statistics().rejected for each in limiters) == 400


@virtual
async def test_try_acquire_is_not_counted_as_rejected() -> None:
    store = Watched()
    limiter = limiter_on(store)
    first = await limiter.try_acquire()
    assert first.permit is not None
    for _ in range(20):
        assert not await limiter.try_acquire()
        assert (await limiter.peek()).retry_after == 1.0
    assert store.calls["record"] == 0
    assert await visit(limiter) == 1.0


@virtual
async def test_recorded_requests_delay_the_next() -> None:
    limiter = limiter_on(Watched())
    await limiter.record(3)
    assert await visit(limiter) == 3.0


@virtual
async def test_timeout_shorter_than_the_wait_takes_nothing() -> None:
    store = Watched(latency=0.01)
    limiter = limiter_on(store)
    tasks = visits(limiter, 3)
    tasks += visits(limiter, 5, timeout=3.5)
    tasks += visits(limiter, 4)
    answers = await outcomes(tasks)
    assert answers[:4] == pytest.approx([0.01, 1.01, 2.01, 3.01])
    assert [float(each) for each in answers[4:8]] == pytest.approx([4] * 4, abs=0.1)
    assert answers[8:10] == pytest.approx([4.01, 5.01])
    assert [float(each) for each in answers[10:]] == pytest.approx([6, 7], abs=0.1)
    assert limiter.statistics().rejected == 6
    await rest()
    assert (await limiter.peek()).retry_after == pytest.approx(8 - 5.01, abs=0.01)
    assert not store.refunds


@pytest.mark.parametrize(("timeout", "ends_at"), [(4.0, 2.1), (4.9, 5.4)])
@virtual
async def test_timeout_includes_the_wait_for_the_store(timeout: float, ends_at: float) -> None:
    store = Watched(latency=0.1)
    limiter = limiter_on(store)
    store.may_answer.clear()
    tasks = visits(limiter, 5)
    await asyncio.sleep(0.5)
    newcomer = asyncio.create_task(visit(limiter, timeout=timeout))
    await asyncio.sleep(1.5)
    store.may_answer.set()
    # The store has an instant for it at 5: that is too late, or not, and then those before it are.
    await asyncio.wait([newcomer])
    assert isinstance(newcomer.exception(), ThrottleTimeout)
    assert now() == pytest.approx(ends_at, abs=0.06)
    assert await asyncio.gather(*tasks) == pytest.approx([2.05, 3.05, 4.05, 5.05, 6.05])


@virtual
async def test_timeout_longer_than_the_maximum_wait_changes_nothing() -> None:
    store = Watched()
    assert await outcomes(visits(limiter_on(store), 10, timeout=60)) == TABLE
    assert store.calls == {"reserve": 1}


@virtual
async def test_costs_are_intervals_and_zero_makes_no_call() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = [*visits(limiter, 1, 3), *visits(limiter, 1, 0), *visits(limiter, 1, 2)]
    tasks += visits(limiter, 2)
    assert await outcomes(tasks) == [0, 0, 3, 5, "6"]
    assert store.costs == [[3, 2, 1, 1]]


@virtual
async def test_each_key_has_its_own_schedule() -> None:
    store = Watched()
    keyed = KeyedRateLimiter(algorithm=ALGORITHM, store=store, key="mail")

    async def hit(actor: str) -> float:
        async with keyed.throttle(actor):
            return now()

    tasks = [asyncio.create_task(hit(actor)) for actor in ["ann", "bob"] * 10]
    answers = await outcomes(tasks)
    assert answers[::2] == answers[1::2] == TABLE
    assert store.keys == {("mail", "ann"), ("mail", "bob")}
    await asyncio.sleep(100)
    assert len(keyed) == 0


# ---- cancellation and refunds --------------------------------------------------------------------


@virtual
async def test_cancelled_waiter_refunds_the_last_reservation() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = visits(limiter, 5)
    await asyncio.sleep(0.5)
    await cancel(tasks[1], tasks[2])
    await turns()
    assert store.refunds == [(4.0, 1.0), (3.0, 1.0)]
    assert [await tasks[0], await tasks[3], await tasks[4]] == [0, 1, 2]
    assert await visit(limiter) == 4  # no earlier than what was promised: see `Store.refund`
    await limiter.aclose()
    assert not others()


@virtual
async def test_waiter_cancelled_mid_queue_refunds_at_once() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = visits(limiter, 5)
    await asyncio.sleep(0.5)
    await cancel(tasks[2])
    await turns()
    assert store.refunds == [(4.0, 1.0)]
    assert await outcomes([*tasks[:2], *tasks[3:]]) == [0, 1, 2, 3]


@virtual
async def test_waiter_cancelled_during_the_call_costs_others_nothing() -> None:
    store = Watched()
    limiter = limiter_on(store)
    store.may_answer.clear()
    tasks = visits(limiter, 8)
    await turns()
    await cancel(tasks[0], tasks[7])
    store.may_answer.set()
    assert await outcomes(tasks[1:7]) == [0, 1, 2, 3, 4, "6"]
    assert store.refunds == [(5.0, 1.0)]


@virtual
async def test_all_cancelled_during_the_call_refund_everything() -> None:
    store = Watched()
    limiter = limiter_on(store)
    store.may_answer.clear()
    tasks = visits(limiter, 4)
    await turns()
    await cancel(*tasks)
    store.may_answer.set()
    await rest()
    assert [instant for instant, _ in store.refunds] == [3, 2, 1, 0]
    assert (await limiter.peek()).reset_after <= 4
    await asyncio.sleep(4)
    assert limiter._engine.is_forgettable()


@virtual
async def test_cancelled_store_task_is_replaced_for_new_waiters() -> None:
    store = Watched()
    limiter = limiter_on(store)
    store.may_answer.clear()
    tasks = visits(limiter, 2)
    await turns()
    for task in asyncio.all_tasks():
        if task.get_name() == "aiothrottle newcomers":
            task.cancel()
    await turns()
    store.may_answer.set()
    assert await outcomes(tasks) == [2, 3]  # what the first call took is spent


@virtual
async def test_reservation_that_fits_nobody_is_replaced() -> None:
    """The reservation of three is of no use to those of cost one: it would grant two at once."""
    store = Watched()
    limiter = limiter_on(store)
    first, heavy, *light = [*visits(limiter, 1), *visits(limiter, 1, 3), *visits(limiter, 2)]
    await asyncio.sleep(0.5)
    assert await first == 0
    await cancel(heavy)
    granted_at = [await task for task in light]
    assert granted_at[0] >= 1
    assert granted_at[1] >= granted_at[0] + 1


@virtual
async def test_priority_decides_the_order_not_the_rejections() -> None:
    limiter = limiter_on(Watched())
    tasks = visits(limiter, 6)
    await asyncio.sleep(0.5)
    urgent = visits(limiter, 1, priority=9)
    assert await outcomes(urgent) == ["5.5"]
    assert await outcomes(tasks) == TABLE[:6]
    tasks = visits(limiter, 3)
    await turns()
    urgent = visits(limiter, 1, priority=9)
    assert await outcomes([*urgent, *tasks]) == [7, 8, 9, 10]


@virtual
async def test_urgent_grant_during_the_call_is_not_rejected() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = visits(limiter, 6)
    await asyncio.sleep(0.9)
    store.may_answer.clear()
    urgent = visits(limiter, 1, priority=9)
    await asyncio.sleep(0.5)
    assert await outcomes(urgent) == [1]
    store.may_answer.set()
    assert await outcomes(tasks[:5]) == [0, 2, 3, 4, 5]
    assert limiter.statistics().rejected == 0
    granted_at = await tasks[5]  # whose reservation that was, and which is no longer rejected
    assert granted_at >= 6


@virtual
async def test_arrival_with_another_cost_moves_no_reservation() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = [*visits(limiter, 2), *visits(limiter, 1, 2)]
    await asyncio.sleep(0.5)
    store.may_answer.clear()
    urgent = visits(limiter, 1, 0.5, priority=9)
    (leaving,) = visits(limiter, 1)
    await turns()
    await cancel(leaving)
    await turns()
    assert limiter._engine.bucket.state.tokens == 3
    store.may_answer.set()
    granted_at = [await task for task in [*tasks, *urgent]]
    assert granted_at[0] == 0
    assert min(later - first for first, later in pairwise(sorted(granted_at))) >= 0.5


@virtual
async def test_closing_rejects_all_refunds_and_leaves_no_task() -> None:
    store = Watched(latency=0.01)
    limiter = limiter_on(store)
    tasks = visits(limiter, 4)
    await asyncio.sleep(0.1)
    tasks += visits(limiter, 2)
    await turns()
    await limiter.aclose()
    assert not others()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[0] == 0.01
    assert all(isinstance(each, LimiterClosed) for each in answers[1:])
    assert (await MemoryStore.peek(store, "k", ALGORITHM)).reset_after <= 5
    assert {instant for instant, _ in store.refunds} == {1, 2, 3, 4, 5}


@virtual
async def test_drain_serves_all_waiters() -> None:
    limiter = limiter_on(Watched(latency=0.01))
    tasks = visits(limiter, 7)
    await turns()
    await limiter.aclose(drain=True)
    answers = await outcomes(tasks)
    assert answers[:6] == pytest.approx([0.01, 1.01, 2.01, 3.01, 4.01, 5.01])
    assert isinstance(answers[6], str)


# ---- pauses and slots ----------------------------------------------------------------------------


@virtual
async def test_arrival_in_a_pause_is_decided_after_it() -> None:
    store = Watched()
    limiter = limiter_on(store)
    limiter.pause(2)
    tasks = visits(limiter, 8)
    await asyncio.sleep(1)
    assert not store.calls
    assert await outcomes(tasks) == [2, 3, 4, 5, 6, 7, "6", "7"]


@virtual
async def test_pause_beyond_the_maximum_wait_rejects_at_once() -> None:
    store = Watched()
    limiter = limiter_on(store)
    limiter.pause(8)
    assert await outcomes(visits(limiter, 9)) == ["8"] * 9
    assert now() == 0
    await rest()
    assert (await limiter.peek()).reset_after == pytest.approx(9, abs=0.01)
    await asyncio.sleep(4)
    assert await visit(limiter) == 9


@virtual
async def test_pause_refunds_reservations_and_rejects_no_waiter() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = visits(limiter, 6)
    await asyncio.sleep(0.5)
    limiter.pause(20)
    await turns()
    assert [instant for instant, _ in store.refunds] == [5, 4, 3, 2, 1]
    assert (await limiter.peek()).reset_after <= 5
    assert await outcomes(tasks) == [0, 20.5, 21.5, 22.5, 23.5, 24.5]
    assert limiter.statistics().rejected == 0


@virtual
async def test_waiter_without_a_slot_keeps_the_interval() -> None:
    store = Watched()
    limiter = limiter_on(store, concurrency_limit=1)
    other = limiter_on(store)
    granted_at: list[float] = []

    async def work(seconds: float) -> None:
        async with limiter.throttle():
            granted_at.append(now())
            await asyncio.sleep(seconds)

    tasks = [asyncio.create_task(work(2.5)) for _ in range(3)]
    await turns()
    granted_at.extend(
        [each for each in await outcomes(visits(other, 3)) if isinstance(each, float)]
    )
    await asyncio.gather(*tasks)
    assert len(granted_at) == 6
    assert all(later - first >= 1 - 0.021 for first, later in pairwise(sorted(granted_at)))
    assert limiter.statistics().rejected == 0
    await limiter.aclose()


@virtual
async def test_late_reservation_grants_only_one_waiter_behind_it() -> None:
    """The reservation of two is the first that is not late, and those before it cost one each."""
    limiter = limiter_on(Watched(), concurrency_limit=1)

    async def work(seconds: float, cost: float = 1.0) -> float:
        async with limiter.throttle(cost):
            begin = now()
            await asyncio.sleep(seconds)
            return begin

    works = [work(3), work(0), work(0), work(0, 2)]
    granted_at = await asyncio.gather(*works)
    assert all(later - first >= 1 - 0.021 for first, later in pairwise(granted_at))
    await limiter.aclose()


@virtual
async def test_server_quota_beyond_the_maximum_wait_rejects() -> None:
    store = Watched()
    limiter = limiter_on(store)
    async with limiter.throttle() as permit:
        permit.update_quota(0, reset_after=3)
    tasks = visits(limiter, 2)
    await asyncio.sleep(2.5)
    assert store.calls == {"reserve": 1}
    assert await outcomes(tasks) == [3, 4]
    async with limiter.throttle() as permit:
        permit.update_quota(0, reset_after=60)
    assert await outcomes(visits(limiter, 2)) == ["60", "60"]
    await rest()
    assert (await limiter.peek()).reset_after == pytest.approx(3, abs=0.01)  # they count


@virtual
async def test_shared_slots_beside_it() -> None:
    shared = Shared()
    limiters = [limiter_on(Link(shared), concurrency_limit=SharedConcurrency(2)) for _ in range(2)]
    # Each has a link of its own: the slots are shared, the rate is not.
    answers = await asyncio.gather(*(outcomes(visits(each, 8)) for each in limiters))
    assert [[each for each in those if isinstance(each, str)] for those in answers] == [
        ["6", "7"],
        ["6", "7"],
    ]
    await asyncio.gather(*(each.aclose() for each in limiters))
    assert shared.is_empty


# ---- contradictory options -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_reservation": 5}, "no max_reservation and no prefetch"),
        ({"prefetch": "2/s"}, "no max_reservation and no prefetch"),
        ({"algorithm": AllOf(TokenBucket("5/s"), ALGORITHM)}, "a WaitUntil only, alone"),
        ({"rate_limit": "1/s"}, "two rates"),
    ],
)
def test_contradictory_options_are_rejected(options: dict[str, Unchecked], named: str) -> None:
    arguments: dict[str, Unchecked] = {"algorithm": ALGORITHM, "store": MemoryStore(), "key": "k"}
    with pytest.raises(ValueError, match=named):
        RateLimiter(**(arguments | options))


@virtual
async def test_update_keeps_the_algorithm() -> None:
    limiter = limiter_on(Watched())
    with pytest.raises(ValueError, match="two rates"):
        limiter.update(rate_limit="2/s")
    limiter.update(rate_limit=None)  # as without a store: the algorithm has its own numbers
    assert await outcomes(visits(limiter, 10)) == TABLE
