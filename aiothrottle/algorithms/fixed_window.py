"""The fixed window: N per calendar period, counted from zero in each.

The counter of most servers; the documentation of Redis has it under INCR ("Pattern: Rate limiter
1").
"""

import math
import struct
from dataclasses import dataclass, field

from aiothrottle.algorithms.dumps import check_dumped, unpack
from aiothrottle.algorithms.timestamps import edge, until
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["FixedWindow", "FixedWindowState"]

# Sums of fractional costs are off by a few units in the last place.
_ROUNDING = 1e-9
_KIND = 0x41
_DUMP = struct.Struct("<Bdd")


@dataclass(slots=True)
class FixedWindowState:
    """The period that is counted, and the tokens taken in it."""

    index: float = -math.inf
    count: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class FixedWindow:
    """N per calendar period; up to 2N in less than a period, around a boundary.

    The periods are aligned to the zero of the clock: an instant is in period
    ``floor(instant / period)``, so with a wall clock a minute begins when the clock shows it. Many
    servers count like that; where it is unknown when their periods begin, use `SlidingWindowLog`.
    While a clock has stepped back, the later period counts on.

    Args:
        rate: Tokens per period: a number per second, a string or a `Rate`. Below one token per
            period it is one token in as much more time.

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
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)
    _rounding: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike) -> None:
        rate = as_rate(rate)
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", rate)
        whole = rate.in_whole_tokens
        set_field(self, "_limit", whole.limit)
        set_field(self, "_period", whole.period)
        set_field(self, "_rounding", min(0.001, self._limit * _ROUNDING))

    @property
    def capacity(self) -> float:
        """The limit, in tokens."""
        return self._limit

    @property
    def width(self) -> float:
        """Seconds of a period: a state that counts in others is of no use."""
        return self._period

    def constants(self) -> tuple[float, float, float]:
        """Return limit, period and rounding, by which a port decides to the last bit alike."""
        return self._limit, self._period, self._rounding

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
        return _DUMP.pack(_KIND, state.index, state.count)

    def load(self, data: bytes) -> FixedWindowState:
        """Return the state that was dumped."""
        index, count = unpack(_DUMP, _KIND, data, "FixedWindow")
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
