"""The fixed window: so many per period of the calendar, counted from zero in each.

The counter of most servers, as the documentation of Redis has it under INCR ("Pattern: Rate
limiter 1").
"""

import math
import struct
from dataclasses import dataclass, field

from aiothrottle.algorithms.algorithm import Algorithm, check_dumped, edge, unpack, until
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["FixedWindow", "FixedWindowState"]

# Sums of fractional costs are off by some units in the last place: no part of a token.
_ROUNDING = 1e-9
_KIND = 0x41
_DUMP = struct.Struct("<Bdd")


@dataclass(slots=True)
class FixedWindowState:
    """Which period is counted, and the tokens that went in it."""

    index: float = -math.inf
    count: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class FixedWindow(Algorithm[FixedWindowState]):
    """N per period of the calendar; up to 2N in less than a period, around an edge.

    The periods are aligned to the zero of the clock: an instant is in period
    ``floor(instant / period)``, so with a wall clock a minute begins when the clock says so. That
    is how many servers count; where it is not known when their periods begin, use
    `SlidingWindowLog`. A clock that steps back stays in the later period.

    Args:
        rate: Tokens per period: a number per second, a string or a `Rate`. Below one token per
            period it is one token in as much more time.

    Raises:
        TypeError: `rate` is of a kind that is no rate.
        ValueError: `rate` is out of range.

    >>> window = FixedWindow("2/s")
    >>> state = window.start()
    >>> [window.admit(state, now, 1) for now in (0.9, 0.9, 0.9, 1.0, 1.0)]
    [True, True, False, True, True]
    """

    rate: Rate
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)
    _rounding: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike) -> None:
        rate = as_rate(rate)
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", rate)
        set_field(self, "_limit", max(1, rate.limit))
        set_field(self, "_period", rate.period / min(1, rate.limit))
        set_field(self, "_rounding", min(0.001, self._limit * _ROUNDING))

    @property
    def capacity(self) -> float:
        """The limit, in tokens."""
        return self._limit

    def start(self) -> FixedWindowState:
        """Give a count of zero, of no period."""
        return FixedWindowState()

    def delay(self, state: FixedWindowState, now: float, cost: float) -> float:
        """Seconds until the next period, if this one has no room for `cost`."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: FixedWindowState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the first period that has room for it when those ahead have gone."""
        if cost > self._limit:
            return math.inf
        if cost == 0:
            return 0.0
        index, count = self._seen(state, now)
        wanted = ahead + cost - self._rounding
        free = max(0.0, self._limit - count)
        if wanted <= free:
            return 0.0
        # All that this period has no room for, a whole limit in each of the next.
        periods = max(1, math.ceil((wanted - free) / self._limit))
        return until(edge(index + periods, self._period), now)

    def take(self, state: FixedWindowState, now: float, cost: float) -> None:
        """Count `cost`."""
        if cost:
            index, count = self._seen(state, now)
            state.index, state.count = index, count + cost

    def allowance(self, state: FixedWindowState, now: float, most: int) -> int:
        """What this period has left: those that go in later ones leave room here."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: FixedWindowState, now: float) -> float:
        """What this period has left."""
        return max(0.0, self._limit - self.used(state, now))

    def used(self, state: FixedWindowState, now: float) -> float:
        """What this period has counted."""
        return self._seen(state, now)[1]

    def reset_after(self, state: FixedWindowState, now: float) -> float:
        """Seconds until the next period, if anything is counted in this one."""
        index, count = self._seen(state, now)
        return until(edge(index + 1, self._period), now) if count else 0.0

    def refund(self, state: FixedWindowState, now: float, cost: float, at: float) -> None:
        """Count `cost` off, if it was counted in the period that still is."""
        index, count = self._seen(state, now)
        if count and math.floor(at / self._period) == index:
            left = count - cost
            state.count = left if left > self._rounding else 0.0

    def dump(self, state: FixedWindowState) -> bytes:
        """Write the two numbers."""
        return _DUMP.pack(_KIND, state.index, state.count)

    def load(self, data: bytes) -> FixedWindowState:
        """Read the two numbers."""
        index, count = unpack(_DUMP, _KIND, data, "FixedWindow")
        check_dumped(index, "FixedWindow", fresh=True, whole=True)
        check_dumped(count, "FixedWindow", least=0.0)
        if count and index == -math.inf:
            raise ValueError("no dump of a FixedWindow: tokens without a period")
        return FixedWindowState(index, count)

    def _seen(self, state: FixedWindowState, now: float) -> tuple[float, float]:
        """Give the period that counts at `now`, and its count."""
        index = math.floor(now / self._period)
        return (index, 0.0) if index > state.index else (state.index, state.count)
