"""The numbers of a law, as `laws.lua` reads them."""

import math
from collections.abc import Callable
from typing import Any

from aiothrottle.algorithms import (
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    RollingWindow,
    SlidingWindow,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.algorithm import Algorithm
from aiothrottle.algorithms.level import Draining

__all__ = ["numbers_of"]

_LEVEL, _ROLLING, _FIXED, _SLIDING = 1, 2, 3, 4


def _token_bucket(law: TokenBucket) -> list[float]:
    return _level(law, law.burst, 1, law.burst)


def _leaky_bucket(law: LeakyBucket) -> list[float]:
    return _level(law, law.capacity, 0, law._brim, whole=1)


def _wait_until(law: WaitUntil) -> list[float]:
    return _level(law, law.capacity, 0, 0, top=law.capacity, whole=1, last_only=1)


def _cooldown(law: Cooldown) -> list[float]:
    return _level(law, law.n, 1, law.n)


def _level(
    law: Draining,
    capacity: float,
    own: float,
    brim: float,
    *,
    top: float = math.inf,
    whole: float = 0,
    last_only: float = 0,
) -> list[float]:
    rate = (law._limit, law._period)
    return [_LEVEL, *rate, capacity, own, brim, top, whole, last_only]


def _rolling_window(law: RollingWindow) -> list[float]:
    return [_ROLLING, law._limit, law._period, law._rounding]


def _fixed_window(law: FixedWindow) -> list[float]:
    return [_FIXED, law._limit, law._period, law._rounding]


def _sliding_window(law: SlidingWindow) -> list[float]:
    return [_SLIDING, law._limit, law._width, law._rounding, law.buckets]


_PORTED: dict[type[Any], Callable[[Any], list[float]]] = {
    TokenBucket: _token_bucket,
    LeakyBucket: _leaky_bucket,
    WaitUntil: _wait_until,
    Cooldown: _cooldown,
    RollingWindow: _rolling_window,
    FixedWindow: _fixed_window,
    SlidingWindow: _sliding_window,
    Unlimited: lambda _: [],
}


def numbers_of(algorithm: Algorithm[Any]) -> list[float] | None:
    """Give the numbers of the algorithm, several limits at once too; None if the script has none.

    It has none of a law of somebody's own, also not of one that is derived from one of these.
    """
    numbers: list[float] = [float(type(algorithm) is AllOf)]
    for law in algorithm.algorithms if type(algorithm) is AllOf else (algorithm,):
        ported = _PORTED.get(type(law))
        if ported is None:
            return None
        numbers += ported(law)
    return numbers
