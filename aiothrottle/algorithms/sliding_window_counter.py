"""The sliding window: counters of short stretches of time, of which the last few are added up.

The fixed window with several counters; more of them come nearer to the log of `SlidingWindowLog`.
"""

import math
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from aiothrottle.algorithms.algorithm import (
    Algorithm,
    all_spent_now,
    check_dumped,
    edge,
    two_rates,
    unpack,
    until,
)
from aiothrottle.checks import check_whole
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["SlidingWindowCounter", "SlidingWindowCounterState"]

# Sums of fractional costs are off by some units in the last place: no part of a token.
_ROUNDING = 1e-9
_KIND = 0x51


@dataclass(slots=True)
class SlidingWindowCounterState:
    """The counters, oldest first, and which stretch of time the last one is of."""

    counts: deque[float]
    newest: float = -math.inf


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindowCounter(Algorithm[SlidingWindowCounterState]):
    """N per period, within an error of period/buckets; a handful of counters, however large N is.

    Time is cut into stretches of ``width = period / buckets``, aligned to the zero of the clock:
    an instant is in stretch ``floor(instant / width)``. What counts is what went in the present
    stretch and in the ``buckets - 1`` before it: all of the last ``period - width``, and nothing
    that is older than a period. So there never go more than N in any period that is shortened by
    one width, and a token comes back at most one width before its period is over, never after.
    With one bucket it is `FixedWindow`. A clock that steps back stays in the later stretch.

    Args:
        rate: Tokens per period: a number per second, a string or a `Rate`. Below one token per
            period it is one token in as much more time. May be left out where a `RateLimiter` has
            it: ``RateLimiter("10/s", algorithm=SlidingWindowCounter(buckets=20))``.
        buckets: Stretches in a period, 1 or more.

    Raises:
        TypeError: `rate` is of a kind that is no rate, or `buckets` is no whole number.
        ValueError: `rate` or `buckets` is out of range.

    >>> window = SlidingWindowCounter("2/s", buckets=4)
    >>> state = window.start()
    >>> [window.admit(state, now, 1) for now in (0.1, 0.6, 0.9, 1.0, 1.1, 1.5)]
    [True, True, False, True, False, True]
    """

    rate: Rate | None
    buckets: int
    _limit: float = field(repr=False, compare=False)
    _width: float = field(repr=False, compare=False)
    _rounding: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike | None = None, *, buckets: int = 10) -> None:
        check_whole("buckets", buckets)
        given = None if rate is None else as_rate(rate)
        limit = max(1, given.limit) if given else math.nan
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", given)
        set_field(self, "buckets", buckets)
        set_field(self, "_limit", limit)
        width = given.period / min(1, given.limit) / buckets if given else math.nan
        set_field(self, "_width", width)
        set_field(self, "_rounding", min(0.001, limit * _ROUNDING))

    def with_rate(self, rate: Rate) -> "SlidingWindowCounter":
        """Give the same algorithm at that rate, if it has none of its own yet."""
        if self.rate is not None:
            raise two_rates(rate, self)
        return SlidingWindowCounter(rate, buckets=self.buckets)

    @property
    def capacity(self) -> float:
        """The limit, in tokens."""
        return self._limit

    def start(self) -> SlidingWindowCounterState:
        """Give counters of zero."""
        if self.rate is None:
            raise ValueError(f"{self!r} has no rate: SlidingWindowCounter('10/s', buckets=10)")
        return SlidingWindowCounterState(deque([0.0] * self.buckets, self.buckets))

    def delay(self, state: SlidingWindowCounterState, now: float, cost: float) -> float:
        """Seconds until so many stretches are out that `cost` finds room."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(
        self, state: SlidingWindowCounterState, now: float, cost: float, ahead: float
    ) -> float:
        """Seconds until so many are out that it finds room when those ahead have gone."""
        if cost > self._limit:
            return math.inf
        if cost == 0:
            return 0.0
        # A whole limit in each period to come, and the rest in the first.
        turns = max(0, math.ceil((ahead + cost - self._rounding) / self._limit) - 1)
        index = self._room_from(state, now, ahead + cost - turns * self._limit)
        if index == self._present(state, now) and not turns:
            return 0.0
        return until(edge(index + turns * self.buckets, self._width), now)

    def take(self, state: SlidingWindowCounterState, now: float, cost: float) -> None:
        """Count `cost` in the present stretch."""
        if cost:
            index = math.floor(now / self._width)
            if index > state.newest:
                state.counts.extend([0.0] * self._gone(state, now))
                state.newest = index
            state.counts[-1] += cost

    def allowance(self, state: SlidingWindowCounterState, now: float, most: int) -> int:
        """What the last stretches leave: later there is only more."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: SlidingWindowCounterState, now: float) -> float:
        """What the last stretches leave of the limit."""
        return max(0.0, self._limit - self.used(state, now))

    def used(self, state: SlidingWindowCounterState, now: float) -> float:
        """What the last stretches have counted."""
        return math.fsum(islice(state.counts, self._gone(state, now), None))

    def reset_after(self, state: SlidingWindowCounterState, now: float) -> float:
        """Seconds until the last stretch with anything in it is out."""
        for age, count in enumerate(reversed(state.counts)):
            if count:
                return until(edge(state.newest - age + self.buckets, self._width), now)
        return 0.0

    def refund(self, state: SlidingWindowCounterState, now: float, cost: float, at: float) -> None:
        """Count `cost` off the stretch of `at`, if that still counts."""
        place = math.floor(at / self._width) - state.newest + self.buckets - 1
        if self._gone(state, now) <= place < self.buckets:
            left = state.counts[int(place)] - cost
            state.counts[int(place)] = left if left > self._rounding else 0.0

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> SlidingWindowCounterState:
        """Count what another one has counted, each stretch at its end: no sooner did it all go."""
        if not isinstance(old, SlidingWindowCounter):
            return all_spent_now(self, old, state, now)
        fresh, kept = self.start(), cast("SlidingWindowCounterState", state)
        for ended_at, count in old._counted(kept, now):  # noqa: SLF001 - of this class too
            self.take(fresh, min(ended_at, now), count)
        return fresh

    def _counted(
        self, state: SlidingWindowCounterState, now: float
    ) -> Iterator[tuple[float, float]]:
        """Give what counts at `now`: the last instant of each stretch, and its tokens."""
        for place in range(self._gone(state, now), self.buckets):
            if count := state.counts[place]:
                index = state.newest + 1 + place - self.buckets
                yield math.nextafter(edge(index + 1, self._width), -math.inf), count

    def dump(self, state: SlidingWindowCounterState) -> bytes:
        """Write the counters."""
        return self._layout().pack(_KIND, state.newest, *state.counts)

    def load(self, data: bytes) -> SlidingWindowCounterState:
        """Read the counters."""
        newest, *counts = unpack(self._layout(), _KIND, data, "SlidingWindowCounter")
        check_dumped(newest, "SlidingWindowCounter", fresh=True, whole=True)
        for count in (*counts, sum(counts)):
            check_dumped(count, "SlidingWindowCounter", least=0.0)
        if newest == -math.inf and any(counts):
            raise ValueError("no dump of a SlidingWindowCounter: tokens without an instant")
        return SlidingWindowCounterState(deque(counts, self.buckets), newest)

    def _layout(self) -> struct.Struct:
        return struct.Struct(f"<Bd{self.buckets}d")

    def _present(self, state: SlidingWindowCounterState, now: float) -> float:
        """Give the stretch that is counted in at `now`."""
        return max(state.newest, math.floor(now / self._width))

    def _gone(self, state: SlidingWindowCounterState, now: float) -> int:
        """Count the counters that are out at `now`, from the oldest."""
        return int(min(self.buckets, self._present(state, now) - state.newest))

    def _room_from(self, state: SlidingWindowCounterState, now: float, cost: float) -> float:
        """Give the first stretch, the present one or later, in which `cost` finds room."""
        gone = self._gone(state, now)
        missing = math.fsum(islice(state.counts, gone, None)) + cost - self._limit - self._rounding
        if missing <= 0:
            return self._present(state, now)
        for place in range(gone, self.buckets):
            missing -= state.counts[place]
            if missing <= 0:
                return state.newest + 1 + place
        return state.newest + self.buckets
