"""The guard that tunes itself: as long as deliveries spread."""

from dataclasses import dataclass, field

from aiothrottle.adaptive.extremes import Extremes

__all__ = ["SelfTuningGuard"]

# Responses of which the spread is taken.
_LAST = 500
# The spread of a few is smaller than that of many: so much is added, divided by their number.
_FEW = 3.0
# Longer than this part of the period it is not the network that is slow, but some answers are.
_LONGEST = 0.25
# A guard that is so much too long is not worth a change.
_WORTH = 0.1


@dataclass(slots=True)
class SelfTuningGuard:
    """Measures how much the round trips differ, and gives the guard that makes up for it.

    A request arrives at the server at some time between its sending and its response. So two that
    were sent a period apart arrive at least ``period - spread`` apart, where the spread is the
    longest round trip less the shortest: a period that is stretched by as much is never too short,
    as long as no round trip is longer or shorter than those seen.

    Args:
        period: Seconds, the shortest of the periods that it guards: it is never longer than a
            quarter of that.

    >>> guard = SelfTuningGuard(period=1.0)
    >>> guard.observe(0.100)
    False
    >>> guard.observe(0.112)
    True
    >>> round(guard.seconds, 3)
    0.03
    """

    period: float
    #: The guard, in seconds.
    seconds: float = 0.0
    _times: Extremes = field(default_factory=lambda: Extremes(_LAST))

    def observe(self, round_trip: float) -> bool:
        """Take down how long a request took until its response; tell whether the guard changed."""
        times = self._times
        times.add(max(0.0, round_trip))
        if times.count < 2:
            return False
        wanted = min(times.spread * (1.0 + _FEW / times.count), _LONGEST * self.period)
        if self.seconds * (1.0 - _WORTH) <= wanted <= self.seconds:
            return False
        self.seconds = wanted
        return True
