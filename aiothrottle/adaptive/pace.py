"""The even pace of an adaptive rate: an algorithm whose rate is part of its state."""

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
    """Tokens per second, and the tokens that are not due yet."""

    rate: float
    level: Level = field(default_factory=Level)


@dataclass(frozen=True, slots=True)
class Pace:
    """Evenly spaced, as `LeakyBucket` does it, at a rate that changes all the time.

    Args:
        initial: Tokens per second, at first.
        most: The greatest cost of one request. It keeps those behind it waiting, not itself.

    >>> pace = Pace(initial=2.0, most=10.0)
    >>> state = pace.start()
    >>> pace.admit(state, now=0.0, cost=1), pace.delay(state, now=0.0, cost=1)
    (True, 0.498)
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
        """Give a schedule on which nothing is due."""
        return PaceState(self.initial)

    def follow(self, state: PaceState, now: float, rate: float) -> None:
        """Go on at another rate: what is due later is due so much sooner, or later still."""
        state.level.put_in(now, 0.0, state.rate, 1.0)  # until now it drained at the old one
        state.rate = rate

    def delay(self, state: PaceState, now: float, cost: float) -> float:
        """Seconds until the next token is due in 2 ms."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: PaceState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the one after the `ahead` is due in 2 ms."""
        if cost > self.most:
            return math.inf
        if cost == 0:
            return 0.0
        return state.level.fits_in(now, ahead, _TOLERANCE * state.rate, state.rate, 1.0)

    def take(self, state: PaceState, now: float, cost: float) -> None:
        """Occupy `cost` places of the schedule."""
        if cost:
            state.level.put_in(now, cost, state.rate, 1.0)

    def allowance(self, state: PaceState, now: float, most: int) -> int:
        """So many as are due within 2 ms from now: later there are only more."""
        brim = _TOLERANCE * state.rate + ROUNDING
        left = brim - state.level.tokens_at(now, state.rate, 1.0)
        return int(min(most, left + 1)) if left >= 0.0 else 0

    def take_each(self, state: PaceState, instants: Sequence[float]) -> None:
        """Occupy a place of the schedule for each of the instants."""
        state.level.put_in_each(instants, state.rate, 1.0)

    def remaining(self, state: PaceState, now: float) -> float:
        """All or nothing: the next cost may go, of whatever size, or it may not."""
        return 0.0 if self.delay(state, now, 1) > 0.0 else self.capacity

    def reset_after(self, state: PaceState, now: float) -> float:
        """Seconds until the schedule is used up."""
        return state.level.empty_in(now, state.rate, 1.0)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> PaceState:  # noqa: ARG002
        """Begin a schedule: what went under another algorithm delays no more than one token."""
        fresh = self.start()
        fresh.level.put_in(now, 1.0, fresh.rate, 1.0)
        return fresh

    def refund(self, state: PaceState, now: float, cost: float, at: float) -> None:
        """Clear places of the schedule that have not come yet."""
        state.level.take_out(now, cost, at, state.rate, 1.0)
