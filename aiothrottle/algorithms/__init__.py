"""How a rate is enforced: one pure algorithm per file, with state and time as arguments."""

from aiothrottle.algorithms.all_of import AllOf
from aiothrottle.algorithms.cooldown import Cooldown
from aiothrottle.algorithms.fixed_window import FixedWindow
from aiothrottle.algorithms.leaky_bucket import LeakyBucket
from aiothrottle.algorithms.per_resource import PerResource
from aiothrottle.algorithms.protocol import (
    Algorithm,
    SupportsBatches,
    SupportsInherit,
    SupportsMaxWait,
    SupportsRate,
    SupportsRefund,
    SupportsStorage,
)
from aiothrottle.algorithms.sliding_window_counter import SlidingWindowCounter
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
from aiothrottle.algorithms.token_bucket import TokenBucket
from aiothrottle.algorithms.unlimited import Unlimited
from aiothrottle.algorithms.wait_until import WaitUntil
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
