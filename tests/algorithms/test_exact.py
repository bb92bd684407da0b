"""Every promise holds to the last token, whatever the clock reads and however fast the rate is.

Readings of a clock are doubles, and as such exact fractions: the oracle computes with those.
"""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    Rate,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf
from aiothrottle.algorithms.level import Pace
from tests.algorithms.asking import delay_behind
from tests.support.asking import admit

CLOCKS = [0.0, 0.1, 4321.123, 1e6 + 0.1, 2.8e7 + 1 / 3, 1.7e9 + 0.123]
RATES = [
    Rate(1, 86400), Rate(1, 49), Rate(100, 60), Rate(10), Rate(97), Rate(1000), Rate(1_000_000),
]  # fmt: skip
# Tokens that are forgiven, so that a cost of a tenth fits ten times.
FORGIVEN = Fraction(2, 10**9)


Test: TypeAlias = Callable[[Rate, float], None]


def at_any_clock(rates: list[Rate]) -> Callable[[Test], Callable[[Rate], None]]:
    """Run the test at each of the rates, as a case each, and at every reading of the clock."""

    def decorate(test: Test) -> Callable[[Rate], None]:
        @pytest.mark.parametrize("rate", rates, ids=str)
        def at_clocks(rate: Rate) -> None:
            for start in CLOCKS:
                test(rate, start)

        return at_clocks

    return decorate


class Exact:
    """A bucket that drains, in fractions: its level after tokens were added at clock readings."""

    def __init__(self, rate: Rate) -> None:
        self.rate = Fraction(rate.limit) / Fraction(rate.period)
        self.tokens, self.at = Fraction(0), Fraction(0)

    def level(self, now: float) -> Fraction:
        return max(Fraction(0), self.tokens - (Fraction(now) - self.at) * self.rate)

    def add(self, now: float, cost: float) -> None:
        self.tokens, self.at = self.level(now) + Fraction(cost), Fraction(now)


def bursts_of(rate: Rate) -> list[tuple[Algorithm[Any], int]]:
    n = min(max(1, int(rate.limit)), 300)
    few = Rate(n, rate.period * n / rate.limit)  # the same pace
    return [
        (TokenBucket(rate, burst=n), n),
        (TokenBucket(rate, burst=1), 1),
        (Cooldown(n, few.period), n),
        (SlidingWindowLog(few), n),
        (FixedWindow(few), n),
        (SlidingWindowCounter(few), n),
        (WaitUntil(rate.period / rate.limit, 1, max(1, rate.period / rate.limit)), 1),
        (AllOf(TokenBucket(rate, burst=n), SlidingWindowLog(Rate(n + 1, rate.period))), n),
    ]


@at_any_clock(RATES)
def test_burst_admits_exactly_its_size(rate: Rate, start: float) -> None:
    for algorithm, n in bursts_of(rate):
        state = algorithm.start()
        for left in range(n, 0, -1):
            context = algorithm, start, left
            if not isinstance(algorithm, WaitUntil):
                assert algorithm.remaining(state, start) == left, context
            assert delay_behind(algorithm, state, start, 1, left - 1) == 0.0, context
            assert delay_behind(algorithm, state, start, 1, left) > 0.0, context
            assert admit(algorithm, state, start, 1), context
        assert algorithm.remaining(state, start) == 0.0
        assert not admit(algorithm, state, start, 1)
        delay = algorithm.delay(state, start, 1)
        assert admit(algorithm, state, start + delay, 1), (algorithm, start)


@at_any_clock(RATES)
def test_level_stays_exact_in_a_long_run(rate: Rate, start: float) -> None:
    """After waits of any length; what is rejected is admitted after the delay, and not before."""
    dice = random.Random(f"{rate} {start}")
    n = min(50, max(4, int(rate.limit)))
    for algorithm in (TokenBucket(rate, burst=n), Cooldown(n, rate.period * n / rate.limit)):
        exact, state, now = Exact(rate), algorithm.start(), start
        for step in range(300):
            if step < 150:  # in the second half the bucket is always full
                now += dice.choice([0.0, 1e-6, 1.0, dice.random()]) * rate.period / rate.limit
            cost = dice.choice([1, 1, 2, 0.1, 1 / 3])
            if delay := algorithm.delay(state, now, cost):
                before = math.nextafter(now + delay, -math.inf)
                assert exact.level(before) + Fraction(cost) > n - FORGIVEN
                if exact.level(before) + Fraction(cost) > n + FORGIVEN:
                    assert not admit(algorithm, state, before, cost)
            now += delay
            assert exact.level(now) + Fraction(cost) <= n + FORGIVEN
            assert admit(algorithm, state, now, cost)
            exact.add(now, cost)
            assert abs(Fraction(algorithm.used(state, now)) - exact.level(now)) < FORGIVEN
            assert abs(n - Fraction(algorithm.remaining(state, now)) - exact.level(now)) < FORGIVEN


@at_any_clock(RATES[:-1])  # at the last, all would start within the 2 ms
def test_evenly_spaced_requests_keep_their_schedule(rate: Rate, start: float) -> None:
    """Each starts at the first clock reading that is not before its place, less 2 ms."""
    interval = Fraction(rate.period) / Fraction(rate.limit)
    algorithms: list[tuple[Algorithm[Any], Fraction]] = [
        (LeakyBucket(rate), Fraction(2, 1000)),
        (Pace(rate.limit / rate.period, 1.0), Fraction(2, 1000)),
        (WaitUntil(rate.period / rate.limit, 1e9, 1e9), Fraction(0)),
        (TokenBucket(rate, burst=1), Fraction(0)),
    ]
    for algorithm, tolerance in algorithms:
        state, now, due = algorithm.start(), start, Fraction(start)
        hair = interval * FORGIVEN
        for _ in range(150):
            delay = algorithm.delay(state, now, 1)
            now += delay
            assert due - tolerance - hair <= Fraction(now), algorithm
            if delay:
                assert Fraction(math.nextafter(now, -math.inf)) < due - tolerance + hair, algorithm
            assert admit(algorithm, state, now, 1)
            due = max(due, Fraction(now)) + interval


@at_any_clock(RATES)
def test_windows_admit_their_limit_in_each_period(rate: Rate, start: float) -> None:
    """Ten periods in which every token is taken as soon as it is free."""
    n = min(10, max(1, int(rate.limit)))
    window = Rate(n, rate.period * n / rate.limit)
    unsure = 2 * Fraction(math.ulp(start + 10 * window.period))
    algorithms: list[Algorithm[Any]] = [
        SlidingWindowLog(window),
        FixedWindow(window),
        SlidingWindowCounter(window),
    ]
    for algorithm in algorithms:
        state, now, starts = algorithm.start(), start, list[float]()
        for _ in range(10 * n):
            now += algorithm.delay(state, now, 1)
            assert admit(algorithm, state, now, 1)
            starts.append(now)
        # All at once, and once more a period later; the first calendar period may be shorter.
        for first, later in zip(starts, starts[n:], strict=False):
            if first >= starts[n] or isinstance(algorithm, SlidingWindowLog):
                assert abs(Fraction(later) - Fraction(first) - Fraction(window.period)) <= unsure
