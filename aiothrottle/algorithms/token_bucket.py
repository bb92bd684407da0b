"""The token bucket: it drains at a constant rate, and `burst` tokens find room when it is empty."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.algorithm import two_rates
from aiothrottle.algorithms.level import ROUNDING, Draining, Level
from aiothrottle.checks import check_number
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["TokenBucket"]


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket(Draining):
    """At most ``burst + rate * t`` tokens in any time t; the long-run average is the rate.

    This is the queue of tokens drained at a constant rate (the generic cell rate algorithm, ITU-T
    I.371): a bucket with the level L at `now` admits a cost c if ``L + c <= burst``, and the level
    is then ``L + c``. It falls by the rate, and not below zero.

    A refund gives back what would be there if the cost had been less from the beginning: all of it,
    unless the bucket would have been empty in the meantime, and then the least level since, as an
    empty bucket drains no further. That is exact while no more than 64 levels have to be known, one
    for each later request that found more in the bucket than all after it. Of more than those the
    close ones count as one: then some percent of the highest less may come back, never too much.

    A server that counts in windows may see up to ``burst + limit`` within one period. Where that
    is too much, use `SlidingWindowLog`.

    Args:
        rate: What drains: tokens per second, a string or a `Rate`. May be left out where a
            `RateLimiter` has it: ``RateLimiter("10/s", algorithm=TokenBucket(burst=3))``.
        burst: Tokens that may go back to back, 1 or more. By default the limit of the rate.

    Raises:
        TypeError: `rate` or `burst` is of a kind that is none.
        ValueError: `rate` or `burst` is out of range.

    >>> bucket = TokenBucket("10/s", burst=2)
    >>> state = bucket.start()
    >>> [bucket.admit(state, now=0.0, cost=1) for _ in range(3)]
    [True, True, False]
    >>> round(bucket.delay(state, now=0.0, cost=1), 3)
    0.1
    """

    rate: Rate | None
    burst: float
    _kind: ClassVar[int] = 0x21
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)
    _most: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike | None = None, *, burst: float | None = None) -> None:
        drained = None if rate is None else as_rate(rate)
        if burst is None:
            # A rate below one per period still lets a single token through, in its time.
            burst = max(1, drained.limit) if drained else math.nan
        else:
            check_number("burst", burst, "tokens", least=1)
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", drained)
        set_field(self, "burst", burst)
        set_field(self, "_limit", float(drained.limit) if drained else math.nan)
        set_field(self, "_period", float(drained.period) if drained else math.nan)
        set_field(self, "_most", burst + ROUNDING)

    def with_rate(self, rate: Rate) -> "TokenBucket":
        """Give the same algorithm at that rate, if it has none of its own yet."""
        if self.rate is not None:
            raise two_rates(rate, self)
        return TokenBucket(rate, burst=self.burst)

    @property
    def capacity(self) -> float:
        """The burst, in tokens."""
        return self.burst

    def start(self) -> Level:
        """Give the state of an empty bucket."""
        if self.rate is None:
            raise ValueError(f"{self!r} has no rate to drain at: TokenBucket('10/s', burst=3)")
        return Level()

    def admit(self, state: Level, now: float, cost: float) -> bool:
        """Put `cost` tokens in if there is room."""
        passed = now - state.at
        level = state.tokens - passed * self._limit / self._period
        if level < 0.0:  # noqa: PLR1730 - max() costs a call
            level = 0.0
        if level + cost > self._most or cost == 0.0:
            return cost == 0.0
        if passed > 0.0:
            state.put_in(now, cost, self._limit, self._period)
        else:
            state.tokens += cost
        return True

    def allowance(self, state: Level, now: float, most: int) -> int:
        """So many as find room now: later there is only more."""
        return int(max(0.0, min(most, self._most - self.used(state, now))))

    def remaining(self, state: Level, now: float) -> float:
        """Tokens that find room now."""
        return max(0.0, self.burst - self.used(state, now))

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until the bucket has drained of all that goes before, so that `cost` fits."""
        if cost > self.burst:
            return math.inf
        if cost == 0:
            return 0.0
        spent = ahead + cost
        # The common case of `fits_in`: the queue asks for each of those that it serves.
        level = state.tokens - (now - state.at) * self._limit / self._period
        if level < 0.0:  # noqa: PLR1730 - max() costs a call
            level = 0.0
        if level + spent <= self._most:
            return 0.0
        return state.fits_in(now, spent, self.burst, self._limit, self._period)
