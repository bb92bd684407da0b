"""The leaky bucket: what goes is evenly spaced, on a schedule that no late timer shifts."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.level import ROUNDING, Draining, Level
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["LeakyBucket"]

# Seconds. An event loop's timer is late by about one millisecond.
_TOLERANCE = 0.002


@dataclass(frozen=True, slots=True, init=False)
class LeakyBucket(Draining):
    """Evenly spaced: never more than ``rate * 2 ms + 1`` ahead of the even schedule.

    The generic cell rate algorithm (ITU-T I.371) with a tolerance of 2 ms, whatever the cost: with
    T = period / limit, and the next token due at `e`, a cost c may go at `now` if
    ``e - 2 ms <= now``, and the next is then due at ``max(e, now) + c * T``. So the schedule is
    absolute: who is late by less than 2 ms, since timers are, takes nothing from those behind.
    In any time t there go at most ``rate * (t + 2 ms)`` tokens, and the last cost. A heavy cost
    keeps those behind it waiting, not itself.

    Args:
        rate: Tokens per second, a string or a `Rate`.

    Raises:
        TypeError: `rate` is of a kind that is no rate.
        ValueError: `rate` is out of range.

    >>> bucket = LeakyBucket("10/s")
    >>> state = bucket.start()
    >>> [bucket.admit(state, now, 1) for now in (0.0, 0.09, 0.0985, 0.1985)]
    [True, False, True, True]
    """

    rate: Rate
    _kind: ClassVar[int] = 0x31
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)
    _brim: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike) -> None:
        rate = as_rate(rate)
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", rate)
        set_field(self, "_limit", float(rate.limit))
        set_field(self, "_period", float(rate.period))
        set_field(self, "_brim", _TOLERANCE * rate.limit / rate.period)

    @property
    def capacity(self) -> float:
        """The limit, in tokens, and at least 1."""
        return max(1, self.rate.limit)

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until the one after the `ahead` is due in 2 ms."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        return state.fits_in(now, ahead, self._brim, self._limit, self._period)

    def allowance(self, state: Level, now: float, most: int) -> int:
        """So many as are due within 2 ms from now: later there are only more."""
        left = self._brim + ROUNDING - self.used(state, now)
        return int(min(most, left + 1)) if left >= 0.0 else 0

    def remaining(self, state: Level, now: float) -> float:
        """All or nothing: the next cost may go, of whatever size, or it may not."""
        return 0.0 if self.delay(state, now, 1) > 0.0 else self.capacity
