"""Specifies the public behaviour of a limiter, in virtual time."""

import asyncio
import gc
import math
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import uvloop

from aiothrottle import (
    CostTooHigh,
    KeyedRateLimiter,
    LimiterClosed,
    Permit,
    Rate,
    RateLimiter,
    SlidingWindowLog,
    ThrottleError,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLogState
from aiothrottle.testing import VirtualTimeLoop, greatest_count
from tests.virtually import counts, now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


# --- The rate, the slots, and the ways to acquire ---


@virtual
async def test_rate_and_concurrency_hold_together() -> None:
    limiter = RateLimiter(2, concurrency_limit=1, clock=now)
    assert await asyncio.gather(*visits(limiter, 4, stay=0.25)) == [0.0, 0.25, 1.0, 1.25]


@virtual
async def test_rate_is_accepted_in_every_form() -> None:
    for rate in (0.5, "1/2s", "1 per 2 seconds", Rate(1, 2)):
        limiter = RateLimiter(rate, clock=now)
        began = now()
        assert await asyncio.gather(*visits(limiter, 3)) == [began, began + 2, began + 4]


@virtual
async def test_without_a_rate_only_the_slots_count() -> None:
    limiter = RateLimiter(concurrency_limit=2, clock=now)
    assert await asyncio.gather(*visits(limiter, 5, stay=1)) == [0, 0, 1, 1, 2]


@virtual
async def test_without_a_concurrency_limit_only_the_rate_counts() -> None:
    limiter = RateLimiter(2, clock=now)
    assert await asyncio.gather(*visits(limiter, 5, stay=9)) == [0, 0, 1, 1, 2]


@virtual
async def test_without_any_limit_nobody_waits() -> None:
    limiter = RateLimiter(clock=now)
    assert await asyncio.gather(*visits(limiter, 1000, cost=1e9, stay=1)) == [0.0] * 1000


@virtual
async def test_queue_is_served_in_order_despite_heavy_head() -> None:
    limiter = RateLimiter(4, clock=now)
    order: list[float] = []

    async def one(cost: float) -> None:
        async with limiter.throttle(cost):
            order.append(cost)

    await asyncio.gather(*(one(cost) for cost in (3, 2, 1, 4, 0, 1)))
    assert order == [3, 2, 1, 4, 0, 1]
    assert now() == 3.0


@virtual
async def test_newcomer_does_not_overtake_waiters() -> None:
    limiter = RateLimiter(2, clock=now)
    await limiter.acquire()
    heavy = asyncio.create_task(visit(limiter, cost=2))
    await turns()
    light = asyncio.create_task(visit(limiter, cost=1))
    assert list(await asyncio.gather(heavy, light)) == [1.0, 2.0]


@virtual
async def test_permit_reports_its_cost_and_wait() -> None:
    limiter = RateLimiter(2, clock=now)
    async with limiter.throttle() as first, limiter.throttle(1) as second:
        assert (first.cost, first.waited, second.waited) == (1, 0.0, 0.0)
    async with limiter.throttle(1.5) as third:
        assert third.cost == 1.5
        assert third.waited == 1.0


@virtual
async def test_acquire_holds_the_slot_until_release() -> None:
    limiter = RateLimiter(concurrency_limit=1, clock=now)
    permit = await limiter.acquire()
    waiter = asyncio.create_task(visit(limiter))
    await asyncio.sleep(5)
    assert counts(limiter) == (1, 1)
    permit.release()
    assert await waiter == 5.0
    assert counts(limiter) == (0, 0)


@virtual
async def test_release_is_idempotent() -> None:
    limiter = RateLimiter(concurrency_limit=2, clock=now)
    permit, other = await limiter.acquire(), await limiter.acquire()
    for _ in range(3):
        permit.release()
    assert counts(limiter) == (1, 0)
    async with limiter.throttle() as inside:
        inside.release()
        inside.release()
        assert counts(limiter) == (1, 0)
    assert counts(limiter) == (1, 0)
    other.release()
    assert counts(limiter) == (0, 0)


@virtual
async def test_release_without_acquire_changes_nothing() -> None:
    limiter = RateLimiter(concurrency_limit=1, clock=now)
    permit = limiter.throttle()
    permit.release()
    assert counts(limiter) == (0, 0)
    async with permit:
        assert counts(limiter) == (1, 0)


@virtual
async def test_permit_is_good_for_one_block() -> None:
    limiter = RateLimiter(10, concurrency_limit=2, clock=now)
    permit = limiter.throttle()
    async with permit:
        with pytest.raises(RuntimeError, match=r"used before.*throttle\(\)"):
            await permit.__aenter__()
        assert counts(limiter) == (1, 0)
    with pytest.raises(RuntimeError, match="used before"):
        await permit.__aenter__()
    assert counts(limiter) == (0, 0)


@pytest.mark.parametrize("wait", [False, True])
@virtual
async def test_acquired_permit_may_be_entered_once(wait: bool) -> None:
    limiter = RateLimiter(1, concurrency_limit=2, clock=now)
    if wait:
        await visit(limiter)
    permit = await limiter.acquire()
    async with permit as entered:
        assert entered is permit
        assert counts(limiter) == (1, 0)
        with pytest.raises(RuntimeError, match="used before"):
            await permit.__aenter__()
        assert counts(limiter) == (1, 0)
    assert counts(limiter) == (0, 0)
    assert limiter.statistics().granted == 1 + wait
    with pytest.raises(RuntimeError, match="used before"):
        await permit.__aenter__()


@virtual
async def test_released_permit_cannot_be_entered() -> None:
    limiter = RateLimiter(10, concurrency_limit=2, clock=now)
    permit = await limiter.acquire()
    permit.release()
    with pytest.raises(RuntimeError, match="used before"):
        await permit.__aenter__()


@virtual
async def test_permit_of_try_acquire_may_be_entered_once() -> None:
    limiter = RateLimiter(10, concurrency_limit=2, clock=now)
    decision = await limiter.try_acquire()
    assert decision.permit
    async with decision.permit:
        assert counts(limiter) == (1, 0)
    assert counts(limiter) == (0, 0)


@virtual
async def test_waiting_permit_cannot_be_entered_again() -> None:
    limiter = RateLimiter(1, clock=now)
    await visit(limiter)
    permit = limiter.throttle()

    async def enter() -> float:
        async with permit:
            return now()

    first, second = asyncio.create_task(enter()), asyncio.create_task(enter())
    await asyncio.wait([first, second], timeout=10)
    assert first.done()
    assert first.result() == 1.0
    with pytest.raises(RuntimeError, match="used"):
        second.result()
    assert counts(limiter) == (0, 0)


@virtual
async def test_try_acquire_spends_or_returns_the_wait() -> None:
    limiter = RateLimiter(2, concurrency_limit=2, clock=now)
    first, second = await limiter.try_acquire(), await limiter.try_acquire(0.5)
    assert first
    assert second
    assert (first.limit, first.remaining, first.retry_after) == (2, 1, 0)
    assert (second.remaining, second.reset_after) == (0.5, 1)
    assert isinstance(second.permit, Permit)
    no_slot = await limiter.try_acquire(0.5)
    assert (no_slot.allowed, no_slot.permit, no_slot.retry_after) == (False, None, 0.0)
    second.permit.release()
    await asyncio.sleep(0.25)
    no_room = await limiter.try_acquire()
    assert not no_room
    assert (no_room.remaining, no_room.retry_after, no_room.reset_after) == (0.5, 0.75, 0.75)
    await asyncio.sleep(no_room.retry_after)
    last = await limiter.try_acquire()
    assert last
    assert counts(limiter) == (2, 0)


@virtual
async def test_try_acquire_does_not_overtake_and_counts_waiters() -> None:
    limiter = RateLimiter(4, clock=now)
    await limiter.acquire(2)
    waiter = asyncio.create_task(visit(limiter, cost=3))
    await turns()
    rejected = await limiter.try_acquire(1)
    assert (rejected.allowed, rejected.remaining, rejected.retry_after) == (False, 2, 1)
    assert await waiter == 1.0
    assert (await limiter.try_acquire(1)).allowed


@virtual
async def test_try_acquire_in_a_pause_returns_its_end() -> None:
    limiter = RateLimiter(4, clock=now)
    limiter.pause(3)
    rejected = await limiter.try_acquire()
    assert (rejected.allowed, rejected.remaining, rejected.retry_after) == (False, 4, 3)
    await asyncio.sleep(3)
    assert await limiter.try_acquire()


@virtual
async def test_cost_of_0_waits_and_spends_nothing() -> None:
    limiter = RateLimiter(1, clock=now)
    assert await visit(limiter) == 0.0
    assert await visit(limiter, cost=0) == 0.0
    assert await asyncio.gather(*visits(limiter, 2), visit(limiter, cost=0)) == [1, 2, 2]


def test_limiter_is_built_before_any_loop_runs() -> None:
    limiter = RateLimiter(1, concurrency_limit=1, clock=now)

    async def main() -> list[float]:
        return await asyncio.gather(*visits(limiter, 2))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == [0.0, 1.0]


@virtual
async def test_default_clock_is_the_time_of_the_loop() -> None:
    limiter = RateLimiter("1/h")
    assert await asyncio.wait_for(asyncio.gather(*visits(limiter, 3)), 1e5) == [0, 3600, 7200]
    limiter.pause(10000)
    assert await visit(limiter) == 17200.0


# --- What limits: cost, guard, algorithm ---


@virtual
async def test_cost_above_the_limit_is_rejected_without_waiting() -> None:
    limiter = RateLimiter(3, clock=now)
    with pytest.raises(CostTooHigh, match="at most 3") as error:
        limiter.throttle(4)
    assert (error.value.cost, error.value.limit) == (4, 3)
    assert isinstance(error.value, ThrottleError)
    assert isinstance(error.value, ValueError)
    with pytest.raises(CostTooHigh):
        await limiter.acquire(3.5)
    with pytest.raises(CostTooHigh):
        await limiter.try_acquire(1e300)
    assert await visit(limiter, cost=3) == 0.0


@virtual
async def test_guard_stretches_the_period() -> None:
    limiter = RateLimiter("2/s", guard=0.25, clock=now)
    assert await asyncio.gather(*visits(limiter, 5)) == [0, 0, 1.25, 1.25, 2.5]


@virtual
async def test_algorithm_may_be_a_class() -> None:
    limiter = RateLimiter("4/s", algorithm=TokenBucket, clock=now)
    assert await asyncio.gather(*visits(limiter, 6)) == [0, 0, 0, 0, 0.25, 0.5]
    window = RateLimiter("4/s", algorithm=SlidingWindowLog, clock=now)
    began = now()
    assert await asyncio.gather(*visits(window, 5)) == [began] * 4 + [began + 1]


@virtual
async def test_algorithm_may_be_an_instance_with_a_rate() -> None:
    limiter = RateLimiter(algorithm=TokenBucket("4/s", burst=1), clock=now)
    assert await asyncio.gather(*visits(limiter, 3)) == [0, 0.25, 0.5]


@virtual
async def test_bucket_with_burst_takes_the_limiter_rate() -> None:
    limiter = RateLimiter("4/s", algorithm=TokenBucket(burst=3), clock=now)
    assert await asyncio.gather(*visits(limiter, 5)) == [0, 0, 0, 0.25, 0.5]
    with pytest.raises(CostTooHigh):
        limiter.throttle(4)
    guarded = RateLimiter("4/s", algorithm=TokenBucket(burst=1), guard=1.0, clock=now)
    began = now()
    assert await asyncio.gather(*visits(guarded, 2)) == [began, began + 0.5]


@virtual
async def test_token_is_not_taken_before_its_request_starts() -> None:
    blocked = 0.0
    limiter = RateLimiter(2, clock=lambda: now() + blocked)
    began: list[float] = []

    async def one(name: int) -> None:
        nonlocal blocked
        async with limiter.throttle():
            began.append(now() + blocked)
            if name == 2:
                blocked += 0.5  # blocks the loop before the next request, already granted

    await asyncio.gather(*(one(name) for name in range(6)))
    assert began == [0, 0, 1, 1.5, pytest.approx(2.5), pytest.approx(2.5)]
    assert greatest_count(began, 1.0) <= 2


# --- Pause ---


@virtual
async def test_pause_holds_newcomers_and_waiters() -> None:
    limiter = RateLimiter(1, clock=now)
    waiting = visits(limiter, 2)
    await asyncio.sleep(0.5)
    limiter.pause(10)
    waiting += visits(limiter, 1)
    assert await asyncio.gather(*waiting) == [0.0, 10.5, 11.5]


@virtual
async def test_pause_closes_the_fast_path_until_its_end() -> None:
    limiter = RateLimiter(100, clock=now)
    await visit(limiter)
    limiter.pause(2)
    assert await visit(limiter) == 2.0
    assert await visit(limiter) == 2.0


@virtual
async def test_pause_is_extended_and_never_shortened() -> None:
    limiter = RateLimiter(100, clock=now)
    waiter = asyncio.create_task(visit(limiter))
    limiter.pause(5)
    await asyncio.sleep(1)
    limiter.pause(1)
    limiter.pause(0)
    await asyncio.sleep(1)
    assert not waiter.done()
    limiter.pause(8)
    assert await waiter == 10.0


@virtual
async def test_pause_stops_granted_waiters_that_have_not_resumed() -> None:
    limiter = RateLimiter(3, concurrency_limit=3, clock=now)
    await asyncio.gather(*visits(limiter, 3))
    order: list[tuple[int, float]] = []

    async def one(name: int) -> None:
        async with limiter.throttle():
            order.append((name, now()))
            if name == 0:
                limiter.pause(10)

    # All three are granted in one turn; the first that resumes pauses the limiter.
    await asyncio.gather(*(one(name) for name in range(3)))
    assert order == [(0, 1.0), (1, 11.0), (2, 11.0)]
    assert counts(limiter) == (0, 0)


@virtual
async def test_pause_does_not_affect_running_requests() -> None:
    limiter = RateLimiter(10, concurrency_limit=1, clock=now)
    async with limiter.throttle():
        limiter.pause(5)
        await asyncio.sleep(1)
    assert now() == 1.0
    assert await visit(limiter) == 5.0


def test_pause_before_any_loop_runs_holds() -> None:
    clock = 0.0
    limiter = RateLimiter(10, clock=lambda: clock)
    limiter.pause(2)
    assert "paused for 2 s" in repr(limiter)
    clock = 2.0
    assert "paused" not in repr(limiter)


# --- Closing ---


@virtual
async def test_aclose_rejects_waiters_and_newcomers() -> None:
    limiter = RateLimiter(1, clock=now)
    first, *waiting = visits(limiter, 600)
    await asyncio.sleep(0.5)
    await limiter.aclose()
    assert first.result() == 0.0
    assert counts(limiter) == (0, 0)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LimiterClosed}
    assert now() == 0.5
    for ask in (limiter.acquire, limiter.try_acquire, limiter.throttle().__aenter__):
        with pytest.raises(LimiterClosed, match="closed"):
            await ask()
    assert issubclass(LimiterClosed, ThrottleError)
    assert issubclass(LimiterClosed, RuntimeError)


@virtual
async def test_aclose_closes_the_fast_path() -> None:
    limiter = RateLimiter(10, clock=now)
    await visit(limiter)
    await limiter.aclose()
    with pytest.raises(LimiterClosed):
        await visit(limiter)


@pytest.mark.parametrize(
    ("make", "method"), [(RateLimiter, "throttle()"), (KeyedRateLimiter, "throttle(key)")]
)
@virtual
async def test_entering_the_limiter_per_request_raises(
    make: "type[RateLimiter | KeyedRateLimiter]", method: str
) -> None:
    """Other limiters are used like this; here it would limit nothing, and silently."""
    limiter = make("1/s")
    advice = re.escape(f"around each request write `async with limiter.{method}:`")

    async def take_turn() -> None:
        async with limiter:
            await asyncio.sleep(1)

    turns = await asyncio.gather(*(take_turn() for _ in range(3)), return_exceptions=True)
    assert [type(turn) for turn in turns] == [type(None), RuntimeError, RuntimeError]
    with pytest.raises(RuntimeError, match=advice):  # not one after the other either
        await take_turn()


@virtual
async def test_running_requests_survive_aclose() -> None:
    limiter = RateLimiter(10, concurrency_limit=1, clock=now)
    running = asyncio.create_task(visit(limiter, stay=5))
    waiter = asyncio.create_task(visit(limiter))
    await asyncio.sleep(1)
    await limiter.aclose()
    assert counts(limiter) == (1, 0)
    assert await running == 0.0
    assert now() == 5.0
    assert counts(limiter) == (0, 0)
    with pytest.raises(LimiterClosed):
        await waiter


@virtual
async def test_aclose_rejects_granted_waiters_that_have_not_resumed() -> None:
    limiter = RateLimiter(3, concurrency_limit=3, clock=now)
    await asyncio.gather(*visits(limiter, 3))
    entered: list[int] = []

    async def one(name: int) -> None:
        async with limiter.throttle():
            entered.append(name)
            await limiter.aclose()

    outcomes = await asyncio.gather(*(one(name) for name in range(5)), return_exceptions=True)
    assert entered == [0]
    assert [type(outcome) for outcome in outcomes] == [type(None)] + [LimiterClosed] * 4
    assert counts(limiter) == (0, 0)


@virtual
async def test_aclose_does_not_wait_for_a_pause() -> None:
    limiter = RateLimiter(10, clock=now)
    limiter.pause(3600)
    waiting = visits(limiter, 2)
    await asyncio.sleep(1)
    await limiter.aclose()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LimiterClosed, LimiterClosed]
    assert now() == 1.0


@virtual
async def test_repeated_and_concurrent_aclose_are_harmless() -> None:
    limiter = RateLimiter(1, clock=now)
    waiting = visits(limiter, 3)
    await turns()
    await asyncio.gather(limiter.aclose(), limiter.aclose())
    await limiter.aclose()
    assert [waiter.done() for waiter in waiting] == [True] * 3
    assert "closed" in repr(limiter)


@virtual
async def test_async_with_closes_the_limiter() -> None:
    async with RateLimiter(1, clock=now) as limiter:
        waiting = visits(limiter, 2)
        await turns()
    assert isinstance(waiting[1].exception(), LimiterClosed)
    with pytest.raises(KeyError):
        async with RateLimiter(1, clock=now) as limiter:
            raise KeyError
    with pytest.raises(LimiterClosed):
        await limiter.acquire()


# --- Bad input ---

BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"rate_limit": bad}, ValueError, "rate") for bad in (0, -1, math.nan, math.inf, "0/s")),
    *(({"rate_limit": bad}, ValueError, "rate") for bad in ("fast", "", "10", "10/0s", "10/x")),
    *(({"rate_limit": bad}, TypeError, "rate") for bad in (True, False, b"10/s", object(), 1j)),
    *(({"concurrency_limit": bad}, ValueError, "concurrency_limit") for bad in (0, -1)),
    *(
        ({"concurrency_limit": bad}, TypeError, "concurrency_limit")
        for bad in (1.5, True, "10", math.inf)
    ),
    *(
        ({"rate_limit": 10, "guard": bad}, ValueError, "guard")
        for bad in (-0.1, math.nan, math.inf)
    ),
    *(({"rate_limit": 10, "guard": bad}, TypeError, "guard") for bad in (True, "1")),
    ({"guard": 0.1}, ValueError, "guard"),
    ({"algorithm": SlidingWindowLog}, ValueError, "rate_limit"),
    ({"algorithm": TokenBucket(burst=3)}, ValueError, "rate"),
    ({"rate_limit": 10, "algorithm": SlidingWindowLog(5)}, ValueError, "two rates"),
    ({"rate_limit": 10, "algorithm": TokenBucket(5)}, ValueError, "two rates"),
    *(({"rate_limit": 10, "algorithm": bad}, TypeError, "algorithm") for bad in ("bucket", int, 3)),
    *(({"algorithm": bad}, TypeError, "algorithm") for bad in ("bucket", 3)),
    ({"rate_limit": 10, "algorithm": WaitUntil}, TypeError, "give an instance, and no rate_limit"),
]


@pytest.mark.parametrize(("arguments", "error", "named"), BAD_ARGUMENTS)
def test_bad_arguments_raise_by_name(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        RateLimiter(**arguments)


@pytest.mark.parametrize(
    ("given", "write"),
    [
        ((10, 60), "'10/60s'"),
        ((0.5, 2.5), "'0.5/2.5s'"),
        (("10/s", "100/min"), "['10/s', '100/min']"),
        ((10, 60, 3600), "[10, 60, 3600]"),
        (("10/s",), "['10/s']"),
        ((), "[]"),
    ],
)
@pytest.mark.parametrize("kind", [RateLimiter, KeyedRateLimiter, RateLimiter(1).update])
def test_tuple_is_rejected_as_a_rate_limit(kind: Unchecked, given: Unchecked, write: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"tuple, got {given!r}; write {write} ")):
        kind(rate_limit=given)


@pytest.mark.parametrize(
    ("kind", "arguments", "write"),
    [
        (RateLimiter, (10, 60), r"got 60 .*write RateLimiter\('10/60s'\) or concurrency_limit=60$"),
        (RateLimiter, (0.5, 2.5), r"write RateLimiter\('0.5/2.5s'\) or concurrency_limit=2.5$"),
        (RateLimiter, ("10/s", 5), r"got 5 as well: write concurrency_limit=5$"),
        (RateLimiter, (None, 5), r"write concurrency_limit=5$"),
        (
            RateLimiter,
            (10, 60, None),
            r"got 60, None as well: write RateLimiter\('10/60s'\)",
        ),
        (KeyedRateLimiter, (10, 60), r"^KeyedRateLimiter.*write KeyedRateLimiter\('10/60s'\) or"),
    ],
)
def test_second_positional_argument_is_rejected(
    kind: Callable[..., object], arguments: tuple[object, ...], write: str
) -> None:
    with pytest.raises(TypeError, match=write):
        kind(*arguments)


@pytest.mark.parametrize(
    ("cost", "error"),
    [
        (-1, ValueError),
        (-1e-9, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (-math.inf, ValueError),
        pytest.param(10**400, ValueError, id="more than a float"),
        ("1", TypeError),
        (None, TypeError),
        (False, TypeError),
        (1j, TypeError),
    ],
)
@virtual
async def test_bad_costs_raise_and_spend_nothing(cost: Unchecked, error: type[Exception]) -> None:
    for limiter in (RateLimiter(2, concurrency_limit=1, clock=now), RateLimiter(clock=now)):
        with pytest.raises(error, match="cost"):
            limiter.throttle(cost)
        with pytest.raises(error, match="cost"):
            await limiter.acquire(cost)
        with pytest.raises(error, match="cost"):
            await limiter.try_acquire(cost)
        assert counts(limiter) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("1", TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
@virtual
async def test_bad_pauses_raise(seconds: Unchecked, error: type[Exception]) -> None:
    limiter = RateLimiter(2, clock=now)
    with pytest.raises(error, match="pause"):
        limiter.pause(seconds)
    assert await visit(limiter) == 0.0


# --- Representation ---


@virtual
async def test_repr_shows_limits_and_state() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=3, clock=now)
    waiting = visits(limiter, 5, stay=0.5)
    await turns()
    limits = "SlidingWindowLog(rate=Rate(limit=2.0, period=1.0))"
    assert repr(limiter) == f"<RateLimiter {limits}, 2 of 3 in flight, 3 waiting>"
    limiter.pause(1.5)
    assert repr(limiter) == (
        f"<RateLimiter {limits}, paused for 1.5 s, 2 of 3 in flight, 3 waiting>"
    )
    await limiter.aclose()
    assert "closed" in repr(limiter)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert "0 of 3 in flight, 0 waiting" in repr(limiter)
    assert "0 in flight, 0 waiting" in repr(RateLimiter(clock=now))


@virtual
async def test_repr_of_a_permit_shows_cost_and_state() -> None:
    permit = RateLimiter(3, clock=now).throttle(2.5)
    assert repr(permit) == "<Permit of 2.5, not acquired>"
    async with permit:
        assert repr(permit) == "<Permit of 2.5, held>"
    assert repr(permit) == "<Permit of 2.5, released>"


# --- Errors, of the body and of an algorithm ---


@virtual
async def test_error_in_the_body_frees_the_slot() -> None:
    limiter = RateLimiter(10, concurrency_limit=1, clock=now)
    for error in (KeyError("it"), asyncio.CancelledError(), GeneratorExit()):
        with pytest.raises(type(error)) as caught:
            async with limiter.throttle():
                raise error
        assert caught.value is error
        assert counts(limiter) == (0, 0)
    failing = asyncio.create_task(fail(limiter))
    waiter = asyncio.create_task(visit(limiter))
    assert await waiter == 1.0
    assert isinstance(failing.exception(), ZeroDivisionError)


async def fail(limiter: RateLimiter) -> None:
    async with limiter.throttle():
        await asyncio.sleep(1)
        raise ZeroDivisionError


class Flaky(SlidingWindowLog):
    """A window of 2/s in which the step named by `fails` raises once."""

    __slots__ = ()
    fails: str = ""

    @classmethod
    def _step(cls, name: str) -> None:
        if cls.fails == name:
            cls.fails = ""
            raise ArithmeticError(name)

    def delay(self, state: SlidingWindowLogState, now: float, cost: float) -> float:
        self._step("delay")
        return SlidingWindowLog.delay(self, state, now, cost)

    def take(self, state: SlidingWindowLogState, now: float, cost: float) -> None:
        self._step("take")
        SlidingWindowLog.take(self, state, now, cost)


@pytest.mark.parametrize("step", ["delay", "take"])
@virtual
async def test_failing_algorithm_fails_only_current_waiters(step: str) -> None:
    limiter = RateLimiter(concurrency_limit=3, algorithm=Flaky("2/s"), clock=now)
    await asyncio.gather(*visits(limiter, 2))
    waiting = visits(limiter, 6)
    await asyncio.sleep(0.5)
    Flaky.fails = step
    await asyncio.wait(waiting, timeout=100)
    assert Flaky.fails == ""
    assert [waiter.done() for waiter in waiting] == [True] * 6
    errors = [waiter.exception() for waiter in waiting]
    assert any(isinstance(error, ArithmeticError) for error in errors)
    assert counts(limiter) == (0, 0)
    await asyncio.sleep(2)
    began = now()
    afterwards = asyncio.gather(*visits(limiter, 4, stay=0.5))
    assert await asyncio.wait_for(afterwards, 100) == [began, began, began + 1, began + 1]
    assert counts(limiter) == (0, 0)


@virtual
async def test_algorithm_failing_on_fast_path_fails_its_caller() -> None:
    limiter = RateLimiter(concurrency_limit=1, algorithm=Flaky("2/s"), clock=now)
    await visit(limiter)
    Flaky.fails = "delay"
    with pytest.raises(ArithmeticError):
        await visit(limiter)
    assert counts(limiter) == (0, 0)
    assert await asyncio.gather(*visits(limiter, 2)) == [0, 1]


# --- Loops and threads ---


def test_second_live_loop_raises_and_the_first_continues() -> None:
    limiter = RateLimiter(1, concurrency_limit=1, clock=lambda: 0.0)

    async def take() -> None:
        async with limiter.throttle():
            pass

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as first:
        first.run(take())
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as second:

            async def update() -> None:
                limiter.update(rate_limit=5)

            for ask in (limiter.acquire, limiter.try_acquire, take, update, limiter.aclose):
                with pytest.raises(RuntimeError, match=r"still open.*one limiter for each loop"):
                    second.run(ask())
        assert counts(limiter) == (0, 0)
        assert not first.run(limiter.try_acquire())


def test_live_loop_in_another_thread_raises() -> None:
    limiter = RateLimiter(10)
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(limiter.acquire())
        except RuntimeError as error:
            errors.append(error)

    async def main() -> None:
        await limiter.acquire()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    asyncio.run(main())
    assert "one limiter for each loop" in str(errors[0])


def test_next_loop_finds_the_bucket_unchanged() -> None:
    clock = VirtualTimeLoop()
    limiter, kept = RateLimiter(2, concurrency_limit=5, clock=clock.time), list[object]()

    async def first() -> None:
        kept.append(await limiter.acquire(0.5))  # still in flight when the loop is closed
        kept.append(await limiter.acquire(1))
        visits(limiter, 3)
        await turns()
        assert counts(limiter) == (2, 3)

    async def second() -> list[float]:
        assert counts(limiter)[1] == 0
        rejected = await limiter.try_acquire()
        assert (rejected.allowed, rejected.remaining, rejected.retry_after) == (False, 0.5, 1)
        kept.append(await limiter.try_acquire(0.5))
        assert kept[-1]
        assert counts(limiter) == (3, 0)
        return []

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(first())
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(second())
    clock.close()


def abandoned(limiter: RateLimiter) -> tuple[Permit, list[asyncio.Task[float]]]:
    """Close a loop with one permit held and two waiters, without cancelling them."""
    loop = asyncio.new_event_loop()

    async def main() -> tuple[Permit, list[asyncio.Task[float]]]:
        permit = await limiter.acquire()
        waiting = visits(limiter, 2)
        await turns()
        return permit, waiting

    permit, waiting = loop.run_until_complete(main())
    loop.close()
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    return permit, waiting


def test_waiters_of_a_dead_loop_are_dropped() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    _permit, waiting = abandoned(limiter)

    async def main() -> None:
        assert not await limiter.try_acquire()
        assert counts(limiter) == (1, 0)

    asyncio.run(main())
    assert len(waiting) == 2


@pytest.mark.parametrize("count", range(6))
def test_slot_granted_at_loop_end_is_not_lost(count: int) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    inside: list[Permit] = []

    async def enter() -> None:
        inside.append(await limiter.acquire())

    async def first() -> asyncio.Task[None]:
        permit = await limiter.acquire()
        waiter = asyncio.create_task(enter())
        await turns()
        permit.release()
        await turns(count)
        return waiter

    loop = asyncio.new_event_loop()
    waiter = loop.run_until_complete(first())
    loop.close()
    waiter._log_destroy_pending = False  # type: ignore[attr-defined]
    decision = asyncio.run(limiter.try_acquire())
    assert decision.allowed == (not inside)
    assert counts(limiter) == (1, 0)


@pytest.mark.parametrize("how", ["release", "pause", "close"])
def test_limiter_survives_the_death_of_its_loop(how: str) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    permit, waiting = abandoned(limiter)
    if how == "release":
        permit.release()
        _permit = asyncio.run(limiter.acquire())
        assert counts(limiter) == (1, 0)
    elif how == "pause":
        limiter.pause(0)
        permit.release()
        assert counts(limiter)[0] == 0
    else:
        asyncio.run(limiter.aclose())
        with pytest.raises(LimiterClosed):
            asyncio.run(limiter.try_acquire())
    assert len(waiting) == 2


def test_release_from_another_thread_wakes_a_waiter() -> None:
    limiter = RateLimiter(concurrency_limit=1)

    async def main() -> None:
        permit = await limiter.acquire()
        waiter = asyncio.create_task(visit(limiter))
        await turns()
        thread = threading.Thread(target=permit.release)
        thread.start()
        await asyncio.wait_for(waiter, 30)
        thread.join()
        permit.release()
        assert counts(limiter) == (0, 0)

    asyncio.run(main(), debug=True)


# --- Other loops, other ways to make tasks, and tasks that cancel everything ---


async def serve_fifty(limiter: RateLimiter) -> list[int]:
    order: list[int] = []

    async def one(name: int) -> None:
        async with limiter.throttle():
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(asyncio.create_task(one(name)) for name in range(50)))
    assert counts(limiter) == (0, 0)
    return order


def plain_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Unchecked, **arguments: Unchecked
) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **arguments)


def without_context_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Unchecked, **_: Unchecked
) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop)


FACTORIES: list[Any] = [plain_factory, without_context_factory]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.mark.parametrize("factory", FACTORIES)
@virtual
async def test_limiter_works_with_any_task_factory(factory: Unchecked) -> None:
    asyncio.get_running_loop().set_task_factory(factory)
    assert await serve_fifty(RateLimiter("10/s", concurrency_limit=3, clock=now)) == list(range(50))
    assert now() == 4.0


@pytest.mark.parametrize("debug", [False, True])
def test_limiter_runs_on_uvloop(*, debug: bool) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=debug) as runner:
        assert runner.run(serve_fifty(RateLimiter("10/5ms", concurrency_limit=3))) == list(
            range(50)
        )


Sweep = Callable[[asyncio.Task[Any]], bool]


async def sweep(keep: set[asyncio.Task[Any]]) -> None:
    for task in asyncio.all_tasks() - keep - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("count", range(6))
@virtual
async def test_waiters_survive_a_sweep_of_all_other_tasks(count: int) -> None:
    limiter = RateLimiter(1, clock=now)
    await visit(limiter)
    waiting = visits(limiter, 2)
    await turns(count)
    await sweep(set(waiting))
    done: Awaitable[list[float]] = asyncio.gather(*waiting)
    assert await asyncio.wait_for(done, 100) == [1, 2]
    assert await visit(limiter) == 3.0


@virtual
async def test_sweep_at_every_instant_delays_no_waiter() -> None:
    limiter = RateLimiter(2, concurrency_limit=1, clock=now)
    waiting = visits(limiter, 7, stay=0.25)
    while not all(waiter.done() for waiter in waiting):
        await sweep(set(waiting))
        await asyncio.sleep(0.125)
    assert [waiter.result() for waiter in waiting] == [0, 0.25, 1, 1.25, 2, 2.25, 3]
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_collected_consumer_of_closed_loop_stops_no_other() -> None:
    limiter, kept = RateLimiter("1/s"), list[object]()

    async def leave_waiters() -> None:
        kept.extend(visits(limiter, 2))
        await asyncio.sleep(0.1)

    async def wait_again() -> None:
        waiting = visits(limiter, 3)
        await asyncio.sleep(0.1)
        kept.clear()
        gc.collect()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)

    closed = VirtualTimeLoop()
    closed.run_until_complete(leave_waiters())
    closed.close()
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(1.0)) as runner:
        runner.run(wait_again())


def test_pause_before_any_loop_hides_no_429() -> None:
    limiter = RateLimiter(10)
    limiter.pause(0)

    async def main() -> float:
        async with limiter.throttle() as permit:
            permit.report_throttled()
        return limiter.statistics().paused_for

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) >= 0.5
