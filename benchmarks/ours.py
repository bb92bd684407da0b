"""Our own algorithms as contestants: rate and concurrency set, as users have them."""

import importlib
from collections.abc import Callable
from typing import Any

from contestant import Contestant, Made, MadeForKey
from promises import Bucket, Window

from aiothrottle import RateLimiter, TokenBucket

__all__ = ["OURS", "bucket", "keyed", "keyed_limiter", "paced", "window", "window_burst_1"]

# The lateness of a timer that an evenly paced algorithm makes up for.
_MADE_UP = 0.002


def _concurrency(rate: int) -> int:
    """Return a number of slots that never binds."""
    return max(1000, rate // 10)


def window(rate: int, burst: int) -> Contestant | None:
    """Never more than the rate in any second: the default."""
    if burst != rate:
        return None
    return Made(RateLimiter(rate, concurrency_limit=_concurrency(rate)).throttle, Window(rate))


def bucket(rate: int, burst: int) -> Contestant:
    """At most burst + rate * t in any time t."""
    limiter = RateLimiter(
        rate, concurrency_limit=_concurrency(rate), algorithm=TokenBucket(burst=burst)
    )
    return Made(limiter.throttle, Bucket(rate, burst))


def paced(rate: int, burst: int) -> Contestant | None:
    """Evenly spaced on an absolute schedule; a late timer is made up for within 2 ms."""
    algorithm = getattr(importlib.import_module("aiothrottle.algorithms"), "LeakyBucket", None)
    if burst != 1 or algorithm is None:
        return None
    limiter = RateLimiter(rate, concurrency_limit=_concurrency(rate), algorithm=algorithm)
    return Made(limiter.throttle, Bucket(rate, 1 + rate * _MADE_UP))


def window_burst_1(rate: int, burst: int) -> Contestant | None:
    """Never more than the rate in any second, paced too: `RateLimiter(rate, burst=1)`."""
    if burst != 1:
        return None
    limiter = RateLimiter(rate, concurrency_limit=_concurrency(rate), burst=1)
    return Made(limiter.throttle, Bucket(rate, 1))


def keyed_limiter(rate: Any, concurrency: int) -> Any | None:  # noqa: ANN401
    """Return a limiter of many keys, where there is one."""
    kind = getattr(importlib.import_module("aiothrottle"), "KeyedRateLimiter", None)
    return None if kind is None else kind(rate, concurrency_limit=concurrency)


def keyed(rate: Any, key: str = "key") -> Contestant | None:  # noqa: ANN401
    """Return one key of many that exists already."""
    limiter = keyed_limiter(rate, 1000)
    return None if limiter is None else MadeForKey(limiter.throttle, key)


OURS: dict[str, Callable[[int, int], Contestant | None]] = {
    "SlidingWindowLog": window,
    "TokenBucket": bucket,
    "LeakyBucket": paced,
    "SlidingWindowLog, burst=1": window_burst_1,
}
