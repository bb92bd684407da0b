"""The level of a bucket that drains: the state of every algorithm with a constant rate.

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
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from aiothrottle.algorithms.dumps import check_dumped, unpack

__all__ = ["ROUNDING", "Level", "LevelConstants"]

# Tokens. Ten tenths add up to a little less or more than one: no part of a token.
ROUNDING = 1e-9
# This many lows are kept however close they are; beyond that, close ones are merged.
_MANY = 32
_CLOSE = 1 + 1 / _MANY
_HEAD = struct.Struct("<B3d")


class LevelConstants(NamedTuple):
    """The numbers by which an algorithm with a `Level` decides, for a port in another language.

    The script of `RedisStore` is such a port, and takes them in this order.
    """

    #: Tokens that drain in `period` seconds.
    limit: float
    period: float
    #: The greatest cost.
    capacity: float
    #: 1 if a cost has to fit under the brim itself, 0 if only what was taken before it has to.
    own_room: float
    #: The level, in tokens, up to which a cost is admitted.
    brim: float
    #: The greatest level: what exceeds it is forgiven.
    top: float = math.inf
    #: 1 if there remains the capacity or nothing, 0 if each token counts.
    all_or_nothing: float = 0
    #: 1 if only the last cost can be refunded, 0 if earlier ones can.
    last_only: float = 0


@dataclass(slots=True)
class Level:
    """The bucket holds `tokens` at the timestamp `at`, the last at which any were put in.

    The bucket was empty when tokens were put in at `since`, and not after that. At `ends`, later
    timestamps at which tokens were put in, it held only `lows`: a charge before ``ends[n]`` has no
    more to give back than ``lows[n]``. Both rise.

    The caller gives the rate, `limit` tokens per `period` seconds: it may change in between.
    """

    tokens: float = 0.0
    at: float = -math.inf
    since: float = -math.inf
    ends: list[float] = field(default_factory=list[float])
    lows: list[float] = field(default_factory=list[float])

    def tokens_at(self, now: float, limit: float, period: float) -> float:
        """Return the tokens in the bucket at `now`; more of them before `at`."""
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
        """Take out what would not be in the bucket if `cost` had not been put in at `at`."""
        if at < self.since:
            # What was put in for later has been taken out, the last first, and now this.
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
        """Return the seconds until there is room for `cost` more, up to the brim.

        It can be more than the brim if it is put in piece by piece.
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
        """Make everything that was put in before `now` final: no refund can change it."""
        self.since = now
        if self.lows:
            self.ends.clear()
            self.lows.clear()

    def _note(self, now: float, low: float) -> tuple[float, float]:
        """Record that the bucket holds only `low` now, in place of the lows that this undercuts.

        Return the two levels between which the next call would only move the last of the ends.
        """
        if low <= ROUNDING:
            self.forget(now)
            return math.inf, math.inf
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
                lows = self.lows
        return lows[-1], lows[-1] * _CLOSE if len(lows) >= _MANY else 0.0

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

    # ---- bytes -----------------------------------------------------------------------------------

    def dump(self, kind: int) -> bytes:
        """Return all numbers as bytes, of which the first is `kind`."""
        pairs = [number for pair in zip(self.ends, self.lows, strict=True) for number in pair]
        head = _HEAD.pack(kind, self.tokens, self.at, self.since)
        return head + struct.pack(f"<{len(pairs)}d", *pairs)

    @classmethod
    def load(cls, kind: int, data: bytes, algorithm: str) -> Self:
        """Return the level that was dumped.

        Raises:
            ValueError: The bytes are not such a dump.
        """
        size = _HEAD.size
        tokens, at, since = unpack(_HEAD, kind, data[:size], algorithm)
        rest = data[size:]
        if len(rest) % 16 or len(rest) > 2 * _MANY * 16:
            raise ValueError(
                f"not a dump of {algorithm}: {len(data)} bytes are too many, or half a pair"
            )
        numbers = struct.unpack(f"<{len(rest) // 8}d", rest)
        ends, lows = list(numbers[::2]), list(numbers[1::2])
        for amount in (tokens, *lows):
            check_dumped(amount, algorithm, least=0.0)
        for timestamp in (at, since):
            check_dumped(timestamp, algorithm, fresh=True)
        for timestamp in ends:
            check_dumped(timestamp, algorithm)
        known = [since, *ends, at]
        unused = at == -math.inf and tokens > 0.0
        if unused or known != sorted(known) or lows != sorted(lows):
            raise ValueError(f"not a dump of {algorithm}: its numbers contradict each other")
        return cls(tokens, at, since, ends, lows)
