"""The learned burst: halved at throttled requests, doubled where it was in use without any."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.adaptive.guard import LearnedBurst


def use(burst: LearnedBurst, begin: float, end: float) -> list[float]:
    """Use the burst all the time, ten times a second; return its sizes."""
    tenths = range(round(10 * begin), round(10 * end))
    grown = (burst.size for at in tenths if burst.succeeded(at / 10 + 0.05, at / 10))
    return [burst.size, *grown]


def test_each_event_halves_then_widens_the_spacing() -> None:
    burst = LearnedBurst(20.0, 0.05)
    assert (burst.size, burst.is_bounded, burst.was_throttled) == (20.0, False, False)
    assert use(burst, 0.0, 10.0) == [20.0]
    learned = [
        (burst.throttled(at + 0.1, at), burst.size, burst.steps) for at in map(float, range(10, 22))
    ]
    assert learned == [
        *((True, size, 0) for size in (10.0, 5.0, 2.0, 1.0)),
        *((True, 1.0, steps) for steps in range(1, 7)),
        *((False, 1.0, 6) for _ in range(2)),
    ]
    assert (burst.is_even, burst.is_bounded, burst.wait) == (True, True, 60.0)
    assert not burst.succeeded(22.0, 21.5)
    assert burst.succeeded(82.0, 81.5)
    assert (burst.size, burst.steps) == (1.0, 5), "first the spacing, then the burst"


@pytest.mark.parametrize(("pause", "size"), [(3.0, 10.0), (3.1, 1.0)])
def test_long_pause_leaves_no_time_for_halves(pause: float, size: float) -> None:
    burst = LearnedBurst(20.0, 0.05)
    assert burst.throttled(0.1, 0.0, pause=pause)
    assert (burst.size, burst.steps) == (size, 0)


def test_burst_is_that_of_the_requests_of_one_event() -> None:
    burst = LearnedBurst(20.0, 0.05)
    assert burst.throttled(1.1, 1.0)
    assert not burst.throttled(1.2, 1.1), "of the same event"
    assert burst.throttled(1.2, 1.11)
    assert burst.size == 5.0
    burst = LearnedBurst(20.0, 0.05)
    assert not burst.throttled(1.1, 1.0, used=1.0), "a single one is no burst"
    assert burst.throttled(1.2, 1.1, used=8.0)
    assert burst.size == 4.0, "half of the burst that was in use"
    assert burst.throttled(1.3, 1.21, used=1.0)
    assert burst.size == 2.0


def test_small_beginning_opens_within_three_seconds_of_use() -> None:
    burst = LearnedBurst(20.0, 0.05)
    burst.begin_small()
    assert use(burst, 0.0, 3.0) == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0]
    assert not burst.is_bounded
    burst = LearnedBurst(20.0, 0.05)
    burst.begin_small()
    assert not burst.succeeded(100.0, 99.9), "used for the first time"
    assert burst.succeeded(100.3, 100.2)
    assert burst.throttled(100.35, 100.25), "a request that was sent before the growth"
    assert burst.size == 1.0


def test_small_beginning_of_a_slow_limit_doubles_with_the_answers() -> None:
    burst = LearnedBurst(20.0, 3.0)
    burst.begin_small()
    sizes = list[float]()
    for now, answers in enumerate((1, 1, 2, 4)):  # as many as it has grown by; the last in use
        grown = [
            burst.succeeded(now + 0.1, now, in_use=number == answers)
            for number in range(1, answers + 1)
        ]
        assert grown == [False] * (answers - 1) + [True]
        sizes.append(burst.size)
    assert sizes == [2.0, 4.0, 8.0, 16.0]
    assert burst.longest == 2.0, "until it is open, or throttled"
    assert burst.throttled(10.1, 10.0)
    assert (burst.size, burst.longest) == (8.0, math.inf)
    assert burst.throttled(11.1, 11.0)
    assert (burst.size, burst.steps) == (8.0, 1), "a slow burst that was learned stays"


def test_small_beginning_is_a_millisecond_of_a_high_rate() -> None:
    sizes: list[float] = []
    for most, interval in ((1e6, 1e-6), (2500.0, 0.0004), (1000.0, 0.001), (3.0, 1e-4)):
        burst = LearnedBurst(most, interval)
        burst.begin_small()
        sizes.append(burst.size)
    assert sizes == pytest.approx([1000, 2.5, 1, 3])


def test_burst_grows_once_without_use_and_as_often_as_used() -> None:
    burst = LearnedBurst(20.0, 0.05)
    burst.begin_small()

    def sizes(begin: float, end: float, *, in_use: bool) -> list[float]:
        tenths = [at / 10 for at in range(round(10 * begin), round(10 * end))]
        grown = [burst.size for at in tenths if burst.succeeded(at + 0.05, at, in_use=in_use)]
        return [*grown, burst.size]

    assert sizes(0.0, 10.0, in_use=False) == [2.0, 2.0]
    assert sizes(10.0, 10.5, in_use=True) == [4.0, 4.0]
    assert sizes(10.5, 20.0, in_use=False) == [8.0, 8.0]
    assert burst.throttled(20.1, 20.05), "all eight at once"
    assert sizes(20.2, 80.0, in_use=False) == [4.0]
    assert sizes(80.0, 200.0, in_use=False) == [8.0, 8.0]


def test_very_slow_rate_is_never_evenly_spaced() -> None:
    burst = LearnedBurst(100.0, 36.0)
    assert [burst.throttled(at + 0.1, at) for at in range(3)] == [True, True, False]
    assert (burst.size, burst.steps, burst.is_bounded) == (100.0, 2, False)
    assert not burst.succeeded(3.0, 2.5)
    assert burst.succeeded(64.0, 63.0)
    assert burst.steps == 1


def test_larger_burst_is_tried_after_a_minute_then_rarely() -> None:
    burst = LearnedBurst(20.0, 0.05)
    now, waits = 0.0, list[float]()
    burst.throttled(now + 0.1, now)
    for _ in range(8):
        begin = now
        while not burst.succeeded(now + 0.1, now):
            now += 1.0
        waits.append(now - begin)
        now += 1.0
        assert burst.throttled(now + 0.1, now)
    assert waits == pytest.approx([60, 120, 240, 480, 960, 1920, 3600, 3600], abs=2.0)


def test_other_limit_keeps_a_learned_burst() -> None:
    open_ = LearnedBurst(20.0, 0.05)
    assert open_.with_limit(50.0, 0.02).size == 50.0
    open_.throttled(1.0, 0.5)
    assert open_.with_limit(50.0, 0.02).size == 10.0
    small = open_.with_limit(5.0, 0.2)
    assert (small.size, small.was_throttled) == (5.0, True)
    assert small.with_limit(50.0, 0.02).size == 50.0
    assert not small.throttled(1.0, 0.9), "of the event that counted already"
    assert small.throttled(1.3, 1.1)


@given(
    st.floats(1.0, 1e6),
    st.floats(1e-6, 1e6),
    st.lists(st.tuples(st.booleans(), st.floats(0.0, 1e4), st.floats(0.0, 10.0)), max_size=60),
)
def test_any_reports_keep_the_burst_within_its_bounds(
    most: float, interval: float, reports: list[tuple[bool, float, float]]
) -> None:
    burst = LearnedBurst(most, interval)
    burst.begin_small()
    for throttled, now, age in reports:
        before = (burst.size, burst.steps)
        changed = (burst.throttled if throttled else burst.succeeded)(now, now - age)
        assert changed == (before != (burst.size, burst.steps))
        assert 1.0 <= burst.size <= most
        assert burst.steps in range(7 if burst.is_even else 3)
