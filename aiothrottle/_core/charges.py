"""Charges of a request after its start: its final cost, and the refund of what it did not need.

Invariant: each token is refunded at the instant at which it was charged, so each window gets back
what was taken from it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.wait_queue import Waiter

__all__ = ["charge_more", "refund"]


def charge_more(bucket: "LocalBucket", waiter: "Waiter", now: float, cost: float) -> None:
    """Charge tokens in addition to those of the start."""
    bucket.charge(now, cost)
    waiter.later_charges = waiter.later_charges or []
    waiter.later_charges.append((now, cost))


def refund(bucket: "LocalBucket", waiter: "Waiter", now: float, cost: float) -> None:
    """Refund tokens, the last charge first."""
    charges = waiter.later_charges or []
    while charges and cost > 0:
        at, charged = charges.pop()
        back = min(charged, cost)
        bucket.refund(now, back, at)
        cost -= back
        if back < charged:
            charges.append((at, charged - back))
    if cost > 0:
        bucket.refund(now, cost, waiter.at)
