"""An algorithm is any class with six members; optional protocols are looked up once per class."""

import asyncio
import math
from dataclasses import dataclass
from typing import Any, cast

import pytest

from aiothrottle import CostTooHigh, RateLimiter, SlidingWindowLog, TokenBucket
from aiothrottle.algorithms import AllOf, Unlimited
from aiothrottle.algorithms.level import Level
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLogState
from aiothrottle.stores import MemoryStore
from tests.algorithms.asking import (
    allowance,
    cost_of_reject,
    delay_behind,
    dump,
    load,
    max_wait,
    refund,
    take_each,
    used,
)
from tests.support.virtually import virtual, visit


@dataclass
class OneAtATimeState:
    free_at: float = -math.inf
    taken: int = 0


class OneAtATime:
    """One token a second: the six members, and no base class."""

    capacity = 1.0

    def start(self) -> OneAtATimeState:
        return OneAtATimeState()

    def delay(self, state: OneAtATimeState, now: float, cost: float) -> float:
        if cost > 1:
            return math.inf
        return max(0.0, state.free_at - now) if cost else 0.0

    def take(self, state: OneAtATimeState, now: float, cost: float) -> None:
        if cost:
            state.free_at = max(state.free_at, now) + 1.0
            state.taken += 1

    def remaining(self, state: OneAtATimeState, now: float) -> float:
        return float(state.free_at <= now)

    def reset_after(self, state: OneAtATimeState, now: float) -> float:
        return max(0.0, state.free_at - now)

    def __repr__(self) -> str:
        return "OneAtATime()"


@virtual
async def test_six_members_run_a_limiter_alone_and_beside_others() -> None:
    limiter = RateLimiter(algorithm=OneAtATime())
    assert [await visit(limiter) for _ in range(3)] == [0.0, 1.0, 2.0]
    queued = (visit(limiter, cost) for cost in (1, 0.5, 1))
    assert await asyncio.gather(*queued) == [3.0, 4.0, 5.0]
    with pytest.raises(CostTooHigh):
        await limiter.acquire(2)
    permit = await limiter.acquire()
    permit.settle(0.0)  # nothing is refunded
    assert (await limiter.peek()).retry_after == 1.0
    both = RateLimiter(algorithm=AllOf(OneAtATime(), SlidingWindowLog("2/min")))
    assert [await visit(both) for _ in range(3)] == [6.0, 7.0, 66.0]
    shared = RateLimiter(algorithm=OneAtATime(), store=MemoryStore(), key="k")
    assert [await visit(shared) for _ in range(3)] == pytest.approx([66.0, 67.0, 68.0], abs=0.01)


class WithoutTake:
    capacity = 1.0
    start = delay = remaining = reset_after = OneAtATime.delay


def test_missing_members_are_named() -> None:
    for wrong in (WithoutTake, WithoutTake()):
        with pytest.raises(TypeError, match=r"such as TokenBucket, got .*, which has no take$"):
            RateLimiter(1, algorithm=cast("Any", wrong))
    with pytest.raises(TypeError, match=r"each of AllOf must be .*, which has no take$"):
        AllOf(Unlimited(), cast("Any", WithoutTake()))


async def test_capacity_may_be_an_attribute_of_instances() -> None:
    class Heavy:
        start, delay, take = OneAtATime.start, OneAtATime.delay, OneAtATime.take
        remaining, reset_after = OneAtATime.remaining, OneAtATime.reset_after

        def __init__(self, rate: Any) -> None:
            self.capacity = rate.limit

    assert (await RateLimiter(1, algorithm=cast("Any", Heavy)).peek()).limit == 1


# ---- fallbacks -----------------------------------------------------------------------------------


def test_core_alone_is_asked_each_time() -> None:
    algorithm = OneAtATime()
    state = algorithm.start()
    assert allowance(algorithm, state, 0.0, 9) == 0
    assert used(algorithm, state, 0.0) == 0.0
    take_each(algorithm, state, [0.0, 1.0])
    assert (state.free_at, state.taken) == (2.0, 2)
    assert delay_behind(algorithm, state, 1.5, 1, 0) == 0.5
    assert delay_behind(algorithm, state, 1.5, 1, 1) == math.inf
    assert max_wait(algorithm) == math.inf
    assert cost_of_reject(algorithm, state, 1.5, 1, 0.0) == 0.0
    refund(algorithm, state, 1.5, 1, 1.0)
    assert [used(algorithm, state, later) for later in (1.5, 2.0)] == [1.0, 0.0]


def test_core_alone_cannot_be_dumped() -> None:
    algorithm = OneAtATime()
    both = AllOf(Unlimited(), algorithm)
    message = r"OneAtATime\(\) has no dump\(state\) and load\(data\)"
    for call, of, argument in (
        (dump, algorithm, algorithm.start()),
        (load, algorithm, b""),
        (dump, both, both.start()),
    ):
        with pytest.raises(TypeError, match=message):
            call(of, argument)


class Strict(SlidingWindowLog):
    """Overrides `delay`, which the inherited batch methods would bypass."""

    __slots__ = ()

    def delay(self, state: SlidingWindowLogState, now: float, cost: float) -> float:
        return max(SlidingWindowLog.delay(self, state, now, cost), 1.0 if cost > 1 else 0.0)


class Counting(TokenBucket):
    """Overrides `take`, and with it `allowance`."""

    __slots__ = ()

    def take(self, state: Level, now: float, cost: float) -> None:
        TokenBucket.take(self, state, now, 2 * cost)

    def allowance(self, state: Level, now: float, most: int) -> int:
        return TokenBucket.allowance(self, state, now, most) // 2


def test_overridden_delay_is_asked_each_time() -> None:
    algorithm = Strict("5/s")
    state = algorithm.start()
    assert allowance(algorithm, state, 0.0, 9) == 0
    assert delay_behind(algorithm, state, 0.0, 1, 2) == 1.0
    algorithm.take(state, 0.0, 1)
    refund(algorithm, state, 0.0, 1, 0.0)  # rests on neither
    assert used(algorithm, state, 0.0) == 0.0


def test_overridden_take_is_called_for_each() -> None:
    algorithm = Counting("10/s")
    state = algorithm.start()
    assert allowance(algorithm, state, 0.0, 99) == 5
    take_each(algorithm, state, [0.0, 0.0])
    assert algorithm.used(state, 0.0) == 4
