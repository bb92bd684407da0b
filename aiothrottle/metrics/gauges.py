"""Gauges: the present state of limiters, for metrics. Read-only, so any thread may call them."""

from collections.abc import Callable, Hashable
from typing import TypeAlias

from aiothrottle._checks import check_whole, shown
from aiothrottle._core.engine import Engine
from aiothrottle.keyed import AnyLimiter, check_limiter, engine_of, engines_of
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate

Gauge: TypeAlias = Callable[[AnyLimiter], float | None]


def check(limiter: object, name: object = "", keys: object = 0) -> None:
    """Check a limiter, its name, and the number of keys with a series of their own."""
    check_limiter(limiter)
    if not isinstance(name, str):
        raise TypeError(f"the name of a limiter must be a string, got {shown(name)}")
    check_whole("keys", keys, "keys with labels of their own", least=0)


def in_flight(limiter: AnyLimiter) -> int:
    """Return how many permits are held, for all keys together."""
    return sum(engine.in_flight for engine in engines_of(limiter))


def waiting(limiter: AnyLimiter) -> int:
    """Return how many requests wait, for all keys together."""
    return sum(engine.waiting for engine in engines_of(limiter))


def store_answers(limiter: AnyLimiter, key: Hashable) -> bool:
    """Return whether the store answers this process, and serves the requests of a key."""
    engine = engine_of(limiter, key)
    if engine is None or not engine.store_up:
        return False
    return not any(caller.part.outage.health.failures for caller in engine.callers)


def concurrency_limit(limiter: AnyLimiter) -> int | None:
    """Return the concurrency limit; None: there is no limit, or one for each key."""
    engine = _only(limiter)
    return None if engine is None else engine.semaphore.limit


def paused_for(limiter: AnyLimiter) -> float:
    """Return the seconds until the pause ends; 0.0 with keys, each of which has its own pause."""
    engine = _only(limiter)
    return 0.0 if engine is None else engine.pause.left(engine.bucket.clock())


def paused(limiter: AnyLimiter) -> int:
    """Return how many keys are paused; of a limiter without keys 1 or 0."""
    return sum(engine.pause.left(engine.bucket.clock()) > 0 for engine in engines_of(limiter))


def rates(limiter: AnyLimiter) -> tuple[Rate, ...]:
    """Return the rates in force: given, reported by the server or adaptive; without the guard.

    Of a limiter with resources, those of requests.

    Empty with keys, each of which has its own rates.

    >>> rates(RateLimiter(["10/s", "500/min"], burst=2))
    (Rate(limit=10.0, period=1.0), Rate(limit=500.0, period=60.0))
    """
    engine = _only(limiter)
    return () if engine is None else engine.adaptation.rates()


def tokens_per_second(limiter: AnyLimiter) -> float | None:
    """Return the average rate that all rates allow; None: there are no rates."""
    return min((rate.limit / rate.period for rate in rates(limiter)), default=None)


def _only(limiter: AnyLimiter) -> Engine | None:
    """Return the engine of a limiter without keys."""
    return engines_of(limiter)[0] if isinstance(limiter, RateLimiter) else None
