"""How much a line asks a store for in one call, and how far ahead."""

import math
from dataclasses import dataclass
from typing import Any, Self

from aiothrottle.algorithms import AllOf
from aiothrottle.algorithms.algorithm import Algorithm

__all__ = ["Pace"]

# One call asks for as many as go in so many seconds, and for this number at the most.
_SECONDS_PER_CALL, _MOST_PER_CALL = 0.03, 1024
# Seconds ahead. Enough for sixteen processes that have reserved one each, the first of them when
# all is spent: with less they would be refused in turns, and ask again.
_PROCESSES = 16
_LEAST_HORIZON, _MOST_HORIZON = 0.2, 60.0
# Slots are leased for those who go in so many seconds, or within the horizon if that is less: a
# slot and then a token take two calls, and the network may be slow.
_SECONDS_OF_SLOTS = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """What follows from the rate.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> Pace.of(SlidingWindowLog("1000/s"), horizon=None)
    Pace(batch=30, horizon=1.016, soon=500)
    """

    #: So many costs are in a call at the most.
    batch: int
    #: Seconds ahead for which is reserved.
    horizon: float
    #: So many slots are leased at the most, where all processes share them.
    soon: int

    @classmethod
    def of(cls, algorithm: Algorithm[Any], horizon: float | None) -> Self:
        """Find out what suits the algorithm; the horizon may be given."""
        interval = _interval(algorithm)
        batch = int(min(max(1.0, _SECONDS_PER_CALL / interval), _MOST_PER_CALL))
        if horizon is None:
            horizon = _wait_when_spent(algorithm) + _PROCESSES * interval
            horizon = min(max(_LEAST_HORIZON, horizon), _MOST_HORIZON)
        if (
            algorithm.longest_wait < math.inf
        ):  # all are asked for at once: who gets no instant is refused
            batch, horizon = _MOST_PER_CALL, algorithm.longest_wait
        seconds = min(horizon, _SECONDS_OF_SLOTS)
        return cls(batch, horizon, int(min(max(1.0, seconds / interval), _MOST_PER_CALL)))


def _interval(algorithm: Algorithm[Any]) -> float:
    """Seconds between two tokens, on average, at the pace of the fastest limit."""
    algorithms = algorithm.algorithms if isinstance(algorithm, AllOf) else (algorithm,)
    return min(_drained_in(algorithm) / algorithm.capacity for algorithm in algorithms)


def _wait_when_spent(algorithm: Algorithm[Any]) -> float:
    """Seconds until one more may go, when all that may has gone."""
    state = algorithm.start()
    algorithm.take(state, 0.0, algorithm.capacity)
    return algorithm.delay(state, 0.0, min(1.0, algorithm.capacity))


def _drained_in(algorithm: Algorithm[Any]) -> float:
    state = algorithm.start()
    algorithm.take(state, 0.0, algorithm.capacity)
    return algorithm.reset_after(state, 0.0)
