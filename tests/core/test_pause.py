"""The pause: only ever extended, and never over before its end."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiothrottle._core.pause import LONGEST_TRIAL, Pause
from aiothrottle._core.wait_queue import Waiter

SECONDS = st.floats(0.0, 1e6)


def test_new_pause_is_over() -> None:
    pause = Pause()
    assert pause.left(0.0) == pause.left(-1e9) == 0.0
    assert pause.began_at == -math.inf


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1))
def test_pause_is_only_ever_extended(calls: list[tuple[float, float]]) -> None:
    pause = Pause()
    for now, seconds in calls:
        before = pause.ends_at
        pause.extend(now, seconds)
        assert pause.ends_at == max(before, now + seconds)


def test_shorter_pause_still_counts_as_the_latest() -> None:
    pause = Pause()
    pause.extend(100.0, 30.0)
    pause.extend(110.0, 5.0)
    assert (pause.began_at, pause.left(110.0)) == (110.0, 20.0)


@given(end=SECONDS, now=SECONDS)
@example(end=1.1, now=0.3)  # 0.3 + (1.1 - 0.3) is below 1.1
def test_pause_is_over_after_the_time_left(end: float, now: float) -> None:
    pause = Pause()
    pause.extend(0.0, end)
    assert pause.left(now + pause.left(now)) == 0.0


@pytest.mark.parametrize(("now", "left"), [(119.0, 1.0), (120.0, 0.0), (121.0, 0.0)])
def test_time_left_counts_down_to_nothing(now: float, left: float) -> None:
    pause = Pause()
    pause.extend(100.0, 20.0)
    assert pause.left(now) == left


def test_shift_keeps_the_time_left_by_another_clock() -> None:
    pause = Pause()
    pause.extend(100.0, 20.0)
    pause.shift(-100.0)
    assert pause.left(5.0) == 15.0


# ---- the trial -----------------------------------------------------------------------------------


def awaiting() -> Pause:
    """Return a pause until 120, after which one request goes ahead."""
    pause = Pause()
    pause.extend(100.0, 20.0)
    pause.await_trial()
    return pause


def test_trial_closes_the_limiter_for_a_while() -> None:
    pause = awaiting()
    assert pause.closed_for(110.0) == pause.left(110.0) == 10.0
    waiter = Waiter()
    pause.start(waiter, 121.0)
    assert (pause.trial, pause.left(122.0)) == (waiter, 0.0)
    assert pause.closed_for(122.0) == LONGEST_TRIAL - 1.0
    pause.end_trial()
    assert (pause.awaits_trial, pause.closed_for(122.0)) == (False, 0.0)


def test_role_is_passed_on_by_its_holder_only() -> None:
    pause, waiter = awaiting(), Waiter()
    assert not pause.pass_on(None)
    pause.start(waiter, 121.0)
    assert not pause.pass_on(Waiter())
    assert not pause.pass_on(None)
    assert pause.trial is waiter
    assert pause.pass_on(waiter)
    assert pause.trial is None
    assert pause.awaits_trial
    assert pause.closed_for(122.0) == 0.0


def test_trial_that_takes_too_long_is_over() -> None:
    pause = awaiting()
    pause.start(Waiter(), 121.0)
    late = 121.0 + LONGEST_TRIAL
    assert pause.closed_for(late) == 0.0
    pause.start(Waiter(), late)
    assert not pause.awaits_trial
    assert pause.closed_for(late) == 0.0


def test_longer_pause_outlasts_the_trial() -> None:
    pause = awaiting()
    pause.start(Waiter(), 121.0)
    pause.extend(122.0, 30.0)
    assert pause.closed_for(122.0) == 30.0
    pause.end_trial()
    assert pause.closed_for(122.0) == 30.0


def test_held_trial_is_not_ended_by_a_release() -> None:
    pause, waiter = awaiting(), Waiter()
    pause.start(waiter, 121.0)
    pause.end_trial()  # by the release
    pause.hold_trial(waiter, 122.0)
    assert pause.awaits_trial
    assert not pause.ends_with(waiter)
    assert pause.closed_for(122.0) == LONGEST_TRIAL
    assert pause.pass_on(waiter)
    assert not pause.pass_on(waiter)
    pause.start(waiter, 122.5)
    assert pause.ends_with(waiter)
    pause.end_trial()
    pause.hold_trial(Waiter(), 123.0)  # another one
    assert not pause.awaits_trial
