"""Stay under the limits of the APIs you call: rate and concurrency limiting for asyncio."""

from aiothrottle.algorithms import RollingWindow, TokenBucket
from aiothrottle.decision import Decision
from aiothrottle.errors import CostTooHigh, LimiterClosed, ThrottleError
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate

__all__ = [
    "CostTooHigh",
    "Decision",
    "LimiterClosed",
    "Permit",
    "Rate",
    "RateLimiter",
    "RollingWindow",
    "ThrottleError",
    "TokenBucket",
]

__version__ = "0.1.0"
