"""The cool-down: a score that each hit raises and time lowers, under a ceiling.

The generic cell rate algorithm (ITU-T I.371), told as a score.
"""

import math
from dataclasses import dataclass, field

from aiothrottle.algorithms.algorithm import (
    Algorithm,
    drained_in,
    dump_instant,
    given_back,
    load_instant,
    until,
)
from aiothrottle.rate import Rate

__all__ = ["Cooldown", "CooldownState"]

# Three thirds add up to a little less or more than one: no part of a hit.
_ROUNDING = 1e-9
_KIND = 0x71


@dataclass(slots=True)
class CooldownState:
    """The score: an instant, and the seconds that it is ahead of now are what there is to cool."""

    score: float = -math.inf


@dataclass(frozen=True, slots=True, init=False)
class Cooldown(Algorithm[CooldownState]):
    """`n` per period as a burst, n/period on average; a refused hit changes nothing.

    The score limiter: each hit raises the score by ``step = period / n`` seconds, and a hit is
    allowed as soon as ``max(score, now) + step <= now + period``. That is `TokenBucket` with a
    burst of `n`, told as an instant that is ahead of now; `delay` says for how long the refusal
    holds. It carries its own numbers and needs no rate beside it.

    Args:
        n: Hits that may go at once, 1 or more.
        period: Seconds in which `n` hits have cooled.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range.

    >>> cooldown = Cooldown(3, 60)
    >>> state = cooldown.start()
    >>> [cooldown.admit(state, 0.0, 1) for _ in range(4)], state.score
    ([True, True, True, False], 60.0)
    >>> cooldown.delay(state, 0.0, 1)
    20.0
    """

    n: float
    period: float
    _step: float = field(repr=False, compare=False)
    _most: float = field(repr=False, compare=False)

    def __init__(self, n: float, period: float) -> None:
        rate = Rate(n, period)  # refuses what is no number
        if n < 1:
            raise ValueError(f"a Cooldown allows 1 or more per period, not {n!r}")
        set_field = object.__setattr__  # frozen
        set_field(self, "n", rate.limit)
        set_field(self, "period", rate.period)
        set_field(self, "_step", period / n)
        set_field(self, "_most", period + _ROUNDING * self._step)

    @property
    def capacity(self) -> float:
        """The hits that may go at once."""
        return self.n

    def start(self) -> CooldownState:
        """Give a score that is cool."""
        return CooldownState()

    def delay(self, state: CooldownState, now: float, cost: float) -> float:
        """Seconds until the score has cooled so far that `cost` steps stay under the ceiling."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: CooldownState, now: float, cost: float, ahead: float) -> float:
        """Seconds until both stay under the ceiling, one after the other."""
        if cost > self.n:
            return math.inf
        if cost == 0:
            return 0.0
        spent = (ahead + cost) * self._step
        return drained_in(state.score, now, spent, self.period, self._most)

    def take(self, state: CooldownState, now: float, cost: float) -> None:
        """Raise the score by `cost` steps."""
        if cost:
            state.score = max(state.score, now) + cost * self._step

    def allowance(self, state: CooldownState, now: float, most: int) -> int:
        """So many as stay under the ceiling now: later there are only more."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: CooldownState, now: float) -> float:
        """Hits that stay under the ceiling now."""
        return max(0.0, self.n - self.used(state, now))

    def used(self, state: CooldownState, now: float) -> float:
        """Hits that the score is ahead."""
        return max(0.0, state.score - now) / self._step

    def reset_after(self, state: CooldownState, now: float) -> float:
        """Seconds until the score is cool."""
        return until(state.score, now)

    def refund(self, state: CooldownState, now: float, cost: float, at: float) -> None:
        """Lower the score by what cannot have cooled since."""
        state.score = given_back(state.score, now, cost * self._step, at, self.period)

    def dump(self, state: CooldownState) -> bytes:
        """Write the score."""
        return dump_instant(_KIND, state.score)

    def load(self, data: bytes) -> CooldownState:
        """Read the score."""
        return CooldownState(load_instant(_KIND, data, "Cooldown"))
