"""The window of a server that does not report it is found, and never taken for a longer one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import Rate
from aiothrottle.adaptive.server_window import Inferred, ServerWindow
from aiothrottle.algorithms.server_quota import ReportedQuota


def fresh(
    window: ServerWindow, now: float, reset_after: float, error: float = 1.0, limit: float = 20
) -> Inferred:
    """Observe the first response of a window, which took 20 ms."""
    quota = ReportedQuota(limit - 1, reset_after, limit=limit, error=error)
    return window.observe(now, now - 0.02, quota)


def throttled(window: ServerWindow, now: float, reset_after: float) -> Inferred:
    quota = ReportedQuota(0, reset_after, limit=20, error=3.0, throttled=True)
    return window.observe(now, now - 0.02, quota)


def test_rounded_delay_gives_a_short_window_at_once() -> None:
    for seconds in (1.0, 2.0, 10.0, 60.0, 61.0, 3600.0):
        inferred = Inferred(Rate(20, seconds)) if seconds <= 60 else Inferred()
        assert fresh(ServerWindow(), 5.0, seconds) == inferred


def test_exact_reset_shows_a_window_of_a_part_of_a_second() -> None:
    window = ServerWindow()
    # The first request came late in a window that ends with the second.
    assert fresh(window, 5.0, 0.12, 0.0) == Inferred(Rate(20, 3 * 0.05))
    assert fresh(window, 6.0, 0.25, 0.0) == Inferred(Rate(20, 0.25))
    assert fresh(window, 7.0, 0.998, 0.0) == Inferred(Rate(20, 1.0))
    assert fresh(window, 8.0, 0.12, 0.0) == Inferred(Rate(20, 1.0))
    assert fresh(ServerWindow(), 5.0, 0.12, 1.0) == Inferred(Rate(20, 1.0))


def test_window_may_begin_before_its_first_request() -> None:
    """A timestamp of whole seconds may be three seconds late: the usual length is taken."""
    for seconds in (10.0, 60.0):
        window = ServerWindow()
        fresh(window, 5.0, seconds - 0.1, 3.0)
        assert window.seconds == seconds


def test_timestamp_is_probed_until_it_is_certain() -> None:
    window = ServerWindow()
    # Two seconds, one of which is from the cut of the Date: the window may be of one.
    assert fresh(window, 5.0, 3.1, 3.0) == Inferred(None, 6.0)
    assert throttled(window, 6.05, 2.05) == Inferred(None, 7.0)
    assert throttled(window, 6.06, 2.04) == Inferred(None, 7.0)  # of the same burst
    assert fresh(window, 7.05, 2.9, 3.0) == Inferred(Rate(20, 2))


def test_two_failures_in_a_row_refute_the_window() -> None:
    window = ServerWindow()
    fresh(window, 5.0, 3.1, 3.0)
    throttled(window, 6.05, 2.05)
    fresh(window, 7.05, 2.9, 3.0)
    throttled(window, 9.1, 0.85)
    assert not window.is_refuted
    throttled(window, 10.1, 0.0)
    assert window.is_refuted


@pytest.mark.parametrize(
    ("gap", "left", "refuted"), [(1, 9, True), (1, 10, False), (0.9, 9, False)]
)
def test_quota_that_was_not_reset_meanwhile_refutes_the_window(
    gap: float, left: float, *, refuted: bool
) -> None:
    window, now = ServerWindow(), 5.0
    fresh(window, now, 0.0)
    for _ in range(2):
        assert not window.is_refuted
        now += gap
        window.observe(now, now, ReportedQuota(left, 0, limit=20, error=1))
    assert window.is_refuted == refuted


def test_request_after_all_was_used_makes_it_certain() -> None:
    for at, inferred in ((6.01, Inferred(Rate(20, 1))), (9.0, Inferred(None, 10.0))):
        window = ServerWindow()
        fresh(window, 5.0, 3.1, 3.0)
        assert fresh(window, at, 2.9, 3.0) == inferred  # a late one proves nothing
    window = ServerWindow()
    fresh(window, 5.0, 3.1, 3.0)
    expected = [(6.1, 1, Inferred(None, 6.0)), (6.2, 0, Inferred(None, 6.0))]
    for now, remaining, inferred in (*expected, (6.3, 0, Inferred(Rate(20, 1)))):
        quota = ReportedQuota(remaining, 3, limit=20, error=3)  # of a log that slides
        assert window.observe(now, now - 0.02, quota) == inferred


@given(
    seconds=st.sampled_from((1, 2, 5, 10, 15, 20, 30, 60)),
    gaps=st.lists(st.floats(0, 1e4), min_size=1, max_size=20),
    lag=st.floats(0, 1.999),
)
def test_window_is_never_taken_for_a_longer_one(
    seconds: int, gaps: list[float], lag: float
) -> None:
    window, now = ServerWindow(), 0.0
    for gap in gaps:
        now += seconds + gap
        # A timestamp, rounded up, and a Date that lags.
        fresh(window, now, math.ceil(now + seconds) - now + lag, 3.0)
        assert 1.0 <= window.seconds <= seconds


def test_report_within_a_window_gives_no_rate_and_may_correct_it() -> None:
    window, quota = ServerWindow(), ReportedQuota(7, 1, limit=20, error=1)
    assert window.observe(5.0, 5.0, quota) == Inferred()
    assert fresh(window, 6.0, 1.0) == window.observe(6.1, 6.1, quota) == Inferred(Rate(20, 1))
    # The reset of a bucket, when it is full again, may be further away than the window.
    report = window.observe(6.1, 6, ReportedQuota(3, 2, limit=20, error=1))
    assert report == Inferred(None, 8.0)


def test_other_limit_begins_anew() -> None:
    window = ServerWindow()
    fresh(window, 5.0, 10.0)
    report = window.observe(6, 6, ReportedQuota(7, 9, limit=30, error=1))
    assert report == Inferred()
    assert fresh(window, 15.0, 1.0, limit=30) == Inferred(Rate(30, 1))


def test_throttled_request_alone_proves_nothing() -> None:
    window = ServerWindow()
    assert throttled(window, 5.0, 1.0) == Inferred()
    fresh(window, 5.0, 1.0)
    for now, reset_after in ((5.9, 1.0), (7.5, 3.0)):  # the window's own second, and another one's
        assert throttled(window, now, reset_after) == Inferred(Rate(20, 1))
