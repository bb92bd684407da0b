"""How a rate is enforced: pure algorithms, with state and time as arguments."""

from aiothrottle.algorithms.buckets import Cooldown, LeakyBucket, TokenBucket, WaitUntil
from aiothrottle.algorithms.composite import AllOf, PerResource, Unlimited
from aiothrottle.algorithms.protocol import (
    Algorithm,
    SupportsBatches,
    SupportsInherit,
    SupportsMaxWait,
    SupportsRate,
    SupportsRefund,
    SupportsStorage,
)
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
from aiothrottle.algorithms.windows import FixedWindow, SlidingWindowCounter
from aiothrottle.amounts import Amounts, amounts

__all__ = [
    "Algorithm",
    "AllOf",
    "Amounts",
    "Cooldown",
    "FixedWindow",
    "LeakyBucket",
    "PerResource",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "SupportsBatches",
    "SupportsInherit",
    "SupportsMaxWait",
    "SupportsRate",
    "SupportsRefund",
    "SupportsStorage",
    "TokenBucket",
    "Unlimited",
    "WaitUntil",
    "amounts",
]
