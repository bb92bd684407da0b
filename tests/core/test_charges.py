"""Charges after the start: each token is refunded at the instant at which it was charged."""

from aiothrottle import SlidingWindowLog
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.charges import charge_more, refund
from aiothrottle._core.wait_queue import Waiter


def started(cost: float, at: float) -> tuple[LocalBucket, Waiter]:
    bucket = LocalBucket(SlidingWindowLog("10/s"), lambda: 0.0)
    waiter = Waiter(cost)
    waiter.at = at
    bucket.take(at, cost)
    return bucket, waiter


def test_later_charges_are_refunded_first() -> None:
    bucket, waiter = started(4.0, at=0.0)
    charge_more(bucket, waiter, 0.5, 3.0)
    refund(bucket, waiter, 0.6, 2.0)
    assert bucket.remaining(0.6) == 5.0
    assert bucket.remaining(1.0) == 9.0  # the 4 of the start have left; 1 of the later 3 remains
    assert waiter.later_charges == [(0.5, 1.0)]


def test_refund_beyond_the_later_charges_is_of_the_start() -> None:
    bucket, waiter = started(4.0, at=0.0)
    charge_more(bucket, waiter, 0.5, 3.0)
    refund(bucket, waiter, 0.6, 5.0)
    assert waiter.later_charges == []
    assert bucket.remaining(0.6) == 8.0
    assert bucket.remaining(1.0) == 10.0


def test_refund_after_its_period_changes_nothing() -> None:
    bucket, waiter = started(4.0, at=0.0)
    bucket.take(1.0, 1.0)
    refund(bucket, waiter, 1.5, 4.0)
    assert bucket.remaining(1.5) == 9.0
