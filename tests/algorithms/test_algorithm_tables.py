"""Specifies the decisions of every algorithm by tables."""

import math
from typing import Any

import pytest

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from tests.algorithm_tables import CASES, LEFT, Case
from tests.asking import delay_behind


@pytest.mark.parametrize("case", CASES, ids=str)
def test_delay_and_take_follow_the_table(case: Case) -> None:
    algorithm, state = case.algorithm, case.algorithm.start()
    for now, cost, wait in case.steps:
        delay = algorithm.delay(state, now, cost)
        assert delay == pytest.approx(wait, rel=1e-9, abs=1e-9), (now, cost)
        assert (delay == 0.0) == (wait == 0), (now, cost)
        assert delay_behind(algorithm, state, now, cost, 0.0) == delay
        if delay == 0.0:
            algorithm.take(state, now, cost)


@pytest.mark.parametrize(
    ("algorithm", "capacity"),
    [
        (SlidingWindowLog("20/s"), 20),
        (SlidingWindowLog("2.5/s"), 2.5),
        (SlidingWindowLog("0.5/s"), 1),
        (TokenBucket("20/s"), 20),
        (TokenBucket("20/s", burst=3), 3),
        (TokenBucket("20/s", burst=1.5), 1.5),
        (TokenBucket("0.5/s"), 1),
        (TokenBucket(burst=3), 3),
        (Unlimited(), math.inf),
        (LeakyBucket("20/s"), 20),
        (LeakyBucket("0.5/s"), 1),
        (FixedWindow("2.5/s"), 2.5),
        (FixedWindow("0.5/s"), 1),
        (SlidingWindowCounter("20/s"), 20),
        (SlidingWindowCounter("0.5/s"), 1),
        (Cooldown(3, 60), 3),
        (WaitUntil(2, 5, 10), 5),
        (AllOf(SlidingWindowLog("20/s"), TokenBucket("20/s", burst=3)), 3),
        (AllOf(Unlimited()), math.inf),
    ],
    ids=repr,
)
def test_capacity_is_the_greatest_cost_admitted(algorithm: Algorithm[Any], capacity: float) -> None:
    assert algorithm.capacity == capacity


@pytest.mark.parametrize(("algorithm", "taken", "now", "remaining", "reset_after"), LEFT)
def test_remaining_and_reset_after(
    algorithm: Algorithm[Any],
    taken: list[tuple[float, float]],
    now: float,
    remaining: float,
    reset_after: float,
) -> None:
    state = algorithm.start()
    for instant, cost in taken:
        algorithm.take(state, instant, cost)
    assert algorithm.remaining(state, now) == pytest.approx(remaining)
    assert algorithm.reset_after(state, now) == pytest.approx(reset_after)
