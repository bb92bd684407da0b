"""The even spacing of an adaptive rate: an algorithm whose rate is part of its state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiothrottle.algorithms.level import ROUNDING, Level
from aiothrottle.algorithms.protocol import Algorithm

__all__ = ["Pace", "PaceState"]

# Seconds. An event loop's timer is late by about one millisecond.
_TOLERANCE = 0.002


@dataclass(slots=True)
class PaceState:
    """The rate, in tokens per second, and the tokens that are not due yet."""

    rate: float
    level: Level = field(default_factory=Level)


@dataclass(frozen=True, slots=True)
class Pace:
    """Evenly spaced, as `LeakyBucket` does it, at a rate that changes all the time.

    Args:
        initial: Tokens per second, at first.
        most: The greatest cost of one request. It delays the requests behind it, not itself.

    >>> pace = Pace(initial=2.0, most=10.0)
    >>> state = pace.start()
    >>> pace.take(state, now=0.0, cost=1)
    >>> pace.delay(state, now=0.0, cost=1)
    0.498
    >>> pace.follow(state, now=0.0, rate=4.0)
    >>> pace.delay(state, now=0.0, cost=1)
    0.248
    """

    initial: float
    most: float

    @property
    def capacity(self) -> float:
        """The greatest cost of one request."""
        return self.most

    def start(self) -> PaceState:
        """Return an empty schedule."""
        return PaceState(self.initial)

    def follow(self, state: PaceState, now: float, rate: float) -> None:
        """Continue at another rate: what is due later is due sooner, or later, in proportion."""
        state.level.put_in(now, 0.0, state.rate, 1.0)  # until now it drained at the old one
        state.rate = rate

    def delay(self, state: PaceState, now: float, cost: float) -> float:
        """Seconds until the next token is due in 2 ms."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: PaceState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the token after the `ahead` is due in 2 ms."""
        if cost > self.most:
            return math.inf
        if cost == 0:
            return 0.0
        return state.level.fits_in(now, ahead, _TOLERANCE * state.rate, state.rate, 1.0)

    def take(self, state: PaceState, now: float, cost: float) -> None:
        """Occupy `cost` intervals of the schedule."""
        if cost:
            state.level.put_in(now, cost, state.rate, 1.0)

    def allowance(self, state: PaceState, now: float, most: int) -> int:
        """Return how many are due within 2 ms from now: later there are only more."""
        brim = _TOLERANCE * state.rate + ROUNDING
        left = brim - state.level.tokens_at(now, state.rate, 1.0)
        return int(min(most, left + 1)) if left >= 0.0 else 0

    def take_each(self, state: PaceState, timestamps: Sequence[float]) -> None:
        """Occupy an interval of the schedule for each of the timestamps."""
        state.level.put_in_each(timestamps, state.rate, 1.0)

    def remaining(self, state: PaceState, now: float) -> float:
        """All or nothing: the next cost can be taken, of whatever size, or it cannot."""
        return 0.0 if self.delay(state, now, 1) > 0.0 else self.capacity

    def reset_after(self, state: PaceState, now: float) -> float:
        """Seconds until the schedule is used up."""
        return state.level.empty_in(now, state.rate, 1.0)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> PaceState:  # noqa: ARG002
        """Return a new schedule: what was taken under `old` delays by no more than one token."""
        fresh = self.start()
        fresh.level.put_in(now, 1.0, fresh.rate, 1.0)
        return fresh

    def refund(self, state: PaceState, now: float, cost: float, at: float) -> None:
        """Free intervals of the schedule that have not come yet."""
        state.level.take_out(now, cost, at, state.rate, 1.0)
