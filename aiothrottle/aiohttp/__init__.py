"""aiohttp, throttled: a session, and middlewares, that wait for a limiter, hold a slot and retry.

The session waits before it calls `ClientSession.request`, outside of all its timeouts: use it where
you can. The middlewares are for libraries that require a genuine `aiohttp.ClientSession`.
"""

from aiothrottle._http.options import MiddlewareOptions, RetryOptions, SessionOptions
from aiothrottle.aiohttp.middleware import (
    RetryMiddleware,
    ThrottleMiddleware,
    throttled_middlewares,
    throttled_session,
)
from aiothrottle.aiohttp.session import ThrottledSession
from aiothrottle.retry import Retry, RetryBudget

__all__ = [
    "MiddlewareOptions",
    "Retry",
    "RetryBudget",
    "RetryMiddleware",
    "RetryOptions",
    "SessionOptions",
    "ThrottleMiddleware",
    "ThrottledSession",
    "throttled_middlewares",
    "throttled_session",
]
