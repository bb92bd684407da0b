"""The pause: only ever extended, and never over before its end."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiothrottle._core.pause import Pause

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
