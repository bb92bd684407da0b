"""How long a call to a store takes.

Strategy. The shortest of the recent calls is the way to the store and back. The others took longer
because the machine, the store or this process was busy, or because they connected first.
"""

import math

__all__ = ["RoundTrip"]

# Calls after which the shortest of them counts, also if it is longer than the one before.
_CALLS = 8
# Seconds. A shorter round trip needs no care: the tokens of one call last for several.
_NEAR = 0.005
# Seconds. It is rounded up to a multiple of this, so that it seldom changes.
_STEP = 0.001


class RoundTrip:
    """The round trip to one store, as one limiter measures it.

    >>> round_trip = RoundTrip()
    >>> [round_trip.note(seconds) for seconds in (0.3, 0.1, 0.2)]
    [True, True, False]
    >>> round_trip.seconds
    0.1
    >>> round_trip.note(0.001), round_trip.seconds
    (True, 0.0)
    """

    __slots__ = ("_calls", "_shortest", "seconds")

    def __init__(self) -> None:
        #: Seconds; 0.0 if the store is near, and before the first call.
        self.seconds: float = 0.0
        self._shortest = math.inf
        # The first call counts at once.
        self._calls = _CALLS - 1

    def note(self, seconds: float) -> bool:
        """Record a call, in seconds; return whether the round trip has changed."""
        self._shortest = min(self._shortest, seconds)
        self._calls += 1
        before = self.seconds
        shortest = 0.0
        if self._shortest > _NEAR:
            shortest = math.ceil(self._shortest / _STEP - _STEP) * _STEP
        if self._calls >= _CALLS:
            self.seconds, self._shortest, self._calls = shortest, math.inf, 0
        else:
            self.seconds = min(before, shortest)
        return self.seconds != before
