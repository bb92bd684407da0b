"""Charges of a request after its start: its final cost, and the refund of what it did not need.

Invariant: each token is refunded at the instant at which it was charged, so each window gets back
what was taken from it.
"""

from typing import TYPE_CHECKING

from aiothrottle.amounts import common

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
    charges, kept = waiter.later_charges or [], list[tuple[float, float]]()
    while charges and cost:
        at, charged = charges.pop()
        if back := common(charged, cost):
            bucket.refund(now, back, at)
            cost -= back
        if rest := charged - back:  # of other resources, or the charge was greater
            kept.append((at, rest))
    charges += reversed(kept)
    if cost:
        bucket.refund(now, cost, waiter.at)
