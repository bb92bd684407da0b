"""Windows that are aligned to the clock: what is taken is counted by sections of time.

`Window` is what they share with the window that has every timestamp, `SlidingWindowLog`.

The fixed window is the counter of most servers; the documentation of Redis has it under INCR
("Pattern: Rate limiter 1"). With several counters, of which the last few are added, it slides; the
more there are, the closer it is to `SlidingWindowLog`.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from aiothrottle._checks import check_whole
from aiothrottle.algorithms.protocol import (
    Algorithm,
    all_used_now,
    check_dumped,
    edge,
    pack,
    set_fields,
    unpack,
    until,
)
from aiothrottle.rate import Rate, RateLike, as_rate

# Sums of fractional costs are off by a few units in the last place.
_ROUNDING = 1e-9
# The first byte of a dump.
_FIXED_KIND, _SLIDING_KIND = 0x41, 0x51


@dataclass(frozen=True, slots=True, init=False)
class Window:
    """A limit of whole tokens per period."""

    rate: Rate
    _limit: float = field(init=False, repr=False, compare=False)
    _period: float = field(init=False, repr=False, compare=False)
    _rounding: float = field(init=False, repr=False, compare=False)

    def __init__(self, rate: RateLike) -> None:
        rate = as_rate(rate)
        whole = rate.in_whole_tokens
        set_fields(self, rate=rate, _limit=whole.limit, _period=whole.period)
        set_fields(self, _rounding=min(0.001, whole.limit * _ROUNDING))

    @property
    def capacity(self) -> float:
        """The limit, in tokens."""
        return self._limit

    def constants(self) -> tuple[float, float, float]:
        """Return limit, period and rounding, by which a port decides to the last bit alike."""
        return self._limit, self._period, self._rounding


@dataclass(slots=True)
class FixedWindowState:
    """The period that is counted, and the tokens taken in it."""

    index: float = -math.inf
    count: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class FixedWindow(Window):
    """N per calendar period; up to 2N in less than a period, around a boundary.

    The periods are aligned to the zero of the clock: an instant is in period
    ``floor(instant / period)``, so with a wall clock a minute begins when the clock shows it. Many
    servers count like that; where it is unknown when their periods begin, use `SlidingWindowLog`.
    While a clock has stepped back, the later period counts on.

    Args:
        rate: Tokens per period: a number per second, a string or a `Rate`. A limit that is no whole
            number is the next one in as much more time: 2.5/s as 3 in 1.2 s.

    Raises:
        TypeError: `rate` is of a kind that is not a rate.
        ValueError: `rate` is out of range.

    >>> window = FixedWindow("2/s")
    >>> state = window.start()
    >>> window.take(state, now=0.75, cost=2)
    >>> window.delay(state, now=0.75, cost=1), window.delay(state, now=1.0, cost=2)
    (0.25, 0.0)
    """

    @property
    def width(self) -> float:
        """Seconds of a period: a state that counts in others is of no use."""
        return self._period

    def start(self) -> FixedWindowState:
        """Return a count of zero, of no period."""
        return FixedWindowState()

    def delay(self, state: FixedWindowState, now: float, cost: float) -> float:
        """Seconds until the next period, if this one has no room for `cost`, else 0.0."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: FixedWindowState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the first period that has room for it after the `ahead` tokens."""
        if cost > self._limit:
            return math.inf
        if cost == 0:
            return 0.0
        index, count = self._present(state, now)
        wanted = ahead + cost - self._rounding
        free = max(0.0, self._limit - count)
        if wanted <= free:
            return 0.0
        # A whole limit in each of the next periods, for all that this one has no room for.
        periods = max(1, math.ceil((wanted - free) / self._limit))
        return until(edge(index + periods, self._period), now)

    def take(self, state: FixedWindowState, now: float, cost: float) -> None:
        """Count `cost` in the present period."""
        if cost:
            index, count = self._present(state, now)
            state.index, state.count = index, count + cost

    def allowance(self, state: FixedWindowState, now: float, most: int) -> int:
        """Return what this period has left: what is taken in a later one leaves room here."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: FixedWindowState, now: float) -> float:
        """Tokens that this period has left."""
        return max(0.0, self._limit - self.used(state, now))

    def used(self, state: FixedWindowState, now: float) -> float:
        """Tokens that this period has counted."""
        return self._present(state, now)[1]

    def reset_after(self, state: FixedWindowState, now: float) -> float:
        """Seconds until the next period, if anything is counted in this one."""
        index, count = self._present(state, now)
        return until(edge(index + 1, self._period), now) if count else 0.0

    def refund(self, state: FixedWindowState, now: float, cost: float, at: float) -> None:
        """Subtract `cost`, if it was counted in the present period."""
        index, count = self._present(state, now)
        if count and math.floor(at / self._period) == index:
            left = count - cost
            state.count = left if left > self._rounding else 0.0

    def dump(self, state: FixedWindowState) -> bytes:
        """Return the two numbers as bytes."""
        return pack(_FIXED_KIND, state.index, state.count)

    def load(self, data: bytes) -> FixedWindowState:
        """Return the state that was dumped."""
        index, count = unpack(_FIXED_KIND, data, "FixedWindow", 2)
        check_dumped(index, "FixedWindow", fresh=True, whole=True)
        check_dumped(index * self._period, "FixedWindow", fresh=True)
        check_dumped(count, "FixedWindow", least=0.0)
        if count and index == -math.inf:
            raise ValueError("not a dump of FixedWindow: tokens without a period")
        return FixedWindowState(index, count)

    def _present(self, state: FixedWindowState, now: float) -> tuple[float, float]:
        """Return the period that counts at `now`, and its count."""
        index = math.floor(now / self._period)
        return (index, 0.0) if index > state.index else (state.index, state.count)


@dataclass(slots=True)
class SlidingWindowCounterState:
    """The counters, oldest first, and the number of the section that the last one counts."""

    counts: deque[float]
    newest: float = -math.inf


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindowCounter:
    """N per period, within an error of period/buckets; a handful of counters, however large N is.

    Time is cut into sections of ``width = period / buckets``, aligned to the zero of the clock: an
    instant is in section ``floor(instant / width)``. The present section counts, and the
    ``buckets - 1`` before it: all of the last ``period - width``, and nothing older than a period.
    So never more than N are taken in any period that is shortened by one width, and a token is free
    again at most one width before its period is over, never after. With one bucket it is
    `FixedWindow`. While a clock has stepped back, the later section counts on.

    Args:
        rate: Tokens per period: a number per second, a string or a `Rate`. A limit that is no whole
            number is the next one in as much more time: 2.5/s as 3 in 1.2 s. May be omitted where a
            `RateLimiter` has it:
            ``RateLimiter("10/s", algorithm=SlidingWindowCounter(buckets=20))``.
        buckets: Sections in a period, 1 or more.

    Raises:
        TypeError: `rate` is of a kind that is not a rate, or `buckets` is not a whole number.
        ValueError: `rate` or `buckets` is out of range.

    >>> window = SlidingWindowCounter("2/s", buckets=4)
    >>> state = window.start()
    >>> window.take(state, now=0.125, cost=1)
    >>> window.take(state, now=0.625, cost=1)
    >>> window.delay(state, now=0.75, cost=1), window.delay(state, now=1.0, cost=2)
    (0.25, 0.5)
    """

    rate: Rate | None
    buckets: int
    _limit: float = field(init=False, repr=False, compare=False)
    _width: float = field(init=False, repr=False, compare=False)
    _rounding: float = field(init=False, repr=False, compare=False)

    def __init__(self, rate: RateLike | None = None, *, buckets: int = 10) -> None:
        check_whole("buckets", buckets)
        given = None if rate is None else as_rate(rate)
        whole = given and given.in_whole_tokens
        limit = whole.limit if whole else math.nan
        width = whole.period / buckets if whole else math.nan
        set_fields(self, rate=given, buckets=buckets, _limit=limit, _width=width)
        set_fields(self, _rounding=min(0.001, limit * _ROUNDING))

    def with_rate(self, rate: Rate) -> "SlidingWindowCounter":
        """Return a window with as many buckets at that rate."""
        return SlidingWindowCounter(rate, buckets=self.buckets)

    @property
    def capacity(self) -> float:
        """The limit, in tokens."""
        return self._limit

    @property
    def width(self) -> float:
        """Seconds of a section: a state that counts in others is of no use."""
        return self._width

    def constants(self) -> tuple[float, float, float, int]:
        """Return limit, width, rounding and buckets, by which a port decides alike."""
        return self._limit, self._width, self._rounding, self.buckets

    def start(self) -> SlidingWindowCounterState:
        """Return counters of zero.

        Raises:
            ValueError: It has no rate.
        """
        if self.rate is None:
            raise ValueError(
                f"{self!r} has no rate: write SlidingWindowCounter('10/s', buckets=10)"
            )
        return SlidingWindowCounterState(deque([0.0] * self.buckets, self.buckets))

    def delay(self, state: SlidingWindowCounterState, now: float, cost: float) -> float:
        """Seconds until enough sections have left the window for `cost`."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(
        self, state: SlidingWindowCounterState, now: float, cost: float, ahead: float
    ) -> float:
        """Seconds until enough have left it for `cost` after the `ahead` tokens."""
        if cost > self._limit:
            return math.inf
        if cost == 0:
            return 0.0
        # A whole limit in each period to come, and the rest in the first of them.
        turns = max(0, math.ceil((ahead + cost - self._rounding) / self._limit) - 1)
        index = self._room_from(state, now, ahead + cost - turns * self._limit)
        if index == self._present(state, now) and not turns:
            return 0.0
        return until(edge(index + turns * self.buckets, self._width), now)

    def take(self, state: SlidingWindowCounterState, now: float, cost: float) -> None:
        """Count `cost` in the present section."""
        if cost:
            index = math.floor(now / self._width)
            if index > state.newest:
                state.counts.extend([0.0] * self._gone(state, now))
                state.newest = index
            state.counts[-1] += cost

    def allowance(self, state: SlidingWindowCounterState, now: float, most: int) -> int:
        """Return what the window leaves now: later there is only more."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: SlidingWindowCounterState, now: float) -> float:
        """Tokens that the window leaves of the limit."""
        return max(0.0, self._limit - self.used(state, now))

    def used(self, state: SlidingWindowCounterState, now: float) -> float:
        """Tokens that the window has counted."""
        return math.fsum(islice(state.counts, self._gone(state, now), None))

    def reset_after(self, state: SlidingWindowCounterState, now: float) -> float:
        """Seconds until the last section with anything in it has left the window."""
        for age, count in enumerate(reversed(state.counts)):
            if count:
                return until(edge(state.newest - age + self.buckets, self._width), now)
        return 0.0

    def refund(self, state: SlidingWindowCounterState, now: float, cost: float, at: float) -> None:
        """Subtract `cost` from the section of `at`, if that still counts."""
        place = math.floor(at / self._width) - state.newest + self.buckets - 1
        if self._gone(state, now) <= place < self.buckets:
            left = state.counts[int(place)] - cost
            state.counts[int(place)] = left if left > self._rounding else 0.0

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> SlidingWindowCounterState:
        """Count what `old` has counted, each section at its end: it was not all taken before."""
        if not isinstance(old, SlidingWindowCounter):
            return all_used_now(self, old, state, now)
        fresh, kept = self.start(), cast("SlidingWindowCounterState", state)
        for place in range(old._gone(kept, now), old.buckets):
            index = kept.newest + 1 + place - old.buckets
            last = math.nextafter(edge(index + 1, old._width), -math.inf)
            self.take(fresh, min(last, now), kept.counts[place])
        return fresh

    def dump(self, state: SlidingWindowCounterState) -> bytes:
        """Return the counters as bytes."""
        return pack(_SLIDING_KIND, state.newest, *state.counts)

    def load(self, data: bytes) -> SlidingWindowCounterState:
        """Return the state that was dumped."""
        newest, *counts = unpack(_SLIDING_KIND, data, "SlidingWindowCounter", 1 + self.buckets)
        check_dumped(newest, "SlidingWindowCounter", fresh=True, whole=True)
        check_dumped(newest * self._width, "SlidingWindowCounter", fresh=True)
        for count in (*counts, sum(counts)):
            check_dumped(count, "SlidingWindowCounter", least=0.0)
        if newest == -math.inf and any(counts):
            raise ValueError("not a dump of SlidingWindowCounter: tokens without a section")
        return SlidingWindowCounterState(deque(counts, self.buckets), newest)

    def _present(self, state: SlidingWindowCounterState, now: float) -> float:
        """Return the section that counts what is taken at `now`."""
        return max(state.newest, math.floor(now / self._width))

    def _gone(self, state: SlidingWindowCounterState, now: float) -> int:
        """Return how many counters, from the oldest, have left the window at `now`."""
        return int(min(self.buckets, self._present(state, now) - state.newest))

    def _room_from(self, state: SlidingWindowCounterState, now: float, cost: float) -> float:
        """Return the first section, the present one or later, that has room for `cost`."""
        gone = self._gone(state, now)
        missing = math.fsum(islice(state.counts, gone, None)) + cost - self._limit - self._rounding
        if missing <= 0:
            return self._present(state, now)
        for place in range(gone, self.buckets):
            missing -= state.counts[place]
            if missing <= 0:
                return state.newest + 1 + place
        return state.newest + self.buckets
