"""Windows that are aligned to the clock: what is taken is counted by sections of time.

`Window` is what they share with the window that has every timestamp, `SlidingWindowLog`.

The fixed window is the counter of most servers; the documentation of Redis has it under INCR
("Pattern: Rate limiter 1"). With several counters, of which the last few are added, it slides; the
more there are, the closer it is to `SlidingWindowLog`. So a fixed window is one with one section.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from aiothrottle._checks import check_whole
from aiothrottle.algorithms.protocol import (
    Algorithm,
    all_used_now,
    check_times,
    check_tokens,
    edge,
    pack,
    set_fields,
    unpack,
    until,
)
from aiothrottle.rate import Rate, RateLike, as_rate

# Sums of fractional costs are off by a few units in the last place.
_ROUNDING = 1e-9
# Each has a counter, which a store reads and writes at each call.
_MOST_SECTIONS = 100_000


@dataclass(frozen=True, slots=True, init=False)
class Window:
    """A limit of whole tokens per period."""

    #: The limit, in tokens.
    capacity: float = field(init=False, repr=False, compare=False)
    _period: float = field(init=False, repr=False, compare=False)
    _rounding: float = field(init=False, repr=False, compare=False)

    def _measure(self, rate: Rate | None) -> None:
        """Set limit and period while it is made; without a rate they are NaN."""
        limit = period = math.nan
        if rate is not None:
            whole = rate.in_whole_tokens
            limit, period = whole.limit, whole.period
        rounding = min(0.001, limit * _ROUNDING)
        set_fields(self, capacity=limit, _period=period, _rounding=rounding)


@dataclass(slots=True)
class Counts:
    """The counters, oldest first, and the number of the section that the last one counts."""

    counts: list[float]
    newest: float = -math.inf


@dataclass(frozen=True, slots=True, init=False)
class Sections(Window):
    """A limit of what is counted in the last few sections of time."""

    #: The first byte of a dump.
    _kind: ClassVar[int]

    _width: float = field(init=False, repr=False, compare=False)
    _number: int = field(init=False, repr=False, compare=False)

    def _divide(self, rate: Rate | None, number: int) -> None:
        """Set the limit and the sections, while it is made."""
        self._measure(rate)
        set_fields(self, _width=self._period / number, _number=number)

    def constants(self) -> tuple[float, float, float, int]:
        """Return limit, width, rounding and number of sections: by them a port decides alike."""
        return self.capacity, self._width, self._rounding, self._number

    def start(self) -> Counts:
        """Return counters of zero.

        Raises:
            ValueError: It has no rate.
        """
        if math.isnan(self.capacity):
            raise ValueError(f"{self!r} has no rate: write {type(self).__name__}('10/s')")
        return Counts([0.0] * self._number)

    def delay(self, state: Counts, now: float, cost: float) -> float:
        """Seconds until enough sections have left the window for `cost`."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: Counts, now: float, cost: float, ahead: float) -> float:
        """Seconds until enough have left it for `cost` after the `ahead` tokens."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        # A whole limit in each period to come, and the rest in the first of them.
        turns = max(0, math.ceil((ahead + cost - self._rounding) / self.capacity) - 1)
        index = self._room_from(state, now, ahead + cost - turns * self.capacity)
        if index == self._present(state, now) and not turns:
            return 0.0
        return until(edge(index + turns * self._number, self._width), now)

    def take(self, state: Counts, now: float, cost: float) -> None:
        """Count `cost` in the present section."""
        if cost:
            index = math.floor(now / self._width)
            if index > state.newest:
                gone = self._gone(state, now)
                state.counts[:] = [*state.counts[gone:], *[0.0] * gone]
                state.newest = index
            state.counts[-1] += cost

    def allowance(self, state: Counts, now: float, most: int) -> int:
        """Return what the window leaves now: later there is only more."""
        return int(min(most, self.remaining(state, now)))

    def remaining(self, state: Counts, now: float) -> float:
        """Tokens that the window leaves of the limit."""
        return max(0.0, self.capacity - self.used(state, now))

    def used(self, state: Counts, now: float) -> float:
        """Tokens that the window has counted."""
        return math.fsum(state.counts[self._gone(state, now) :])

    def reset_after(self, state: Counts, now: float) -> float:
        """Seconds until the last section with anything in it has left the window."""
        for age, count in enumerate(reversed(state.counts)):
            if count:
                return until(edge(state.newest - age + self._number, self._width), now)
        return 0.0

    def refund(self, state: Counts, now: float, cost: float, at: float) -> None:
        """Subtract `cost` from the section of `at`, if that still counts."""
        place = math.floor(at / self._width) - state.newest + self._number - 1
        if self._gone(state, now) <= place < self._number:
            left = state.counts[int(place)] - cost
            state.counts[int(place)] = left if left > self._rounding else 0.0

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> Counts:
        """Count what `old` has counted, each section at its end: it was not all taken before."""
        if not isinstance(old, Sections):
            return all_used_now(self, old, state, now)
        fresh, kept = self.start(), cast("Counts", state)
        for place in range(old._gone(kept, now), old._number):
            index = kept.newest + 1 + place - old._number
            last = edge(index + 1, old._width)
            while math.floor(last / old._width) > index:  # rounding
                last = math.nextafter(last, -math.inf)
            self.take(fresh, min(last, now), kept.counts[place])
        return fresh

    def dump(self, state: Counts) -> bytes:
        """Return the counters as bytes."""
        return pack(self._kind, state.newest, *state.counts)

    def load(self, data: bytes) -> Counts:
        """Return the state that was dumped."""
        algorithm = type(self).__name__
        newest, *counts = unpack(self._kind, data, algorithm, 1 + self._number)
        check_times(algorithm, newest * self._width)
        check_tokens(algorithm, *counts, sum(counts))
        if newest > -math.inf and not newest.is_integer():
            raise ValueError(f"not a dump of {algorithm}: it cannot contain {newest!r}")
        if newest == -math.inf and any(counts):
            raise ValueError(f"not a dump of {algorithm}: tokens without a section")
        return Counts(counts, newest)

    def _present(self, state: Counts, now: float) -> float:
        """Return the section that counts what is taken at `now`."""
        return max(state.newest, math.floor(now / self._width))

    def _gone(self, state: Counts, now: float) -> int:
        """Return how many counters, from the oldest, have left the window at `now`."""
        return int(min(self._number, self._present(state, now) - state.newest))

    def _room_from(self, state: Counts, now: float, cost: float) -> float:
        """Return the first section, the present one or later, that has room for `cost`."""
        gone = self._gone(state, now)
        missing = math.fsum(state.counts[gone:]) + cost - self.capacity - self._rounding
        if missing <= 0:
            return self._present(state, now)
        for place in range(gone, self._number):
            missing -= state.counts[place]
            if missing <= 0:
                return state.newest + 1 + place
        return max(self._present(state, now), state.newest + self._number)  # but for rounding


@dataclass(frozen=True, slots=True, init=False)
class FixedWindow(Sections):
    """N per period of the clock; up to 2N in less than a period, around a boundary.

    The periods are aligned to the zero of the clock: an instant is in period
    ``floor(instant / period)``. With ``RateLimiter(clock=time.time)``, or a store that processes
    share, a minute begins when the wall clock shows it; by the default clock it does not. Many
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

    rate: Rate
    _kind: ClassVar[int] = 0x41

    def __init__(self, rate: RateLike) -> None:
        set_fields(self, rate=as_rate(rate))
        self._divide(self.rate, 1)


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindowCounter(Sections):
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
        buckets: Sections in a period, 1 to 100,000.

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
    _kind: ClassVar[int] = 0x51

    def __init__(self, rate: RateLike | None = None, *, buckets: int = 10) -> None:
        check_whole("buckets", buckets, most=_MOST_SECTIONS)
        set_fields(self, rate=None if rate is None else as_rate(rate), buckets=buckets)
        self._divide(self.rate, buckets)

    def with_rate(self, rate: Rate) -> "SlidingWindowCounter":
        """Return a window with as many buckets at that rate."""
        return SlidingWindowCounter(rate, buckets=self.buckets)
