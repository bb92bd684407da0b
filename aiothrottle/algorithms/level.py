"""The level of a bucket that drains: the state of every algorithm that has a constant rate.

Strategy: the state is a level in tokens and the timestamp at which it was measured. A whole number
of tokens is exact, and so is the difference of two readings of one clock, however great they are.
What drained is a product of the two and is rounded once, to a unit in the last place of the level.
(An "empty at" timestamp, as the generic cell rate algorithm keeps it, is rounded to a unit in the
last place of the clock at each token: a quarter of a microsecond today, a twentieth of a token at
200,000/s, and those errors add up.)

What comes back of a charge that is settled is what replaying the history without it would leave.
With D(s) the level at s, an earlier level that was lower by `b` from `a` on is lower by
``min(b, minimum of D over [a, now])`` now: once it is empty there is no difference any more. So the
state remembers the minima of the level since each charge. They only change where tokens go in, and
of those the ones that a later one undercuts are of no use: what is left are steps that rise.
"""

import math
import struct
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from aiothrottle.algorithms.algorithm import Algorithm, all_spent_now, check_dumped, unpack

__all__ = ["ROUNDING", "Draining", "Level"]

# Tokens. Ten tenths add up to a little less or more than one: no part of a token.
ROUNDING = 1e-9
# So many lows are kept however close they are; then those that are close become one.
_MANY = 32
_CLOSE = 1 + 1 / _MANY
_HEAD = struct.Struct("<B3d")


@dataclass(slots=True)
class Level:
    """So many `tokens` are in the bucket at the timestamp `at`, the last at which any went in.

    The bucket was empty when tokens went in at `since`, and not after that. At `ends`, later
    timestamps at which tokens went in, there were only `lows` in it: what was charged before
    ``ends[n]`` has no more to give back than ``lows[n]``. Both rise.

    Whoever asks gives the rate, `limit` tokens per `period` seconds: it may change in between.
    """

    tokens: float = 0.0
    at: float = -math.inf
    since: float = -math.inf
    ends: list[float] = field(default_factory=list[float])
    lows: list[float] = field(default_factory=list[float])

    def tokens_at(self, now: float, limit: float, period: float) -> float:
        """Return the tokens that are in the bucket; before `at` the more, as `at` is ahead."""
        left = self.tokens - (now - self.at) * limit / period
        return left if left > 0.0 else 0.0  # max() costs a call

    def put_in(self, now: float, cost: float, limit: float, period: float) -> None:
        """Put `cost` in; a `now` before `at` counts as `at`."""
        if now > self.at:
            left = self.tokens - (now - self.at) * limit / period
            self.at = now
            if left > 0.0:
                self._note(now, left)
                self.tokens = left + cost
            else:
                self.forget(now)
                self.tokens = cost
        else:
            self.tokens += cost

    def put_in_each(self, instants: Sequence[float], limit: float, period: float) -> None:
        """Put a token in at each of the timestamps."""
        tokens, at, since = self.tokens, self.at, self.since
        # Between these two `_note` would only move the last end: most of many are.
        low = close = math.inf
        for now in instants:
            if now > at:
                tokens -= (now - at) * limit / period
                at = now
                if tokens <= 0.0:
                    since = now
                    tokens = 1.0
                    low = math.inf
                    continue
                if low < tokens < close:
                    self.ends[-1] = now
                else:
                    if since > self.since:
                        self.forget(since)
                    low, close = self._note(now, tokens)
            tokens += 1.0
        self.tokens, self.at = tokens, at
        if since > self.since:
            self.forget(since)

    def take_out(self, now: float, cost: float, at: float, limit: float, period: float) -> None:
        """Take out what would not be in the bucket if `cost` had not gone in at `at`."""
        if at < self.since:
            # What was to go later has been taken out, the last first, and now this.
            if now < at and self.tokens_at(at, limit, period) <= cost + ROUNDING:
                self.tokens, self.at = 0.0, at
                self.forget(at)
            return
        ends, lows = self.ends, self.lows
        first = bisect_right(ends, at)
        back = min(cost, self.tokens_at(max(now, self.at), limit, period))
        if first < len(lows):
            back = min(back, lows[first])
        self.tokens -= back
        for place in range(first, len(lows)):
            lows[place] -= back
        while 0 < first < len(lows) and lows[first - 1] >= lows[first]:
            first -= 1
            del ends[first], lows[first]

    def fits_in(self, now: float, cost: float, brim: float, limit: float, period: float) -> float:
        """Return the seconds until there is room, to the brim, for `cost` more.

        It may be more than the brim if it comes little by little.
        """
        level, most = self.tokens_at(now, limit, period), brim + ROUNDING
        if level + cost <= most:
            return 0.0
        tokens, at = (self.tokens, self.at) if level > 0.0 else (0.0, now)
        wait = (level + cost - brim) * period / limit
        while tokens - (now + wait - at) * limit / period + cost > most:  # rounding
            wait += math.ulp(abs(now) + wait)
        return wait

    def empty_in(self, now: float, limit: float, period: float) -> float:
        """Return the seconds until the bucket is empty."""
        wait = self.tokens_at(now, limit, period) * period / limit
        while self.tokens_at(now + wait, limit, period) > 0.0:  # rounding
            wait += math.ulp(abs(now) + wait)
        return wait

    def forget(self, now: float) -> None:
        """Have nothing come back of what was charged before `now`."""
        self.since = now
        if self.lows:
            self.ends.clear()
            self.lows.clear()

    def _note(self, now: float, low: float) -> tuple[float, float]:
        """Note that there is only `low` in the bucket now, in place of what that undercuts.

        Return between what levels the next one would only move the last of the ends.
        """
        if low <= ROUNDING:
            self.forget(now)
            return math.inf, math.inf
        ends, lows = self.ends, self.lows
        while lows and lows[-1] >= low:
            lows.pop()
            ends.pop()
        # An end that is moved to a later timestamp makes a bound for more charges: that is safe.
        if len(lows) >= _MANY and low < lows[-1] * _CLOSE:
            ends[-1] = now
        else:
            lows.append(low)
            ends.append(now)
            if len(lows) > 2 * _MANY:
                self._thin_out(low / _MANY)
                lows = self.lows
        return lows[-1], lows[-1] * _CLOSE if len(lows) >= _MANY else 0.0

    def _thin_out(self, apart: float) -> None:
        """Keep lows that are so far apart."""
        ends, lows = self.ends[:1], self.lows[:1]
        for end, low in zip(self.ends, self.lows, strict=True):
            if low < lows[-1] + apart:
                ends[-1] = end
            else:
                ends.append(end)
                lows.append(low)
        self.ends, self.lows = ends, lows


class Draining(Algorithm[Level]):
    """An algorithm whose state is a `Level`: a subclass says how full the bucket may be."""

    __slots__ = ()

    #: The first byte of a dump.
    _kind: ClassVar[int]

    _limit: float
    _period: float

    @abstractmethod
    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until `cost` may go behind the `ahead`."""

    def start(self) -> Level:
        """Give the state of an empty bucket."""
        return Level()

    def delay(self, state: Level, now: float, cost: float) -> float:
        """Seconds until `cost` may go, if nothing goes before it."""
        return self.delay_behind(state, now, cost, 0.0)

    def take(self, state: Level, now: float, cost: float) -> None:
        """Put `cost` tokens in."""
        if cost:
            state.put_in(now, cost, self._limit, self._period)

    def allowance(self, state: Level, now: float, most: int) -> int:  # noqa: ARG002
        """None, unless a subclass knows better."""
        return 0

    def take_each(self, state: Level, instants: Sequence[float]) -> None:
        """Put a token in at each of the instants."""
        state.put_in_each(instants, self._limit, self._period)

    def used(self, state: Level, now: float) -> float:
        """Tokens in the bucket."""
        return state.tokens_at(now, self._limit, self._period)

    def reset_after(self, state: Level, now: float) -> float:
        """Seconds until the bucket is empty."""
        return state.empty_in(now, self._limit, self._period)

    def refund(self, state: Level, now: float, cost: float, at: float) -> None:
        """Take out what would not be in the bucket if `cost` had not gone in at `at`."""
        state.take_out(now, cost, at, self._limit, self._period)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> Level:
        """Go on with the level of another one; of the same kind, with what can come back too."""
        fresh = all_spent_now(self, old, state, now)
        if type(old) is type(self):
            kept = cast("Level", state)
            # What a smaller bucket has no room for is forgiven, and must not come back as well.
            if kept.at <= now and fresh.tokens == old.used(kept, now) > 0.0:
                fresh.since = kept.since
                fresh.ends, fresh.lows = kept.ends.copy(), kept.lows.copy()
        return fresh

    def dump(self, state: Level) -> bytes:
        """Write all numbers of the level."""
        pairs = [number for pair in zip(state.ends, state.lows, strict=True) for number in pair]
        head = _HEAD.pack(self._kind, state.tokens, state.at, state.since)
        return head + struct.pack(f"<{len(pairs)}d", *pairs)

    def load(self, data: bytes) -> Level:
        """Read all numbers of the level."""
        algorithm = type(self).__name__
        size = _HEAD.size
        tokens, at, since = unpack(_HEAD, self._kind, data[:size], algorithm)
        rest = data[size:]
        if len(rest) % 16 or len(rest) > 2 * _MANY * 16:
            raise ValueError(
                f"no dump of a {algorithm}: {len(data)} bytes are too many, or half a pair"
            )
        numbers = struct.unpack(f"<{len(rest) // 8}d", rest)
        ends, lows = list(numbers[::2]), list(numbers[1::2])
        for amount in (tokens, *lows):
            check_dumped(amount, algorithm, least=0.0)
        for instant in (at, since):
            check_dumped(instant, algorithm, fresh=True)
        for instant in ends:
            check_dumped(instant, algorithm)
        known = [since, *ends, at]
        if known != sorted(known) or lows != sorted(lows):
            raise ValueError(f"no dump of a {algorithm}: its numbers contradict each other")
        return Level(tokens, at, since, ends, lows)
