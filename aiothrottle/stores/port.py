"""The numbers of an algorithm, as `algorithms.lua` reads them."""

import math
from collections.abc import Callable
from typing import Any

from aiothrottle.algorithms import (
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.draining import Draining
from aiothrottle.algorithms.protocol import Algorithm

__all__ = ["numbers_of"]

_LEVEL, _ROLLING, _FIXED, _SLIDING = 1, 2, 3, 4


def _token_bucket(algorithm: TokenBucket) -> list[float]:
    return _level(algorithm, algorithm.burst, 1, algorithm.burst)


def _leaky_bucket(algorithm: LeakyBucket) -> list[float]:
    return _level(algorithm, algorithm.capacity, 0, algorithm._brim, whole=1)


def _wait_until(algorithm: WaitUntil) -> list[float]:
    return _level(algorithm, algorithm.capacity, 0, 0, top=algorithm.capacity, whole=1, last_only=1)


def _cooldown(algorithm: Cooldown) -> list[float]:
    return _level(algorithm, algorithm.n, 1, algorithm.n)


def _level(
    algorithm: Draining,
    capacity: float,
    own: float,
    brim: float,
    *,
    top: float = math.inf,
    whole: float = 0,
    last_only: float = 0,
) -> list[float]:
    rate = (algorithm._limit, algorithm._period)
    return [_LEVEL, *rate, capacity, own, brim, top, whole, last_only]


def _sliding_window_log(algorithm: SlidingWindowLog) -> list[float]:
    return [_ROLLING, algorithm._limit, algorithm._period, algorithm._rounding]


def _fixed_window(algorithm: FixedWindow) -> list[float]:
    return [_FIXED, algorithm._limit, algorithm._period, algorithm._rounding]


def _sliding_window_counter(algorithm: SlidingWindowCounter) -> list[float]:
    return [_SLIDING, algorithm._limit, algorithm._width, algorithm._rounding, algorithm.buckets]


_PORTED: dict[type[Any], Callable[[Any], list[float]]] = {
    TokenBucket: _token_bucket,
    LeakyBucket: _leaky_bucket,
    WaitUntil: _wait_until,
    Cooldown: _cooldown,
    SlidingWindowLog: _sliding_window_log,
    FixedWindow: _fixed_window,
    SlidingWindowCounter: _sliding_window_counter,
    Unlimited: lambda _: [],
}


def numbers_of(algorithm: Algorithm[Any]) -> list[float] | None:
    """Give the numbers of the algorithm, several limits at once too; None if the script has none.

    It has none of an algorithm of somebody's own, also not of one that is derived from one of
    these.
    """
    numbers: list[float] = [float(type(algorithm) is AllOf)]
    for part in algorithm.algorithms if type(algorithm) is AllOf else (algorithm,):
        ported = _PORTED.get(type(part))
        if ported is None:
            return None
        numbers += ported(part)
    return numbers
