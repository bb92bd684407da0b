"""How limiters stand at this moment. Reads, and changes nothing: any thread may ask."""

from typing import TypeAlias

from aiothrottle._core.engine import Engine
from aiothrottle.adaptive.pace import Pace
from aiothrottle.algorithms import AllOf
from aiothrottle.algorithms.reserved import Reserved
from aiothrottle.checks import check_whole
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.redact import shown

__all__ = [
    "AnyLimiter",
    "check",
    "concurrency_limit",
    "in_flight",
    "paused_for",
    "rates",
    "waiting",
]

AnyLimiter: TypeAlias = RateLimiter | KeyedRateLimiter


def check(limiter: object, name: object = "", keys: object = 0) -> None:
    """Refuse what is no limiter, no name of one, or no number of keys to tell apart."""
    if not isinstance(limiter, RateLimiter | KeyedRateLimiter):
        raise TypeError(f"limiter is a RateLimiter or a KeyedRateLimiter, not {shown(limiter)}")
    if not isinstance(name, str):
        raise TypeError(f"the name of a limiter is a text, not {shown(name)}")
    check_whole("keys", keys, "keys to tell apart", least=0)


def in_flight(limiter: AnyLimiter) -> int:
    """Tell how many permits are out, of all keys together."""
    return sum(engine.in_flight for engine in _engines(limiter))


def waiting(limiter: AnyLimiter) -> int:
    """Tell how many wait, for all keys together."""
    return sum(engine.waiting for engine in _engines(limiter))


def concurrency_limit(limiter: RateLimiter) -> int | None:
    """Tell how many permits may be out; None: there is no limit."""
    return limiter._engine.semaphore.limit


def paused_for(limiter: RateLimiter) -> float:
    """Tell how many seconds a pause goes on."""
    engine = limiter._engine
    return engine.pause.left(engine.bucket.clock())


def rates(limiter: RateLimiter) -> tuple[Rate, ...]:
    """Tell the rates that hold: given, announced or found by trying, and with the guard.

    >>> rates(RateLimiter(["10/s", "500/min"], burst=2))
    (Rate(limit=10.0, period=1.0), Rate(limit=500.0, period=60.0))
    """
    law, state = limiter._engine.bucket.own
    if isinstance(law, Pace):
        return (Rate(state.rate),)
    if isinstance(law, Reserved):
        law = law.law
    laws = law.algorithms if isinstance(law, AllOf) else (law,)
    found = (getattr(each, "rate", None) for each in laws)
    # A burst is a law with the rate of another one.
    return tuple(dict.fromkeys(rate for rate in found if isinstance(rate, Rate)))


def _engines(limiter: AnyLimiter) -> list[Engine]:
    if isinstance(limiter, RateLimiter):
        return [limiter._engine]
    # Those that are forgotten too, while somebody still holds a permit of them.
    alive = [known() for known in limiter._alive.valuerefs()]
    return [entry.engine for entry in alive if entry is not None]
