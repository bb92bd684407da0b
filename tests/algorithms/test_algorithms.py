"""Properties of the sliding window log and the token bucket alone."""

import math
from typing import Any, TypeAlias

import pytest

from aiothrottle import Rate, SlidingWindowLog, TokenBucket
from aiothrottle.algorithms.timestamps import until
from tests.asking import admit

Unchecked: TypeAlias = Any  # arguments of callers without type checks


def test_debt_has_to_leave_the_window_first() -> None:
    window = SlidingWindowLog("2/s")
    state = window.start()
    for instant in (0.0, 0.1, 0.2, 0.3):
        window.take(state, instant, 1)
    assert window.delay(state, 0.5, 1) == pytest.approx(0.7)
    assert window.delay(state, 0.5, 2) == pytest.approx(0.8)
    bucket = TokenBucket("10/s", burst=1)
    debt = bucket.start()
    bucket.take(debt, 0.0, 20)
    assert bucket.delay(debt, 0.0, 1) == pytest.approx(2.0)


def test_window_drops_expired_entries() -> None:
    window = SlidingWindowLog("100/s")
    state = window.start()
    for second in range(1000):
        for _ in range(100):
            assert admit(window, state, float(second), 1)
    assert len(state.log) <= 200


@pytest.mark.parametrize("kind", [SlidingWindowLog, TokenBucket])
@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, "0/s", "fast"])
def test_rate_out_of_range_raises_value_error(kind: type[Any], rate: Unchecked) -> None:
    with pytest.raises(ValueError, match="rate"):
        kind(rate)


@pytest.mark.parametrize("kind", [SlidingWindowLog, TokenBucket])
@pytest.mark.parametrize("rate", [True, b"1/s", [1]])
def test_rate_of_another_kind_raises_type_error(kind: type[Any], rate: Unchecked) -> None:
    with pytest.raises(TypeError, match="rate"):
        kind(rate)


@pytest.mark.parametrize("burst", [0, 0.5, -1, math.nan, math.inf])
def test_burst_out_of_range_raises_value_error(burst: float) -> None:
    with pytest.raises(ValueError, match="burst"):
        TokenBucket("10/s", burst=burst)


@pytest.mark.parametrize("burst", [True, "3", [3]])
def test_burst_of_another_kind_raises_type_error(burst: Unchecked) -> None:
    with pytest.raises(TypeError, match="burst"):
        TokenBucket("10/s", burst=burst)


def test_bucket_without_a_rate_cannot_start() -> None:
    with pytest.raises(ValueError, match="no rate"):
        TokenBucket(burst=3).start()


def test_algorithms_are_values() -> None:
    assert SlidingWindowLog("10/s") == SlidingWindowLog(Rate(10))
    assert TokenBucket(10) == TokenBucket("10/s", burst=10)
    assert TokenBucket(10) != TokenBucket(10, burst=9)
    assert len({SlidingWindowLog(10), SlidingWindowLog(10.0), TokenBucket(10)}) == 2
    assert repr(SlidingWindowLog(10)) == "SlidingWindowLog(rate=Rate(limit=10, period=1.0))"
    assert repr(TokenBucket(10, burst=2)) == (
        "TokenBucket(rate=Rate(limit=10, period=1.0), burst=2)"
    )


def test_states_of_one_algorithm_are_independent() -> None:
    window = SlidingWindowLog(1)
    first, second = window.start(), window.start()
    assert admit(window, first, 0, 1)
    assert admit(window, second, 0, 1)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    ("instant", "now"),
    [(1.1, 0.3), (1e6 + 0.1, 1e6), (0.1, -0.2), (5.5e-17, -1.0), (5e-324, -1.0), (-1.0, -3.3)],
)
def test_until_is_never_too_short(instant: float, now: float) -> None:
    delay = until(instant, now)
    assert now + delay >= instant
    assert delay == pytest.approx(instant - now)
