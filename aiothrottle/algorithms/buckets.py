"""The algorithms with a constant rate: they differ in how full the bucket can be."""

import math
from dataclasses import dataclass
from typing import ClassVar

from aiothrottle._checks import check_number
from aiothrottle.algorithms.level import TOLERANCE, Draining, Level
from aiothrottle.algorithms.protocol import set_fields
from aiothrottle.rate import Rate, RateLike, as_rate

# Parts of an interval. Timestamps are rounded in the last digit: 1.1 + 5 - 1.1 is above 5.
_WAIT_ROUNDING = 1e-6


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

    def __init__(self, rate: RateLike | None = None, *, burst: float | None = None) -> None:
        drained = None if rate is None else as_rate(rate)
        if burst is None:
            # A rate below one per period still admits a single token, in its time.
            burst = drained.in_whole_tokens.limit if drained else math.nan
        else:
            check_number("burst", burst, "tokens", least=1)
        set_fields(self, rate=drained, burst=burst)
        self._drain(drained, capacity=burst, brim=burst, own_room=1)

    def with_rate(self, rate: Rate) -> "TokenBucket":
        """Return a bucket of the same burst that drains at that rate."""
        return TokenBucket(rate, burst=None if math.isnan(self.burst) else self.burst)


@dataclass(frozen=True, slots=True, init=False)
class LeakyBucket(Draining):
    """Evenly spaced: never more than ``rate * 2 ms + 1`` ahead of the even schedule.

    The generic cell rate algorithm (ITU-T I.371) with a tolerance of 2 ms, whatever the cost: with
    T = period / limit, and the next token due at `e`, a cost c can be taken at `now` if
    ``e - 2 ms <= now``, and the next is then due at ``max(e, now) + c * T``. So the schedule is
    absolute: a request that is late by less than 2 ms, as timers are, does not delay the next one.
    In any time t at most ``rate * (t + 2 ms)`` tokens are taken, and the last cost. A heavy cost
    delays the requests behind it, not itself.

    Args:
        rate: Tokens per second, a string or a `Rate`.

    Raises:
        TypeError: `rate` is of a kind that is not a rate.
        ValueError: `rate` is out of range.

    >>> bucket = LeakyBucket("10/s")
    >>> state = bucket.start()
    >>> bucket.take(state, now=0.0, cost=1)
    >>> [round(bucket.delay(state, now, cost=1), 3) for now in (0.0, 0.09, 0.0985)]
    [0.098, 0.008, 0.0]
    """

    rate: Rate
    _kind: ClassVar[int] = 0x31

    def __init__(self, rate: RateLike) -> None:
        rate = as_rate(rate)
        set_fields(self, rate=rate)
        brim = TOLERANCE * rate.limit / rate.period
        self._drain(rate, capacity=rate.in_whole_tokens.limit, brim=brim, own_room=0)


@dataclass(frozen=True, slots=True, init=False)
class Cooldown(Draining):
    """`n` per period as a burst, n/period on average; a rejected request changes nothing.

    The generic cell rate algorithm (ITU-T I.371), described as a score: each request raises the
    score by its cost, time lowers it by `n` per period, and a cost can be taken as soon as
    ``score + cost <= n``. That is `TokenBucket` with a burst of `n`. It carries its own numbers and
    needs no rate beside it.

    Args:
        n: Tokens that can be taken at once, 1 or more.
        period: Seconds in which `n` tokens cool down.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range.

    >>> cooldown = Cooldown(3, 60)
    >>> state = cooldown.start()
    >>> cooldown.take(state, now=0.0, cost=3)
    >>> cooldown.used(state, now=0.0), cooldown.delay(state, now=0.0, cost=1)
    (3.0, 20.0)
    """

    n: float
    period: float
    _kind: ClassVar[int] = 0x71

    def __init__(self, n: float, period: float) -> None:
        rate = Rate(n, period)  # checks both
        if n < 1:
            raise ValueError(f"n must be 1 or more per period, got {n!r}")
        set_fields(self, n=rate.limit, period=rate.period)
        self._drain(rate, capacity=rate.limit, brim=rate.limit, own_room=1)


@dataclass(frozen=True, slots=True, init=False)
class WaitUntil(Draining):
    """One every interval; rejects a wait beyond `raise_after`; rejected requests accumulate too.

    In the original, a request at `now` waits until the reserved time, and rejected or not moves
    that to ``max(reserved + interval, now + interval)``, but at most to ``now + limit``. Of ten
    requests at one instant, with ``WaitUntil(1, raise_after=5, limit=10)``, the first starts, five
    wait 1 to 5 seconds, and four are rejected with waits of 6, 7, 8 and 9. After that, requests at
    that instant have a wait of 10: no more than the limit.

    The original moves the reserved time when a request arrives, and the request sleeps. Here
    requests wait in a queue, first in, first out, and each takes its tokens when it starts, which
    makes the next one due an interval later. So the nth in the queue starts n intervals after the
    reserved time, exactly as if it had slept. (With a limit below ``raise_after + interval`` the
    original starts two requests within an interval. This does not.) The queue decides on a
    rejection too: a request that would wait longer than `max_wait` behind the whole queue
    (`delay_behind`) is rejected.

    This is the one algorithm in which a rejected request counts: it takes `cost_of_reject`, up to
    the limit. If the queue is empty, that is taken at once; otherwise it joins the queue as an
    entry without a waiter, and is taken in its turn. So a request before it in the queue starts
    when it would have anyway, and a request behind it waits for it too. `try_acquire` and `peek` do
    not count as rejected requests.

    Through a store it is as in the original: the time is reserved when a request arrives. So the
    queue is that of all processes, and there, too, no two requests start within an interval.

    Args:
        interval: Seconds from one request to the next.
        raise_after: Seconds. A request that would wait longer is rejected.
        limit: Seconds that rejected requests can make others wait, at most. Not below
            `raise_after`.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range, or they contradict each other.

    >>> algorithm = WaitUntil(interval=1, raise_after=5, limit=10)
    >>> state = algorithm.start()
    >>> algorithm.take(state, now=0.0, cost=1)
    >>> [algorithm.delay_behind(state, now=0.0, cost=1, ahead=n) for n in range(6)]
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    >>> algorithm.cost_of_reject(state, now=0.0, cost=1, ahead=5)
    1
    """

    interval: float
    raise_after: float
    limit: float
    _kind: ClassVar[int] = 0x61
    _last_only: ClassVar[int] = 1

    def __init__(self, interval: float, raise_after: float, limit: float) -> None:
        check_number("interval", interval, "seconds", above=0)
        check_number("raise_after", raise_after, "seconds")
        check_number("limit", limit, "seconds")
        if limit < max(interval, raise_after):
            raise ValueError(
                f"limit={limit!r} is below interval={interval!r} or raise_after={raise_after!r}: "
                "requests that have to wait or to be rejected would start; give as much or more"
            )
        set_fields(self, interval=interval, raise_after=raise_after, limit=limit)
        # The intervals that fit into the limit: a cost of 2 is followed by two of them.
        self._drain(Rate(1, interval), capacity=limit / interval, brim=0, own_room=0)

    @property
    def max_wait(self) -> float:
        """Seconds: `raise_after`, and what rounding can add."""
        return self.raise_after + _WAIT_ROUNDING * self.interval

    def take(self, state: Level, now: float, cost: float) -> None:
        """Move the reserved time by `cost` intervals, up to the limit."""
        moved = min(cost, self.capacity - self.used(state, now))
        if moved > 0.0:
            Draining.take(self, state, now, moved)
            # No request starts before the reserved time: all but the last has drained.
            state.forget(state.at)

    def cost_of_reject(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Tokens that a rejected `cost` takes: all of it, up to the limit."""
        return max(0.0, min(cost, self.capacity - self.used(state, now) - ahead))
