"""The leaky bucket: requests are evenly spaced, on a schedule that no late timer shifts."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.draining import Draining
from aiothrottle.algorithms.level import ROUNDING, Level, LevelConstants
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["LeakyBucket"]

# Seconds. An event loop's timer is late by about one millisecond.
_TOLERANCE = 0.002


@dataclass(frozen=True, slots=True, init=False)
class LeakyBucket(Draining):
    """Evenly spaced: never more than ``rate * 2 ms + 1`` ahead of the even schedule.

    The generic cell rate algorithm (ITU-T I.371) with a tolerance of 2 ms, whatever the cost: with
    T = period / limit, and the next token due at `e`, a cost c can be taken at `now` if
    ``e - 2 ms <= now``, and the next is then due at ``max(e, now) + c * T``. So the schedule is
    absolute: a request that is late by less than 2 ms, as timers are, does not delay the next one.
    In any time t at most ``rate * (t + 2 ms)`` tokens are taken, and the last cost. A heavy cost
    delays the requests behind it, not itself.

    Args:
        rate: Tokens per second, a string or a `Rate`.

    Raises:
        TypeError: `rate` is of a kind that is not a rate.
        ValueError: `rate` is out of range.

    >>> bucket = LeakyBucket("10/s")
    >>> state = bucket.start()
    >>> bucket.take(state, now=0.0, cost=1)
    >>> [round(bucket.delay(state, now, cost=1), 3) for now in (0.0, 0.09, 0.0985)]
    [0.098, 0.008, 0.0]
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
        return self.rate.in_whole_tokens.limit

    def constants(self) -> LevelConstants:
        """Return the numbers by which a port of the algorithm decides to the last bit alike."""
        return LevelConstants(
            self._limit, self._period, self.capacity, own_room=0, brim=self._brim, all_or_nothing=1
        )

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until the token after the `ahead` is due in 2 ms."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        return state.fits_in(now, ahead, self._brim, self._limit, self._period)

    def allowance(self, state: Level, now: float, most: int) -> int:
        """Return how many are due within 2 ms from now: later there are only more."""
        left = self._brim + ROUNDING - self.used(state, now)
        return int(min(most, left + 1)) if left >= 0.0 else 0

    def remaining(self, state: Level, now: float) -> float:
        """All or nothing: the next cost can be taken, of whatever size, or it cannot."""
        return 0.0 if self.delay(state, now, 1) > 0.0 else self.capacity
