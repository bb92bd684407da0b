"""Specifies when requests are granted, what permits and decisions hold, and which errors free."""

import asyncio
import functools
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiothrottle import FixedWindow, Rate, RateLimiter, SlidingWindowLog, TokenBucket, errors
from aiothrottle.testing import greatest_count
from tests.limiter.common import Unchecked, each_rejects, errors_of, queued, starts, together
from tests.support.virtually import counts, now, turns, visit, visits


@pytest.mark.parametrize(
    ("rate", "options", "expected"),
    [
        (2, {"concurrency_limit": 1, "stay": 0.25}, [0, 0.25, 1, 1.25]),
        (2, {"stay": 9}, [0, 0, 1, 1, 2]),
        (None, {"concurrency_limit": 2, "stay": 1}, [0, 0, 1, 1, 2]),
        (None, {"stay": 1}, [0] * 1000),
        ("500/s", {}, [place // 500 for place in range(2000)]),
        ("1/h", {}, [0, 3600, 7200]),
        ("2.5/s", {}, [0, 0, 0, 1.2, 1.2, 1.2, 2.4]),  # the next whole number, in more time
        *((rate, {}, [0, 2, 4]) for rate in (0.5, "1 per 2 seconds", Rate(1, 2))),
        ("2/s", {"guard": 0.25}, [0, 0, 1.25, 1.25, 2.5]),
        ("4/s", {"algorithm": SlidingWindowLog}, [0, 0, 0, 0, 1]),
        ("4/s", {"algorithm": TokenBucket}, [0, 0, 0, 0, 0.25, 0.5]),
        ("4/s", {"algorithm": TokenBucket(burst=3)}, [0, 0, 0, 0.25, 0.5]),
        ("4/s", {"algorithm": TokenBucket(burst=1), "guard": 1.0}, [0, 0.5]),
        ("20/s", {"algorithm": TokenBucket(burst=1)}, [place / 20 for place in range(40)]),
        (None, {"algorithm": TokenBucket("4/s", burst=1)}, [0, 0.25, 0.5]),
        (None, {"algorithm": FixedWindow("2/s")}, [0, 0, 1, 1, 2]),
        # A burst
        ("4/s", {"burst": 1}, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5]),
        ("4/s", {"burst": 2}, [0, 0, 0.25, 0.5, 1, 1, 1.25]),
        ("4/s", {"burst": 4}, [0, 0, 0, 0, 1, 1, 1]),
        ("4/s", {"burst": 2, "algorithm": TokenBucket}, [0, 0, 0.25, 0.5, 0.75, 1, 1.25]),
        # Several rates
        (["10/s", "2/10s"], {}, [0, 0, 10, 10, 20, 20, 30]),  # the first can never bind
        (["1/s", "100/2s"], {}, [0, 1, 2, 3, 4, 5, 6]),  # the second cannot
        (["2/s"], {}, [0, 0, 1, 1, 2, 2, 3]),
        *((rate, {}, [0, 0, 1, 10, 10, 11, 20]) for rate in ("2/s, 3/10s", [2, Rate(3, 10)])),
        (["3/s", "4/10s", "6/min"], {}, [0, 0, 0, 1, 10, 10, 60]),
        (["2/s", "3/10s"], {"guard": 0.5}, [0, 0, 1.5, 10.5, 10.5, 12, 21]),
        (["2/s", "4/min"], {"algorithm": TokenBucket}, [0, 0, 0.5, 1, 15, 30, 45]),
        (["2/s", "3/10s"], {"algorithm": FixedWindow}, [0, 0, 1, 10, 10, 11, 20]),
        (["4/s", "6/min"], {"burst": 2}, [0, 0, 0.25, 0.5, 1, 1, 60]),
        (["4/s", "6/min"], {"burst": 2, "algorithm": TokenBucket}, [0, 0, 0.25, 0.5, 0.75, 1, 10]),
    ],
)
async def test_requests_start_as_soon_as_the_limits_allow(
    rate: Unchecked, options: Unchecked, expected: list[float]
) -> None:
    stay, options = options.get("stay", 0), {**options}
    options.pop("stay", None)
    # The order in which several rates are given does not matter.
    orders: list[Unchecked] = [rate, rate[::-1] if isinstance(rate, list) else rate]
    for rates in orders:
        limiter, began = RateLimiter(rates, **options), now()
        found = await together(*visits(limiter, len(expected), stay=stay))
        assert [at - began for at in found] == pytest.approx(expected)
        assert counts(limiter) == (0, 0)
        await asyncio.sleep(1020 - now())


async def test_fixed_windows_begin_by_the_clock_that_is_given() -> None:
    def wall() -> float:
        return 1_767_225_590.0 + now()  # ten seconds before a minute begins

    limiter = RateLimiter("2/min", algorithm=FixedWindow, clock=wall)
    assert await together(*visits(limiter, 5)) == [0, 0, 10, 10, 70]


async def test_requests_start_in_order_whatever_they_cost() -> None:
    limiter = RateLimiter(4)
    tasks = [task for cost in (3, 2, 1, 4, 0, 1, 2) for task in visits(limiter, 1, cost)]
    assert await together(*tasks) == [0, 1, 1, 2, 2, 3, 3]
    await asyncio.sleep(2)
    await limiter.acquire(2)
    (heavy,) = await queued(limiter, cost=3)
    rejected = await limiter.try_acquire(1)  # would fit, but does not overtake
    assert (rejected.allowed, rejected.remaining, rejected.retry_after) == (False, 2, 1)
    assert await together(heavy, *visits(limiter, 1, 2)) == [6, 7]


async def test_slot_is_held_until_the_first_release() -> None:
    limiter = RateLimiter(concurrency_limit=2)
    permit, other = await limiter.acquire(), await limiter.acquire()
    (waiter,) = visits(limiter, 1)
    await asyncio.sleep(5)
    assert counts(limiter) == (2, 1)
    for _ in range(3):
        permit.release()
    assert await waiter == 5
    assert counts(limiter) == (1, 0)
    async with limiter.throttle() as inside:
        inside.release()
        inside.release()
    assert counts(limiter) == (1, 0)
    other.release()
    assert counts(limiter) == (0, 0)


@pytest.mark.parametrize("how", ["throttle", "acquire", "acquire after a wait", "try_acquire"])
async def test_permit_is_good_for_one_block(how: str) -> None:
    limiter = RateLimiter(1, concurrency_limit=2)
    waits = how == "acquire after a wait"
    if waits:
        await visit(limiter)
    if how == "throttle":
        permit = limiter.throttle()
        permit.release()  # without effect: it is not held
    elif how == "try_acquire":
        permit = (await limiter.try_acquire()).permit or limiter.throttle()
    else:
        permit = await limiter.acquire()
    async with permit as entered:
        assert (entered is permit, counts(limiter)) == (True, (1, 0))
        assert (permit.waited, permit.cost, permit.costs) == (float(waits), 1, {})
        with pytest.raises(RuntimeError, match=r"used before.*throttle\(\)"):
            await permit.__aenter__()
    assert (counts(limiter), limiter.statistics().granted) == ((0, 0), 1 + waits)
    released, waiting = await limiter.acquire(), limiter.throttle()
    released.release()
    entering = asyncio.create_task(waiting.__aenter__())
    await turns()
    for each in (permit, released, waiting):
        with pytest.raises(RuntimeError, match="used before"):
            await each.__aenter__()
    (await entering).release()
    assert counts(limiter) == (0, 0)


async def test_decorated_function_takes_a_turn_for_each_call() -> None:
    limiter = RateLimiter("3/s", concurrency_limit=1)
    decorate: Any = limiter.throttled

    @limiter.throttled(2, priority=1)
    async def double(number: int, *, times: int = 2) -> tuple[float, int]:
        """Return twice the number."""
        assert counts(limiter)[0] == 1
        return now(), number * times

    assert (double.__name__, double.__doc__) == ("double", "Return twice the number.")
    assert await double(4, times=3) == (0, 12)
    (other,) = await queued(limiter, cost=3)
    assert (await double(4), await other) == ((1, 8), 2)  # its priority is the higher one
    with pytest.raises(TypeError, match=r"@limiter\.throttled\(\) above double"):
        decorate(double)
    with pytest.raises(TypeError, match="decorates an async function, not <built-in function len>"):
        decorate()(len)
    with pytest.raises(TypeError, match=r"an async function, not functools\.partialm"):
        decorate()(functools.partialmethod(double, 1))  # a descriptor, which is not called

    async def stream() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"not the async generator <function .*stream"):
        decorate()(stream)


async def test_try_acquire_spends_or_returns_the_wait() -> None:
    limiter = RateLimiter(2, concurrency_limit=2)
    first, second = await limiter.try_acquire(), await limiter.try_acquire(0.5)
    assert (first.allowed, first.limit, first.remaining, first.retry_after) == (True, 2, 1, 0)
    assert (second.allowed, second.remaining, second.reset_after) == (True, 0.5, 1)
    assert second.permit is not None
    no_slot = await limiter.try_acquire(0.5)
    assert (no_slot.allowed, no_slot.permit, no_slot.retry_after) == (False, None, 0.0)
    second.permit.release()
    await asyncio.sleep(0.25)
    no_room = await limiter.try_acquire()
    assert (bool(no_room), no_room.remaining) == (False, 0.5)
    assert (no_room.retry_after, no_room.reset_after) == (0.75, 0.75)
    await asyncio.sleep(no_room.retry_after)
    assert await limiter.try_acquire()
    assert counts(limiter) == (2, 0)


async def test_peek_spends_nothing_and_record_needs_no_slot() -> None:
    limiter = RateLimiter("1/s", concurrency_limit=1)
    for _ in range(2):
        decision = await limiter.peek()
        assert (decision.allowed, decision.permit, decision.remaining) == (True, None, 1)
    inside = await limiter.acquire()
    decision = await limiter.peek()
    assert (bool(decision), decision.retry_after, decision.reset_after) == (False, 1, 1)
    await asyncio.sleep(1)
    decision = await limiter.peek()
    assert (bool(decision), decision.retry_after) == (False, 0)  # the slot alone
    await limiter.record(3)
    assert counts(limiter) == (1, 0)
    inside.release()
    assert (await limiter.peek()).retry_after == 1
    assert await visit(limiter) == 2


async def test_no_limit_is_exceeded_and_none_is_wasted() -> None:
    times = await starts(RateLimiter(["10/s", "500/min", "5000/day"]), 5_010)
    for limit, period in ((10, 1), (500, 60), (5_000, 86_400)):
        assert greatest_count(times, period) == limit
    assert times[4_999:5_001] == [9 * 60 + 49, 86_400]


async def test_cost_is_taken_from_all_limits_or_none() -> None:
    limiter = RateLimiter(["5/s", "8/min"])
    decision = await limiter.try_acquire(5)
    assert (decision.limit, decision.remaining, decision.reset_after) == (5, 0, 60)
    await asyncio.sleep(1)
    for _ in range(20):
        rejected = await limiter.try_acquire(4)  # fits the second, not the minute
        assert (rejected.remaining, rejected.retry_after, rejected.reset_after) == (3, 59, 59)
    assert await limiter.try_acquire(3)
    assert (await limiter.peek()).remaining == 0
    await asyncio.sleep(1)
    assert (await limiter.peek()).retry_after == 58


async def test_cost_above_the_smallest_limit_is_rejected_without_waiting() -> None:
    for limiter, limit in (
        (RateLimiter(["5/s", "8/min"]), 5),
        (RateLimiter(["50/s", "8/min"]), 8),
        (RateLimiter("10/s", burst=3), 3),
        (RateLimiter(["10/s", "2/min"], burst=3), 2),
    ):
        limiter.throttled(limit)
        with pytest.raises(errors.CostTooHigh) as error:
            limiter.throttle(limit + 0.5)
        assert (error.value.cost, error.value.limit) == (limit + 0.5, limit)
        assert isinstance(error.value, errors.ThrottleError)
        assert isinstance(error.value, ValueError)
        for ask in (limiter.acquire, limiter.try_acquire):
            with pytest.raises(errors.CostTooHigh):
                await ask(1e12)


@pytest.mark.parametrize("rate", [2, None])
async def test_wrong_cost_raises_and_changes_nothing(rate: float | None) -> None:
    limiter = RateLimiter(rate, concurrency_limit=1)
    permit = await limiter.acquire(0.5)
    wrong: dict[Unchecked, type[Exception]] = {
        **dict.fromkeys([-1, -1e-9, math.nan, -math.inf, 10**400, 1.0000001e12], ValueError),
        **dict.fromkeys(["1", None, False, 1j], TypeError),
    }
    for cost, error in wrong.items():
        await each_rejects(limiter, permit, cost, error, "cost")
    assert (permit.cost, counts(limiter)) == (0.5, (1, 0))
    decision = await limiter.peek()
    assert decision.remaining == decision.limit - 0.5


async def test_representations_show_limits_and_state() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=3)
    waiting = await queued(limiter, 5, stay=0.5)
    assert repr(limiter) == "<RateLimiter '2/s', 2 of 3 in flight, 3 waiting>"
    limiter.pause(1.5)
    assert repr(limiter) == "<RateLimiter '2/s', paused for 1.5 s, 2 of 3 in flight, 3 waiting>"
    permit = limiter.throttle(1.5)
    assert repr(permit) == "<Permit of 1.5, not acquired>"
    entering = asyncio.create_task(permit.__aenter__())
    await turns()
    assert repr(permit) == "<Permit of 1.5, waiting>"
    await entering
    assert repr(permit) == "<Permit of 1.5, held>"
    permit.release()
    assert repr(permit) == "<Permit of 1.5, released>"
    await together(*waiting)
    await limiter.aclose()
    assert repr(limiter) == "<RateLimiter '2/s', closed, 0 of 3 in flight, 0 waiting>"
    assert "0 in flight, 0 waiting" in repr(RateLimiter())


async def test_error_in_the_body_frees_the_slot() -> None:
    limiter = RateLimiter(10, concurrency_limit=1)
    for error in (KeyError("it"), asyncio.CancelledError(), GeneratorExit()):
        permit = await limiter.acquire()
        (waiter,) = await queued(limiter)
        with pytest.raises(type(error)) as caught:
            async with permit:
                raise error
        assert caught.value is error
        assert await waiter == 0
        assert counts(limiter) == (0, 0)


class Flaky(SlidingWindowLog):
    """A window in which the step named by `fails` raises once."""

    __slots__ = ()
    fails: str = ""

    @classmethod
    def _step(cls, name: str) -> None:
        if cls.fails == name:
            cls.fails = ""
            raise ArithmeticError(name)

    def delay(self, state: Unchecked, now: float, cost: float) -> float:
        self._step("delay")
        return SlidingWindowLog.delay(self, state, now, cost)

    def take(self, state: Unchecked, now: float, cost: float) -> None:
        self._step("take")
        SlidingWindowLog.take(self, state, now, cost)


@pytest.mark.parametrize("apart", [0.0, 0.2])  # then there is a timer for the next waiter
@pytest.mark.parametrize("step", ["delay", "take"])
async def test_failing_algorithm_fails_only_current_waiters(step: str, apart: float) -> None:
    limiter = RateLimiter(concurrency_limit=3, algorithm=Flaky("2/s"))
    await visit(limiter)
    await asyncio.sleep(apart)
    await visit(limiter)
    waiting = visits(limiter, 6)
    await asyncio.sleep(0.5)
    Flaky.fails = step
    await asyncio.wait(waiting, timeout=100)
    assert Flaky.fails == ""
    assert ArithmeticError in await errors_of(waiting)
    assert counts(limiter) == (0, 0)
    await asyncio.sleep(10 - now())
    assert await together(*visits(limiter, 4, stay=0.5)) == [10, 10, 11, 11]
    assert counts(limiter) == (0, 0)


async def test_algorithm_failing_on_fast_path_fails_its_caller() -> None:
    limiter = RateLimiter(concurrency_limit=1, algorithm=Flaky("2/s"))
    await visit(limiter)
    Flaky.fails = "delay"
    with pytest.raises(ArithmeticError):
        await visit(limiter)
    assert counts(limiter) == (0, 0)
    assert await starts(limiter, 2) == [0, 1]


async def test_algorithm_that_fails_at_the_start_leaves_no_slot_of_the_parent() -> None:
    parent = RateLimiter("10/min", concurrency_limit=1)
    child = RateLimiter(algorithm=Flaky("2/s"), parent=parent)
    Flaky.fails = "take"
    with pytest.raises(ArithmeticError):
        await visit(child)
    assert counts(parent) == (0, 0)
    assert (await parent.peek()).remaining == 10
    await visit(child)
