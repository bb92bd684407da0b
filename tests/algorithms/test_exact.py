"""Every promise holds to the last token, whatever the clock reads and however fast the rate is.

Readings of a clock are doubles, and as such exact fractions: the oracle computes with those.
"""

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import pytest

from aiothrottle import Rate
from aiothrottle.adaptive.pace import Pace
from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms.server_quota import ServerQuota
from aiothrottle.stores.ledger import Record
from tests.asking import admit, delay_behind

CLOCKS = [0.0, 0.1, 1.0, 4321.123, 1e6, 1e6 + 0.1, 2.8e7 + 1 / 3, 1.7e9 + 0.123, 2e9]
RATES = [
    Rate(1, 86400),
    Rate(1, 49),
    Rate(100, 60),
    Rate(5000, 3600),
    Rate(10),
    Rate(97),
    Rate(1000),
    Rate(10_000),
    Rate(100_000),
    Rate(1_000_000),
]
# Tokens that are forgiven, so that a cost of a tenth fits ten times.
FORGIVEN = Fraction(2, 10**9)

at_any_clock = pytest.mark.parametrize("start", CLOCKS)
at_any_rate = pytest.mark.parametrize("rate", RATES, ids=str)


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
    whole = max(1, int(rate.limit))
    n = min(whole, 300)
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


@at_any_clock
@at_any_rate
def test_burst_admits_exactly_its_size(rate: Rate, start: float) -> None:
    for algorithm, n in bursts_of(rate):
        state = algorithm.start()
        for left in range(n, 0, -1):
            if not isinstance(algorithm, WaitUntil):
                assert algorithm.remaining(state, start) == left
            assert delay_behind(algorithm, state, start, 1, left - 1) == 0.0, (algorithm, left)
            assert delay_behind(algorithm, state, start, 1, left) > 0.0, (algorithm, left)
            assert admit(algorithm, state, start, 1), (algorithm, left)
        assert algorithm.remaining(state, start) == 0.0
        assert not admit(algorithm, state, start, 1)
        delay = algorithm.delay(state, start, 1)
        assert admit(algorithm, state, start + delay, 1), algorithm


@at_any_clock
@at_any_rate
def test_burst_is_whole_while_the_clock_runs(rate: Rate, start: float) -> None:
    """Ninety-seven at 97/s, a microsecond apart: at 1e6 s the last one was rejected."""
    n = min(300, max(1, int(rate.limit)))
    for algorithm in (TokenBucket(rate, burst=n), Cooldown(n, rate.period * n / rate.limit)):
        state, now = algorithm.start(), start
        for _ in range(n):
            assert admit(algorithm, state, now, 1)
            now = max([math.nextafter(now, math.inf), now + 1e-9])
        used = n - Fraction(algorithm.remaining(state, now))
        drained = (Fraction(now) - Fraction(start)) * Exact(rate).rate
        assert abs(used - max(Fraction(0), n - drained)) < FORGIVEN


@at_any_clock
@at_any_rate
def test_rejected_until_the_delay_and_admitted_exactly_then(rate: Rate, start: float) -> None:
    """In a bucket that is never empty, a long run admits exactly the rate."""
    n = 4
    for algorithm in (TokenBucket(rate, burst=n), Cooldown(n, rate.period * n / rate.limit)):
        exact, state, now = Exact(rate), algorithm.start(), start
        for count in itertools.count(1):
            delay = algorithm.delay(state, now, 1)
            if delay:
                before = math.nextafter(now + delay, -math.inf)
                assert exact.level(before) + 1 > n - FORGIVEN
                if exact.level(before) + 1 > n + FORGIVEN:
                    assert not admit(algorithm, state, before, 1)
            now += delay
            assert exact.level(now) + 1 <= n + FORGIVEN
            assert admit(algorithm, state, now, 1)
            exact.add(now, 1)
            assert abs(Fraction(algorithm.used(state, now)) - exact.level(now)) < FORGIVEN
            if count == 300:
                break
        promised = n + (Fraction(now) - Fraction(start)) * exact.rate
        assert math.floor(promised + FORGIVEN) == 300


@at_any_clock
@at_any_rate
def test_level_equals_the_exact_oracle_after_many_steps(rate: Rate, start: float) -> None:
    dice = random.Random(f"{rate} {start}")
    n = max(1, min(50, int(rate.limit)))
    algorithm = TokenBucket(rate, burst=n)
    exact, state, now = Exact(rate), algorithm.start(), start
    for _ in range(600):
        now += dice.choice([0.0, 1.0, dice.random()]) * rate.period / rate.limit
        cost = dice.choice([1, 1, 2, 0.1, 1 / 3])
        fits = exact.level(now) + Fraction(cost)
        if admit(algorithm, state, now, cost):
            assert fits <= n + FORGIVEN
            exact.add(now, cost)
        else:
            assert fits > n - FORGIVEN
        assert abs(n - Fraction(algorithm.remaining(state, now)) - exact.level(now)) < FORGIVEN


@at_any_clock
@pytest.mark.parametrize("rate", RATES[:-1], ids=str)
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
        for _ in range(300):
            delay = algorithm.delay(state, now, 1)
            now += delay
            assert due - tolerance - hair <= Fraction(now), algorithm
            if delay:
                assert Fraction(math.nextafter(now, -math.inf)) < due - tolerance + hair, algorithm
            assert admit(algorithm, state, now, 1)
            due = max(due, Fraction(now)) + interval


@at_any_clock
@at_any_rate
def test_windows_admit_their_limit_in_each_period(rate: Rate, start: float) -> None:
    """Twenty periods in which every token is taken as soon as it is free."""
    n = min(10, max(1, int(rate.limit)))
    window = Rate(n, rate.period * n / rate.limit)
    unsure = 2 * Fraction(math.ulp(start + 20 * window.period))
    algorithms: list[Algorithm[Any]] = [
        SlidingWindowLog(window),
        FixedWindow(window),
        SlidingWindowCounter(window),
    ]
    for algorithm in algorithms:
        state, now, starts = algorithm.start(), start, list[float]()
        for _ in range(20 * n):
            now += algorithm.delay(state, now, 1)
            assert admit(algorithm, state, now, 1)
            starts.append(now)
        # All at once, and once more a period later; the first calendar period may be shorter.
        for first, later in zip(starts, starts[n:], strict=False):
            if first >= starts[n] or isinstance(algorithm, SlidingWindowLog):
                assert abs(Fraction(later) - Fraction(first) - Fraction(window.period)) <= unsure


def test_reported_quota_is_used_to_the_last_token() -> None:
    for start, evenly in itertools.product(CLOCKS, (False, True)):
        algorithm = ServerQuota(evenly=evenly)
        state = algorithm.start()
        algorithm.update(state, start, 1000, 1.0, start)
        now, granted = start, 0
        while (delay := algorithm.delay(state, now, 1)) < math.inf and now + delay < start + 1.0:
            now += delay
            assert admit(algorithm, state, now, 1)
            granted += 1
        assert granted == 1000


@at_any_clock
@pytest.mark.parametrize("horizon", [0.0, 0.01])
@pytest.mark.parametrize("rate", [Rate(10_000), Rate(100_000)], ids=str)
def test_store_grants_exactly_the_rate(rate: Rate, horizon: float, start: float) -> None:
    """With wall clock times 10,000/s admitted 0.1 % too many, and 100,000/s 0.2 % too few."""
    for algorithm, burst in ((TokenBucket(rate, burst=50), 50), (LeakyBucket(rate), None)):
        record, clock, instants = Record(algorithm.start()), start, list[float]()
        while len(instants) < 5000:
            answer = record.reserve(algorithm, clock, [1] * 300, horizon)
            instants += answer.instants
            clock = max(math.nextafter(clock, math.inf), clock + answer.retry_after - horizon)
        took = (Fraction(instants[-1]) - Fraction(start)) * Fraction(rate.limit)
        ahead = burst or Fraction(rate.limit) * Fraction(2, 1000) + 1
        assert len(instants) == math.floor(ahead + took + FORGIVEN)
