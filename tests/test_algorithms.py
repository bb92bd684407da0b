"""Tables of (time, cost) to what the algorithm says: 0.0 is "it goes", else seconds to wait."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from aiothrottle import Rate, RollingWindow, TokenBucket
from aiothrottle.algorithms import Algorithm, Unlimited
from aiothrottle.algorithms.algorithm import until

Unchecked: TypeAlias = Any  # what callers pass who do not check their types
NEVER = math.inf


@dataclass(frozen=True)
class Case:
    """What is asked of an algorithm, in order: (now, cost, seconds to wait)."""

    name: str
    algorithm: Algorithm[Any]
    steps: Sequence[tuple[float, float, float]]

    def __str__(self) -> str:
        return f"{type(self.algorithm).__name__}: {self.name}"


WINDOW = [
    Case(
        "the limit at once, then nothing until exactly one period has passed",
        RollingWindow("3/s"),
        [(0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 1), (0.75, 1, 0.25), (1, 1, 0), (1, 1, 0)],
    ),
    Case(
        "each token comes back one period after it went",
        RollingWindow("2/s"),
        [(0, 1, 0), (0.5, 1, 0), (0.75, 1, 0.25), (1, 1, 0), (1, 1, 0.5), (1.5, 1, 0)],
    ),
    Case(
        "an edge of a calendar second lets nothing through",
        RollingWindow("2/s"),
        [(0.9, 1, 0), (0.9, 1, 0), (1.1, 1, 0.8), (1.9, 1, 0)],
    ),
    Case(
        "the last instant of the period is inside, one period later is outside",
        RollingWindow(1),
        [(5, 1, 0), (math.nextafter(6, 0), 1, 6 - math.nextafter(6, 0)), (6, 1, 0)],
    ),
    Case(
        "a long period",
        RollingWindow("2/24h"),
        [(0, 1, 0), (3600, 1, 0), (7200, 1, 79200), (86400, 1, 0), (86400, 1, 3600)],
    ),
    Case(
        "a heavy cost waits until enough has left",
        RollingWindow("3/s"),
        [(0, 1, 0), (0.25, 1, 0), (0.5, 1, 0), (0.5, 2, 0.75), (0.5, 3, 1), (1.25, 2, 0)],
    ),
    Case(
        "a light cost waits until something heavy has left",
        RollingWindow("10/s"),
        [(0, 9, 0), (0.5, 1, 0), (0.5, 1, 0.5), (0.5, 10, 1), (1, 9, 0), (1, 1, 0.5)],
    ),
    Case(
        "unit costs after heavy ones, and heavy ones after those",
        RollingWindow("4/s"),
        [(0, 2, 0), (0, 1, 0), (0, 1, 0), (1, 1, 0), (1, 1, 0), (1, 2, 0), (2, 4, 0), (2, 1, 1)],
    ),
    Case(
        "ten tenths are one",
        RollingWindow(1),
        [(0, 0.1, 0)] * 10 + [(0, 0.1, 1), (0, 1e-6, 1), (1, 1, 0)],
    ),
    Case(
        "three thirds are one",
        RollingWindow(1),
        [(0, 1 / 3, 0)] * 3 + [(0.5, 1 / 3, 0.5), (1, 1 / 3, 0)],
    ),
    Case(
        "of a fractional limit all can be used",
        RollingWindow("2.5/s"),
        [(0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0.5, 0), (0, 0.5, 1), (0, 2.5, 1), (0, 2.6, NEVER)],
    ),
    Case(
        "below one token per period it is one token in more time",
        RollingWindow("0.5/s"),
        [(0, 1, 0), (0, 1, 2), (1, 1, 1), (2, 1, 0), (2, 1.5, NEVER)],
    ),
    Case(
        "below one, fractions go as they fit",
        RollingWindow("0.25/s"),
        [(0, 0.5, 0), (1, 0.5, 0), (1, 0.5, 3), (4, 0.5, 0)],
    ),
    Case(
        "a cost of 0 goes when full, and counts for nothing",
        RollingWindow(1),
        [(0, 0, 0), (0, 1, 0), (0, 0, 0), (0.5, 0, 0), (0.5, 1, 0.5), (1, 1, 0)],
    ),
    Case(
        "what exceeds the limit never goes",
        RollingWindow("3/s"),
        [(0, 4, NEVER), (0, 3.0001, NEVER), (0, 3, 0), (99, 4, NEVER), (99, 3, 0)],
    ),
    Case(
        "a huge limit",
        RollingWindow("1000000000000/s"),
        [(0, 6e11, 0), (0.5, 4e11, 0), (0.5, 1e6, 0.5), (1, 6e11, 0), (1, 4e11, 0.5)],
    ),
    Case(
        "a tiny period",
        RollingWindow("1/1ms"),
        [(1e6, 1, 0), (1e6, 1, 0.001), (1e6 + 0.001, 1, 0)],
    ),
    Case(
        "a clock that steps back",
        RollingWindow("2/s"),
        [(10, 1, 0), (5, 1, 0), (5, 1, 6), (10, 1, 1), (10.5, 1, 0.5), (11, 1, 0), (11, 1, 0)],
    ),
]

BUCKET = [
    Case(
        "by default the burst is the limit",
        TokenBucket("4/s"),
        [(0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 0.25), (0.25, 1, 0), (0.25, 1, 0.25)],
    ),
    Case(
        "a burst of one spaces evenly",
        TokenBucket("4/s", burst=1),
        [(0, 1, 0), (0, 1, 0.25), (0.125, 1, 0.125), (0.25, 1, 0), (0.5, 1, 0), (0.5, 1, 0.25)],
    ),
    Case(
        "idle time is banked up to the burst and no further",
        TokenBucket("4/s", burst=2),
        [(0, 1, 0), (0, 1, 0), (0, 1, 0.25), (100, 1, 0), (100, 1, 0), (100, 1, 0.25)],
    ),
    Case(
        "it drains at the rate, not by the period",
        TokenBucket("4/s", burst=2),
        [(0, 2, 0), (0.125, 1, 0.125), (0.25, 1, 0), (0.25, 2, 0.5), (0.75, 2, 0)],
    ),
    Case(
        "a burst above the limit",
        TokenBucket("1/s", burst=5),
        [(0, 5, 0), (0, 1, 1), (0, 5, 5), (2.5, 2, 0), (2.5, 1, 0.5), (2.5, 0.5, 0)],
    ),
    Case(
        "a long period",
        TokenBucket("24/d", burst=1),
        [(0, 1, 0), (1800, 1, 1800), (3600, 1, 0)],
    ),
    Case(
        "ten tenths are one",
        TokenBucket("1/s"),
        [(0, 0.1, 0)] * 10 + [(0, 0.1, 0.1), (0.1, 0.1, 0), (0.1, 1, 1)],
    ),
    Case(
        "a fractional limit and a fractional burst",
        TokenBucket("2.5/s", burst=1.5),
        [(0, 1.5, 0), (0, 1, 0.4), (0.4, 1, 0), (0.4, 0.5, 0.2), (0.4, 1.6, NEVER)],
    ),
    Case(
        "below one token per period one goes in its time",
        TokenBucket("0.5/s"),
        [(0, 1, 0), (0, 1, 2), (1, 0.5, 0), (1, 1, 2), (3, 1, 0), (3, 1.5, NEVER)],
    ),
    Case(
        "a cost of 0 goes when full, and counts for nothing",
        TokenBucket("4/s", burst=1),
        [(0, 0, 0), (0, 1, 0), (0, 0, 0), (0.125, 0, 0), (0.125, 1, 0.125), (0.25, 1, 0)],
    ),
    Case(
        "what exceeds the burst never goes",
        TokenBucket("10/s", burst=3),
        [(0, 4, NEVER), (0, 3.0001, NEVER), (0, 3, 0), (99, 4, NEVER), (99, 3, 0)],
    ),
    Case(
        "a huge limit",
        TokenBucket("1000000000000/s"),
        [(0, 1e12, 0), (0, 1e11, 0.1), (0.5, 5e11, 0), (0.5, 1e12, 1)],
    ),
    Case(
        "a clock that steps back",
        TokenBucket("4/s", burst=2),
        [(10, 1, 0), (5, 1, 5), (9.75, 1, 0.25), (10, 1, 0), (10, 1, 0.25)],
    ),
]

FREE = [Case("everything goes", Unlimited(), [(0, 1e300, 0), (0, 0, 0), (0, 1, 0), (-5, 9, 0)])]

CASES = [*WINDOW, *BUCKET, *FREE]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_delay_and_take_follow_the_table(case: Case) -> None:
    algorithm, state = case.algorithm, case.algorithm.start()
    for now, cost, wait in case.steps:
        delay = algorithm.delay(state, now, cost)
        assert delay == pytest.approx(wait, rel=1e-9, abs=1e-9), (now, cost)
        assert (delay == 0.0) == (wait == 0), (now, cost)
        if delay == 0.0:
            algorithm.take(state, now, cost)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_admit_follows_the_table(case: Case) -> None:
    algorithm, state = case.algorithm, case.algorithm.start()
    for now, cost, wait in case.steps:
        assert algorithm.admit(state, now, cost) == (wait == 0), (now, cost)


@pytest.mark.parametrize(
    ("algorithm", "capacity"),
    [
        (RollingWindow("20/s"), 20),
        (RollingWindow("2.5/s"), 2.5),
        (RollingWindow("0.5/s"), 1),
        (TokenBucket("20/s"), 20),
        (TokenBucket("20/s", burst=3), 3),
        (TokenBucket("20/s", burst=1.5), 1.5),
        (TokenBucket("0.5/s"), 1),
        (TokenBucket(burst=3), 3),
        (Unlimited(), math.inf),
    ],
    ids=repr,
)
def test_the_capacity_is_the_greatest_cost_that_can_go(
    algorithm: Algorithm[Any], capacity: float
) -> None:
    assert algorithm.capacity == capacity


# algorithm, what went (now, cost), now, what remains, seconds until all is forgotten
LEFT: list[tuple[Algorithm[Any], list[tuple[float, float]], float, float, float]] = [
    (RollingWindow("3/s"), [], 0, 3, 0),
    (RollingWindow("3/s"), [(0, 1)], 0, 2, 1),
    (RollingWindow("3/s"), [(0, 1), (0.5, 1)], 0.75, 1, 0.75),
    (RollingWindow("3/s"), [(0, 1), (0.5, 1)], 1, 2, 0.5),
    (RollingWindow("3/s"), [(0, 1), (0.5, 1)], 1.5, 3, 0),
    (RollingWindow("3/s"), [(0, 1), (0.5, 1)], 99, 3, 0),
    (RollingWindow("3/s"), [(0, 0.5), (0.5, 2)], 0.75, 0.5, 0.75),
    (RollingWindow("3/s"), [(0, 0.5), (0.5, 2)], 1, 1, 0.5),
    (RollingWindow("3/s"), [(0, 0)], 0, 3, 0),
    (RollingWindow("3/s"), [(0, 3), (0, 3)], 0, 0, 1),
    (RollingWindow("3/s"), [(0, 1)] * 5, 0.5, 0, 0.5),
    (RollingWindow("3/s"), [(10, 1)], 5, 2, 6),
    (RollingWindow("0.5/s"), [(0, 1)], 1, 0, 1),
    (TokenBucket("4/s"), [], 0, 4, 0),
    (TokenBucket("4/s"), [(0, 1)], 0, 3, 0.25),
    (TokenBucket("4/s"), [(0, 4)], 0.5, 2, 0.5),
    (TokenBucket("4/s", burst=2), [(0, 2)], 0.125, 0.5, 0.375),
    (TokenBucket("4/s", burst=2), [(0, 2)], 0.5, 2, 0),
    (TokenBucket("4/s", burst=2), [(0, 0)], 0, 2, 0),
    (TokenBucket("4/s", burst=2), [(0, 2), (0, 2)], 0, 0, 1),
    (TokenBucket("4/s", burst=2), [(10, 1)], 5, 0, 5.25),
    (Unlimited(), [(0, 99)], 0, math.inf, 0),
]


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


def test_what_was_taken_without_asking_has_to_leave_first() -> None:
    window = RollingWindow("2/s")
    state = window.start()
    for instant in (0.0, 0.1, 0.2, 0.3):
        window.take(state, instant, 1)
    assert window.delay(state, 0.5, 1) == pytest.approx(0.7)
    assert window.delay(state, 0.5, 2) == pytest.approx(0.8)
    bucket = TokenBucket("10/s", burst=1)
    debt = bucket.start()
    bucket.take(debt, 0.0, 20)
    assert bucket.delay(debt, 0.0, 1) == pytest.approx(2.0)


def test_a_window_forgets_what_has_left_it() -> None:
    window = RollingWindow("100/s")
    state = window.start()
    for second in range(1000):
        for _ in range(100):
            assert window.admit(state, float(second), 1)
    assert len(state.log) <= 200


@pytest.mark.parametrize("kind", [RollingWindow, TokenBucket])
@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, "0/s", "fast"])
def test_a_rate_out_of_range_is_a_value_error(kind: type[Any], rate: Unchecked) -> None:
    with pytest.raises(ValueError, match="rate"):
        kind(rate)


@pytest.mark.parametrize("kind", [RollingWindow, TokenBucket])
@pytest.mark.parametrize("rate", [True, b"1/s", [1]])
def test_a_rate_of_another_kind_is_a_type_error(kind: type[Any], rate: Unchecked) -> None:
    with pytest.raises(TypeError, match="rate"):
        kind(rate)


@pytest.mark.parametrize("burst", [0, 0.5, -1, math.nan, math.inf])
def test_a_burst_out_of_range_is_a_value_error(burst: float) -> None:
    with pytest.raises(ValueError, match="burst"):
        TokenBucket("10/s", burst=burst)


@pytest.mark.parametrize("burst", [True, "3", [3]])
def test_a_burst_of_another_kind_is_a_type_error(burst: Unchecked) -> None:
    with pytest.raises(TypeError, match="burst"):
        TokenBucket("10/s", burst=burst)


def test_a_bucket_without_a_rate_cannot_start() -> None:
    with pytest.raises(ValueError, match="no rate"):
        TokenBucket(burst=3).start()


def test_algorithms_are_values() -> None:
    assert RollingWindow("10/s") == RollingWindow(Rate(10))
    assert TokenBucket(10) == TokenBucket("10/s", burst=10)
    assert TokenBucket(10) != TokenBucket(10, burst=9)
    assert len({RollingWindow(10), RollingWindow(10.0), TokenBucket(10)}) == 2
    assert repr(RollingWindow(10)) == "RollingWindow(rate=Rate(limit=10, period=1.0))"
    assert repr(TokenBucket(10, burst=2)) == (
        "TokenBucket(rate=Rate(limit=10, period=1.0), burst=2)"
    )


def test_two_states_of_one_algorithm_know_nothing_of_each_other() -> None:
    window = RollingWindow(1)
    first, second = window.start(), window.start()
    assert window.admit(first, 0, 1)
    assert window.admit(second, 0, 1)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    ("instant", "now"),
    [(1.1, 0.3), (1e6 + 0.1, 1e6), (0.1, -0.2), (5.5e-17, -1.0), (5e-324, -1.0), (-1.0, -3.3)],
)
def test_who_waits_until_an_instant_does_not_come_early(instant: float, now: float) -> None:
    delay = until(instant, now)
    assert now + delay >= instant
    assert delay == pytest.approx(instant - now)
