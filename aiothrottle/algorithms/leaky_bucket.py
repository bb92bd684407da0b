"""The leaky bucket: what goes is evenly spaced, on a schedule that no late timer shifts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiothrottle.algorithms.algorithm import (
    Algorithm,
    drained_in,
    dump_instant,
    given_back,
    load_instant,
    put_in,
    until,
)
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["LeakyBucket", "LeakyBucketState"]

# Seconds. An event loop's timer is late by about one millisecond.
_TOLERANCE = 0.002
# Parts of a token: what rounding may add.
_ROUNDING = 1e-9
_KIND = 0x31


@dataclass(slots=True)
class LeakyBucketState:
    """The instant of the schedule at which the next token is due."""

    empty_at: float = -math.inf


@dataclass(frozen=True, slots=True, init=False)
class LeakyBucket(Algorithm[LeakyBucketState]):
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
    _interval: float = field(repr=False, compare=False)
    _most: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike) -> None:
        rate = as_rate(rate)
        interval = rate.period / rate.limit
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", rate)
        set_field(self, "_interval", interval)
        set_field(self, "_most", _TOLERANCE + _ROUNDING * interval)

    @property
    def capacity(self) -> float:
        """The limit, in tokens, and at least 1."""
        return max(1, self.rate.limit)

    def start(self) -> LeakyBucketState:
        """Give a schedule on which nothing is due."""
        return LeakyBucketState()

    def delay(self, state: LeakyBucketState, now: float, cost: float) -> float:
        """Seconds until the next token is due in 2 ms."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: LeakyBucketState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the one after the `ahead` is due in 2 ms."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        return drained_in(state.empty_at, now, ahead * self._interval, _TOLERANCE, self._most)

    def take(self, state: LeakyBucketState, now: float, cost: float) -> None:
        """Occupy `cost` places of the schedule."""
        if cost:
            state.empty_at = max(state.empty_at, now) + cost * self._interval

    def allowance(self, state: LeakyBucketState, now: float, most: int) -> int:
        """So many as are due within 2 ms from now: later there are only more."""
        ahead = max(0.0, state.empty_at - now)
        due = (self._most - ahead) / self._interval + 1 if ahead <= self._most else 0
        return int(min(most, due))

    def take_each(self, state: LeakyBucketState, instants: Sequence[float]) -> None:
        """Occupy a place of the schedule for each of the instants."""
        state.empty_at = put_in(state.empty_at, instants, self._interval)

    def remaining(self, state: LeakyBucketState, now: float) -> float:
        """All or nothing: the next cost may go, of whatever size, or it may not."""
        return 0.0 if self.delay(state, now, 1) > 0.0 else self.capacity

    def used(self, state: LeakyBucketState, now: float) -> float:
        """Places of the schedule that have not come yet."""
        return max(0.0, state.empty_at - now) / self._interval

    def reset_after(self, state: LeakyBucketState, now: float) -> float:
        """Seconds until the schedule is used up."""
        return until(state.empty_at, now)

    def refund(self, state: LeakyBucketState, now: float, cost: float, at: float) -> None:
        """Clear places of the schedule that have not come yet."""
        spent = cost * self._interval
        state.empty_at = given_back(state.empty_at, now, spent, at, spent + self._most)

    def dump(self, state: LeakyBucketState) -> bytes:
        """Write the one instant."""
        return dump_instant(_KIND, state.empty_at)

    def load(self, data: bytes) -> LeakyBucketState:
        """Read the one instant."""
        return LeakyBucketState(load_instant(_KIND, data, "LeakyBucket"))
