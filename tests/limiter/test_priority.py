"""Specifies the order of priorities: each step counts as ten seconds of waiting."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from aiothrottle import RateLimiter, ThrottleTimeout
from tests.virtually import now, turns, virtual, visit


def coming(limiter: RateLimiter, *priorities: float) -> list[asyncio.Task[float]]:
    return [asyncio.create_task(visit(limiter, priority=priority)) for priority in priorities]


async def served(
    limiter: RateLimiter, guests: Sequence[tuple[float, float]], cancelled: Sequence[int] = ()
) -> list[int]:
    """Return the order in which guests (arrival, priority) start, without the cancelled ones."""
    order: list[int] = []

    async def guest(name: int, arrival: float, priority: float) -> None:
        await asyncio.sleep(arrival)
        async with limiter.throttle(priority=priority):
            order.append(name)

    await visit(limiter)
    tasks = [asyncio.create_task(guest(name, *about)) for name, about in enumerate(guests)]
    await asyncio.sleep(max(arrival for arrival, _ in guests))
    await turns()
    for name in cancelled:
        tasks[name].cancel()
    await asyncio.wait(tasks)
    return order


# --- The order ---


@pytest.mark.parametrize(
    ("guests", "order"),
    [
        ([(0, 0), (0, 1), (0, 2)], [2, 1, 0]),
        ([(0, 0), (0, 1), (0, 0), (0, 1)], [1, 3, 0, 2]),  # equal priorities: in order of arrival
        ([(0, -1), (0, 0)], [1, 0]),
        ([(0, 0.5), (0, 1), (0, 0.75)], [1, 2, 0]),
        ([(0, 0), (9, 1)], [1, 0]),  # a step is ten seconds
        ([(0, 0), (10, 1)], [1, 0]),  # at a draw, priority
        ([(0, 0), (11, 1)], [0, 1]),
        ([(0, 0), (19, 2), (11, 1), (25, 2)], [1, 0, 2, 3]),
        ([(0, 1e300), (0, -1e300), (0, 0)], [0, 2, 1]),
    ],
)
@virtual
async def test_higher_priority_is_first_within_its_seconds(
    guests: list[tuple[float, float]], order: list[int]
) -> None:
    assert await served(RateLimiter("1/min"), guests) == order


@virtual
async def test_order_is_arrival_less_ten_seconds_per_step() -> None:
    chance = random.Random(3)
    arrivals = [eighths / 8 for eighths in chance.sample(range(480), 99)]
    guests = [(arrival, chance.choice([0, 0, 1, 1.5, 4, -2])) for arrival in arrivals]
    places = [(arrival - 10 * priority, -priority) for arrival, priority in guests]
    expected = sorted(range(len(guests)), key=places.__getitem__)
    assert await served(RateLimiter("1/min"), guests) == expected


@pytest.mark.parametrize(
    "limiter", [RateLimiter("2/min"), RateLimiter("2/min", concurrency_limit=1)]
)
@virtual
async def test_equal_priorities_are_served_in_order(limiter: RateLimiter) -> None:
    order = await served(limiter, [(0, 7)] * 50)
    assert order == list(range(50))


@virtual
async def test_heavy_head_is_not_overtaken_by_lower_priority() -> None:
    limiter = RateLimiter("4/s")
    await visit(limiter, 2)
    heavy = asyncio.create_task(visit(limiter, 4, priority=1))
    await turns()
    assert not await limiter.try_acquire()
    (light,) = coming(limiter, 0)
    assert [await heavy, await light] == [1, 2]


# --- Nothing starves ---


@pytest.mark.parametrize("steps", [1, 3])
@virtual
async def test_stream_of_higher_priority_starves_no_waiter(steps: int) -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    (patient,) = coming(limiter, 0)
    await turns()
    stream: list[asyncio.Task[float]] = []
    for _ in range(60):
        stream += coming(limiter, steps)
        await asyncio.sleep(1)
    # The requests that come within ten seconds per step are first, and the one at the draw.
    assert patient.done()
    assert await patient == 10 * steps + 2
    await asyncio.gather(*stream)


# --- Arrivals, grants and cancellations ---


@virtual
async def test_newcomer_in_turn_of_grant_hangs_nobody() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    (first,) = coming(limiter, 0)
    await asyncio.sleep(1)
    (second,) = coming(limiter, 1)
    ends = await asyncio.wait_for(asyncio.gather(first, second), 60)
    assert list(ends) == [1, 2]


@pytest.mark.parametrize("after_turns", range(8))
@virtual
async def test_newcomer_at_any_turn_hangs_nobody(after_turns: int) -> None:
    limiter = RateLimiter("2/s", concurrency_limit=2)
    _inside = await limiter.acquire(2)
    waiting = coming(limiter, 0, 0, 0)
    await asyncio.sleep(1)
    await turns(after_turns)
    waiting += coming(limiter, 3, 5)
    limiter.update(concurrency_limit=None)
    ends = await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert sorted(ends) == [1, 1, 2, 2, 3]
    assert limiter.statistics().in_flight == 1


@virtual
async def test_newcomer_that_becomes_head_is_served_at_once() -> None:
    limiter = RateLimiter("4/s")
    await visit(limiter)
    await asyncio.sleep(0.5)
    await visit(limiter, 3)
    heavy = asyncio.create_task(visit(limiter, 4))
    await turns()
    (light,) = coming(limiter, 1)
    assert list(await asyncio.gather(heavy, light)) == [2, 1]


@virtual
async def test_newcomer_that_fits_as_head_is_granted() -> None:
    limiter = RateLimiter("4/s")
    await visit(limiter, 3)
    heavy = asyncio.create_task(visit(limiter, 4))
    await turns()
    assert await visit(limiter, priority=1) == 0
    assert await heavy == 1


@virtual
async def test_timeout_counts_only_waiters_served_before() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    waiting = coming(limiter, *[0] * 10, *[9] * 2)
    await turns()
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, timeout=11.5)
    assert (now(), error.value.retry_after) == (0, 13)
    assert await visit(limiter, priority=9, timeout=3) == 3
    assert await visit(limiter, priority=10, timeout=1) == 4
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    "cancelled", [(0,), (1,), (2,), (5,), (1, 2), (0, 1, 2), (1, 3, 5), range(6)]
)
@virtual
async def test_cancelled_waiters_do_not_change_the_order(cancelled: Sequence[int]) -> None:
    guests = [(0, 0), (1, 2), (2, 1), (3, 0), (4, 1), (5, 2), (6, 0)]
    everybody = [1, 5, 2, 4, 0, 3, 6]
    limiter = RateLimiter("1/min", concurrency_limit=1)
    assert await served(limiter, guests, cancelled) == [
        name for name in everybody if name not in cancelled
    ]
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)


@virtual
async def test_head_cancelled_in_the_turn_of_its_grant() -> None:
    for after_turns in range(6):
        limiter = RateLimiter("1/s", concurrency_limit=1)
        began = now()
        await visit(limiter)
        high, low = coming(limiter, 1, 0)
        await asyncio.sleep(1)
        await turns(after_turns)
        expected = 2 if high.done() else 1
        high.cancel()
        assert await asyncio.wait_for(low, 60) - began == expected
        await asyncio.sleep(5)


@virtual
async def test_limiter_works_on_when_a_priority_is_empty() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    waiting = coming(limiter, 5, 0, 0)
    await turns()
    waiting[0].cancel()
    assert await asyncio.gather(*waiting[1:]) == [1, 2]
    assert await visit(limiter) == 3


@virtual
async def test_decorated_function_has_its_priority() -> None:
    limiter = RateLimiter("1/s")

    @limiter.throttled(priority=1)
    async def urgent() -> float:
        return now()

    await visit(limiter)
    (other,) = coming(limiter, 0)
    await turns()
    assert await urgent() == 1
    assert await other == 2


async def test_throttled_decorates_only_async_functions() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    decorate: Any = limiter.throttled

    @limiter.throttled(2)
    async def double(number: int, *, times: int = 2) -> int:
        """Return twice the number."""
        assert limiter.statistics().in_flight == 1
        return number * times

    assert (double.__name__, double.__doc__) == ("double", "Return twice the number.")
    assert await double(4, times=3) == 12
    assert (limiter.statistics().in_flight, (await limiter.peek()).remaining) == (0, 8)
    with pytest.raises(TypeError, match=r"@limiter\.throttled\(\) above double"):
        decorate(double)
    with pytest.raises(TypeError, match="decorates an async function, not <built-in function len>"):
        decorate()(len)
    with pytest.raises(ValueError, match="timeout must be a finite number"):
        decorate(timeout=-1)
