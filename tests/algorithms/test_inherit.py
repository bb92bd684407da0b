"""Specifies the state that a new algorithm or rate keeps from the one before."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import Rate, RateLimiter
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
from aiothrottle.rate import as_rate
from tests.asking import admit, inherit, used

RATES = st.sampled_from(["2/500ms", "3/s", "8/3s", "20/10s", "40/min", "100/min"])


def test_window_inherits_the_log_of_another() -> None:
    old, new = SlidingWindowLog("5/s"), SlidingWindowLog("3/s")
    state = old.start()
    for now in (0.0, 0.2, 0.4):
        old.take(state, now, 1)
    kept = inherit(new, old, state, 0.5)
    assert kept is state
    assert new.delay(kept, 0.5, 1) == 0.5
    assert not admit(new, kept, 0.5, 1)  # tokens free in the old algorithm are not free in this one
    assert new.remaining(kept, 1.2) == 2


def test_tokens_of_another_algorithm_count_as_used_now() -> None:
    old, new = TokenBucket("1/s", burst=5), SlidingWindowLog("10/s")
    state = old.start()
    old.take(state, 0.0, 4)
    fresh = inherit(new, old, state, 1.0)
    assert new.remaining(fresh, 1.0) == 7
    assert new.reset_after(fresh, 1.0) == 1.0
    # More used tokens than ever fit make the window full.
    small = SlidingWindowLog("2/s")
    assert small.remaining(inherit(small, old, state, 1.0), 1.0) == 0
    assert small.reset_after(inherit(small, old, state, 1.0), 1.0) == 1.0


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
    old: TokenBucket, new: TokenBucket, spent: int, wait: float
) -> None:
    state = old.start()
    old.take(state, 4.0, spent)
    assert used(old, state, 4.0) == pytest.approx(spent)
    fresh = inherit(new, old, state, 4.0)
    assert used(new, fresh, 4.0) == pytest.approx(
        min(spent, new.capacity) + max(0, spent - old.capacity)
    )
    assert new.delay(fresh, 4.0, 1) == pytest.approx(wait, abs=0.003)  # LeakyBucket's tolerance


@pytest.mark.parametrize(
    "algorithm",
    [
        SlidingWindowLog("10/s"),
        TokenBucket("10/s"),
        LeakyBucket("10/s"),
        FixedWindow("10/s"),
        SlidingWindowCounter("10/s"),
        WaitUntil(0.1, 1, 2),
        Cooldown(10, 1),
        AllOf(SlidingWindowLog("10/s"), FixedWindow("20/s")),
        Unlimited(),
    ],
    ids=str,
)
def test_fresh_or_expired_state_has_used_nothing(algorithm: TokenBucket) -> None:
    state = algorithm.start()
    assert used(algorithm, state, 4.0) == 0.0
    algorithm.take(state, 4.0, 2)
    assert used(algorithm, state, 4.0 + algorithm.reset_after(state, 4.0)) == 0.0
    assert used(algorithm, state, 9.0) == 0.0


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


def test_all_of_has_used_its_tightest_part() -> None:
    algorithm = AllOf(SlidingWindowLog("10/s"), LeakyBucket("10/s"))
    state = algorithm.start()
    algorithm.take(state, 0.0, 2)  # the next is due at 0.2, so there is nothing left
    assert used(algorithm, state, 0.0) == 2
    new = LeakyBucket("10/s")
    assert new.delay(inherit(new, algorithm, state, 0.0), 0.0, 1) == pytest.approx(0.2, abs=0.003)
    several = AllOf(SlidingWindowLog("10/s"), SlidingWindowLog("12/min"))
    state = several.start()
    several.take(state, 0.0, 13)
    assert several.used(state, 0.0) == 13
    assert several.used(state, 2.0) == 11  # of its capacity, which is 10, and a debt of one
    assert AllOf(Unlimited()).used(AllOf(Unlimited()).start(), 0.0) == 0.0


def test_nothing_is_inherited_from_unused_or_unlimited() -> None:
    old, new = TokenBucket("1/s", burst=5), SlidingWindowLog("10/s")
    assert inherit(new, old, old.start(), 1.0) == new.start()
    assert used(Unlimited(), None, 1.0) == 0.0
    assert inherit(new, Unlimited(), None, 1.0) == new.start()


def test_parts_of_all_of_inherit_pairwise() -> None:
    old = AllOf(SlidingWindowLog("10/s"), FixedWindow("20/min"))
    new = AllOf(SlidingWindowLog("5/s"), SlidingWindowLog("12/min"))
    state = old.start()
    old.take(state, 0.0, 4)
    first, second = inherit(new, old, state, 0.5)
    assert first is state[0]
    assert new.algorithms[1].reset_after(second, 0.5) == 60.0
    assert new.remaining((first, second), 0.5) == 1
    assert new.delay((first, second), 0.5, 2) == 0.5


@pytest.mark.parametrize(
    "old", [AllOf(SlidingWindowLog("10/s")), SlidingWindowLog("10/s")], ids=str
)
def test_part_without_counterpart_counts_as_used_now(old: SlidingWindowLog) -> None:
    new = AllOf(SlidingWindowLog("5/s"), SlidingWindowLog("12/min"))
    state = old.start()
    old.take(state, 0.0, 4)
    fresh = inherit(new, old, state, 0.5)
    assert [
        algorithm.remaining(part, 0.5)
        for algorithm, part in zip(new.algorithms, fresh, strict=True)
    ] == [
        1,
        8,
    ]
    assert new.delay(fresh, 0.5, 2) == 0.5  # the first continues where it stood
    assert new.reset_after(fresh, 0.5) == 60.0
    assert fresh[0] is not fresh[1]


@given(
    old=st.lists(RATES, min_size=1, max_size=3),
    new=st.lists(RATES, min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.floats(0, 5), st.sampled_from([1.0, 2.0, 0.5])), max_size=30),
    then=st.floats(0, 20),
)
def test_each_part_counts_what_any_old_part_knows(
    old: list[str],
    new: list[str],
    steps: list[tuple[float, float]],
    then: float,
) -> None:
    before, after = AllOf(*map(SlidingWindowLog, old)), AllOf(*map(SlidingWindowLog, new))
    state, now = before.start(), 0.0
    taken: list[tuple[float, float]] = []
    for wait, cost in steps:
        now += wait
        if admit(before, state, now, cost):
            taken.append((now, cost))
    now += then
    known = max(as_rate(rate).period for rate in old)
    inherited = inherit(after, before, state, now)
    for part, rate, counted in zip(after.algorithms, new, inherited, strict=True):
        period = min(as_rate(rate).period, known)
        least = sum(cost for at, cost in taken if at + period > now)
        assert used(part, counted, now) >= least - 1e-6


def test_algorithm_without_rate_takes_the_given_one() -> None:
    rate = Rate(10, 2.0)
    assert SlidingWindowCounter(buckets=4).with_rate(rate) == SlidingWindowCounter(rate, buckets=4)
    assert TokenBucket(burst=3).with_rate(rate) == TokenBucket(rate, burst=3)
    assert TokenBucket().with_rate(rate) == TokenBucket(rate)
    assert math.isnan(TokenBucket().burst)


@pytest.mark.parametrize(
    "algorithm",
    [SlidingWindowCounter("1/s"), TokenBucket("1/s"), SlidingWindowLog("1/s"), LeakyBucket("1/s")],
    ids=str,
)
def test_second_rate_is_rejected(algorithm: Algorithm[Any]) -> None:
    with pytest.raises(ValueError, match=r"two rates.*give one"):
        RateLimiter(2, algorithm=algorithm)
