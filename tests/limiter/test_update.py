"""Specifies update(): limits that change at run time, also for current waiters."""

import asyncio
from typing import Any, TypeAlias

import pytest

from aiothrottle import Cooldown, CostTooHigh, QueueFull, RateLimiter, TokenBucket
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import counts, now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


# --- The rate ---


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("1/s", [0, 0, 1.0, 2.0, 3.0]),  # slower
        ("2/s", [0, 0, 1.0, 1.0, 2.0]),  # the same
        ("3/s", [0, 0, 0.25, 1.0, 1.0]),  # faster: one more fits at once
        ("5/s", [0, 0, 0.25, 0.25, 0.25]),
        (None, [0, 0, 0.25, 0.25, 0.25]),  # none at all
        ("2/min", [0, 0, 60.0, 60.0, 120.0]),  # a longer period remembers for longer
        (["10/s", "3/min"], [0, 0, 0.25, 60.25, 60.25]),  # how much is known, no longer when
    ],
)
@virtual
async def test_new_rate_applies_to_waiters_after_spent_tokens(
    to: Unchecked, expected: list[float]
) -> None:
    limiter = RateLimiter("2/s")
    waiting = visits(limiter, 5)
    await asyncio.sleep(0.25)
    limiter.update(rate_limit=to)
    assert await asyncio.gather(*waiting) == expected


@virtual
async def test_tenfold_rate_applies_at_once() -> None:
    limiter = RateLimiter("1/h")
    waiting = visits(limiter, 10)
    await turns()
    limiter.update(rate_limit="10/h")
    assert await asyncio.gather(*waiting) == [0.0] * 10


@virtual
async def test_last_of_many_updates_counts() -> None:
    limiter = RateLimiter("1/s")
    waiting = visits(limiter, 3)
    await turns()
    for rate in ("1/h", "1000/s", "1/day", "1/2s"):
        limiter.update(rate_limit=rate)
        await turns(0 if rate == "1000/s" else 3)
    assert await asyncio.gather(*waiting) == [0, 2, 4]


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("100/min", 60.0),  # the second of them continues
        ("200/2min", 0.0),  # a hundred of it are free
        ("10/s", 9.0 + 1.0),
        (["100/min", "10/s"], 60.0),  # in another order
        (["10/s", "100/min", "100/h"], 3600.0),
        (["10/s", "100/h"], 3600.0),
        ("40/30s", 36.0),  # between the two: the second has the instants
        ({"requests": "100/min"}, 60.0),
        ({"requests": ["100/min", "10/s"]}, 60.0),
    ],
    ids=str,
)
@virtual
async def test_update_of_several_rates_forgets_no_token(to: Unchecked, expected: float) -> None:
    rates: Unchecked = ["10/s", "100/min"]
    has_resources = isinstance(to, dict)
    limiter = RateLimiter({"requests": rates} if has_resources else rates)
    assert max(await asyncio.gather(*visits(limiter, 100))) == 9.0
    limiter.update(rate_limit=to)
    assert await visit(limiter) == max(9.0, expected)


@virtual
async def test_burst_and_algorithm_are_kept() -> None:
    limiter = RateLimiter("10/s", algorithm=TokenBucket, burst=2)
    assert await asyncio.gather(*visits(limiter, 3)) == [0, 0, pytest.approx(0.1)]
    await asyncio.sleep(10)
    began = now()
    limiter.update(rate_limit="2/s")
    waits = [at - began for at in await asyncio.gather(*visits(limiter, 4))]
    assert waits == pytest.approx([0, 0, 0.5, 1.0])


@pytest.mark.parametrize("after_turns", range(6))
@virtual
async def test_slower_rate_between_grant_and_start_counts(after_turns: int) -> None:
    limiter = RateLimiter("2/s")
    await limiter.acquire(2)
    waiting = visits(limiter, 2)
    await asyncio.sleep(1)
    await turns(after_turns)
    started = sum(waiter.done() for waiter in waiting)
    limiter.update(rate_limit="1/s")
    starts = await asyncio.gather(*waiting)
    assert starts == ([1.0, 1.0] if started == 2 else [1.0, 2.0])


@virtual
async def test_max_queue_holds_after_an_update() -> None:
    limiter = RateLimiter("1/s", max_queue=1)
    limiter.update(rate_limit="2/s")
    await limiter.acquire(2)
    waiting = visits(limiter, 1)
    await turns()
    with pytest.raises(QueueFull):
        await limiter.acquire()
    assert await waiting[0] == 1


# --- A cost that no longer fits ---


@pytest.mark.parametrize("slots", [None, 1])
@virtual
async def test_waiter_that_no_longer_fits_fails_at_once(slots: int | None) -> None:
    limiter = RateLimiter("10/min", concurrency_limit=slots)
    inside = asyncio.create_task(visit(limiter, 10, stay=10))
    heavy, light = *visits(limiter, 1, cost=8), *visits(limiter, 1, cost=5)
    await turns()
    limiter.update(rate_limit="5/min")
    await turns()
    assert now() == 0
    with pytest.raises(CostTooHigh) as error:
        await heavy
    assert (error.value.cost, error.value.limit) == (8, 5)
    assert await light == 60
    await inside
    with pytest.raises(CostTooHigh):
        limiter.throttle(6)
    limiter.update(rate_limit="6/min")
    limiter.throttled(6)


@virtual
async def test_permit_built_before_the_update_fails_too() -> None:
    limiter = RateLimiter("10/min", concurrency_limit=1)
    permit = limiter.throttle(8)
    limiter.update(rate_limit="5/min")
    with pytest.raises(CostTooHigh):
        await permit.__aenter__()
    assert counts(limiter) == (0, 0)


# --- The slots ---


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (1, [0, 0, 5, 10, 15, 20]),
        (2, [0, 0, 5, 5, 10, 10]),
        (3, [0, 0, 1, 5, 5, 6]),
        (6, [0, 0, 1, 1, 1, 1]),
        (None, [0, 0, 1, 1, 1, 1]),
    ],
)
@virtual
async def test_new_number_of_slots_applies_to_waiters(
    to: int | None, expected: list[float]
) -> None:
    limiter = RateLimiter(concurrency_limit=2)
    waiting = visits(limiter, 6, stay=5)
    await asyncio.sleep(1)
    limiter.update(concurrency_limit=to)
    assert await asyncio.gather(*waiting) == expected
    assert counts(limiter) == (0, 0)


@virtual
async def test_removed_slots_in_use_are_not_granted_again() -> None:
    limiter = RateLimiter(concurrency_limit=3)
    permits = [await limiter.acquire() for _ in range(3)]
    waiter = asyncio.create_task(visit(limiter))
    limiter.update(concurrency_limit=1)
    for in_flight, permit in zip((2, 1), permits, strict=False):
        permit.release()
        await asyncio.sleep(1)
        assert counts(limiter) == (in_flight, 1)
    permits[2].release()
    assert await waiter == 2


@pytest.mark.parametrize("up", [2, 3, None])
@virtual
async def test_lowering_and_raising_slots_keeps_their_number(up: int | None) -> None:
    limiter = RateLimiter(concurrency_limit=3)
    permits = [await limiter.acquire() for _ in range(3)]
    limiter.update(concurrency_limit=1)
    permits[0].release()
    limiter.update(concurrency_limit=up)
    for permit in permits:
        permit.release()
    assert counts(limiter) == (0, 0)
    entered = [await limiter.try_acquire() for _ in range(5)]
    assert sum(map(bool, entered)) == (5 if up is None else up)


@virtual
async def test_both_limits_change_in_one_step() -> None:
    limiter = RateLimiter("1/h", concurrency_limit=1)
    waiting = visits(limiter, 4, stay=2)
    await asyncio.sleep(1)
    limiter.update(rate_limit="100/h", concurrency_limit=3)
    assert await asyncio.gather(*waiting) == [0, 1, 1, 2]


@virtual
async def test_returned_slot_settles_a_cut_beside_parent() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter(concurrency_limit=2, parent=parent)
    inside = asyncio.create_task(visit(child, stay=1000))
    await turns()
    waiter = asyncio.create_task(visit(child))
    await turns()
    child.update(concurrency_limit=1)
    waiter.cancel()
    await asyncio.sleep(5)
    newcomer = asyncio.create_task(visit(child))
    await asyncio.sleep(10)
    assert counts(child) == (1, 1)
    inside.cancel()
    assert await newcomer == 15


# --- Invalid arguments ---


@pytest.mark.parametrize(
    ("nonsense", "error"),
    [
        ({"rate_limit": "fast"}, ValueError),
        ({"rate_limit": 0}, ValueError),
        ({"rate_limit": []}, ValueError),
        ({"rate_limit": ["5/s", "x"]}, ValueError),
        ({"rate_limit": object()}, TypeError),
        ({"concurrency_limit": 0}, ValueError),
        ({"concurrency_limit": -1}, ValueError),
        ({"concurrency_limit": 1.5}, TypeError),
        ({"concurrency_limit": True}, TypeError),
        ({"rate_limit": "100/s", "concurrency_limit": 0}, ValueError),
        ({"rate_limit": "fast", "concurrency_limit": 100}, ValueError),
    ],
)
@virtual
async def test_invalid_update_raises_and_changes_nothing(
    nonsense: Unchecked, error: type[Exception]
) -> None:
    limiter = RateLimiter("2/s", concurrency_limit=1)
    waiting = visits(limiter, 4, stay=0.25)
    await asyncio.sleep(0.125)
    before = repr(limiter)
    with pytest.raises(error):
        limiter.update(**nonsense)
    assert repr(limiter) == before
    assert await asyncio.gather(*waiting) == [0, 0.25, 1, 1.25]


@virtual
async def test_rate_contradicting_the_burst_raises() -> None:
    limiter = RateLimiter("10/s", burst=5)
    before = repr(limiter)
    with pytest.raises(ValueError, match="burst=5"):
        limiter.update(rate_limit="4/s")
    assert repr(limiter) == before


def test_update_before_any_loop_equals_construction() -> None:
    limiter = RateLimiter("1/h", concurrency_limit=1)
    limiter.update(rate_limit="3/s", concurrency_limit=2)

    async def main() -> list[float]:
        return await asyncio.gather(*visits(limiter, 4, stay=0.5))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == [0, 0, 0.5, 1.0]


@virtual
async def test_rate_limit_can_be_removed_with_any_algorithm() -> None:
    for limiter in (
        RateLimiter("1/h", algorithm=TokenBucket),
        RateLimiter("2/h", burst=1),
        RateLimiter("1/h", guard=1),
    ):
        limiter.update(rate_limit=None)
        for _ in range(5):
            await limiter.acquire()


@virtual
async def test_algorithm_with_own_rate_stays_without_rate() -> None:
    limiter = RateLimiter(algorithm=Cooldown(3, 60))
    for _ in range(3):
        assert await limiter.try_acquire()
    limiter.update(rate_limit=None)
    assert not await limiter.try_acquire()
