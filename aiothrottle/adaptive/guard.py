"""The guard that tunes itself: a margin as long as the spread of the round trips."""

import math
from dataclasses import dataclass, field

from aiothrottle.adaptive.extremes import Extremes

__all__ = ["SelfTuningGuard"]

# Responses of which the spread is taken.
_LAST = 500
# The spread of a few is smaller than that of many: so much is added, divided by their number.
_FEW = 3.0
# Beyond this part of the period, or so many seconds, it is hardly the network that is slow, but
# some responses. So the guard costs at most a tenth of the limit; where that is not enough, so many
# times as much for each step by which it is widened: a seventh, then a fifth.
_LONGEST, _LONGEST_SECONDS, _WIDER = 1 / 9, 1.0, 1.5
# The same where requests are evenly spaced: there each late timer costs a part of the limit too.
_LONGEST_EVEN = 1 / 14
# A guard that is so much too long is not worth a change; nor is one that is a microsecond too
# short: it is a whole number of these steps, in parts of the period.
_WORTH, _STEP, _ROUNDING = 0.1, 0.001, 1e-9


@dataclass(slots=True)
class SelfTuningGuard:
    """Measures how much the round trips differ, and derives the guard that makes up for it.

    A request arrives at the server at some time between its sending and its response. So two that
    were sent a period apart arrive at least ``period - spread`` apart, where the spread is the
    longest round trip less the shortest: a period that is stretched by as much is never too short,
    as long as no round trip is longer or shorter than those seen.

    The round trip is all that a client sees, and it includes the time that the server took to
    answer. So what is beyond a second, or a ninth of the period, is ignored, until the guard is
    widened.

    Args:
        period: Seconds, the shortest of the periods that it guards. The guard is never longer than
            a ninth of that, nor than a second; widened twice, a quarter, and 2.25 s.

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
    # In how many intervals of a period the spread counts, and the bounds of the guard, in seconds.
    _intervals: float = 1.0
    _least: float = 0.0
    _most: float = field(init=False)

    def __post_init__(self) -> None:
        self.space(1.0, 0)

    def with_period(self, period: float) -> "SelfTuningGuard":
        """Return the guard for another period, with what was measured of the network.

        Args:
            period: Seconds; see `period`.
        """
        other = SelfTuningGuard(period, _times=self._times)
        other._follow()
        return other

    def observe(self, round_trip: float) -> bool:
        """Record a round trip, and return whether the guard changed.

        Args:
            round_trip: Seconds from sending a request to its response.
        """
        times = self._times
        # Most lie between the extremes. The addition for a few is revised when they have doubled.
        if not times.add(round_trip) and times.count & (times.count - 1):
            return False
        return self._follow()

    def space(self, intervals: float, steps: int) -> bool:
        """Guard so many intervals of each period, and widen the guard; return whether it changed.

        Args:
            intervals: 1 where requests may be sent in bursts, and the limit where they are evenly
                spaced: then the spread shortens each of the intervals.
            steps: 0, or 1 or 2 where a shorter guard was not enough: then it is at least as long as
                the longest of one step less.
        """
        part = _LONGEST if intervals == 1.0 else _LONGEST_EVEN
        longest = min(part * self.period, _LONGEST_SECONDS * intervals)
        self._intervals = intervals
        self._least = longest * _WIDER ** (steps - 1) if steps else 0.0
        self._most = longest * _WIDER**steps
        return self._follow()

    def begin_long(self) -> None:
        """Begin with the longest guard of all, until the spread is known.

        The first request opens a connection, and arrives later than those after it.
        """
        self.seconds = self._most * _WIDER**2

    def _follow(self) -> bool:
        times, wanted = self._times, self.seconds
        if times.count >= 2:
            wanted = self._intervals * times.spread * (1.0 + _FEW / times.count)
            step = self.period * _STEP
            wanted = min(math.ceil(wanted / step - _ROUNDING) * step, self._most)
        wanted = max(self._least, wanted)
        if self.seconds * (1.0 - _WORTH) <= wanted <= self.seconds:
            return False
        self.seconds = wanted
        return True
