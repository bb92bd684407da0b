"""Stay under the limits of the APIs you call: rate and concurrency limiting for asyncio."""

from aiothrottle.adaptive import AdaptiveConcurrency, AdaptiveRate, AdaptiveThrottling
from aiothrottle.algorithms import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.decision import Decision
from aiothrottle.errors import (
    AttemptThrottled,
    CostTooHigh,
    LimiterClosed,
    QueueFull,
    RequestDropped,
    StoreUnavailable,
    ThrottleError,
    ThrottleTimeout,
)
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate
from aiothrottle.resource import Resource
from aiothrottle.retry import Retry, RetryBudget
from aiothrottle.statistics import Statistics
from aiothrottle.stores.shared_concurrency import SharedConcurrency

__all__ = [
    "AdaptiveConcurrency",
    "AdaptiveRate",
    "AdaptiveThrottling",
    "AttemptThrottled",
    "Cooldown",
    "CostTooHigh",
    "Decision",
    "FixedWindow",
    "KeyedRateLimiter",
    "LeakyBucket",
    "LimiterClosed",
    "Permit",
    "QueueFull",
    "Rate",
    "RateLimiter",
    "RequestDropped",
    "Resource",
    "Retry",
    "RetryBudget",
    "SharedConcurrency",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "Statistics",
    "StoreUnavailable",
    "ThrottleError",
    "ThrottleTimeout",
    "TokenBucket",
    "WaitUntil",
]

__version__ = "0.1.0"
