"""Stay under the limits of the APIs you call: rate and concurrency limiting for asyncio."""

from typing import TYPE_CHECKING

from aiothrottle._lazy import lazily

if TYPE_CHECKING:
    from aiothrottle.adaptive import AdaptiveConcurrency as AdaptiveConcurrency
    from aiothrottle.adaptive import AdaptiveRate as AdaptiveRate
    from aiothrottle.adaptive import AdaptiveThrottling as AdaptiveThrottling
    from aiothrottle.algorithms import Cooldown as Cooldown
    from aiothrottle.algorithms import FixedWindow as FixedWindow
    from aiothrottle.algorithms import LeakyBucket as LeakyBucket
    from aiothrottle.algorithms import SlidingWindowCounter as SlidingWindowCounter
    from aiothrottle.algorithms import SlidingWindowLog as SlidingWindowLog
    from aiothrottle.algorithms import TokenBucket as TokenBucket
    from aiothrottle.algorithms import WaitUntil as WaitUntil
    from aiothrottle.amounts import Resource as Resource
    from aiothrottle.errors import AttemptThrottled as AttemptThrottled
    from aiothrottle.errors import CostTooHigh as CostTooHigh
    from aiothrottle.errors import LimiterClosed as LimiterClosed
    from aiothrottle.errors import QueueFull as QueueFull
    from aiothrottle.errors import RequestDropped as RequestDropped
    from aiothrottle.errors import StoreUnavailable as StoreUnavailable
    from aiothrottle.errors import ThrottleError as ThrottleError
    from aiothrottle.errors import ThrottleTimeout as ThrottleTimeout
    from aiothrottle.keyed import KeyedRateLimiter as KeyedRateLimiter
    from aiothrottle.limiter import RateLimiter as RateLimiter
    from aiothrottle.per_loop import PerLoop as PerLoop
    from aiothrottle.permit import Decision as Decision
    from aiothrottle.permit import Permit as Permit
    from aiothrottle.rate import Rate as Rate
    from aiothrottle.retry import Retry as Retry
    from aiothrottle.retry import RetryBudget as RetryBudget
    from aiothrottle.statistics import Statistics as Statistics
    from aiothrottle.stores.store import SharedConcurrency as SharedConcurrency
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

__version__ = "0.1.0"
