"""The bound of a learned burst, which stands beside the algorithm of the bucket."""

import math

import pytest

from aiothrottle import RateLimiter, events
from aiothrottle._core.bucket import BurstBound
from aiothrottle._core.feedback import Change
from aiothrottle.algorithms import amounts


def test_smaller_burst_forgives_what_the_server_accepted_but_no_debt() -> None:
    bound = BurstBound(1.0, 500, 500, interval=3.6)
    assert bound.delay(1.0, 1) == pytest.approx(3.6)
    assert bound.changed(1.0, 250, 3.6).delay(1.0, 1) == pytest.approx(3.6)
    larger = bound.changed(1.0, 1000, 3.6)
    assert larger.startable(1.0, 1000) == 500
    bound = BurstBound(0.0, 0, 4, interval=0.1)
    assert bound.delay(0.0, 20) == 0.0  # a heavy cost
    bound.take(0.0, 20)
    assert bound.delay(0.0, 1) == pytest.approx(1.7)
    assert bound.changed(0.0, 2, 0.1).delay(0.0, 1) == pytest.approx(1.7)


def test_burst_of_one_is_evenly_spaced_and_refunded() -> None:
    bound = BurstBound(0.0, 0, 1, interval=0.25)
    for at in (0.0, 0.25, 0.5):
        assert bound.delay(at, 1) == 0.0
        bound.take(at, 1)
        assert bound.delay(at, 1) == 0.25
        assert bound.startable(at, 9) == 0
    assert bound.delay(0.5, 1, ahead=2) == 0.75
    bound.refund(0.5, 1, 0.5)
    assert (bound.delay(0.5, 1), bound.startable(0.5, 9)) == (0.0, 1)


def test_of_several_resources_only_the_requests_count() -> None:
    bound = BurstBound(0.0, 0, 1, interval=0.25)
    bound.take(0.0, amounts({"requests": 1.0, "tokens": 7.0}))
    tokens = amounts({"tokens": 7.0})
    bound.take(0.0, tokens)
    assert (bound.delay(0.0, tokens), bound.delay(0.0, 1)) == (0.0, 0.25)
    assert bound.delay(0.0, 1, ahead=2.0 + tokens) == 0.75


def test_learned_rate_ends_the_bound_whatever_changes_with_it() -> None:
    limiter, seen = RateLimiter("10/s", burst=4), list[events.Event]()
    limiter.observe(seen.append)
    adaptation = limiter._engine.adaptation
    changes = [Change("rate", 5.0, math.inf), Change("burst", 1.0, 4.0), Change("guard", 0.1, 0.0)]
    assert adaptation.apply(tuple(changes))
    assert adaptation.bucket.bound is None
    assert limiter.statistics().rate_limit == 5.0
    assert [it.what for it in seen if isinstance(it, events.Adapted)] == ["rate"]
