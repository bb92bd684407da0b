"""How many tokens one call to a store asks for, and how far ahead."""

import math
from dataclasses import dataclass
from typing import Any, Self

from aiothrottle.algorithms import AllOf, PerResource
from aiothrottle.algorithms.protocol import Algorithm, memory_of
from aiothrottle.amounts import REQUESTS

# One call asks for the tokens of so many seconds, and for this number at the most.
_SECONDS_PER_CALL, _MOST_PER_CALL = 0.03, 1024
# Seconds ahead. Enough for sixteen processes that have reserved one token each, the first of them
# when all is spent: with less they would be rejected in turns, and ask again.
_PROCESSES = 16
_LEAST_AHEAD = 0.2
# Where tokens come back at any time: that part of the time until a spent limit has another token,
# and seconds at the most. Nobody is granted an earlier instant than one that is reserved, so what
# comes back is of no use before the last of these.
_PART_AHEAD, _MOST_AHEAD_OF_REFUNDS = 0.1, 1.0
#: Seconds ahead of which tokens are reserved, at the most, unless the user gives more.
MOST_AHEAD = 60.0
# Round trips by which a far store is asked further ahead: what is reserved has to last for one, and
# what is asked for meanwhile begins where that ends.
_ROUND_TRIPS_AHEAD = 2
# Slots are leased for the requests of so many seconds, or of `max_reservation` if that is less: a
# slot and then a token take two calls, and the network may be slow.
_SECONDS_OF_SLOTS = 0.5


@dataclass(frozen=True, slots=True)
class Batching:
    """The sizes of calls, which follow from the rate and from how far away the store is.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> sizes = Batching.of(SlidingWindowLog("1000/s"), max_reservation=None)
    >>> sizes.batch, sizes.max_reservation, sizes.ahead_of_refunds
    (30, 1.016, 0.2)
    >>> sizes = Batching.of(SlidingWindowLog("1000/s"), max_reservation=None, round_trip=0.1)
    >>> sizes.batch, sizes.way, sizes.max_reservation, sizes.ahead_of_refunds
    (130, 100, 1.216, 0.4)
    """

    #: The most costs in one call, while enough is reserved to wait for its answer.
    batch: int
    #: The most tokens in one call, if that is more: a cost may take many of them.
    part: float
    #: The next call is made when no more tokens are left than these: they last for a round trip.
    low: float
    #: Tokens that pass in a round trip; 0 of a near store.
    way: int
    #: Seconds ahead of which tokens are reserved, at the most.
    max_reservation: float
    #: The same where requests often cost less than was charged, unless the user gives more.
    ahead_of_refunds: float
    #: The most slots to lease, where all processes share them.
    soon: int
    #: Seconds between two tokens, on average.
    interval: float

    @classmethod
    def of(
        cls, algorithm: Algorithm[Any], max_reservation: float | None, round_trip: float = 0.0
    ) -> Self:
        """Return the sizes that suit the algorithm.

        Args:
            algorithm: The algorithm that decides in the store.
            max_reservation: Seconds, if they are given; None: what suits.
            round_trip: Seconds that a call takes; 0.0 of a near store.
        """
        interval = _interval(algorithm)
        batch = int(min(max(1.0, _SECONDS_PER_CALL / interval), _MOST_PER_CALL))
        ahead_of_refunds = math.inf
        if max_reservation is None:
            for_calls, spent_for = _ROUND_TRIPS_AHEAD * round_trip, _wait_when_spent(algorithm)
            max_reservation = max(_LEAST_AHEAD, spent_for + _PROCESSES * interval)
            max_reservation = min(max_reservation + for_calls, MOST_AHEAD)
            ahead_of_refunds = max(_LEAST_AHEAD, _PART_AHEAD * spent_for)
            ahead_of_refunds = min(ahead_of_refunds, _MOST_AHEAD_OF_REFUNDS) + for_calls
        seconds = min(max_reservation, _SECONDS_OF_SLOTS)
        way = round_trip / interval
        return cls(
            batch=int(min(batch + round(way), _MOST_PER_CALL)),
            part=algorithm.capacity.real / _PROCESSES,
            low=min(batch / 2 + way, _MOST_PER_CALL - batch / 2),
            way=math.ceil(min(way, _MOST_PER_CALL)),
            max_reservation=max_reservation,
            ahead_of_refunds=min(max_reservation, ahead_of_refunds),
            soon=int(min(max(1.0, seconds / interval), _MOST_PER_CALL)),
            interval=interval,
        )

    def room(self, tokens: float) -> int:
        """Return the most costs to ask for while so many tokens are left.

        More than a batch if these do not last for the round trip: then the next call catches up.
        """
        return min(self.batch + max(0, self.way - int(tokens)), _MOST_PER_CALL)


def _interval(algorithm: Algorithm[Any]) -> float:
    """Seconds between two tokens, on average, at the pace of the fastest limit.

    With resources between two requests, as far as a limit of these tells.
    """
    if isinstance(algorithm, PerResource):
        limits = algorithm.by_resource
        names = [REQUESTS] if REQUESTS in limits else [*limits]
        return min(_interval(limits[name]) for name in names)
    algorithms = algorithm.algorithms if isinstance(algorithm, AllOf) else (algorithm,)
    return min(memory_of(algorithm) / algorithm.capacity for algorithm in algorithms)


def _wait_when_spent(algorithm: Algorithm[Any]) -> float:
    """Seconds until one more token can be taken, once all have been."""
    if isinstance(algorithm, PerResource):
        return max(map(_wait_when_spent, algorithm.by_resource.values()))
    state = algorithm.start()
    algorithm.take(state, 0.0, algorithm.capacity)
    return algorithm.delay(state, 0.0, min(1.0, algorithm.capacity))
