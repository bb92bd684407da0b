"""The window of a server that does not report it is found, and never taken for a longer one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.adaptive.server_window import ServerWindow
from aiothrottle.rate import Rate


def fresh(
    window: ServerWindow, now: float, reset_after: float, error: float = 1.0, limit: float = 20
) -> Rate | None:
    """Observe the first response of a window, which took 20 ms."""
    return window.observe(
        now,
        now - 0.02,
        limit=limit,
        remaining=limit - 1,
        reset_after=reset_after,
        error=error,
    )


def throttled(window: ServerWindow, now: float, reset_after: float) -> Rate | None:
    return window.observe(
        now, now - 0.02, limit=20, remaining=0, reset_after=reset_after, error=1.0, throttled=True
    )


@pytest.mark.parametrize("seconds", [1.0, 2.0, 10.0, 60.0])
def test_rounded_delay_gives_the_window(seconds: float) -> None:
    assert fresh(ServerWindow(), 5.0, seconds) == Rate(20, seconds)


@pytest.mark.parametrize("seconds", [61.0, 3600.0])
def test_long_window_gives_no_rate(seconds: float) -> None:
    assert fresh(ServerWindow(), 5.0, seconds) is None


@given(
    seconds=st.integers(1, 60),
    begins=st.lists(st.floats(0, 1e6), min_size=1, max_size=20),
    lag=st.floats(0, 1.999),
)
def test_window_is_never_taken_for_a_longer_one(
    seconds: int, begins: list[float], lag: float
) -> None:
    window = ServerWindow()
    for begin in sorted(begins):
        # A timestamp, rounded up, and a Date that lags.
        rate = fresh(window, begin, math.ceil(begin + seconds) - begin + lag, 3.0)
        assert rate is not None
        assert 1.0 <= rate.period <= seconds


def test_report_within_a_window_gives_no_rate() -> None:
    window = ServerWindow()
    assert window.observe(5, 5, limit=20, remaining=7, reset_after=1, error=1) is None
    assert fresh(window, 6.0, 1.0) == Rate(20, 1)
    assert window.observe(6.1, 6, limit=20, remaining=7, reset_after=1, error=1) == Rate(20, 1)


def test_other_limit_begins_anew() -> None:
    window = ServerWindow()
    fresh(window, 5.0, 10.0)
    assert window.observe(6, 6, limit=30, remaining=7, reset_after=9, error=1) is None
    assert fresh(window, 15.0, 1.0, limit=30) == Rate(30, 1)


def test_throttled_request_in_an_old_window_proves_a_longer_one() -> None:
    window = ServerWindow()
    fresh(window, 5.0, 2.9, error=3.0)  # it may be of one second
    assert throttled(window, 5.5, 2.4) == Rate(20, 1)  # of the first second: no proof
    assert throttled(window, 6.03, 1.87) == Rate(20, 2)
    assert throttled(window, 6.04, 1.86) == Rate(20, 2)  # of the same burst
    assert throttled(window, 7.03, 3.0) == Rate(20, 2)  # of another window


def test_throttled_request_alone_proves_nothing() -> None:
    assert throttled(ServerWindow(), 5.0, 1.0) is None
