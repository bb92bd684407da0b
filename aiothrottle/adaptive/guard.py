"""The guard that tunes itself: as long as deliveries spread."""

import math
from dataclasses import dataclass, field

from aiothrottle.adaptive.extremes import Extremes

__all__ = ["SelfTuningGuard"]

# Responses of which the spread is taken.
_LAST = 500
# The spread of a few is smaller than that of many: so much is added, divided by their number.
_FEW = 3.0
# Longer than this part of the period, or so many seconds, it is hardly the network that is slow:
# some answers are. So it takes a tenth of the limit at the most; and once the server has refused in
# spite of that, a fifth: it may be so many times as long then.
_LONGEST, _LONGEST_SECONDS, _IF_REFUSED = 1 / 9, 1.0, 9 / 4
# A guard that is so much too long is not worth a change. Nor is each microsecond that it is too
# short: it is a whole number of these parts of the period.
_WORTH, _STEP, _ROUNDING = 0.1, 0.001, 1e-9


@dataclass(slots=True)
class SelfTuningGuard:
    """Measures how much the round trips differ, and gives the guard that makes up for it.

    A request arrives at the server at some time between its sending and its response. So two that
    were sent a period apart arrive at least ``period - spread`` apart, where the spread is the
    longest round trip less the shortest: a period that is stretched by as much is never too short,
    as long as no round trip is longer or shorter than those seen.

    The round trip is all that a client sees, and in it is the time that the server took to answer.
    So what is beyond a second, or a ninth of the period, is left out, until the server refuses in
    spite of that.

    Args:
        period: Seconds, the shortest of the periods that it guards: it is never longer than a
            ninth of that, nor than a second; than a quarter, and 2.25 s, once that was not enough.

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
    # The longest that it may be, in seconds.
    _most: float = field(init=False)

    def __post_init__(self) -> None:
        self._most = self._longest

    def with_period(self, period: float) -> "SelfTuningGuard":
        """Give the guard of another period: what was measured of the network holds for it too."""
        other = SelfTuningGuard(period, _times=self._times)
        other._follow()
        return other

    def observe(self, round_trip: float) -> bool:
        """Take down how long a request took until its response; tell whether the guard changed."""
        times = self._times
        # Most lie between those seen. What is added for a few is looked at when they are doubled.
        if not times.add(round_trip) and times.count & (times.count - 1):
            return False
        return self._follow()

    def refused(self) -> bool:
        """Hear that the server has refused a request; tell whether the guard changed."""
        if self.seconds < self._most:
            return False  # it is not for what was left out
        self._most = _IF_REFUSED * self._longest
        return self._follow()

    @property
    def _longest(self) -> float:
        return min(_LONGEST * self.period, _LONGEST_SECONDS)

    def _follow(self) -> bool:
        times = self._times
        if times.count < 2:
            return False
        wanted = times.spread * (1.0 + _FEW / times.count)
        step = self.period * _STEP
        wanted = min(math.ceil(wanted / step - _ROUNDING) * step, self._most)
        if self.seconds * (1.0 - _WORTH) <= wanted <= self.seconds:
            return False
        self.seconds = wanted
        return True
