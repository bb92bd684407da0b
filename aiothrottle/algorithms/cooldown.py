"""The cool-down: a score that each hit raises and time lowers, under a ceiling.

The generic cell rate algorithm (ITU-T I.371), told as a score.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.level import Draining, Level
from aiothrottle.rate import Rate

__all__ = ["Cooldown"]


@dataclass(frozen=True, slots=True, init=False)
class Cooldown(Draining):
    """`n` per period as a burst, n/period on average; a refused hit changes nothing.

    The score limiter: each hit raises the score by one, time lowers it by `n` per period, and a hit
    is allowed as soon as ``score + 1 <= n``. That is `TokenBucket` with a burst of `n`; `delay`
    says for how long the refusal holds. It carries its own numbers and needs no rate beside it.

    Args:
        n: Hits that may go at once, 1 or more.
        period: Seconds in which `n` hits have cooled.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range.

    >>> cooldown = Cooldown(3, 60)
    >>> state = cooldown.start()
    >>> [cooldown.admit(state, 0.0, 1) for _ in range(4)], cooldown.used(state, 0.0)
    ([True, True, True, False], 3.0)
    >>> cooldown.delay(state, 0.0, 1)
    20.0
    """

    n: float
    period: float
    _kind: ClassVar[int] = 0x71
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)

    def __init__(self, n: float, period: float) -> None:
        rate = Rate(n, period)  # refuses what is no number
        if n < 1:
            raise ValueError(f"a Cooldown allows 1 or more per period, not {n!r}")
        set_field = object.__setattr__  # frozen
        set_field(self, "n", rate.limit)
        set_field(self, "period", rate.period)
        set_field(self, "_limit", float(rate.limit))
        set_field(self, "_period", float(rate.period))

    @property
    def capacity(self) -> float:
        """The hits that may go at once."""
        return self.n

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until both stay under the ceiling, one after the other."""
        if cost > self.n:
            return math.inf
        if cost == 0:
            return 0.0
        return state.fits_in(now, ahead + cost, self.n, self._limit, self._period)

    def allowance(self, state: Level, now: float, most: int) -> int:
        """So many as stay under the ceiling now: later there are only more."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: Level, now: float) -> float:
        """Hits that stay under the ceiling now."""
        return max(0.0, self.n - self.used(state, now))
