"""How many tokens one call to a store asks for, and how far ahead."""

import math
from dataclasses import dataclass
from typing import Any, Self

from aiothrottle.algorithms import AllOf
from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.algorithms.protocol import Algorithm

__all__ = ["MOST_AHEAD", "Batching"]

# One call asks for the tokens of so many seconds, and for this number at the most.
_SECONDS_PER_CALL, _MOST_PER_CALL = 0.03, 1024
# Seconds ahead. Enough for sixteen processes that have reserved one token each, the first of them
# when all is spent: with less they would be rejected in turns, and ask again.
_PROCESSES = 16
_LEAST_AHEAD = 0.2
#: Seconds ahead of which tokens are reserved, at the most, unless the user gives more.
MOST_AHEAD = 60.0
# Slots are leased for the requests of so many seconds, or of `max_reservation` if that is less: a
# slot and then a token take two calls, and the network may be slow.
_SECONDS_OF_SLOTS = 0.5


@dataclass(frozen=True, slots=True)
class Batching:
    """The sizes of calls, which follow from the rate.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> Batching.of(SlidingWindowLog("1000/s"), max_reservation=None)
    Batching(batch=30, max_reservation=1.016, soon=500)
    """

    #: The most costs in one call.
    batch: int
    #: Seconds ahead of which tokens are reserved, at the most.
    max_reservation: float
    #: The most slots to lease, where all processes share them.
    soon: int

    @classmethod
    def of(cls, algorithm: Algorithm[Any], max_reservation: float | None) -> Self:
        """Return the sizes that suit the algorithm.

        Args:
            algorithm: The algorithm that decides in the store.
            max_reservation: Seconds, as the user gives them; None: what suits.
        """
        interval = _interval(algorithm)
        batch = int(min(max(1.0, _SECONDS_PER_CALL / interval), _MOST_PER_CALL))
        if max_wait(algorithm) < math.inf:
            # The algorithm limits how long a request waits. A little less, so that the store does
            # not count a rejection of a waiter that it has accepted before.
            max_reservation = math.nextafter(max_wait(algorithm), 0.0)
        elif max_reservation is None:
            max_reservation = _wait_when_spent(algorithm) + _PROCESSES * interval
            max_reservation = min(max(_LEAST_AHEAD, max_reservation), MOST_AHEAD)
        seconds = min(max_reservation, _SECONDS_OF_SLOTS)
        return cls(batch, max_reservation, int(min(max(1.0, seconds / interval), _MOST_PER_CALL)))


def _interval(algorithm: Algorithm[Any]) -> float:
    """Seconds between two tokens, on average, at the pace of the fastest limit."""
    algorithms = algorithm.algorithms if isinstance(algorithm, AllOf) else (algorithm,)
    return min(_drained_in(algorithm) / algorithm.capacity for algorithm in algorithms)


def _wait_when_spent(algorithm: Algorithm[Any]) -> float:
    """Seconds until one more token can be taken, once all have been."""
    state = algorithm.start()
    algorithm.take(state, 0.0, algorithm.capacity)
    return algorithm.delay(state, 0.0, min(1.0, algorithm.capacity))


def _drained_in(algorithm: Algorithm[Any]) -> float:
    """Seconds until the algorithm has forgotten all of its capacity."""
    state = algorithm.start()
    algorithm.take(state, 0.0, algorithm.capacity)
    return algorithm.reset_after(state, 0.0)
