"""Properties of every algorithm, over random histories. A new algorithm needs one more row."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiothrottle import Rate
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
from tests.asking import admit, allowance, take_each

Grants: TypeAlias = Sequence[tuple[float, float]]  # (timestamp, cost), in order


@dataclass(frozen=True)
class Subject:
    """An algorithm, a time that is long for it, and a check of its promise from outside."""

    algorithm: Algorithm[Any]
    period: float
    kept: Callable[[Grants], bool]
    #: Until `reset_after` is over, `remaining` is below the capacity.
    shows: bool = True

    def __str__(self) -> str:
        return repr(self.algorithm)


def in_any_period(limit: float, period: float) -> Callable[[Grants], bool]:
    """At most `limit` tokens in any half-open window of `period` seconds."""

    def kept(grants: Grants) -> bool:
        for first, (begin, _) in enumerate(grants):
            window = [cost for timestamp, cost in grants[first:] if timestamp < begin + period]
            if math.fsum(window) > limit * (1 + 1e-9):
                return False
        return True

    return kept


def in_any_time(burst: float, rate: float) -> Callable[[Grants], bool]:
    """At most `burst + rate * t` tokens in any `t` seconds, both ends included."""

    def kept(grants: Grants) -> bool:
        for first, (begin, _) in enumerate(grants):
            taken = 0.0
            for timestamp, cost in grants[first:]:
                taken += cost
                # A timestamp is exact to its last digit.
                unsure = (1e-9 + rate * math.ulp(timestamp)) * (len(grants) + 1)
                if taken > (burst + rate * (timestamp - begin)) * (1 + 1e-9) + unsure:
                    return False
        return True

    return kept


def in_each_period(limit: float, period: float) -> Callable[[Grants], bool]:
    """At most `limit` tokens in any period of the calendar."""

    def kept(grants: Grants) -> bool:
        counts: dict[int, float] = {}
        for timestamp, cost in grants:
            index = math.floor(timestamp / period)
            counts[index] = counts.get(index, 0.0) + cost
        return all(count <= limit * (1 + 1e-9) for count in counts.values())

    return kept


def evenly(rate: float, tolerance: float) -> Callable[[Grants], bool]:
    """At most `rate * (t + tolerance)` tokens in any `t` seconds, and the last cost on top."""

    def kept(grants: Grants) -> bool:
        for first, (begin, _) in enumerate(grants):
            taken = 0.0
            for timestamp, cost in grants[first:]:
                unsure = (1e-9 + rate * math.ulp(timestamp)) * (len(grants) + 1)
                if cost and taken > rate * (timestamp - begin + tolerance) * (1 + 1e-9) + unsure:
                    return False
                taken += cost
        return True

    return kept


def both(
    one: Callable[[Grants], bool], other: Callable[[Grants], bool]
) -> Callable[[Grants], bool]:
    """The promise of the one and the state of the other."""
    return lambda grants: one(grants) and other(grants)


def promises_nothing(_: Grants) -> bool:
    """No promise to check."""
    return True


SUBJECTS = [
    Subject(SlidingWindowLog("1/s"), 1, in_any_period(1, 1)),
    Subject(SlidingWindowLog("20/s"), 1, in_any_period(20, 1)),
    Subject(SlidingWindowLog("3/700ms"), 0.7, in_any_period(3, 0.7)),
    Subject(SlidingWindowLog("2.5/min"), 60, in_any_period(2.5, 60)),
    Subject(SlidingWindowLog("0.3/s"), 1 / 0.3, in_any_period(1, 1 / 0.3)),
    Subject(SlidingWindowLog("5000/24h"), 86400, in_any_period(5000, 86400)),
    Subject(TokenBucket("1/s"), 1, in_any_time(1, 1)),
    Subject(TokenBucket("20/s"), 1, in_any_time(20, 20)),
    Subject(TokenBucket("20/s", burst=1), 1, in_any_time(1, 20)),
    Subject(TokenBucket("3/700ms", burst=2.5), 0.7, in_any_time(2.5, 3 / 0.7)),
    Subject(TokenBucket("0.3/s"), 1 / 0.3, in_any_time(1, 0.3)),
    Subject(TokenBucket("1000000000/s"), 1, in_any_time(1e9, 1e9)),
    Subject(LeakyBucket("1/s"), 1, evenly(1, 0.002), shows=False),
    Subject(LeakyBucket("1000/s"), 1, evenly(1000, 0.002), shows=False),
    Subject(LeakyBucket("0.3/s"), 1 / 0.3, evenly(0.3, 0.002), shows=False),
    Subject(FixedWindow("20/s"), 1, in_each_period(20, 1)),
    Subject(FixedWindow(Rate(2.5, 0.7)), 0.7, in_each_period(2.5, 0.7)),
    Subject(FixedWindow("0.3/s"), 1 / 0.3, in_each_period(1, 1 / 0.3)),
    Subject(SlidingWindowCounter("20/s"), 1, in_any_period(20, 0.9)),
    Subject(SlidingWindowCounter(Rate(2.5, 0.7), buckets=3), 0.7, in_any_period(2.5, 0.7 * 2 / 3)),
    Subject(SlidingWindowCounter("0.3/s", buckets=1), 1 / 0.3, in_each_period(1, 1 / 0.3)),
    Subject(WaitUntil(1, 5, 10), 1, evenly(1, 0)),
    Subject(WaitUntil(0.1, 0.5, 0.7), 0.1, evenly(10, 0)),
    Subject(Cooldown(3, 60), 60, in_any_time(3, 3 / 60)),
    Subject(Cooldown(7, 1), 1, in_any_time(7, 7)),
    Subject(
        AllOf(SlidingWindowLog("20/s"), SlidingWindowLog("30/2s")),
        1,
        both(in_any_period(20, 1), in_any_period(30, 2)),
        shows=False,
    ),
    Subject(
        AllOf(FixedWindow(Rate(3, 0.7)), TokenBucket("5/s", burst=2)),
        1,
        both(in_each_period(3, 0.7), in_any_time(2, 5)),
        shows=False,
    ),
    Subject(Unlimited(), 1, promises_nothing),
]

every_algorithm = pytest.mark.parametrize("subject", SUBJECTS, ids=str)
# Runs per algorithm; there are ten algorithms, so more would take minutes.
briefly = settings(max_examples=30)
STARTS = st.sampled_from([0.0, 0.1, 1e6, 1e6 + 0.1])


@dataclass(frozen=True)
class Step:
    """After `wait` periods (None: when it fits), ask for a part of the greatest cost."""

    wait: float | None
    cost: float


WAITS = st.one_of(
    st.just(0.0), st.none(), st.sampled_from([0.05, 0.1, 1 / 3, 0.5, 1.0]), st.floats(0, 2)
)
BACK = st.sampled_from([-0.1, -0.5, -1.0, -3.0])
COSTS = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 1.0]), st.floats(1e-3, 1))


def steps(waits: st.SearchStrategy[float | None] = WAITS) -> st.SearchStrategy[list[Step]]:
    # A cost of None is one token: the most common cost.
    cost = COSTS.map(lambda part: math.nan if part is None else part)
    return st.lists(st.builds(Step, waits, cost), max_size=40)


def walk(
    subject: Subject, state: object, start: float, path: list[Step]
) -> Iterator[tuple[float, float]]:
    """Yield (now, cost) of each step. The caller may admit it before asking for the next."""
    algorithm, now = subject.algorithm, start
    for step in path:
        cost = cost_of(subject, step.cost)
        wait = (
            algorithm.delay(state, now, cost) if step.wait is None else step.wait * subject.period
        )
        now = max(0.0, now + wait)
        yield now, cost


def cost_of(subject: Subject, part: float) -> float:
    return 1.0 if math.isnan(part) else part * min(subject.algorithm.capacity, 1e6)


def after(subject: Subject, start: float, path: list[Step]) -> tuple[Any, float]:
    """Return the state and the time after the walk, with every step admitted that fits."""
    state, now = subject.algorithm.start(), start
    for now, cost in walk(subject, state, start, path):
        admit(subject.algorithm, state, now, cost)
    return state, now


def answers(subject: Subject, state: object, now: float) -> list[float]:
    """Return every answer that changes nothing, in periods and parts of the greatest cost."""
    algorithm, most = subject.algorithm, min(subject.algorithm.capacity, 1e6)
    delays = [algorithm.delay(state, now, part * most) for part in (0.1, 0.5, 1.0)]
    remaining = min(algorithm.remaining(state, now), most)
    return [
        *(delay / subject.period for delay in delays),
        remaining / most,
        algorithm.reset_after(state, now) / subject.period,
    ]


@every_algorithm
@briefly
@given(start=STARTS, path=steps())
def test_1_never_admits_more_than_promised(
    subject: Subject, start: float, path: list[Step]
) -> None:
    algorithm, state = subject.algorithm, subject.algorithm.start()
    grants = [step for step in walk(subject, state, start, path) if admit(algorithm, state, *step)]
    assert subject.kept(grants)


@every_algorithm
@briefly
@given(start=STARTS, path=steps(), part=COSTS)
def test_2_rejected_until_delay_and_admitted_then(
    subject: Subject, start: float, path: list[Step], part: float | None
) -> None:
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    cost = cost_of(subject, math.nan if part is None else part)
    delay = algorithm.delay(state, now, cost)
    assert 0.0 <= delay < math.inf
    tolerance = 1e-6 * subject.period
    if delay > tolerance:
        early = now + delay - tolerance
        assert algorithm.delay(state, early, cost) == pytest.approx(tolerance, rel=0.1)
        assert not admit(algorithm, copy.deepcopy(state), early, cost)
    assert algorithm.delay(state, now + delay, cost) == 0.0
    assert admit(algorithm, state, now + delay, cost)


@every_algorithm
@briefly
@given(start=STARTS, path=steps())
def test_2_cost_above_capacity_is_never_admitted(
    subject: Subject, start: float, path: list[Step]
) -> None:
    state, now = after(subject, start, path)
    too_much = subject.algorithm.capacity * 1.001
    if math.isfinite(too_much):
        assert subject.algorithm.delay(state, now, too_much) == math.inf
        assert not admit(subject.algorithm, state, now, too_much)


@every_algorithm
@briefly
@given(start=STARTS, path=steps(st.one_of(WAITS, BACK)))
def test_3_rejections_and_questions_change_nothing(
    subject: Subject, start: float, path: list[Step]
) -> None:
    algorithm, state = subject.algorithm, subject.algorithm.start()
    for now, cost in walk(subject, state, start, path):
        before = copy.deepcopy(state)
        answers(subject, state, now)
        assert state == before
        if not admit(algorithm, state, now, cost):
            assert state == before


@every_algorithm
@briefly
@given(start=STARTS, path=steps(st.one_of(WAITS, BACK)))
def test_4_cost_of_0_fits_and_changes_nothing(
    subject: Subject, start: float, path: list[Step]
) -> None:
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    before = copy.deepcopy(state)
    assert algorithm.delay(state, now, 0) == 0.0
    assert admit(algorithm, state, now, 0)
    algorithm.take(state, now, 0)
    assert state == before


@every_algorithm
@briefly
@given(start=STARTS, path=steps(), follow_up=steps())
def test_5_after_reset_after_state_is_fresh(
    subject: Subject, start: float, path: list[Step], follow_up: list[Step]
) -> None:
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    reset_after = algorithm.reset_after(state, now)
    assert 0.0 <= reset_after < math.inf
    if subject.shows and reset_after > 1e-6 * subject.period:
        early = now + reset_after - 1e-6 * subject.period
        assert algorithm.remaining(state, early) < algorithm.capacity
    now += reset_after
    fresh = algorithm.start()
    for timestamp, cost in walk(subject, fresh, now, follow_up):
        assert answers(subject, state, timestamp) == pytest.approx(
            answers(subject, fresh, timestamp), abs=1e-6
        )
        if algorithm.delay(fresh, timestamp, cost) == 0.0:
            algorithm.take(state, timestamp, cost)
            algorithm.take(fresh, timestamp, cost)


@every_algorithm
@briefly
@given(start=STARTS, path=steps(st.one_of(WAITS, BACK)))
def test_6_clock_that_steps_back_mints_nothing(
    subject: Subject, start: float, path: list[Step]
) -> None:
    algorithm, state = subject.algorithm, subject.algorithm.start()
    latest, grants = -math.inf, list[tuple[float, float]]()
    for now, cost in walk(subject, state, start, path):
        if admit(algorithm, state, now, cost) and cost:
            # By a clock that never steps back, it was taken no earlier than the previous one.
            latest = max(latest, now)
            grants.append((latest, cost))
    assert subject.kept(grants)


@every_algorithm
@briefly
@given(start=STARTS, path=steps(), back=st.floats(0, 3), part=COSTS)
def test_6_earlier_now_is_admitted_no_earlier(
    subject: Subject, start: float, path: list[Step], back: float, part: float | None
) -> None:
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    cost = cost_of(subject, math.nan if part is None else part)
    past = max(0.0, now - back * subject.period)
    delay, delay_then = algorithm.delay(state, now, cost), algorithm.delay(state, past, cost)
    tolerance = 1e-6 * subject.period
    if delay > 0.0:
        assert past + delay_then >= now + delay - tolerance
    assert algorithm.remaining(state, past) <= algorithm.remaining(state, now) * (1 + 1e-9)
    assert past + algorithm.reset_after(state, past) <= now + algorithm.reset_after(state, now) + (
        tolerance
    )


@every_algorithm
@briefly
@given(start=STARTS, path=steps())
def test_7_remaining_is_the_greatest_cost_without_delay(
    subject: Subject, start: float, path: list[Step]
) -> None:
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    remaining, capacity = algorithm.remaining(state, now), algorithm.capacity
    assert 0.0 <= remaining <= capacity
    if math.isfinite(remaining):
        assert algorithm.delay(state, now, remaining * (1 - 1e-6)) == 0.0
        if remaining < capacity * (1 - 1e-6):
            assert algorithm.delay(state, now, remaining + capacity * 1e-6) > 0.0


@every_algorithm
@briefly
@given(
    start=STARTS,
    path=steps(st.one_of(WAITS, BACK)),
    waits=st.lists(st.floats(0, 2), min_size=12, max_size=12),
)
def test_8_allowance_holds_at_any_timestamps(
    subject: Subject, start: float, path: list[Step], waits: list[float]
) -> None:
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    twin, before = copy.deepcopy(state), answers(subject, state, now)
    room = allowance(algorithm, state, now, 12)
    assert 0 <= room <= 12
    assert answers(subject, state, now) == before
    timestamps = list(itertools.accumulate((wait * subject.period for wait in waits), initial=now))
    for timestamp in timestamps[1 : room + 1]:
        # A timestamp is exact to its last digit.
        assert algorithm.delay(state, timestamp, 1) <= 99 * math.ulp(timestamp)
        algorithm.take(state, timestamp, 1)
    take_each(algorithm, twin, timestamps[1 : room + 1])
    now = timestamps[room]
    assert answers(subject, twin, now) == pytest.approx(answers(subject, state, now), abs=1e-6)


@every_algorithm
@briefly
@given(start=STARTS, path=steps(st.one_of(WAITS, BACK)), waits=st.lists(st.floats(0, 2)))
def test_8_take_each_equals_repeated_take(
    subject: Subject, start: float, path: list[Step], waits: list[float]
) -> None:
    """Also if the clock steps back in between, once it has caught up."""
    algorithm = subject.algorithm
    state, now = after(subject, start, path)
    twin = copy.deepcopy(state)
    timestamps = [now + part * subject.period for part in waits]
    for timestamp in timestamps:
        algorithm.take(state, timestamp, 1)
    take_each(algorithm, twin, timestamps)
    now = max([now, *timestamps])
    assert answers(subject, twin, now) == pytest.approx(answers(subject, state, now), abs=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    [
        SlidingWindowLog("5/s"),
        TokenBucket("5/s"),
        FixedWindow("5/s"),
        SlidingWindowCounter("5/s"),
        Cooldown(5, 1),
        AllOf(SlidingWindowLog("5/s"), TokenBucket("9/s")),
    ],
    ids=repr,
)
def test_8_allowance_is_all_that_fits(algorithm: Algorithm[Any]) -> None:
    """Otherwise the tests of the allowance could not fail."""
    state = algorithm.start()
    assert [allowance(algorithm, state, 10.0, most) for most in (3, 99)] == [3, 5]
    take_each(algorithm, state, [10.0, 10.25])
    assert allowance(algorithm, state, 10.25, 99) in {3, 4}
    take_each(algorithm, state, [10.25] * 3)
    assert allowance(algorithm, state, 10.25, 99) <= 1
    assert allowance(algorithm, state, 12.0, 99) == 5


def test_8_large_window_drops_old_entries_gradually() -> None:
    window = SlidingWindowLog("5000/s")
    state = window.start()
    window.take_each(state, [index / 5000 for index in range(5000)])
    assert window.allowance(state, 1.5, 9999) == 2501
    for begin in range(10):
        window.take_each(state, [1.5 + begin / 100] * 256)
    assert len(state.log) <= 5000 * 9 / 8
    assert window.remaining(state, 1.6) == 5000 - 2560 - 1999
    window.take_each(state, [9.0])
    assert len(state.log) == 1
