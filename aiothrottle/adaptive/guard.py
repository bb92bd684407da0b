"""What a limiter learns while it keeps to a known limit: the guard, and the burst of the server.

The guard is a margin as long as the spread of the round trips. The burst is what the server accepts
back to back. A request that is throttled although the limit was kept means that the server accepts
a smaller burst than the limit (a small bucket) or none at all (even spacing, a sliding counter). At
each such event the burst is halved, down to one token: requests are then evenly spaced. If even
that is throttled, the spacing is too short for the jitter of the network, and is widened by steps.
After a long pause there is no time for halves: the burst is one token at once. If none of this
makes throttled requests rarer, they come by chance, and the burst returns; or the limit is lower
than it is said to be, and the limiter learns its rate (`evidence`).

Invariant: the burst never exceeds that of the limit; it shrinks only at throttled requests, and
grows only after a while without any: as often as it was in use, and one step without that. Nothing
is taken for chance before six events, and twice as many after a mistake.
"""

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace

from aiothrottle._checks import check_number
from aiothrottle.rate import Rate

# Responses of which the spread is taken.
_LAST = 500
# The spread of a few is smaller than that of many: so much is added, divided by their number.
_FEW = 3.0
# Beyond this part of the period, or so many seconds, it is hardly the network that is slow, but
# some responses. So the guard costs at most a tenth of the limit. Where that is not enough, it is
# longer by this factor for each step by which it is widened, up to the whole period.
_LONGEST, _LONGEST_SECONDS, _WIDER = 1 / 9, 1.0, 1.5
# The same as long as nothing was throttled: most servers answer unevenly, and need no guard for it.
_LONGEST_AT_FIRST = 1 / 25
# The same where requests are evenly spaced: there each late timer costs a part of the limit too.
_LONGEST_EVEN = 1 / 14
# A guard that is so much too long is not worth a change; nor is one that is a microsecond too
# short: it is a whole number of these steps, in parts of the period.
_WORTH, _STEP, _ROUNDING = 0.1, 0.001, 1e-9


@dataclass(slots=True)
class Extremes:
    """The least and the greatest of at least the last `size` values, at most twice as many.

    Two generations: when the new one is full, it replaces the old one.

    >>> times = Extremes(100)
    >>> for value in (3.0, 1.0, 2.0):
    ...     _ = times.add(value)
    >>> times.least, times.greatest, times.spread
    (1.0, 3.0, 2.0)
    """

    size: int
    count: int = 0
    #: Of the new generation.
    least_now: float = math.inf
    greatest_now: float = -math.inf
    _old_least: float = math.inf
    _old_greatest: float = -math.inf

    def add(self, value: float) -> bool:
        """Add a value; return whether the least or the greatest may have changed."""
        count = self.count
        self.count = count + 1
        if self.least_now <= value <= self.greatest_now and count % self.size:
            return False
        if count and count % self.size == 0:
            self._old_least, self._old_greatest = self.least_now, self.greatest_now
            self.least_now, self.greatest_now = math.inf, -math.inf
        self.least_now = min(self.least_now, value)
        self.greatest_now = max(self.greatest_now, value)
        return True

    @property
    def least(self) -> float:
        """The least value; infinite if there was none."""
        return min(self.least_now, self._old_least)

    @property
    def greatest(self) -> float:
        """The greatest value; minus infinity if there was none."""
        return max(self.greatest_now, self._old_greatest)

    @property
    def spread(self) -> float:
        """The greatest less the least; 0.0 if there was none."""
        return max(0.0, self.greatest - self.least)


@dataclass(slots=True)
class SelfTuningGuard:
    """Measures how much the round trips differ, and derives the guard that makes up for it.

    A request arrives at the server at some time between its sending and its response. So two that
    were sent a period apart arrive at least ``period - spread`` apart, where the spread is the
    longest round trip less the shortest: a period that is stretched by as much is never too short,
    as long as no round trip is longer or shorter than those seen.

    The round trip is all that a client sees, and it includes the time that the server took to
    answer. So what is beyond a second, or a ninth of the period, is ignored, until the guard is
    widened; and until something was throttled, what is beyond a twenty-fifth.

    Args:
        period: Seconds, the shortest of the periods that it guards. The guard is never longer than
            a ninth of that, nor than a second; widened twice, a quarter, and 2.25 s; at the most,
            the period.

    Raises:
        TypeError: `period` is not a number.
        ValueError: `period` is not above 0, or not finite.

    >>> guard = SelfTuningGuard(period=1.0)
    >>> guard.observe(0.100)
    False
    >>> guard.observe(0.112)
    True
    >>> round(guard.seconds, 3)
    0.03
    """

    period: float
    #: The guard, in seconds.
    seconds: float = 0.0
    _times: Extremes = field(default_factory=lambda: Extremes(_LAST))
    # In how many intervals of a period the spread counts, and the bounds of the guard, in seconds.
    _intervals: float = 1.0
    _least: float = 0.0
    _most: float = field(init=False)

    def __post_init__(self) -> None:
        check_number("period", self.period, "seconds", above=0)
        self.space(1.0, 0)

    def with_period(self, period: float) -> "SelfTuningGuard":
        """Return the guard for another period, with what was measured of the network.

        Args:
            period: Seconds; see `period`.
        """
        other = SelfTuningGuard(period, _times=self._times)
        other._follow()
        return other

    def observe(self, round_trip: float) -> bool:
        """Record a round trip, and return whether the guard changed.

        Args:
            round_trip: Seconds from sending a request to its response.
        """
        times = self._times
        # Most lie between the extremes. The addition for a few is revised when they have doubled.
        if times.least_now <= round_trip <= times.greatest_now and times.count % times.size:
            times.count += 1  # as in `add`, without a call
            if times.count & (times.count - 1):
                return False
        else:
            times.add(round_trip)
        return self._follow()

    def space(self, intervals: float, steps: int, *, was_throttled: bool = True) -> bool:
        """Guard so many intervals of each period, and widen the guard; return whether it changed.

        Args:
            intervals: 1 where requests may be sent in bursts, and the limit where they are evenly
                spaced: then the spread shortens each of the intervals.
            steps: How often a shorter guard was not enough: then it is at least as long as the
                longest of one step less.
            was_throttled: Whether a request was throttled although the limit was kept.
        """
        part = _LONGEST_EVEN
        if intervals == 1.0:
            part = _LONGEST if was_throttled else _LONGEST_AT_FIRST
        longest = min(part * self.period, _LONGEST_SECONDS * intervals)
        self._intervals = intervals
        self._most = min(longest * _WIDER**steps, self.period)
        self._least = min(longest * _WIDER ** (steps - 1), self.period) if steps else 0.0
        return self._follow()

    def begin_long(self) -> None:
        """Begin with the longest guard of all, until the spread is known.

        The first request opens a connection, and arrives later than those after it.
        """
        self.seconds = self._most * _WIDER**2

    def _follow(self) -> bool:
        times, wanted = self._times, self.seconds
        if times.count >= 2:
            wanted = self._intervals * times.spread * (1.0 + _FEW / times.count)
            step = self.period * _STEP
            wanted = min(math.ceil(wanted / step - _ROUNDING) * step, self._most)
        wanted = max(self._least, wanted)
        if self.seconds * (1.0 - _WORTH) <= wanted <= self.seconds:
            return False
        self.seconds = wanted
        return True


# ---- chance --------------------------------------------------------------------------------------

# A limit is exceeded less often when requests are better spaced. So the requests between throttled
# ones are counted. If there are not many more of them after several cuts of the burst, the cuts
# were in vain. If there are far fewer when the burst is back, they were not. A limit admits about
# as many again and again, which chance does not.

# Events that are compared. The requests between them: more than a burst that is too large would
# leave, and fewer than are worth a thought.
_EVENTS, _LEAST, _MOST = 6, 13, 200
# By chance the longest of these is longer by this factor than the shortest: a limit admits about
# the same number again and again.
_UNEVEN = 2
# With fewer cuts there are so many times as many requests, if they help; and so many of those with
# the cuts are left without them, in so many events.
_MORE, _LEFT, _TRIED = 3, 0.2, 4


@dataclass(slots=True)
class Chance:
    """The events of a limiter that keeps to its limit.

    >>> chance = Chance()
    >>> [chance.throttled(sent, burst=10.0) for sent in (60, 80, 150, 190, 260, 290)]
    [False, False, False, False, False, True]
    >>> chance.burst
    10.0
    """

    #: Whether the 429s come by chance.
    is_found: bool = False
    #: The burst before the first of these events.
    burst: float = 0.0
    # The requests between the last events, and those before the last one.
    _gaps: tuple[int, ...] = ()
    _sent: int = 0
    # How many there were between events with the smaller burst.
    _usual: float = 0.0
    _needed: int = _EVENTS

    def throttled(self, sent: int, burst: float) -> bool:
        """Record an event: a 429, and all those of requests that were sent before it arrived.

        Args:
            sent: The requests that were sent so far.
            burst: The burst, in tokens.

        Returns:
            Whether it is by chance.
        """
        gap, self._sent = sent - self._sent, sent
        if not self._gaps and not self.is_found:
            self.burst = burst
        self._gaps = (*self._gaps[1 - self._needed :], gap)
        number, total = len(self._gaps), sum(self._gaps)
        if self.is_found:
            if number >= _TRIED and total < _LEFT * number * self._usual:
                self.is_found, self._gaps = False, ()
                self._needed *= 2
        elif number == self._needed and self._is_alike(self._gaps[1:]):
            self.is_found, self._gaps = True, ()
            self._usual = total / number
        return self.is_found

    @staticmethod
    def _is_alike(gaps: tuple[int, ...]) -> bool:
        """Return whether the cuts have made no difference."""
        half = len(gaps) // 2
        least, *_, most = ordered = sorted(gaps)
        median = ordered[half]
        if most < _UNEVEN * least:
            return False
        return _LEAST <= median <= _MOST and sum(gaps[half:]) < _MORE * sum(gaps[:half])


# ---- the burst -----------------------------------------------------------------------------------

# Steps by which the guard can be widened, and where requests are evenly spaced: there they may
# arrive in another order, if the jitter of the network is longer than an interval.
_MOST_STEPS, _MOST_EVEN = 2, 6
# Seconds. A server's clock has no finer resolution, so a smaller burst than the tokens of that time
# tells nothing.
_RESOLUTION = 0.001
# Seconds for which a burst is in use before it doubles: at first, and after throttled requests.
# Each time that a larger burst fails, the wait for the next one doubles, up to an hour.
_OPENING, _WAIT, _LONGEST_WAIT = 0.25, 60.0, 3600.0
# The longest pause, in periods of the limit, that costs no more than a smaller burst does.
_LONG_PAUSE = 3.0
# Seconds of a token, above which even spacing costs more than throttled requests do.
_SLOW = 2.0


@dataclass(slots=True)
class LearnedBurst:
    """Multiplicative decrease, and doubling after a while.

    Args:
        most: The burst of the limit, in tokens.
        interval: Seconds of a token at the rate of the limit.

    >>> burst = LearnedBurst(most=20.0, interval=0.05)
    >>> burst.throttled(now=1.1, sent_at=1.0)
    True
    >>> burst.throttled(now=1.2, sent_at=1.0)  # sent before the change: the same event
    False
    >>> burst.size
    10.0
    """

    most: float
    interval: float
    #: The burst now, in tokens.
    size: float = math.inf
    #: Steps by which the spacing is widened.
    steps: int = 0
    #: Seconds without throttled requests after which it grows.
    wait: float = _OPENING
    #: While the burst is not in use, no success before that changes anything.
    due_at: float = math.inf
    # When it was changed last, when it was first in use since, and when the first request succeeded
    # since its last use. Requests sent up to the last cut belong to an event that counted.
    _changed_at: float = -math.inf
    _used_at: float = math.inf
    _idle_at: float = math.inf
    _cut_at: float = -math.inf
    # Requests that were admitted since it was changed, while it was in use.
    _admitted: int = 0
    # Whether it has grown since the last cut.
    _grew: bool = False
    # Whether it has grown without use: more than that would be tried at once by the next burst.
    _is_unproved: bool = False
    # Whether throttled requests depend on it.
    _chance: Chance = field(default_factory=Chance)
    # Whether it began small, and neither has reached the burst of the limit nor was throttled.
    _opens: bool = False

    def __post_init__(self) -> None:
        self.size = min(self.size, self.most)
        self._changed(-math.inf)

    @property
    def is_bounded(self) -> bool:
        """Whether the burst is smaller than that of the limit."""
        return self.size < self.most

    @property
    def may_grow(self) -> bool:
        """Whether the burst is smaller than that of the limit, or the spacing widened."""
        return self.size < self.most or self.steps > 0

    @property
    def is_even(self) -> bool:
        """Whether requests are evenly spaced."""
        return self.size <= 1.0

    @property
    def explains_429s(self) -> bool:
        """Whether a smaller burst, or a wider spacing, may be all that the server wants."""
        return self.steps < _MOST_STEPS

    @property
    def sees_chance(self) -> bool:
        """Whether throttled requests were found not to depend on it."""
        return self._chance.is_found

    @property
    def longest(self) -> float:
        """Seconds that a token takes at the most while the burst is used up.

        As long as nothing was throttled, no request waits long for the answer to another one, which
        may never come.
        """
        return _SLOW if self._opens else math.inf

    @property
    def was_throttled(self) -> bool:
        """Whether a request was throttled."""
        return self.wait > _OPENING

    def begin_small(self) -> None:
        """Begin with one token, or those of a millisecond.

        Evenly spaced, the first few tokens of a fast limit cost a part of a second. Those of a slow
        one would cost seconds: its burst doubles with the answers, without a wait.
        """
        if self.interval == math.inf:
            return  # there is no limit of requests, so no burst of them
        self.size = min(self.most, max(1.0, _RESOLUTION / self.interval))
        self._opens = self.size < self.most
        self._changed(-math.inf)

    def with_limit(self, most: float, interval: float) -> "LearnedBurst":
        """Return what was learned, for another limit."""
        size = math.inf if self.size >= self.most else self.size
        other = replace(self, most=most, interval=interval, size=size)
        other._opens = self._opens and other.is_bounded
        return other

    def restart(self) -> None:
        """Forget all timestamps: there is another clock."""
        self._cut_at = -math.inf
        self._changed(-math.inf)

    def succeeded(self, now: float, sent_at: float, *, in_use: bool = True) -> bool:
        """Record a request that was not throttled.

        Args:
            now: When its response arrived.
            sent_at: When it was sent.
            in_use: Whether the whole burst is in use.

        Returns:
            Whether the burst grew, or the spacing shrank.
        """
        if not self.may_grow or sent_at < self._changed_at:
            return False
        at_once = self._opens and self.interval > _OPENING
        self._admitted += in_use or at_once
        if in_use:
            self._used_at, self._idle_at = min(self._used_at, now), math.inf
            self._is_unproved = False
            self.due_at = -math.inf
        else:
            self._idle_at = min(self._idle_at, now)
            if not at_once:
                self.due_at = math.inf if self._is_unproved else self._idle_at + self.wait
        # It grew by half of its size: those tokens may have been used at once.
        enough = self.steps > 0 or 2 * self._admitted >= self.size
        proved = enough and ((at_once and in_use) or now - self._used_at >= self.wait)
        if not proved and (self._is_unproved or now - self._idle_at < self.wait):
            return False
        self._is_unproved = not proved and not self.steps
        if self.steps:
            self.steps -= 1
        else:
            self.size = min(2.0 * self.size, self.most)
            self._opens = self._opens and self.is_bounded
        self._changed(now)
        self._grew = True
        return True

    def throttled(
        self,
        now: float,
        sent_at: float,
        used: float = math.inf,
        pause: float = 0.0,
        sent: int = 0,
    ) -> bool:
        """Record a throttled request.

        Args:
            now: When its response arrived.
            sent_at: When it was sent.
            used: Tokens that count under the limit, with those of this request.
            pause: Seconds in which nothing will be sent.
            sent: The requests that were sent so far.

        Returns:
            Whether the burst or the spacing changed.
        """
        if sent_at <= self._cut_at:
            return False
        can_shrink = not self.is_even and (self._opens or self.interval <= _SLOW)
        if can_shrink and not self.is_bounded:
            if used <= 1.0:
                return False  # a single request is no burst
            self.size = min(self.size, used)
        self._cut_at = now
        before = self.size, self.steps
        if self._chance.throttled(sent, self.size):
            self.size, self.steps = max(self.size, min(self._chance.burst, self.most)), 0
            self._changed(now)
            return before != (self.size, self.steps)
        self.wait = min(max(_WAIT, 2.0 * self.wait if self._grew else self.wait), _LONGEST_WAIT)
        self._grew = self._is_unproved = self._opens = False
        if can_shrink:
            is_long = pause > _LONG_PAUSE * self.most * self.interval
            self.size = 1.0 if is_long else max(1.0, self.size // 2.0)
        elif self.steps < (_MOST_EVEN if self.is_even else _MOST_STEPS):
            self.steps += 1
        self._changed(now)
        return before != (self.size, self.steps)

    def _changed(self, now: float) -> None:
        self._changed_at, self._admitted = now, 0
        self._used_at = self._idle_at = math.inf
        self.due_at = -math.inf if self.may_grow else math.inf


# ---- the guard and the burst together -----------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class GuardControl:
    """The guard and the burst of one limiter.

    While the burst is one token, the guard covers the spread of the round trips in each interval
    between two requests; otherwise once in each period.

    Args:
        rates: The rates of requests; none: they have no limit.
        period: Seconds, the shortest period of any rate.
        most: The burst of the limit, in tokens.
        of_children: Whether requests of the limiters below count. They may be for several servers,
            whose round trips differ by more than the jitter of a network.
    """

    rates: Sequence[Rate]
    period: float
    most: InitVar[float]
    of_children: bool
    measured: SelfTuningGuard = field(init=False)
    burst: LearnedBurst = field(init=False)
    #: Whether the last line of the log about it says that it slows the limiter down.
    logged: bool = False

    def __post_init__(self, most: float) -> None:
        self.measured = SelfTuningGuard(self.period)
        # Without rates the interval is infinity: no burst is learned, as for a slow rate.
        self.burst = LearnedBurst(most, self._interval_with(0.0))
        self._space()

    @property
    def slows(self) -> bool:
        """Whether the burst is smaller, or the guard longer, since the server throttled."""
        return self.burst.was_throttled and self.burst.may_grow

    @property
    def interval(self) -> float:
        """Seconds of a token while the burst is used up, with the present guard."""
        return min(self._interval_with(self.measured.seconds), self.burst.longest)

    def fresh(self) -> "GuardControl":
        """Return another one for the same limit, which has learned nothing."""
        return GuardControl(self.rates, self.period, self.burst.most, self.of_children)

    def with_limit(self, rates: Sequence[Rate], period: float, most: float) -> "GuardControl":
        """Return one for another limit, with what was learned."""
        other = GuardControl(rates, period, most, self.of_children)
        other.measured = self.measured.with_period(period)
        other.burst = self.burst.with_limit(most, other.burst.interval)
        other._space()
        return other

    def begin_small(self) -> None:
        """Begin with a burst of one token, well spaced until the spread is known."""
        self.burst.begin_small()
        if self.burst.is_bounded:
            self._space()
            self.measured.begin_long()

    def succeeded(self, now: float, sent_at: float, *, in_use: bool) -> bool:
        """Record a request that was not throttled, as `LearnedBurst.succeeded` does."""
        changed = self.burst.succeeded(now, sent_at, in_use=in_use)
        if changed:
            self._space()
        return changed

    def throttled(self, now: float, sent_at: float, used: float, pause: float, sent: int) -> bool:
        """Record a throttled request, as `LearnedBurst.throttled` does."""
        changed = self.burst.throttled(now, sent_at, used, pause, sent)
        if changed:
            self._space()
        return changed

    def _space(self) -> None:
        """Space the requests by the present burst."""
        burst, intervals = self.burst, 1.0
        if burst.is_even:
            intervals = max(1.0, self.period / self._interval_with(0.0))
        self.measured.space(intervals, burst.steps, was_throttled=burst.was_throttled)

    def _interval_with(self, guard: float) -> float:
        """Return the seconds of a request at the fastest rate, with that guard."""
        return min([(it.period + guard) / it.limit for it in self.rates], default=math.inf)
