"""The token bucket: it drains at a constant rate, and `burst` tokens find room when it is empty."""

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
    two_rates,
    until,
)
from aiothrottle.checks import check_number
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["TokenBucket", "TokenBucketState"]

# Ten tenths add up to a little less or more than one: no part of a token.
_ROUNDING = 1e-9
_KIND = 0x21


@dataclass(slots=True)
class TokenBucketState:
    """The instant at which the bucket will be empty: the theoretical arrival time of GCRA."""

    empty_at: float = -math.inf


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket(Algorithm[TokenBucketState]):
    """At most ``burst + rate * t`` tokens in any time t; the long-run average is the rate.

    This is the queue of tokens drained at a constant rate, told by one number (the generic cell
    rate algorithm, ITU-T I.371): with T = period / limit, a bucket that is empty at `e` admits a
    cost c at `now` if ``e + c * T - burst * T <= now``, and is then empty at
    ``max(e, now) + c * T``.

    A refund gives back at most what cannot have drained since, so that what is left still keeps
    the promise; for costs that are settled long after, `RollingWindow` gives back all of it.

    A server that counts in windows may see up to ``burst + limit`` within one period. Where that
    is too much, use `RollingWindow`.

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
    _interval: float = field(repr=False, compare=False)
    _brim: float = field(repr=False, compare=False)

    def __init__(self, rate: RateLike | None = None, *, burst: float | None = None) -> None:
        drained = None if rate is None else as_rate(rate)
        if burst is None:
            # A rate below one per period still lets a single token through, in its time.
            burst = max(1, drained.limit) if drained else math.nan
        else:
            check_number("burst", burst, "tokens", least=1)
        interval = drained.period / drained.limit if drained else math.nan
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", drained)
        set_field(self, "burst", burst)
        set_field(self, "_interval", interval)
        set_field(self, "_brim", (burst + _ROUNDING) * interval)

    def with_rate(self, rate: Rate) -> "TokenBucket":
        """Give the same law at that rate, if it has none of its own yet."""
        if self.rate is not None:
            raise two_rates(rate, self)
        return TokenBucket(rate, burst=self.burst)

    @property
    def capacity(self) -> float:
        """The burst, in tokens."""
        return self.burst

    def start(self) -> TokenBucketState:
        """Give the state of an empty bucket."""
        if self.rate is None:
            raise ValueError(f"{self!r} has no rate to drain at: TokenBucket('10/s', burst=3)")
        return TokenBucketState()

    def delay(self, state: TokenBucketState, now: float, cost: float) -> float:
        """Seconds until the bucket has drained so far that `cost` finds room."""
        if cost > self.burst:
            return math.inf
        if cost == 0:
            return 0.0
        return self._drained_in(state, now, cost)

    def take(self, state: TokenBucketState, now: float, cost: float) -> None:
        """Put `cost` tokens in."""
        if cost:
            state.empty_at = max(state.empty_at, now) + cost * self._interval

    def admit(self, state: TokenBucketState, now: float, cost: float) -> bool:
        """Put `cost` tokens in if there is room."""
        level = state.empty_at - now
        if level < 0.0:  # noqa: PLR1730 - max() costs a call
            level = 0.0
        level += cost * self._interval
        if level <= self._brim and cost > 0.0:
            state.empty_at = now + level
            return True
        return cost == 0

    def allowance(self, state: TokenBucketState, now: float, most: int) -> int:
        """So many as find room now: later there is only more."""
        level = max(0.0, state.empty_at - now)
        return int(max(0.0, min(most, (self._brim - level) / self._interval)))

    def take_each(self, state: TokenBucketState, instants: Sequence[float]) -> None:
        """Put a token in at each of the instants."""
        state.empty_at = put_in(state.empty_at, instants, self._interval)

    def remaining(self, state: TokenBucketState, now: float) -> float:
        """Tokens that find room now."""
        return max(0.0, self.burst - self.used(state, now))

    def used(self, state: TokenBucketState, now: float) -> float:
        """Tokens in the bucket."""
        return max(0.0, state.empty_at - now) / self._interval

    def reset_after(self, state: TokenBucketState, now: float) -> float:
        """Seconds until the bucket is empty."""
        return until(state.empty_at, now)

    def delay_behind(self, state: TokenBucketState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the bucket has drained of all that goes before, so that `cost` fits."""
        if not (ahead and cost) or cost > self.burst:
            return self.delay(state, now, cost)
        # The common case of `_drained_in`: a line asks for each of those that it serves.
        level = state.empty_at - now
        if level < 0.0:  # noqa: PLR1730 - max() costs a call
            level = 0.0
        if level + (ahead + cost) * self._interval <= self._brim:
            return 0.0
        return self._drained_in(state, now, ahead + cost)

    def refund(self, state: TokenBucketState, now: float, cost: float, at: float) -> None:
        """Take out what cannot have drained since."""
        spent, left = cost * self._interval, self.burst * self._interval
        state.empty_at = given_back(state.empty_at, now, spent, at, left)

    def dump(self, state: TokenBucketState) -> bytes:
        """Write the one instant."""
        return dump_instant(_KIND, state.empty_at)

    def load(self, data: bytes) -> TokenBucketState:
        """Read the one instant."""
        return TokenBucketState(load_instant(_KIND, data, "TokenBucket"))

    def _drained_in(self, state: TokenBucketState, now: float, cost: float) -> float:
        brim, spent = self.burst * self._interval, cost * self._interval
        return drained_in(state.empty_at, now, spent, brim, self._brim)
