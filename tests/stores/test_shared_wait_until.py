"""`WaitUntil` through a store: requests are granted or rejected on arrival; rejected ones count."""

import asyncio
from typing import Any

import pytest

from aiothrottle import RateLimiter, ThrottleTimeout, WaitUntil
from tests.support.virtually import cancel, now, outcomes, turns, visit, visits
from tests.support.watching import Watched, rest, watched

ALGORITHM = WaitUntil(interval=1, raise_after=5, limit=10)
TABLE: list[float | str] = [0, 1, 2, 3, 4, 5, "6", "7", "8", "9"]


def begin(**options: Any) -> tuple[Watched, RateLimiter]:
    return watched(algorithm=ALGORITHM, **options)


async def test_simultaneous_requests_are_one_call_rejected_ones_count() -> None:
    store, limiter = begin()
    tasks = visits(limiter, 10, timeout=60)  # longer than the maximum wait
    await turns()
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.waiting, statistics.rejected) == (1, 5, 4)
    assert await outcomes(tasks) == TABLE
    assert store.calls == {"reserve": 1}
    # The rejected ones count: the next one at 5 waits until 10.
    assert (await limiter.peek()).retry_after == 5
    assert await visit(limiter) == 10
    assert not store.refunds
    store, limiter = begin()
    answers = await outcomes(visits(limiter, 1200))
    assert (answers[9:], store.calls["reserve"]) == (["9", *["10"] * 1190], 2)


async def test_timeout_shorter_than_the_wait_takes_nothing() -> None:
    store, limiter = begin(latency=0.01)
    tasks = visits(limiter, 3)
    tasks += visits(limiter, 5, timeout=3.5)
    tasks += visits(limiter, 4)
    answers = await outcomes(tasks)
    assert answers[:4] == pytest.approx([0.01, 1.01, 2.01, 3.01])
    assert [float(str(each)) for each in answers[4:8]] == pytest.approx([4] * 4, abs=0.1)
    assert answers[8:10] == pytest.approx([4.01, 5.01])
    assert [float(str(each)) for each in answers[10:]] == pytest.approx([6, 7], abs=0.1)
    assert limiter.statistics().rejected == 6
    await rest()
    assert (await limiter.peek()).retry_after == pytest.approx(8 - 5.01, abs=0.01)
    assert not store.refunds


@pytest.mark.parametrize(("timeout", "ends_at"), [(4.0, 2.1), (4.9, 5.4)])
async def test_timeout_includes_the_wait_for_the_store(timeout: float, ends_at: float) -> None:
    store, limiter = begin(latency=0.1)
    store.may_answer.clear()
    tasks = visits(limiter, 5)
    await asyncio.sleep(0.5)
    (newcomer,) = visits(limiter, 1, timeout=timeout)
    await asyncio.sleep(1.5)
    store.may_answer.set()
    # The store has an instant for it at 5: that is too late, or not, and then those before it are.
    await asyncio.wait([newcomer])
    assert isinstance(newcomer.exception(), ThrottleTimeout)
    assert now() == pytest.approx(ends_at, abs=0.06)
    assert await asyncio.gather(*tasks) == pytest.approx([2.05, 3.05, 4.05, 5.05, 6.05])


async def test_costs_are_intervals_and_zero_makes_no_call() -> None:
    store, limiter = begin()
    with pytest.raises(ValueError, match="two rates"):
        limiter.update(rate_limit="2/s")
    limiter.update(rate_limit=None)  # as without a store: the algorithm has its own numbers
    tasks = [*visits(limiter, 1, 3), *visits(limiter, 1, 0), *visits(limiter, 1, 2)]
    assert await outcomes([*tasks, *visits(limiter, 2)]) == [0, 0, 3, 5, "6"]
    assert store.costs == [[3, 2, 1, 1]]


async def test_cancelled_during_the_call_is_refunded_and_costs_others_nothing() -> None:
    store, limiter = begin()
    store.may_answer.clear()
    tasks = visits(limiter, 8)
    await turns()
    await cancel(tasks[0], tasks[7])
    store.may_answer.set()
    assert await outcomes(tasks[1:7]) == [0, 1, 2, 3, 4, "6"]
    assert store.refunds == [(5.0, 1.0)]
    await asyncio.sleep(10)
    store.may_answer.clear()
    tasks = visits(limiter, 4)
    await turns()
    await cancel(*tasks)
    store.may_answer.set()
    await rest()
    first = store.instants[-4]
    assert [instant - first for instant, _ in store.refunds[1:]] == [3, 2, 1, 0]


async def test_reservation_that_fits_nobody_is_replaced() -> None:
    """The reservation of three is of no use to those of cost one: it would grant two at once."""
    _, limiter = begin()
    first, heavy, *light = [*visits(limiter, 1), *visits(limiter, 1, 3), *visits(limiter, 2)]
    await asyncio.sleep(0.5)
    assert await first == 0
    await cancel(heavy)
    granted_at = [await task for task in light]
    assert granted_at[0] >= 1
    assert granted_at[1] >= granted_at[0] + 1


async def test_urgent_grant_during_the_call_is_not_rejected() -> None:
    store, limiter = begin()
    tasks = visits(limiter, 6)
    await asyncio.sleep(0.9)
    store.may_answer.clear()
    urgent = visits(limiter, 1, priority=9)
    await asyncio.sleep(0.5)
    assert await outcomes(urgent) == [1]
    store.may_answer.set()
    assert await outcomes(tasks[:5]) == [0, 2, 3, 4, 5]
    assert limiter.statistics().rejected == 0
    assert await tasks[5] >= 6  # whose reservation that was, and which is no longer rejected


async def test_pause_refunds_reservations_and_rejects_no_waiter() -> None:
    store, limiter = begin()
    tasks = visits(limiter, 6)
    await asyncio.sleep(0.5)
    limiter.pause(20)
    await turns()
    assert [instant for instant, _ in store.refunds] == [5, 4, 3, 2, 1]
    assert (await limiter.peek()).reset_after <= 5
    await asyncio.sleep(19.5)
    other = RateLimiter(algorithm=ALGORITHM, store=store, key="k")  # of another process
    assert await outcomes(visits(other, 6)) == [20.0, 21.0, 22.0, 23.0, 24.0, 25.0]
    assert await outcomes(tasks) == [0, 26.0, 27.0, 28.0, 29.0, 30.0]
    assert limiter.statistics().rejected == 0


async def test_reset_keeps_what_the_waiters_were_promised() -> None:
    _, limiter = begin()
    tasks = visits(limiter, 3)
    await asyncio.sleep(0.5)
    await limiter.reset()
    assert await outcomes(tasks) == [0, 1, 2]


async def test_server_quota_beyond_the_maximum_wait_rejects() -> None:
    store, limiter = begin()
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
