"""Feedback: how long a pause is, and for how long what was learned counts."""

import random
from typing import Any

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate
from aiothrottle._core.feedback import Feedback, PauseRule, RateControl, SlotsControl


def test_pause_doubles_up_to_its_bound_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    feedback = Feedback()
    exact, long = PauseRule(jitter=0.0), PauseRule(jitter=0.0, backoff=3.0, max_backoff=20.0)
    pauses = [feedback.pause(None, exact) for _ in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    for streak, seconds, rule, pause in [
        (8, 2.0, PauseRule(), 2.1),
        (8, 100.0, PauseRule(), 100.5),  # by a second at the most
        (8, 0.1, exact, 0.1),
        (8, 0.1, PauseRule(0.0, 0.05), 0.05),
        (8, 3599.9, PauseRule(), 3600.0),
        (8, 5000.0, PauseRule(), 3600.0),
        (2, None, long, 12),
        (3, None, long, 20),
        (2, 0.0, exact, 2),  # milliseconds are too short for a pause
        (3, 0.099, exact, 4),
        (4, 0.099, PauseRule(jitter=0.0, backoff=0.001, max_backoff=0.01), 0.099),
        (10_000, None, exact, 30),  # more doublings than a float has room for
    ]:
        feedback.streak = streak
        assert feedback.pause(seconds, rule) == pause
        assert feedback.streak == streak + 1


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
