"""The level of a bucket that drains: the state of the `Draining` algorithms.

Strategy: the state is a level in tokens and the timestamp at which it was measured. A whole number
of tokens is exact, and so is the difference of two readings of one clock, however great they are.
What has drained is a product of the two, rounded once to a unit in the last place of the level.
(An "empty at" timestamp, as the generic cell rate algorithm keeps it, is rounded to a unit in the
last place of the clock at each token: a quarter of a microsecond today, a twentieth of a token at
200,000/s, and those errors add up.)

A refund gives back what a replay of the history without the charge would leave. With D(s) the
level at s, a level that was lower by `b` from `a` on is lower by ``min(b, minimum of D over [a,
now])`` now: once the bucket is empty there is no difference any more. So the state keeps the minima
of the level since each charge. They only change where tokens are put in, and a minimum that a later
one undercuts is of no use: the rest are steps that rise.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from aiothrottle.algorithms.protocol import (
    Algorithm,
    all_used_now,
    check_times,
    check_tokens,
    pack,
    set_fields,
    unpack,
    used,
)
from aiothrottle.rate import Rate, RateLike, as_rate

# Seconds. An event loop's timer is late by about one millisecond.
TOLERANCE = 0.002
# Tokens. Ten tenths add up to a little less or more than one: no part of a token.
ROUNDING = 1e-9
# This many lows are kept however close they are; beyond that, close ones are merged.
_MANY = 32
_CLOSE = 1 + 1 / _MANY


@dataclass(slots=True)
class Level:
    """The bucket holds `tokens` at the timestamp `at`, the last at which any were put in.

    The bucket was empty when tokens were put in at `since`, and not after that. At `ends`, later
    timestamps at which tokens were put in, it held only `lows`: a charge before ``ends[n]`` has no
    more to give back than ``lows[n]``. Both rise.

    The algorithm gives the rate: another one may continue it.
    """

    tokens: float = 0.0
    at: float = -math.inf
    since: float = -math.inf
    ends: list[float] = field(default_factory=list[float])
    lows: list[float] = field(default_factory=list[float])

    def forget(self, now: float) -> None:
        """Make everything that was put in before `now` final: no refund can change it."""
        self.since = now
        if self.lows:
            self.ends.clear()
            self.lows.clear()

    def note(self, now: float, low: float) -> None:
        """Record that the bucket holds only `low` now, in place of the lows that this undercuts."""
        if low <= ROUNDING:
            self.forget(now)
            return
        ends, lows = self.ends, self.lows
        while lows and lows[-1] >= low:
            lows.pop()
            ends.pop()
        # An end at a later timestamp bounds more charges: moving it there is safe.
        if len(lows) >= _MANY and low < lows[-1] * _CLOSE:
            ends[-1] = now
        else:
            lows.append(low)
            ends.append(now)
            if len(lows) > 2 * _MANY:
                self._thin_out(low / _MANY)

    def _thin_out(self, apart: float) -> None:
        """Merge lows that are closer than that."""
        ends, lows = self.ends[:1], self.lows[:1]
        for end, low in zip(self.ends, self.lows, strict=True):
            if low < lows[-1] + apart:
                ends[-1] = end
            else:
                ends.append(end)
                lows.append(low)
        self.ends, self.lows = ends, lows


@dataclass(frozen=True, slots=True, init=False)
class Draining:
    """An algorithm whose state is a `Level`.

    A cost has to fit under the brim, or only what was taken before it (`own_room` is 0): then any
    cost can be taken as soon as the one before it is due.
    """

    #: The first byte of a dump.
    _kind: ClassVar[int]
    #: 1 if only the last cost can be refunded, and no more than the capacity is ever in the bucket.
    _last_only: ClassVar[int] = 0

    #: The greatest cost, in tokens, that can ever be taken at once.
    capacity: float = field(init=False, repr=False, compare=False)
    _limit: float = field(init=False, repr=False, compare=False)
    _period: float = field(init=False, repr=False, compare=False)
    _brim: float = field(init=False, repr=False, compare=False)
    _own_room: int = field(init=False, repr=False, compare=False)
    # The brim, and what rounding can add.
    _most: float = field(init=False, repr=False, compare=False)

    def _drain(self, rate: Rate | None, *, capacity: float, brim: float, own_room: int) -> None:
        """Set, while it is made, the numbers that `constants` describes."""
        set_fields(
            self,
            _limit=float(rate.limit) if rate else math.nan,
            _period=float(rate.period) if rate else math.nan,
            capacity=capacity,
            _brim=brim,
            _own_room=own_room,
            _most=brim + ROUNDING,
        )

    def constants(self) -> tuple[float, ...]:
        """Return the numbers by which a port of the algorithm decides to the last bit alike.

        The script of `RedisStore` is such a port, and takes them in this order:

        * limit and period: the tokens that drain in so many seconds;
        * capacity: the greatest cost;
        * own room: 1 if a cost has to fit under the brim itself, 0 if only what was taken before;
        * brim: the level, in tokens, up to which a cost is admitted;
        * top: the greatest level: what exceeds it is forgiven;
        * all or nothing: 1 if there remains the capacity or nothing, 0 if each token counts;
        * last only: 1 if only the last cost can be refunded, 0 if earlier ones can.
        """
        own_room, last_only = self._own_room, self._last_only
        top = self.capacity if last_only else math.inf
        common = self._limit, self._period, self.capacity, own_room, self._brim
        return (*common, top, 1 - own_room, last_only)

    def start(self) -> Level:
        """Return the state of an empty bucket.

        Raises:
            ValueError: It has no rate.
        """
        if math.isnan(self._limit):
            raise ValueError(f"{self!r} has no rate: write {type(self).__name__}('10/s')")
        return Level()

    def delay(self, state: Level, now: float, cost: float) -> float:
        """Seconds until `cost` tokens can be taken: 0.0 is now, infinity is never."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until `cost` can be taken after the `ahead` tokens."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        # It can be more than the brim, as it is put in piece by piece.
        wanted = ahead + cost if self._own_room else ahead
        level = state.tokens - (now - state.at) * self._limit / self._period  # `used`, inlined
        if level < 0.0:
            level = 0.0
        if level + wanted <= self._most:
            return 0.0
        tokens, at = (state.tokens, state.at) if level > 0.0 else (0.0, now)
        wait = (level + wanted - self._brim) * self._period / self._limit
        # But for rounding.
        while tokens - (now + wait - at) * self._limit / self._period + wanted > self._most:
            wait += math.ulp(abs(now) + wait)
        return wait

    def take(self, state: Level, now: float, cost: float) -> None:
        """Put `cost` tokens in."""
        if not cost:
            return
        if now > state.at:
            left = state.tokens - (now - state.at) * self._limit / self._period
            state.at = now
            if left > 0.0:
                state.note(now, left)
                state.tokens = left + cost
            else:
                state.forget(now)
                state.tokens = cost
        else:
            state.tokens += cost

    def allowance(self, state: Level, now: float, most: int) -> int:
        """Return how many there is room for now: later there is only more."""
        left = self._most - self.used(state, now)
        if left < 0.0:
            return 0
        return int(min(most, left if self._own_room else left + 1))

    def take_each(self, state: Level, timestamps: Sequence[float]) -> None:
        """Put a token in at each of the timestamps."""
        tokens, at, limit, period = state.tokens, state.at, self._limit, self._period
        if len(timestamps) > 1:
            # Far below the rate all that there can be has drained before the last of them.
            last, before = timestamps[-1], max(at, *timestamps[:-1])
            if (last - before) * limit / period > tokens + len(timestamps):
                state.tokens, state.at = 1.0, last
                state.forget(last)
                return
        for now in timestamps:  # `take`, inlined
            if now > at:
                tokens -= (now - at) * limit / period
                at = now
                if tokens > 0.0:
                    state.note(now, tokens)
                else:
                    state.forget(now)
                    tokens = 0.0
            tokens += 1.0
        state.tokens, state.at = tokens, at

    def remaining(self, state: Level, now: float) -> float:
        """Tokens that there is room for now; all or nothing where a cost needs no own room."""
        if self._own_room:
            return max(0.0, self.capacity - self.used(state, now))
        return 0.0 if self.delay(state, now, 1) > 0.0 else self.capacity

    def used(self, state: Level, now: float) -> float:
        """Tokens in the bucket."""
        left = state.tokens - (now - state.at) * self._limit / self._period
        return left if left > 0.0 else 0.0  # max() costs a call

    def reset_after(self, state: Level, now: float) -> float:
        """Seconds until the bucket is empty."""
        wait = self.used(state, now) * self._period / self._limit
        while self.used(state, now + wait) > 0.0:  # rounding
            wait += math.ulp(abs(now) + wait)
        return wait

    def refund(self, state: Level, now: float, cost: float, at: float) -> None:
        """Take out what would not be in the bucket if `cost` had not been put in at `at`."""
        if at < state.since:
            # What was put in for later has been taken out, the last first, and now this.
            if now < at and self.used(state, at) <= cost + ROUNDING:
                state.tokens, state.at = 0.0, at
                state.forget(at)
            return
        ends, lows = state.ends, state.lows
        first = bisect_right(ends, at)
        back = min(cost, self.used(state, max(now, state.at)))
        if first < len(lows):
            back = min(back, lows[first])
        state.tokens -= back
        for place in range(first, len(lows)):
            lows[place] -= back
        while 0 < first < len(lows) and lows[first - 1] >= lows[first]:
            first -= 1
            del ends[first], lows[first]

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> Level:
        """Continue with the level of `old`; one of the same class can still be refunded."""
        fresh = all_used_now(self, old, state, now)
        if type(old) is type(self):
            kept = cast("Level", state)
            # What a smaller bucket has no room for is forgiven, and must not come back as well.
            if kept.at <= now and fresh.tokens == used(old, kept, now) > 0.0:
                fresh.since = kept.since
                fresh.ends, fresh.lows = kept.ends.copy(), kept.lows.copy()
        return fresh

    def dump(self, state: Level) -> bytes:
        """Return the level as bytes."""
        pairs = [number for pair in zip(state.ends, state.lows, strict=True) for number in pair]
        return pack(self._kind, state.tokens, state.at, state.since, *pairs)

    def load(self, data: bytes) -> Level:
        """Return the level that was dumped."""
        algorithm = type(self).__name__
        tokens, at, since, *pairs = unpack(self._kind, data, algorithm, 3, group=2)
        ends, lows = pairs[::2], pairs[1::2]
        if len(lows) > 2 * _MANY:
            raise ValueError(f"not a dump of {algorithm}: {len(data)} bytes are too many")
        check_tokens(algorithm, tokens, *lows)
        check_times(algorithm, at, since, *ends)
        known = [since, *ends, at]
        unused = at == -math.inf and tokens > 0.0
        if unused or known != sorted(known) or lows != sorted(lows):
            raise ValueError(f"not a dump of {algorithm}: its numbers contradict each other")
        return Level(tokens, at, since, ends, lows)


# ---- a rate that changes -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False)
class Pace(Draining):
    """Evenly spaced, as `LeakyBucket` does it, at a rate that is replaced again and again.

    With a brim of `n` tokens in place of the 2 ms for late timers, up to ``n + 1`` are taken back
    to back: in any time t at most ``n + 1 + rate * t``, and the last cost.

    Args:
        rate: How fast tokens are due.
        most: The greatest cost of one request. It delays the requests behind it, not itself.
        brim: Tokens; None: those of 2 ms.

    >>> pace, faster = Pace(2.0, most=10.0), Pace(4.0, most=10.0)
    >>> state = pace.start()
    >>> pace.take(state, now=0.0, cost=1)
    >>> pace.delay(state, now=0.0, cost=1)
    0.498
    >>> faster.delay(faster.inherit(pace, state, now=0.0), now=0.0, cost=1)
    0.248
    """

    rate: Rate
    brim: float

    def __init__(self, rate: RateLike, most: float, brim: float | None = None) -> None:
        rate = as_rate(rate)
        if brim is None:
            brim = TOLERANCE * rate.limit / rate.period
        set_fields(self, rate=rate, brim=brim)
        self._drain(rate, capacity=most, brim=brim, own_room=0)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> Level:
        """Continue with the level of another pace: what is due later is so in proportion.

        What was taken under another algorithm delays by no more than one token.
        """
        if isinstance(old, Pace):
            return Draining.inherit(self, old, state, now)
        fresh = self.start()
        self.take(fresh, now, 1.0)
        return fresh
