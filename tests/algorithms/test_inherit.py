"""Specifies the state that a new algorithm or rate keeps from the one before."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from aiothrottle.algorithms import Algorithm, AllOf, Unlimited
from tests.algorithms.asking import inherit, used
from tests.support.asking import admit


@pytest.mark.parametrize(
    ("old", "new", "spent", "wait"),
    [
        (TokenBucket("10/s"), TokenBucket("10/1.25s"), 13, 0.5),
        (TokenBucket("10/s"), TokenBucket("5/s"), 13, 0.8),  # full, and a debt of three
        (TokenBucket("10/s"), TokenBucket("10/1.25s"), 1, 0.0),
        (TokenBucket("10/s"), TokenBucket("10/s", burst=2), 4, 0.1),
        (LeakyBucket("10/s"), LeakyBucket("10/1.25s"), 2, 0.25),
        (SlidingWindowCounter("4/s", buckets=4), SlidingWindowCounter("4/2s", buckets=4), 5, 2.0),
        (FixedWindow("4/s"), FixedWindow("4/2s"), 5, 2.0),
        (Cooldown(10, 1), TokenBucket("10/s"), 13, 0.4),
        (WaitUntil(0.1, 1, 2), LeakyBucket("10/s"), 2, 0.2),
        (SlidingWindowLog("10/s"), TokenBucket("10/s"), 13, 0.4),
        (TokenBucket("10/s"), SlidingWindowLog("10/s"), 13, 1.0),
    ],
    ids=str,
)
def test_inherited_tokens_and_debts_stay_the_same(
    old: Algorithm[Any], new: Algorithm[Any], spent: int, wait: float
) -> None:
    state = old.start()
    old.take(state, 4.0, spent)
    assert used(old, state, 4.0) == pytest.approx(spent)
    fresh = inherit(new, old, state, 4.0)
    assert used(new, fresh, 4.0) == pytest.approx(
        min(spent, new.capacity) + max(0, spent - old.capacity)
    )
    assert new.delay(fresh, 4.0, 1) == pytest.approx(wait, abs=0.003)  # LeakyBucket's tolerance


def test_inherited_sections_expire_when_they_would_have() -> None:
    algorithm, other = SlidingWindowCounter("10/s", buckets=4), TokenBucket("10/s")
    state, spent = algorithm.start(), other.start()
    algorithm.take(state, 0.1, 4)
    fresh = inherit(algorithm, algorithm, state, 0.9)
    assert [used(algorithm, fresh, now) for now in (0.9, 0.99, 1.0)] == [4, 4, 0]
    other.take(spent, 0.125, 4)  # one of them is free by now
    fresh = inherit(algorithm, other, spent, 0.225)
    assert [used(algorithm, fresh, now) for now in (0.225, 0.99, 1.0)] == pytest.approx([3, 3, 0])


def test_stretched_window_expires_one_section_late_at_most() -> None:
    old, new = SlidingWindowCounter("10/s", buckets=10), SlidingWindowCounter("10/1.1s", buckets=10)
    state = old.start()
    old.take(state, 0.05, 4)  # by 0.1, so they leave at 1.1
    old.take(state, 0.45, 3)  # by 0.5, and the stretch from 0.44 to 0.55 leaves at 1.54
    fresh = inherit(new, old, state, 0.95)
    assert [used(new, fresh, now) for now in (0.95, 1.09, 1.11, 1.53, 1.55)] == [7, 7, 3, 3, 0]
    # A debt stays one; expired tokens stay expired; and no token counts from later than now.
    old.take(state, 1.15, 10)
    fresh = inherit(new, old, state, 1.15)
    assert used(new, fresh, 1.15) == 13
    assert new.reset_after(fresh, 1.15) == pytest.approx(1.05)


# ---- several limits ------------------------------------------------------------------------------


def test_same_limits_continue_as_if_nothing_had_changed() -> None:
    windows = (FixedWindow("9/2s"), FixedWindow("12/3s"), SlidingWindowCounter("13/7s"))
    algorithm = AllOf(*windows, SlidingWindowLog("5/s"), TokenBucket("5/s"), LeakyBucket("5/s"))
    state = algorithm.start()
    for step in range(60):
        now = 0.35 * step
        algorithm.take(state, now, 0.5)
        fresh = inherit(algorithm, algorithm, deepcopy(state), now)
        for part, old, new in zip(algorithm.algorithms, state, fresh, strict=True):
            for later in (now + 0.35 * n for n in range(20)):
                assert used(part, new, later) == used(part, old, later), (part, now)


def test_parts_that_continue_the_same_log_do_not_share_it() -> None:
    old = SlidingWindowLog("10/s")
    new = AllOf(SlidingWindowLog("5/s"), SlidingWindowLog("12/min"))
    state = old.start()
    for now in (0.0, 0.0, 1.5):
        old.take(state, now, 1)
    first, second = inherit(new, old, state, 1.6)
    assert first is not second
    assert [used(new.algorithms[0], first, 1.6), used(new.algorithms[1], second, 1.6)] == [1, 3]


def test_log_continues_the_longest_one() -> None:
    old, new = (AllOf(*map(SlidingWindowLog, ("10/s", rate))) for rate in ("100/min", "50/min"))
    state = old.start()
    for second in range(50):
        old.take(state, float(second), 1)
    assert new.delay(inherit(new, old, state, 49.5), 49.5, 1) == 10.5
    assert used(AllOf(Unlimited()), (None,), 0.0) == 0.0


def test_bucket_continues_the_one_that_has_more_in_it() -> None:
    old = AllOf(TokenBucket("10/s"), TokenBucket("1/s", burst=5))
    new = AllOf(TokenBucket("1/s", burst=6), TokenBucket("20/s"))
    state = old.start()
    old.take(state, 0.0, 5)
    assert new.remaining(inherit(new, old, state, 0.5), 0.5) == 6 - 4.5


def test_tokens_that_a_smaller_bucket_forgives_do_not_come_back() -> None:
    old, smaller = TokenBucket("1/s", burst=10), TokenBucket("1/s", burst=4)
    state = old.start()
    old.take(state, 0.0, 6)
    old.take(state, 1.0, 5)
    state = inherit(smaller, old, state, 1.0)
    smaller.refund(state, 1.0, 6, at=0.0)
    assert smaller.remaining(state, 1.0) == 0.0


def test_bucket_inherited_on_a_clock_that_stepped_back_is_sound() -> None:
    old, new = TokenBucket("1/s", burst=99), TokenBucket("2/s", burst=99)
    state = old.start()
    for now in (9.0, 10.0):
        old.take(state, now, 5)
    inherited = new.inherit(old, state, 5.0)
    assert new.load(new.dump(inherited)) == inherited
    assert new.used(inherited, 5.0) == old.used(state, 5.0)


RATES = st.lists(
    st.sampled_from([Rate(2, 0.5), Rate(3), Rate(8, 3), Rate(20, 10), Rate(40, 60), Rate(100, 60)]),
    min_size=1,
    max_size=3,
)


@given(
    old=RATES,
    new=RATES,
    steps=st.lists(st.tuples(st.floats(0, 5), st.sampled_from([1.0, 2.0, 0.5])), max_size=30),
    then=st.floats(0, 20),
)
def test_each_part_counts_what_any_old_part_knows(
    old: list[Rate], new: list[Rate], steps: list[tuple[float, float]], then: float
) -> None:
    before, after = AllOf(*map(SlidingWindowLog, old)), AllOf(*map(SlidingWindowLog, new))
    state, now = before.start(), 0.0
    taken: list[tuple[float, float]] = []
    for wait, cost in steps:
        now += wait
        if admit(before, state, now, cost):
            taken.append((now, cost))
    now += then
    known = max(rate.period for rate in old)
    inherited = inherit(after, before, state, now)
    for part, rate, counted in zip(after.algorithms, new, inherited, strict=True):
        period = min(rate.period, known)
        least = sum(cost for at, cost in taken if at + period > now)
        assert used(part, counted, now) >= least - 1e-6
