"""The cool-down: a score that each request raises and time lowers, under a ceiling.

The generic cell rate algorithm (ITU-T I.371), described as a score.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.draining import Draining
from aiothrottle.algorithms.level import Level, LevelConstants
from aiothrottle.rate import Rate

__all__ = ["Cooldown"]


@dataclass(frozen=True, slots=True, init=False)
class Cooldown(Draining):
    """`n` per period as a burst, n/period on average; a rejected request changes nothing.

    The score limiter: each request raises the score by its cost, time lowers it by `n` per period,
    and a cost can be taken as soon as ``score + cost <= n``. That is `TokenBucket` with a burst of
    `n`. It carries its own numbers and needs no rate beside it.

    Args:
        n: Tokens that can be taken at once, 1 or more.
        period: Seconds in which `n` tokens cool down.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range.

    >>> cooldown = Cooldown(3, 60)
    >>> state = cooldown.start()
    >>> cooldown.take(state, now=0.0, cost=3)
    >>> cooldown.used(state, now=0.0), cooldown.delay(state, now=0.0, cost=1)
    (3.0, 20.0)
    """

    n: float
    period: float
    _kind: ClassVar[int] = 0x71
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)

    def __init__(self, n: float, period: float) -> None:
        rate = Rate(n, period)  # checks both
        if n < 1:
            raise ValueError(f"n must be 1 or more per period, got {n!r}")
        set_field = object.__setattr__  # frozen
        set_field(self, "n", rate.limit)
        set_field(self, "period", rate.period)
        set_field(self, "_limit", float(rate.limit))
        set_field(self, "_period", float(rate.period))

    @property
    def capacity(self) -> float:
        """The tokens that can be taken at once."""
        return self.n

    def constants(self) -> LevelConstants:
        """Return the numbers by which a port of the algorithm decides to the last bit alike."""
        return LevelConstants(self._limit, self._period, self.n, own_room=1, brim=self.n)

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until both stay under the ceiling, one after the other."""
        if cost > self.n:
            return math.inf
        if cost == 0:
            return 0.0
        return state.fits_in(now, ahead + cost, self.n, self._limit, self._period)

    def allowance(self, state: Level, now: float, most: int) -> int:
        """Return how many stay under the ceiling now: later there is only more room."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: Level, now: float) -> float:
        """Tokens that stay under the ceiling now."""
        return max(0.0, self.n - self.used(state, now))
