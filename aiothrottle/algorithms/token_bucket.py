"""The token bucket: it drains at a constant rate, and when empty has room for `burst` tokens."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.draining import Draining
from aiothrottle.algorithms.level import ROUNDING, Level, LevelConstants
from aiothrottle.checks import check_number
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["TokenBucket"]


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket(Draining):
    """At most ``burst + rate * t`` tokens in any time t; the long-run average is the rate.

    This is the queue of tokens drained at a constant rate (the generic cell rate algorithm, ITU-T
    I.371): a bucket with the level L at `now` admits a cost c if ``L + c <= burst``, and the level
    is then ``L + c``. It falls by the rate, and not below zero.

    A refund gives back what would be free if the cost had been lower from the beginning: all of it,
    or the least level since if that is less, as an empty bucket drains no further. That is exact
    for up to 64 levels, one for each later request that found more in the bucket than all requests
    after it. Beyond that, levels that are close are merged: then up to some percent of the highest
    level less is given back, never too much.

    A server that counts in windows may see up to ``burst + limit`` within one period. Where that
    is too much, use `SlidingWindowLog`.

    Args:
        rate: How fast it drains: tokens per second, a string or a `Rate`. May be omitted where a
            `RateLimiter` has it: ``RateLimiter("10/s", algorithm=TokenBucket(burst=3))``.
        burst: Tokens that can be taken back to back, 1 or more. By default the limit of the rate.

    Raises:
        TypeError: `rate` is of a kind that is not a rate, or `burst` is not a number.
        ValueError: `rate` or `burst` is out of range.

    >>> bucket = TokenBucket("10/s", burst=2)
    >>> state = bucket.start()
    >>> bucket.take(state, now=0.0, cost=2)
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
            # A rate below one per period still admits a single token, in its time.
            burst = drained.in_whole_tokens.limit if drained else math.nan
        else:
            check_number("burst", burst, "tokens", least=1)
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", drained)
        set_field(self, "burst", burst)
        set_field(self, "_limit", float(drained.limit) if drained else math.nan)
        set_field(self, "_period", float(drained.period) if drained else math.nan)
        set_field(self, "_most", burst + ROUNDING)

    def with_rate(self, rate: Rate) -> "TokenBucket":
        """Return a bucket of the same burst that drains at that rate."""
        return TokenBucket(rate, burst=None if math.isnan(self.burst) else self.burst)

    @property
    def capacity(self) -> float:
        """The burst, in tokens."""
        return self.burst

    def constants(self) -> LevelConstants:
        """Return the numbers by which a port of the algorithm decides to the last bit alike."""
        return LevelConstants(self._limit, self._period, self.burst, own_room=1, brim=self.burst)

    def start(self) -> Level:
        """Return the state of an empty bucket.

        Raises:
            ValueError: It has no rate.
        """
        if self.rate is None:
            raise ValueError(
                f"{self!r} has no rate to drain at: write TokenBucket('10/s', burst=3)"
            )
        return Level()

    def allowance(self, state: Level, now: float, most: int) -> int:
        """Return how many there is room for now: later there is only more."""
        return int(max(0.0, min(most, self._most - self.used(state, now))))

    def remaining(self, state: Level, now: float) -> float:
        """Tokens that there is room for now."""
        return max(0.0, self.burst - self.used(state, now))

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until the bucket has drained so far that `cost` fits after the `ahead` tokens."""
        if cost > self.burst:
            return math.inf
        if cost == 0:
            return 0.0
        spent = ahead + cost
        # The common case of `fits_in`, inlined: the consumer asks for each grant.
        level = state.tokens - (now - state.at) * self._limit / self._period
        if level < 0.0:  # noqa: PLR1730 - max() costs a call
            level = 0.0
        if level + spent <= self._most:
            return 0.0
        return state.fits_in(now, spent, self.burst, self._limit, self._period)
