"""Specifies the algorithm of the quota that a server reports."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.algorithms.server_quota import (
    ReportedQuota,
    ServerQuota,
    ServerQuotaState,
    Witness,
)
from tests.algorithms.asking import allowance, refund
from tests.support.asking import admit
from tests.support.effort import examples


def reported(
    algorithm: ServerQuota, now: float, remaining: float, reset_after: float
) -> ServerQuotaState:
    state = algorithm.start()
    algorithm.update(state, now, remaining, reset_after, now)
    return state


def test_remaining_is_admitted_then_nothing_until_reset() -> None:
    algorithm = ServerQuota()
    state = reported(algorithm, 100.0, 3, 30.0)
    assert [admit(algorithm, state, 100.0, 1) for _ in range(4)] == [True, True, True, False]
    assert algorithm.delay(state, 110.0, 1) == 20.0
    assert algorithm.remaining(state, 110.0) == 0
    algorithm.take(state, 110.0, 5)  # the request had been counted already
    assert algorithm.remaining(state, 110.0) == 0
    assert admit(algorithm, state, 130.0, 1)
    assert algorithm.remaining(state, 130.0) == math.inf


def test_quota_ignores_refunds() -> None:
    algorithm = ServerQuota()
    state = reported(algorithm, 0.0, 1, 30.0)
    algorithm.take(state, 0.0, 1)
    refund(algorithm, state, 1.0, 1, 0.0)
    assert algorithm.remaining(state, 1.0) == 0
    assert allowance(algorithm, state, 31.0, 100) == 0  # the algorithm is asked each time


@examples(50)
@given(
    evenly=st.booleans(),
    reports=st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4)), max_size=5
    ),
    steps=st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 100)), max_size=20),
)
def test_any_report_leaves_a_finite_exact_wait(
    evenly: bool, reports: list[tuple[float, float, float]], steps: list[tuple[float, float]]
) -> None:
    algorithm = ServerQuota(evenly)
    state = algorithm.start()
    for now, remaining, reset_after in reports:
        algorithm.update(state, now, remaining, reset_after, now)
    now = 0.0
    for more, cost in steps:
        now += more
        for _ in range(3):  # rounding may move an even spacing on as the window gets shorter
            delay = algorithm.delay(state, now, cost)
            assert 0.0 <= delay <= 2e6
            now += delay
        assert admit(algorithm, state, now, cost)


def test_no_more_than_the_limit_is_admitted_after_a_reset() -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    state.limit = 2
    algorithm.update(state, 0.0, 0, 30.0, 0.0)
    algorithm.update(state, 5.0, 0, 25.0, 5.0)  # of the same window, which is of 30 s
    assert algorithm.delay(state, 10.0, 1) == 20.0
    assert algorithm.delay_behind(state, 30.0, 1, 1) == 0.0
    assert algorithm.delay_behind(state, 30.0, 1, 2) == 30.0
    assert [admit(algorithm, state, 31.0, 1) for _ in range(3)] == [True, True, False]
    # Without a report for a whole window, it is reset once more.
    assert algorithm.delay(state, 31.0, 1) == 30.0
    assert admit(algorithm, state, 61.0, 3)


def test_one_request_finds_out_about_an_early_reset() -> None:
    algorithm = ServerQuota()
    state = reported(algorithm, 0.0, 1, 30.0)
    algorithm.expect_reset(state, 10.0)
    assert admit(algorithm, state, 1.0, 1)
    algorithm.take(state, 2.0, 1)  # a debt is not the request that finds out
    assert [algorithm.delay(state, 4.0, cost) for cost in (1, 2)] == [6.0, 26.0]
    assert algorithm.delay_behind(state, 4.0, 1, 1) == 26.0
    assert [admit(algorithm, state, 10.0, 1) for _ in range(2)] == [True, False]
    algorithm.expect_reset(state, 10.0)  # was found out
    assert algorithm.delay(state, 11.0, 1) == 19.0
    algorithm.update(state, 12.0, 5, 18.2, 9.0)  # of a request before
    assert not admit(algorithm, state, 12.0, 1)
    algorithm.update(state, 12.0, 5, 18.2, 10.0)
    assert algorithm.remaining(state, 12.0) == 5
    algorithm.update(state, 13.0, 7, 17.2, 13.0)  # overtaken: again the lowest report counts
    assert algorithm.remaining(state, 13.0) == 5


def refilled(remaining: float, *, now: float = 100.0, sent_at: float = 100.0) -> ServerQuotaState:
    """Return the state after a report of a quota of 60 that gains 1 per second."""
    state = ServerQuota().start()
    state.limit = 60.0
    ServerQuota().update(state, now, remaining, 60.0 - remaining, sent_at, refill=1.0)
    return state


def test_refill_is_spread_with_what_remains() -> None:
    algorithm, state = ServerQuota(evenly=True), refilled(10)
    assert admit(algorithm, state, 100.0, 1)
    assert algorithm.delay(state, 100.0, 1) == pytest.approx(50 / (10 + 50))


def test_refill_counts_before_the_reset() -> None:
    algorithm, state = ServerQuota(), refilled(10)
    algorithm.take(state, 100.0, 10)
    assert algorithm.delay(state, 100.0, 5) == 5
    assert algorithm.delay_behind(state, 102.0, 5, 7) == 10
    assert algorithm.delay(state, 105.0, 5) == 0
    assert algorithm.remaining(state, 105.0) == 5
    algorithm.take(state, 105.0, 5)
    assert algorithm.delay(state, 105.0, 1) == 1


def test_refill_ends_at_the_limit() -> None:
    algorithm, state = ServerQuota(), refilled(50)
    assert algorithm.remaining(state, 109.0) == 59
    assert algorithm.delay(state, 100.0, 100) == 10  # more than there ever is
    assert algorithm.delay(state, 110.0, 100) == 0


def test_report_of_an_earlier_request_is_overtaken() -> None:
    algorithm, state = ServerQuota(), refilled(40, sent_at=99.0)
    algorithm.update(state, 101.0, 3, 57.0, sent_at=98.0, refill=1.0)
    assert algorithm.remaining(state, 101.0) == 41
    algorithm.update(state, 102.0, 50, 10.0, sent_at=99.5, refill=1.0)
    assert algorithm.remaining(state, 102.0) == 50
    algorithm.take(state, 102.0, 5)
    algorithm.update(state, 105.0, 40, 20.0, sent_at=101.0, refill=1.0)
    assert algorithm.remaining(state, 105.0) == 40 - (5 - 3), "which came back meanwhile"


@given(st.floats(0.001, 1000.0), st.floats(0.0, 1e6), st.floats(0.1, 50.0))
def test_cost_is_admitted_after_the_delay_of_a_refill(
    refill: float, now: float, cost: float
) -> None:
    algorithm, state = ServerQuota(), ServerQuota().start()
    state.limit = 100.0
    algorithm.update(state, now, 0.0, 100.0 / refill, now, refill=refill)
    wait = algorithm.delay(state, now, cost)
    assert algorithm.delay(state, now + wait + math.ulp(now + wait), cost) <= 1e-9
    assert algorithm.delay(state, now + 0.99 * wait, cost) > 0


@pytest.mark.parametrize(("later", "left"), [(1.25, 5), (1.5, 9)])
def test_resets_that_differ_by_a_rounding_are_of_one_window(later: float, left: float) -> None:
    algorithm = ServerQuota()
    state = reported(algorithm, 0.0, 5, 30.0)
    algorithm.update(state, 0.0, 9, 30.0 + later, 0.0)
    assert (state.remaining, state.resets_at) == (left, 30.0 + later)


@pytest.mark.parametrize(
    ("in_flight", "counts", "left"), [(math.inf, True, 6), (math.inf, False, 5), (0, False, 6)]
)
def test_lowest_report_is_exact_once_no_request_is_unanswered(
    in_flight: float, counts: bool, left: float
) -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    for timestamp in (0.0, 1.0):
        algorithm.take(state, timestamp, 1)
    algorithm.update(state, 2.0, 6, 30.0, 0.0)
    assert algorithm.remaining(state, 2.0) == 5
    algorithm.update(state, 2.5, 7, 29.5, 0.5, in_flight=in_flight, counts=counts)
    assert algorithm.remaining(state, 2.5) == left


# ---- what the answers show -----------------------------------------------------------------------


def witness(*reports: tuple[float, float, float], limit: float = 5, error: float = 1.0) -> Witness:
    """Return what is known after reports of one request after the other: when, remaining, reset."""
    known = Witness(limit)
    for at, remaining, reset_after in reports:
        quota = ReportedQuota(remaining, reset_after, limit=limit, error=error)
        known.observe(quota, at + 0.01, at, taken=1.0)
    return known


def test_quota_that_is_whole_again_too_soon_has_no_window() -> None:
    known = witness((0.0, 4, 1), (0.3, 4, 1), (0.6, 4, 1))
    assert known.is_faster
    assert known.refill == pytest.approx(1 / 0.61)  # half of two in that time
    # In windows that begin with the seconds of a clock the last two may be as close.
    for at in (0.995, 1.7):
        assert witness((0.0, 4, 1), (0.95, 4, 1), (at, 3, 1)).refill == 0.0


def test_reset_that_moves_with_the_requests_is_that_of_a_bucket() -> None:
    known = witness((0.0, 2, 1.5), (0.05, 1, 2), (0.1, 0, 2.5), error=0.0)
    assert known.is_faster
    assert known.refill == 0.5 * (5 - 1 - 1) / 2
    # The oldest request of a log that slides is another one, once tokens came back.
    assert witness((0.0, 2, 0.5), (0.05, 2, 0.9), (0.1, 1, 0.85), error=0.0).refill == 0.0


def test_reset_that_brings_back_little_is_no_reset() -> None:
    known = witness((0.0, 0, 9), (9.02, 1, 10), limit=20)
    assert (known.refill, known.is_faster) == (0.5 * (20 - 1 - 1) / 10, False)
    for at, remaining, reset_after in ((8.0, 1, 9), (9.02, 9, 10), (9.02, 1, 3), (20.0, 1, 10)):
        assert witness((0.0, 0, 9), (at, remaining, reset_after), limit=20).refill == 0.0


def test_refill_is_measured_and_slower_after_a_429() -> None:
    known = witness((0.0, 0, 9), (9.0, 0, 10), limit=20)
    refill = known.refill
    known.observe(ReportedQuota(3, 10, limit=20, error=1.0), 9.52, 9.5, taken=1.0)
    assert refill < known.refill == 0.5 * 4 / (9.52 - 9.0)
    for_another_reason = ReportedQuota(3, 10, limit=20, error=1.0, throttled=True)
    assert known.observe(for_another_reason, 9.55, 9.53, taken=1.0) == known.refill
    known.observe(ReportedQuota(0, 10, limit=20, error=1.0), 9.6, 9.55, taken=1.0)
    spent = ReportedQuota(0, 10, limit=20, error=1.0, throttled=True)
    slower = known.observe(spent, 9.7, 9.65, taken=1.0)
    assert slower == 0.7 * 0.5 * 4 / (9.52 - 9.0)
    assert known.observe(spent, 9.71, 9.65, taken=1.0) == slower, "one event"
    known.observe(ReportedQuota(19, 10, limit=20, error=1.0), 9.9, 9.8, taken=1.0)
    assert known.refill == slower  # others use the quota, or it was too fast once


def test_clock_that_stands_still_shows_nothing() -> None:
    """Some clocks take steps of 16 ms, and an answer on loopback takes less."""
    known = Witness(limit=5)
    for _ in range(4):
        known.observe(ReportedQuota(4, 1, limit=5, error=1.0), 7.0, 7.0, taken=1.0)
    assert (known.refill, known.is_faster) == (0.0, False)
    known = witness((0.0, 0, 9), (9.0, 0, 10), limit=20)
    spent, left = (ReportedQuota(it, 10, limit=20, error=1.0) for it in (0, 3))
    refill = known.observe(spent, 9.5, 9.5, taken=1.0)
    assert known.observe(left, 9.5, 9.5, taken=1.0) == refill > 0.0


@pytest.mark.parametrize(("left", "rate"), [(12.0, 0.0), (11.0, 20 / 1.5)])
def test_other_clients_show_by_what_is_missing(left: float, rate: float) -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    for at in (0.0, 0.1):
        algorithm.take(state, at, 1)
    report(algorithm, state, 18.0, now=0.2, sent_at=0.0)
    for at in (0.3, 0.4, 0.5):
        algorithm.take(state, at, 1)
    report(algorithm, state, left, now=0.6, sent_at=0.4)
    # Two were in flight at the first report, one of them sent later, and three were sent since.
    assert state.witness.rate_of_all(60.5) == rate
    assert state.witness.rate_of_all(60.7) == 0.0, "long ago"


@pytest.mark.parametrize(("reset_after", "rate"), [(4.0, 5.0), (4.1, 0.0), (0.0, 0.0)])
def test_other_clients_matter_in_short_windows(reset_after: float, rate: float) -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    for at, left in ((0.0, 15.0), (0.2, 3.0)):
        algorithm.take(state, at, 1)
        report(algorithm, state, left, now=at + 0.1, sent_at=at, reset_after=reset_after)
    assert state.witness.rate_of_all(1.0) == rate


@pytest.mark.parametrize(("reset_after", "wait"), [(4.0, 0.8), (4.1, 0.0)])
def test_short_windows_are_spread_for_a_while(reset_after: float, wait: float) -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    report(algorithm, state, 5.0, now=0.0, sent_at=0.0, reset_after=reset_after)
    algorithm.throttled(state, 0.0, ReportedQuota(0.0, reset_after), sent_at=0.0)
    algorithm.take(state, 0.0, 1)
    assert algorithm.delay(state, 0.0, 1) == pytest.approx(wait)
    report(algorithm, state, 5.0, now=16.0, sent_at=16.0, reset_after=reset_after)
    algorithm.take(state, 16.0, 1)
    assert algorithm.delay(state, 16.0, 1) == 0.0


@pytest.mark.parametrize(
    ("left", "error", "ages", "late"),
    [
        (0.9, 1.0, [0.0], 0.5),
        (0.0, 1.0, [0.9, 0.5], 0.5),  # the same reset
        (1.0, 1.0, [0.0], 0.0),  # of the next window, which others have used up
        (0.0, 1.0, [1.0], 0.0),  # long after the reset
        (0.2, 0.0, [0.1], 0.0),  # not rounded: the network was slow
    ],
)
def test_reset_with_a_429_behind_it_was_early(
    left: float, error: float, ages: list[float], late: float
) -> None:
    algorithm, report = ServerQuota(), ReportedQuota(0.0, left, error=error)
    state = reported(algorithm, 0.0, 1, 30.0)
    algorithm.take(state, 0.0, 1)
    algorithm.throttled(state, 0.1, report, sent_at=0.0)
    assert state.late == 0.0, "there was no reset"
    algorithm.take(state, 30.0, 1)
    for age in ages:
        algorithm.throttled(state, 31.0, report, sent_at=30.0 + age)
    assert state.late == late
    for expected in (1.0, 1.0) if late else ():
        algorithm.update(state, 40.0, 0, 30.0, 40.0)
        reset_at = 70.0 + state.late
        assert algorithm.delay(state, 40.0, 1) == reset_at - 40.0
        algorithm.take(state, reset_at, 1)
        algorithm.throttled(state, 72.0, report, sent_at=reset_at)
        assert state.late == expected


def report(
    algorithm: ServerQuota,
    state: ServerQuotaState,
    left: float,
    *,
    now: float,
    sent_at: float,
    reset_after: float = 1.5,
) -> None:
    quota = ReportedQuota(left, reset_after, limit=20)
    algorithm.refill_of(state, now, quota, sent_at)
    algorithm.update(state, now, left, reset_after, sent_at)
