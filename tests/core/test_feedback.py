"""Feedback: how long a pause is, and for how long what was learned counts."""

from typing import Any

from aiothrottle import AdaptiveConcurrency, AdaptiveRate
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.feedback import Feedback, PauseRule, RateControl, SlotsControl
from aiothrottle.algorithms import Unlimited


def test_pause_is_bounded_whatever_the_streak_and_the_wait() -> None:
    feedback, exact = Feedback(), PauseRule(jitter=0.0)
    feedback.streak = 10_000  # more doublings than a float has room for
    assert feedback.pause(None, exact) == 30.0
    short = PauseRule(jitter=0.0, backoff=0.001, max_backoff=0.01)
    assert feedback.pause(0.099, short) == 0.099  # milliseconds, but longer than the backoff


def test_first_pause_is_short_where_a_short_one_was_enough() -> None:
    """Three intervals of the learned rate; the next ones are the usual ones."""
    bucket, exact = LocalBucket(Unlimited(), float), PauseRule(jitter=0.0)

    def pauses(feedback: Feedback, count: int, now: float) -> list[float]:
        seconds = [feedback.pause(None, exact) for _ in range(count)]
        feedback.succeeded(now, now, 1.0, 1, now - 1.0, True, bucket)
        return seconds

    learned, unknown = Feedback(rate=RateControl(AdaptiveRate(50, 1, 100))), Feedback()
    assert [pauses(learned, count, now) for now, count in enumerate([1, 3, 1, 1])] == [
        [0.5],
        [0.06, 0.5, 1.0],
        [0.5],  # the short one was not enough
        [0.06],
    ]
    assert [pauses(unknown, 1, float(now)) for now in range(3)] == [[0.5]] * 3
    # Of a slow rate the next token comes later than half a second.
    slow = Feedback(rate=RateControl(AdaptiveRate(0.4, 0.1, 1)))
    assert [pauses(slow, count, now) for now, count in enumerate([4, 1])] == [
        [0.5, 2.5, 5.0, 10.0],
        [0.5],
    ]


def test_learned_values_count_for_ten_minutes() -> None:
    throttled = Feedback()
    assert not throttled.is_needed
    throttled.streak = 1
    with_rate = Feedback(rate=RateControl(AdaptiveRate(10, 1, 100)))
    with_slots = Feedback(slots=SlotsControl(AdaptiveConcurrency(4, 1, 100)))
    for feedback in (throttled, with_rate, with_slots):
        assert feedback.is_needed
        feedback.reported_at = 100.0
        assert not feedback.is_forgettable(699.9)
        assert feedback.is_forgettable(700.0)
        feedback.failed(650.0, 649.0)  # an error is a report too
        assert not feedback.is_forgettable(700.0)


def test_another_clock_voids_the_failures() -> None:
    failures: Any = object()
    feedback = Feedback(silent=failures)
    feedback.restart()
    assert not feedback.is_needed
