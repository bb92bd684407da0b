"""Specifies settle(): the difference to the real cost is refunded or charged afterwards."""

import asyncio
import itertools
import math
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    RateLimiter,
    SlidingWindowCounter,
    TokenBucket,
)
from aiothrottle.permit import WatchedPermit
from tests.virtually import now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


async def remaining(limiter: RateLimiter) -> float:
    return (await limiter.peek()).remaining


# --- Less than was reserved ---


@virtual
async def test_refund_serves_the_next_waiter_at_once() -> None:
    limiter = RateLimiter("10/min")
    permit = await limiter.acquire(8)
    waiting = visits(limiter, 1, cost=6)
    await asyncio.sleep(20)
    permit.settle(5)
    await asyncio.sleep(10)
    assert not waiting[0].done()
    permit.settle(4)
    assert await waiting[0] == 30
    assert permit.cost == 4
    assert await remaining(limiter) == 0


@virtual
async def test_refund_counts_from_the_grant() -> None:
    limiter = RateLimiter("10/s")
    early = await limiter.acquire(5)
    await asyncio.sleep(0.5)
    await limiter.acquire(5)
    early.settle(1)
    assert await remaining(limiter) == 4
    await asyncio.sleep(0.5)
    # Only the rest of the early request has left the window.
    assert await remaining(limiter) == 5


async def test_refund_finds_its_instant_by_a_moving_clock() -> None:
    limiter = RateLimiter("100/h", concurrency_limit=3, clock=itertools.count().__next__)
    held = [await limiter.acquire() for _ in range(3)]
    waiting = [asyncio.create_task(limiter.acquire(cost)) for cost in (1, 1, 2)]
    await turns()
    for permit in held:
        permit.settle(0)
        permit.release()  # the waiters are granted in one turn
    for permit in await asyncio.gather(*waiting):
        permit.settle(0)
    assert limiter.statistics().utilisation == 0


@virtual
async def test_refund_after_the_window_returns_nothing_more() -> None:
    limiter = RateLimiter("10/s")
    early = await limiter.acquire(10)
    await asyncio.sleep(1)
    await limiter.acquire(7)
    early.settle(0)
    assert await remaining(limiter) == 3


@virtual
async def test_refund_after_a_wait_counts_from_its_end() -> None:
    limiter = RateLimiter("10/s")
    await limiter.acquire(10)
    late = await limiter.acquire(10)
    assert now() == 1
    await asyncio.sleep(0.5)
    late.settle(0)
    assert await remaining(limiter) == 10


# --- More than was reserved ---

DEBTS: list[tuple[RateLimiter, float]] = [
    (RateLimiter("10/s"), 1.0),  # one window, however much too full
    (RateLimiter("10/s", algorithm=FixedWindow), 1.0),
    (RateLimiter("10/s", algorithm=SlidingWindowCounter(buckets=10)), 1.0),
    (RateLimiter("10/s", algorithm=TokenBucket), 1.6),  # 15 too many, and the next request
    (RateLimiter(algorithm=Cooldown(10, 1)), 1.6),
    (RateLimiter(algorithm=TokenBucket("10/s", burst=1)), 2.5),
    (RateLimiter("10/s", algorithm=LeakyBucket), 2.498),  # it makes up for 2 ms of lateness
    (RateLimiter(["10/s", "20/min"]), 60.0),
]


@pytest.mark.parametrize(("limiter", "debt"), DEBTS)
@virtual
async def test_debt_delays_the_next_request(limiter: RateLimiter, debt: float) -> None:
    async with limiter.throttle() as permit:
        permit.settle(25)
        assert permit.cost == 25
    wait = (await limiter.peek()).retry_after
    assert wait == pytest.approx(debt)
    assert await visit(limiter) == pytest.approx(debt)


@virtual
async def test_debt_delays_current_waiters() -> None:
    limiter = RateLimiter("2/s", algorithm=TokenBucket)
    permit = await limiter.acquire(2)
    waiting = visits(limiter, 2)
    await turns()
    permit.settle(4)
    assert await asyncio.gather(*waiting) == [1.5, 2.0]


@virtual
async def test_settled_cost_has_no_upper_bound() -> None:
    limiter = RateLimiter("1/s", algorithm=TokenBucket)
    async with limiter.throttle() as permit:
        permit.settle(1e6)
    assert (await limiter.peek()).retry_after == 1e6


@pytest.mark.parametrize("after_turns", range(4))
@virtual
async def test_charge_between_grant_and_start_delays_the_start(
    after_turns: int,
) -> None:
    limiter = RateLimiter("2/s")
    permit = await limiter.acquire(2)
    waiting = visits(limiter, 2)
    await asyncio.sleep(1)
    await turns(after_turns)
    late = sum(waiter.done() for waiter in waiting)
    permit.settle(4)
    assert await asyncio.gather(*waiting) == ([1.0] * 2 if late else [2.0] * 2)


# --- Repeated settling ---


@pytest.mark.parametrize(
    "costs", [(5, 0), (5, 3, 7, 1, 0), (0, 9, 0), (1, 1, 0), (20, 2, 30, 0), (0.5, 0.25, 0)]
)
@pytest.mark.parametrize(
    "algorithm", [None, TokenBucket, FixedWindow, SlidingWindowCounter(buckets=4)]
)
@virtual
async def test_settling_up_and_down_loses_nothing(
    costs: tuple[float, ...], algorithm: Unchecked
) -> None:
    limiter = RateLimiter("10/min", algorithm=algorithm)
    permit = await limiter.acquire(1)
    for cost in costs:
        permit.settle(cost)
        assert permit.cost == cost
    assert await remaining(limiter) == 10
    assert await asyncio.gather(*visits(limiter, 10)) == [0.0] * 10


@virtual
async def test_charges_and_refunds_find_their_own_instants() -> None:
    limiter = RateLimiter("10/s")
    permit = await limiter.acquire(1)
    await asyncio.sleep(0.5)
    permit.settle(5)
    permit.settle(0)
    assert await remaining(limiter) == 10
    permit.settle(4)
    await asyncio.sleep(0.75)
    # Charged at 0.5; refunded in part.
    permit.settle(3)
    assert await remaining(limiter) == 7
    await asyncio.sleep(0.25)
    assert await remaining(limiter) == 10


@virtual
async def test_every_limit_of_several_gets_the_difference() -> None:
    limiter = RateLimiter(["10/s", "100/min"])
    async with limiter.throttle(10) as permit:
        permit.settle(4)
    assert await remaining(limiter) == 6
    await asyncio.sleep(1)
    assert await remaining(limiter) == 10
    for _ in range(9):
        await visit(limiter, 10)
    assert now() == 9
    # 4 + 90 are spent: 6 are left in this minute.
    await asyncio.sleep(1)
    assert await remaining(limiter) == 6


# --- The slot, and bad input ---


@virtual
async def test_settle_keeps_the_slot_taken() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    permit = await limiter.acquire(5)
    waiter = asyncio.create_task(visit(limiter))
    permit.settle(0)
    await asyncio.sleep(3)
    assert not waiter.done()
    permit.release()
    assert await waiter == 3
    assert limiter.statistics().in_flight == 0


@pytest.mark.filterwarnings("ignore:<Permit of .* never entered:RuntimeWarning")
@virtual
async def test_permit_that_was_never_held_cannot_be_settled() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    early = WatchedPermit(limiter._engine)
    held = await limiter.acquire()
    waits, cancelled = limiter.throttle(), limiter.throttle()
    waiter, victim = (asyncio.create_task(each.__aenter__()) for each in (waits, cancelled))
    await turns()
    victim.cancel()
    await turns()
    for permit in (early, waits, cancelled):
        with pytest.raises(RuntimeError, match="never held"):
            permit.settle(5)
        assert permit.cost == 1
    held.release()
    (await waiter).release()
    assert await remaining(limiter) == 8


@pytest.mark.filterwarnings("ignore:<Permit of .* never entered:RuntimeWarning")
@virtual
async def test_permit_cancelled_above_cannot_be_settled() -> None:
    parent = RateLimiter("10/s", concurrency_limit=1)
    limiter = RateLimiter("10/s", parent=parent)
    held = await parent.acquire()
    permit = limiter.throttle()
    victim = asyncio.create_task(permit.__aenter__())
    await turns()
    victim.cancel()
    await turns()
    with pytest.raises(RuntimeError, match="never held"):
        permit.settle(5)
    held.release()
    assert (await remaining(limiter), await remaining(parent)) == (9, 9)


@pytest.mark.parametrize("cost", [1, 3])
@virtual
async def test_released_permit_can_be_settled(cost: float) -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    async with limiter.throttle(cost) as permit:
        pass
    permit.settle(6)
    assert (permit.cost, await remaining(limiter)) == (6, 4)
    permit.settle(0)
    assert (permit.cost, await remaining(limiter)) == (0, 10)
    assert limiter.statistics().in_flight == 0


@virtual
async def test_permit_released_after_a_wait_can_be_settled() -> None:
    parent = RateLimiter("10/s", concurrency_limit=1)
    limiter = RateLimiter("10/s", parent=parent)
    held = await parent.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await turns()
    held.release()
    permit = await waiter
    permit.release()
    permit.settle(3)
    assert (await remaining(limiter), await remaining(parent)) == (6, 6)


@pytest.mark.parametrize(
    ("cost", "error"),
    [
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        pytest.param(10**400, ValueError, id="more than a float"),
        ("1", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
@virtual
async def test_bad_cost_raises_and_changes_nothing(cost: Unchecked, error: type[Exception]) -> None:
    limiter = RateLimiter("10/s")
    async with limiter.throttle(3) as permit:
        with pytest.raises(error, match="cost"):
            permit.settle(cost)
        assert permit.cost == 3
    assert await remaining(limiter) == 7
