"""What every algorithm decides, by tables; its values; and the arguments that it rejects."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any, cast

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
from aiothrottle.algorithms import Algorithm, AllOf, PerResource, Unlimited
from aiothrottle.algorithms.protocol import until
from tests.algorithms.asking import delay_behind
from tests.support.asking import admit

NEVER = math.inf


# What the oracle of `test_oracle` does not try: questions in order (now, cost, seconds to wait).
DECISIONS: list[tuple[Algorithm[Any], list[tuple[float, float, float]]]] = [
    (SlidingWindowLog("0.25/s"), [(0, 0.5, 0), (1, 0.5, 0), (1, 0.5, 3), (4, 0.5, 0)]),
    (
        SlidingWindowLog("1000000000000/s"),
        [(0, 6e11, 0), (0.5, 4e11, 0), (0.5, 1e6, 0.5), (1, 6e11, 0), (1, 4e11, 0.5)],
    ),
    # The rounding of a huge limit is no token.
    (SlidingWindowLog("2000000000/s"), [(0, 2e9, 0), (0, 1, 1)]),
    (SlidingWindowCounter("2000000000/s"), [(0, 2e9, 0), (0, 1, 1)]),
    (FixedWindow("1/s"), [(-0.5, 1, 0), (-0.25, 1, 0.25), (0, 1, 0), (0, 1, 1)]),
    # A cost above the capacity never fits.
    (SlidingWindowLog("3/s"), [(0, 3.0001, NEVER), (0, 3, 0), (99, 4, NEVER), (99, 3, 0)]),
    (SlidingWindowCounter("2/s"), [(0, 2.1, NEVER), (0, 2, 0)]),
    (TokenBucket("0.5/s"), [(0, 1, 0), (3, 1.5, NEVER), (3, 1, 0)]),
    (LeakyBucket("10/s"), [(0, 10, 0), (0, 1, 0.998), (0.998, 0.1, 0), (9, 11, NEVER)]),
    (Cooldown(3, 60), [(0, 4, NEVER), (70, 3, 0)]),
    (WaitUntil(1, 5, 10), [(0, 1, 0), (9, 10.1, NEVER)]),
    (
        AllOf(FixedWindow("3/s"), TokenBucket("2/s", burst=2)),
        [(0.5, 1, 0), (0.5, 1, 0), (0.5, 1, 0.5), (1, 1, 0), (1, 1, 0.5), (1, 2.1, NEVER)],
    ),
    (Unlimited(), [(0, 1e300, 0), (0, 0, 0), (0, 1, 0), (-5, 9, 0)]),
]


@pytest.mark.parametrize(("algorithm", "steps"), DECISIONS, ids=repr)
def test_delay_and_take_follow_the_table(
    algorithm: Algorithm[Any], steps: list[tuple[float, float, float]]
) -> None:
    state = algorithm.start()
    for now, cost, wait in steps:
        delay = algorithm.delay(state, now, cost)
        assert delay == pytest.approx(wait, rel=1e-9, abs=1e-9), (now, cost)
        assert (delay == 0.0) == (wait == 0), (now, cost)
        assert delay_behind(algorithm, state, now, cost, 0.0) == delay
        if delay == 0.0:
            algorithm.take(state, now, cost)


@pytest.mark.parametrize(
    ("algorithm", "capacity"),
    [
        (SlidingWindowLog("2.5/s"), 3), (SlidingWindowLog("0.5/s"), 1), (TokenBucket("20/s"), 20),
        (TokenBucket("20/s", burst=1.5), 1.5), (TokenBucket("0.5/s"), 1),
        (TokenBucket(burst=3), 3), (Unlimited(), math.inf), (LeakyBucket("20/s"), 20),
        (LeakyBucket("0.5/s"), 1), (FixedWindow("2.5/s"), 3), (FixedWindow("0.5/s"), 1),
        (SlidingWindowCounter("20/s"), 20), (SlidingWindowCounter("0.5/s"), 1),
        (Cooldown(2.5, 60), 2.5), (Cooldown(1, 60), 1), (WaitUntil(2, 5, 10), 5),
        (AllOf(SlidingWindowLog("20/s"), TokenBucket("20/s", burst=3)), 3),
        (AllOf(Unlimited()), math.inf),
    ],
    ids=repr,
)  # fmt: skip
def test_capacity_is_the_greatest_cost_admitted(algorithm: Algorithm[Any], capacity: float) -> None:
    assert algorithm.capacity == capacity


def test_log_grows_by_an_eighth_of_the_limit_at_most() -> None:
    window = SlidingWindowLog("100/s")
    state = window.start()
    for second in range(100):
        for _ in range(100):
            assert admit(window, state, float(second), 1)
    assert len(state.log) <= 200
    large = SlidingWindowLog("5000/s")
    state = large.start()
    large.take_each(state, [index / 5000 for index in range(5000)])
    assert large.allowance(state, 1.5, 9999) == 2501
    for begin in range(10):
        large.take_each(state, [1.5 + begin / 100] * 256)
    assert len(state.log) <= 5000 * 9 / 8
    assert large.remaining(state, 1.6) == 5000 - 2560 - 1999
    large.take_each(state, [9.0])
    assert len(state.log) == 1


def test_delay_of_all_of_holds_where_admission_ends() -> None:
    class Night(Unlimited):
        def delay_behind(self, state: None, now: float, cost: float, ahead: float) -> float:
            del state, cost, ahead
            return 0.0 if now % 0.5 < 0.25 else 0.5 - now % 0.5

        def delay(self, state: None, now: float, cost: float) -> float:
            return self.delay_behind(state, now, cost, 0.0)

    algorithm = AllOf(Night(), SlidingWindowLog("1/375ms"))
    state = algorithm.start()
    assert admit(algorithm, state, 0.0, 1)
    assert algorithm.delay(state, 0.0, 1) == 0.5


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    ("timestamp", "now"),
    [(1.1, 0.3), (1e6 + 0.1, 1e6), (0.1, -0.2), (5.5e-17, -1.0), (5e-324, -1.0), (-1.0, -3.3)],
)
def test_wait_until_a_timestamp_is_never_too_short(timestamp: float, now: float) -> None:
    delay = until(timestamp, now)
    assert now + delay >= timestamp
    assert delay == pytest.approx(timestamp - now)


# ---- values --------------------------------------------------------------------------------------

VALUES: dict[Algorithm[Any], str] = {
    SlidingWindowLog(10): "SlidingWindowLog(rate=Rate(limit=10, period=1.0))",
    TokenBucket(10): "TokenBucket(rate=Rate(limit=10, period=1.0), burst=10)",
    TokenBucket(10, burst=2): "TokenBucket(rate=Rate(limit=10, period=1.0), burst=2)",
    LeakyBucket(10): "LeakyBucket(rate=Rate(limit=10, period=1.0))",
    FixedWindow(10): "FixedWindow(rate=Rate(limit=10, period=1.0))",
    SlidingWindowCounter(10): "SlidingWindowCounter(rate=Rate(limit=10, period=1.0), buckets=10)",
    SlidingWindowCounter(10, buckets=5): (
        "SlidingWindowCounter(rate=Rate(limit=10, period=1.0), buckets=5)"
    ),
    WaitUntil(1, 5, 10): "WaitUntil(interval=1, raise_after=5, limit=10)",
    Cooldown(3, 60): "Cooldown(n=3, period=60)",
    AllOf(Unlimited(), Cooldown(3, 60)): "AllOf(Unlimited(), Cooldown(n=3, period=60))",
    AllOf(Cooldown(3, 60)): "AllOf(Cooldown(n=3, period=60))",
}


@pytest.mark.parametrize(("algorithm", "text"), VALUES.items(), ids=lambda each: str(each)[:30])
def test_algorithm_is_the_value_that_its_repr_shows(algorithm: Algorithm[Any], text: str) -> None:
    assert repr(algorithm) == text
    twin = eval(text, globals())
    assert twin == algorithm
    assert hash(twin) == hash(algorithm)
    assert list(VALUES).count(algorithm) == 1
    with pytest.raises(FrozenInstanceError):
        setattr(algorithm, fields(cast("Any", algorithm))[0].name, 3)


def test_algorithm_without_a_rate_takes_the_given_one_first() -> None:
    rate = Rate(10, 2.0)
    assert SlidingWindowCounter(buckets=4).with_rate(rate) == SlidingWindowCounter(rate, buckets=4)
    assert TokenBucket(burst=3).with_rate(rate) == TokenBucket(rate, burst=3)
    assert TokenBucket().with_rate(rate) == TokenBucket(rate)
    assert math.isnan(TokenBucket().burst)
    for incomplete in (TokenBucket(burst=3), SlidingWindowCounter(buckets=20)):
        with pytest.raises(ValueError, match="no rate"):
            incomplete.start()


def make(kind: Callable[..., object], *arguments: Any, **named: Any) -> Callable[[], object]:
    return lambda: kind(*arguments, **named)


RATED = (SlidingWindowLog, TokenBucket, LeakyBucket, FixedWindow, SlidingWindowCounter)
WRONG: list[tuple[type[Exception], str, list[Callable[[], object]]]] = [
    (ValueError, "rate", [make(each, 0) for each in RATED]),
    (ValueError, "rate", [make(each, "fast") for each in RATED]),
    (
        ValueError,
        "rate",
        [make(SlidingWindowLog, rate) for rate in (-1, math.nan, math.inf, "0/s")],
    ),
    (TypeError, "rate", [make(each, True) for each in RATED]),
    (TypeError, "rate", [make(each, [1]) for each in RATED]),
    (
        ValueError,
        "burst",
        [make(TokenBucket, 1, burst=n) for n in (0, 0.5, -1, math.nan, math.inf)],
    ),
    (TypeError, "burst", [make(TokenBucket, 1, burst=wrong) for wrong in (True, "3", [3])]),
    (
        ValueError,
        "buckets must be a whole number, 1 or more, at most 100000, got",
        [make(SlidingWindowCounter, 1, buckets=n) for n in (0, -1, 10**6, 10**400)],
    ),
    (TypeError, "buckets", [make(SlidingWindowCounter, 1, buckets=n) for n in (True, 1.5, "3")]),
    (ValueError, "1 or more", [make(Cooldown, 0.5, 60)]),
    (ValueError, "limit", [make(Cooldown, 0, 60), make(Cooldown, math.nan, 60)]),
    (ValueError, "period", [make(Cooldown, 3, 0), make(Cooldown, 3, math.inf)]),
    (TypeError, "number", [make(Cooldown, wrong, 60) for wrong in ("3", None, True)]),
    (TypeError, "interval", [make(WaitUntil, wrong, 5, 10) for wrong in ("3", None, True)]),
    (ValueError, "interval", [make(WaitUntil, wrong, 5, 10) for wrong in (0, -1)]),
    (ValueError, "raise_after", [make(WaitUntil, 1, wrong, 10) for wrong in (-1, math.inf)]),
    (ValueError, "limit", [make(WaitUntil, 1, 5, math.nan)]),
    (ValueError, "is below", [make(WaitUntil, 1, 5, 4), make(WaitUntil, 10, 5, 9)]),
    (ValueError, "one algorithm or more", [make(AllOf), make(PerResource)]),
    (TypeError, "AllOf .* such as Sliding", [make(AllOf, it) for it in ("10/s", SlidingWindowLog)]),
]


@pytest.mark.parametrize(("error", "text", "calls"), WRONG)
def test_wrong_argument_is_named(
    error: type[Exception], text: str, calls: list[Callable[[], object]]
) -> None:
    for call in calls:
        with pytest.raises(error, match=text):
            call()
