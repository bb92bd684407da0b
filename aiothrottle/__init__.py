"""Stay under the limits of the APIs you call: rate and concurrency limiting for asyncio."""

from typing import TYPE_CHECKING

from aiothrottle._lazy import lazily

if TYPE_CHECKING:
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
    from aiothrottle.amounts import Resource
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
    from aiothrottle.per_loop import PerLoop
    from aiothrottle.permit import Decision, Permit
    from aiothrottle.rate import Rate
    from aiothrottle.retry import Retry, RetryBudget
    from aiothrottle.statistics import Statistics
    from aiothrottle.stores.store import SharedConcurrency
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "adaptive": "AdaptiveConcurrency AdaptiveRate AdaptiveThrottling",
            "algorithms": "Cooldown FixedWindow LeakyBucket SlidingWindowCounter SlidingWindowLog "
            "TokenBucket WaitUntil",
            "amounts": "Resource",
            "errors": "AttemptThrottled CostTooHigh LimiterClosed QueueFull RequestDropped "
            "StoreUnavailable ThrottleError ThrottleTimeout",
            "keyed": "KeyedRateLimiter",
            "limiter": "RateLimiter",
            "per_loop": "PerLoop",
            "permit": "Decision Permit",
            "rate": "Rate",
            "retry": "Retry RetryBudget",
            "statistics": "Statistics",
            "stores.store": "SharedConcurrency",
        },
    )

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
    "PerLoop",
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
