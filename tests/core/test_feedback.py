"""Feedback: controllers get the outcomes and return changes and pauses."""

import random

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, Rate
from aiothrottle._core.feedback import (
    Change,
    Feedback,
    GuardControl,
    PauseRule,
    RateControl,
    SlotsControl,
)
from aiothrottle.adaptive import SelfTuningGuard
from aiothrottle.adaptive.burst import LearnedBurst
from aiothrottle.algorithms import SlidingWindowLog


def adaptive_rate() -> RateControl:
    return RateControl(AdaptiveRate(10, 1, 100))


def adaptive_slots() -> SlotsControl:
    return SlotsControl(AdaptiveConcurrency(4, 1, 100))


def tuned_guard(*, most: float = 10.0, of_children: bool = False) -> GuardControl:
    return GuardControl(
        SelfTuningGuard(1.0),
        LearnedBurst(most, 1.0 / most),
        lambda guard, learned: SlidingWindowLog(Rate(learned or most, 1 + guard)),
        intervals=most,
        of_children=of_children,
    )


def throttle(
    feedback: Feedback, now: float, sent_at: float, *, own: bool = True
) -> tuple[Change, ...]:
    return feedback.throttled(now, sent_at, 1.0, used=10.0, own=own)


def succeed(
    feedback: Feedback, now: float, sent_at: float, *, in_flight: int = 1, own: bool = True
) -> tuple[Change, ...]:
    return feedback.succeeded(now, sent_at, 1.0, in_flight=in_flight, paused_at=0.0, own=own)


# ---- outcomes and changes ------------------------------------------------------------------------


def test_without_controllers_no_outcome_changes_anything() -> None:
    feedback = Feedback()
    assert succeed(feedback, 1.0, 0.9) == ()
    assert throttle(feedback, 2.0, 1.9) == ()


def test_throttled_request_returns_the_rate_cut() -> None:
    feedback = Feedback(rate=adaptive_rate())
    assert throttle(feedback, 1.0, 0.5) == (Change("rate", 5.0, 10.0),)


def test_second_429_of_one_event_returns_nothing() -> None:
    feedback = Feedback(adaptive_rate(), adaptive_slots())
    assert len(throttle(feedback, 1.0, 0.5)) == 2
    assert throttle(feedback, 1.1, 0.6) == ()


def test_used_rate_returns_a_raise() -> None:
    feedback = Feedback(rate=adaptive_rate())
    changes = [succeed(feedback, at / 10 + 0.01, at / 10) for at in range(1, 10)]
    raised = [change for change in changes if change]
    assert raised == [(Change("rate", 20.0, 10.0),)]


def test_full_round_returns_one_more_slot() -> None:
    feedback = Feedback(slots=adaptive_slots())
    changes = [succeed(feedback, 0.1, 0.0, in_flight=4) for _ in range(10)]
    assert changes == [*[()] * 9, (Change("slots", 5, 4),)]


def test_less_than_a_whole_slot_returns_nothing() -> None:
    feedback = Feedback(slots=SlotsControl(AdaptiveConcurrency(5, 1, 100)))
    assert throttle(feedback, 1.0, 0.5) == (Change("slots", 2, 5),)  # 2.5
    assert throttle(feedback, 2.0, 1.5) == (Change("slots", 1, 2),)  # 1.25
    assert throttle(feedback, 3.0, 2.5) == ()  # 1.0


def test_varying_round_trips_return_the_guard() -> None:
    guard = tuned_guard()
    feedback = Feedback(guard=guard)
    assert succeed(feedback, 1.0, 0.9) == ()
    (change,) = succeed(feedback, 2.0, 1.888)
    assert change == Change("guard", guard.measured.seconds, 0.0)
    assert change.value == guard.held == pytest.approx(0.03)


def test_429s_return_smaller_bursts_then_longer_guards() -> None:
    guard = tuned_guard()
    feedback = Feedback(guard=guard)
    succeed(feedback, 10.0, 9.9)
    succeed(feedback, 10.0, 9.899)
    changes = [throttle(feedback, 11.0 + at, 10.9 + at) for at in range(7)]
    assert changes[0] == (Change("burst", 5.0, 10.0),)
    assert changes[1] == (Change("burst", 2.0, 5.0),)
    guards = [change for each in changes for change in each if change.what == "guard"]
    assert [change.value for change in guards] == pytest.approx([0.025, 1 / 14, 1.5 / 14])
    assert changes[2][1] == Change("burst", 1.0, 2.0)
    assert changes[5:] == [(), ()]
    assert guard.held == guards[-1].value
    assert guard.build() == SlidingWindowLog(Rate(1.0, 1 + guard.held))


def test_second_429_of_one_event_keeps_the_burst() -> None:
    feedback = Feedback(guard=tuned_guard())
    assert len(throttle(feedback, 1.0, 0.5)) == 1
    assert throttle(feedback, 1.1, 0.6) == ()
    assert len(throttle(feedback, 1.2, 1.1)) == 1


@pytest.mark.parametrize(("of_children", "changes"), [(False, 0), (True, 1)])
def test_child_429s_count_for_the_burst_if_asked(of_children: bool, changes: int) -> None:
    feedback = Feedback(guard=tuned_guard(of_children=of_children))
    assert len(throttle(feedback, 1.0, 0.5, own=False)) == changes


def test_burst_in_use_returns_a_larger_burst() -> None:
    guard = tuned_guard()
    guard.begin_small()
    assert guard.held == pytest.approx(2.25 / 14)
    guard.succeeded(0.1, 0.0)
    (change,) = guard.succeeded(0.4, 0.3)
    assert change == Change("burst", 2.0, 1.0)
    single = tuned_guard(most=1.0)
    single.begin_small()
    assert single.held == 0.0


def test_learned_burst_is_remembered_for_a_while() -> None:
    feedback = Feedback(guard=tuned_guard())
    throttle(feedback, 100.0, 99.0)
    assert not feedback.is_forgettable(101.0)
    assert feedback.is_forgettable(800.0)


def test_other_clock_keeps_the_burst_without_its_timestamps() -> None:
    guard = tuned_guard()
    feedback = Feedback(guard=guard)
    throttle(feedback, 100.0, 99.0)
    feedback.restart()
    assert guard.burst.size == 5.0
    assert throttle(feedback, 1.0, 0.5) == (Change("burst", 2.0, 5.0),)


@pytest.mark.parametrize(("of_children", "changes"), [(False, 0), (True, 1)])
def test_child_requests_count_for_a_guard_if_asked(of_children: bool, changes: int) -> None:
    feedback = Feedback(guard=tuned_guard(of_children=of_children))
    succeed(feedback, 1.0, 0.9, own=False)
    assert len(succeed(feedback, 2.0, 1.888, own=False)) == changes


def test_each_controller_returns_its_own_change() -> None:
    feedback = Feedback(adaptive_rate(), adaptive_slots(), tuned_guard())
    for seconds in (0.1, 0.9):
        succeed(feedback, 10.0, 10.0 - seconds)
    changes = throttle(feedback, 11.0, 10.9)
    assert [change.what for change in changes] == ["rate", "slots", "burst"]


def test_guard_is_worth_no_memory_alone() -> None:
    feedback = Feedback(guard=tuned_guard())
    feedback.reported_at = 100.0
    assert feedback.is_needed
    assert feedback.is_forgettable(100.0)


# ---- how long a pause is -------------------------------------------------------------------------


def test_pause_doubles_up_to_its_bound_with_jitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    feedback = Feedback()
    pauses = [feedback.pause(None, PauseRule(jitter=0.0)) for _ in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert feedback.streak == 8
    for seconds, jitter, longest, pause in [
        (2.0, 0.1, 120.0, 2.1),
        (100.0, 0.1, 120.0, 100.5),  # by a second at the most
        (0.1, 0.0, 120.0, 0.1),
        (0.1, 0.0, 0.05, 0.05),
        (119.9, 0.1, 120.0, 120.0),
        (500.0, 0.1, 120.0, 120.0),
    ]:
        assert feedback.pause(seconds, PauseRule(jitter, longest)) == pause
    feedback.streak = 2
    assert feedback.pause(None, PauseRule(jitter=0.0, backoff=3.0, max_backoff=20.0)) == 12
    assert feedback.pause(None, PauseRule(jitter=0.0, backoff=3.0, max_backoff=20.0)) == 20
    feedback.streak = 2
    # Milliseconds are too short for a pause.
    assert feedback.pause(0.0, PauseRule(jitter=0.0)) == 2
    assert feedback.pause(0.099, PauseRule(jitter=0.0)) == 4
    assert feedback.pause(0.099, PauseRule(jitter=0.0, backoff=0.001, max_backoff=0.01)) == 0.099
    feedback.streak = 10_000  # more doublings than a float has room for
    assert feedback.pause(None, PauseRule(jitter=0.0)) == 30


def test_learned_values_count_for_ten_minutes() -> None:
    throttled = Feedback()
    assert not throttled.is_needed
    throttled.streak = 1
    rate = Feedback(rate=RateControl(AdaptiveRate(10, 1, 100)))
    slots = Feedback(slots=SlotsControl(AdaptiveConcurrency(4, 1, 100)))
    for feedback in (throttled, rate, slots):
        assert feedback.is_needed
        feedback.reported_at = 100.0
        assert not feedback.is_forgettable(699.9)
        assert feedback.is_forgettable(700.0)


def test_restart_forgets_learned_values() -> None:
    rate = RateControl(AdaptiveRate(10, 1, 100))
    slots = SlotsControl(AdaptiveConcurrency(4, 1, 100))
    rate.state.rate, slots.state.limit = 5.0, 9.0
    feedback = Feedback(rate, slots)
    feedback.reported_at = 100.0
    feedback.restart()
    assert feedback.rate is not None
    assert (feedback.rate.state.rate, slots.state.limit, feedback.reported_at) == (10, 4, 0)
    Feedback().restart()


def test_success_sent_after_the_pause_ends_the_streak() -> None:
    feedback = Feedback()
    feedback.streak = 3
    feedback.succeeded(5.0, 4.0, 1.0, in_flight=1, paused_at=4.0, own=True)
    assert (feedback.streak, feedback.reported_at) == (3, 5.0)
    feedback.succeeded(6.0, 4.5, 1.0, in_flight=1, paused_at=4.0, own=True)
    assert (feedback.streak, feedback.reported_at) == (0, 6.0)
    throttle(feedback, 7.0, 6.0)
    assert feedback.reported_at == 7.0
