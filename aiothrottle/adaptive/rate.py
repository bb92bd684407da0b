"""The adaptive rate: finds a limit that the server does not report, and follows it.

Invariant: the rate changes only with evidence. It grows in the time in which it was used, and is
cut once for each event, which is a 429 and all those of requests that were sent before it arrived.

Requests are evenly spaced, so that a 429 is due to the rate and not to a burst. Before the first
429 the rate doubles in each step, which is longer where the server was closed for long: its window
takes longer to fill. From then on the limit lies between two bounds: the throttled rate, and what
the server admitted on average since the last event, the pause included. The rate is cut to a mean
of the two. If the first 429 came at once after a step, the server wants requests
further apart: the rate is cut to a little below that of the step before.

The rate returns to the upper bound on a cubic of the time in which it was used (as in Ha, Rhee, Xu:
"CUBIC", 2008): it rises fast at first, stays in the middle for long, and probes beyond, slowly at
first. So the bounds close in on the limit. A limit that has stood for long will stand, so the
probes take longer with time, up to 30 seconds to the middle, and 429s are rare once it is known.
Where pauses are short, that takes a quarter of an hour, and at first a limit of 10/s or more that
doubles is found within half a minute. A pause of a second is too long for that, and each probe
takes twice as long as the one before has lasted. 429s that come early make the next probes short
again.

A pause of a second or more tells more, as the server counts over at least a second. A 429 in the
first second of use then means that its window is full: what was admitted in that second is the
upper bound. A later one means that a bucket was emptied: the mean is nearer to the average. With a
pause in it that is low, and the middle was admitted for long: a 429 beyond the middle cuts little.

A server that was closed for long counts over a minute or so. Then its average is nearly the limit,
and the search stays near it: to double the rate in each step would only use up the next window. In
the middle of a search that may be an outage, so it has to happen twice in a row.

Some servers ask for a pause of the same length each time, and then the average is too low. If for
as long afterwards more is admitted than any window or bucket with that pause could admit, the rate
goes on near the upper bound.
"""

import math
from dataclasses import dataclass

from aiothrottle.algorithms.protocol import set_fields
from aiothrottle.rate import RateLike, as_rate

# The least and the greatest part of the rate that a cut takes. A small one keeps the shares of
# several clients even: another one takes what a cut frees.
_LEAST_CUT, _GREATEST_CUT = 0.03, 0.5
# The greatest after a probe with a pause of a second or more, which makes the average low. A long
# pause costs too much for that: up to so many seconds.
_PROBE_CUT, _SHORT_PAUSE = 0.12, 5.0
# Seconds of a window, at least, of a server that asks for a pause as long. A window holds so many
# tokens; fewer are the burst of a small bucket.
_WINDOW, _WINDOW_TOKENS = 1.0, 10.0
#: Seconds for which only a server is closed that counts over a long time. Then the limit is hardly
#: above the average: by this factor at the most.
LONG_CLOSED, _ABOVE_AVERAGE = 12.0, 2.0
# So many times in a row, that is no outage.
_CLOSURES = 2
# Seconds by which a Retry-After is too long on average, as it is a whole number of them.
_ROUNDED = 0.5
# The weight of the lower bound in the mean of the bounds, where a bucket was emptied, and after a
# probe that a short pause has ended: that is all average.
_WEIGHT, _BUCKET_WEIGHT, _PROBE_WEIGHT = 0.5, 0.75, 1.0
# The weight of the upper bound, once the average has proved to be too low.
_PROVED_WEIGHT = 0.75
# While the server is closed each 429 cuts the rate by half, but not so far that the next request is
# later than by this part of the time for which it has been closed, or by so many seconds: an outage
# may be over by then.
_TRIES, _LATEST = 8.0, 900.0
# Seconds of use from a cut to the middle of the bounds. A 429 costs a request and a pause, so slow
# rates and long pauses take longer: so many requests, and so many pauses. A pause of a second makes
# the average low: then the first probe comes sooner.
_SHORT, _LONGEST, _REQUESTS = 10.0, 30.0, 200.0
_SHORTEST, _FEWEST_REQUESTS = 5.0, 30.0
_FEWEST_PAUSES, _MOST_PAUSES = 2.0, 12.0
# The same after shorter pauses: at least so many seconds and requests, and that part of the time
# for which the limit has stood; throttled rates that differ by this factor are of another limit.
_OFTEN, _OFTEN_REQUESTS, _STANDS, _OTHER = 4.0, 60.0, 0.03, 1.3
# Seconds of use that a reported rate is as good as.
_REPORTED = 60.0
# Below this rate, in tokens per second, only a few tokens are admitted between two events.
_SLOW = 2.0
# The next probe takes so many times as long as the one that a 429 has ended, and half of that one's
# scale at least: of several clients that share a limit, one gets the 429s that another has caused.
_LONGER = 2.0
# Without a 429 for so many times the scale, the limit has risen: the rate doubles at its fastest.
_RISEN = 2.25
# The rate doubles in no less than so many seconds, as a window may be full only much later than
# its limit was exceeded, and after short pauses in these; and no more than once with each request.
_DOUBLED, _DOUBLED_SOON = 20.0, 4.0
# With each step before the first 429 the rate grows by this factor. A 429 is due to it if it comes
# within so many requests; the rate is cut to that part of the one before.
_GROWTH, _AT_ONCE, _PART_BEFORE = 2.0, 2.5, 0.9
# A step of the growth takes so many seconds and tokens, and that part of the rate has to be used.
# Before the first 429 of a search also that part of the time for which the server was closed.
_STEP_SECONDS, _STEP_TOKENS = 0.5, 1
_USED, _PART_CLOSED = 0.9, 0.5


@dataclass(slots=True)
class RateState:
    """The state of the search for the limit. Timestamps are of the reporting limiter's clock."""

    #: Tokens per second that can be taken now.
    rate: float
    #: The greatest rate by what the server reports; infinite if it reports none.
    reported: float = math.inf
    #: The bounds of the limit: the rate after the last cut, and the rate that was throttled, or
    #: less if a window was full. Infinite before the first 429.
    lower: float = math.inf
    upper: float = math.inf
    #: Seconds of use from the last cut to the middle of the bounds, and those that have passed.
    scale: float = _SHORT
    used: float = 0.0
    #: Requests sent up to here belong to an event that has been counted.
    cut_at: float = -math.inf
    #: Whether the server admitted a request that was sent after the last cut.
    is_open: bool = True
    #: The throttled rate, as it was when the limit was another one, and since when it is this one.
    found: float = math.inf
    found_at: float = -math.inf
    #: The last event: the throttled rate, when its first request was sent, whether that was in the
    #: first second of use or in a probe, and the pause; once the server is open again, that for
    #: which it was closed, if that was longer.
    throttled_rate: float = math.inf
    throttled_at: float = math.inf
    was_early: bool = False
    was_probe: bool = False
    pause: float = 0.0
    #: If the pause was longer than the full window: its tokens, and the seconds of both.
    window: float = math.inf
    cycle: float = math.inf
    #: Until when it certainly admits nothing.
    closed_until: float = -math.inf
    #: How often in a row that was for long.
    closures: int = 0
    #: Since when, by the time of sending, admitted tokens are counted.
    opened_at: float = math.inf
    admitted: float = 0.0
    #: The same for the current step, with the last request sent in it.
    step_at: float = math.inf
    step_end: float = -math.inf
    in_step: float = 0.0
    #: Before the first 429: the rate of the last step, if it was followed by growth; else zero.
    grown_from: float = 0.0
    #: The rate before the last growth, if the first 429 came at once after it; else zero.
    spaced: float = 0.0

    def begin_throttled(self, now: float, closed_for: float) -> None:
        """Begin the search with a 429 that arrived now: the rate is a guess.

        Args:
            now: The time.
            closed_for: Seconds for which the server was closed, if the rate is its average.
        """
        if closed_for >= LONG_CLOSED:
            self.lower, self.upper = self.rate, _ABOVE_AVERAGE * self.rate
            self.scale = closed_for
        self.cut_at, self.is_open, self.pause = now, False, closed_for
        self.step_at = self.step_end = now  # the first request after the pause may end the step


@dataclass(frozen=True, slots=True, init=False)
class AdaptiveRate:
    """A rate limit that adapts to 429s, for servers that do not report their limit.

    Used in place of a rate limit:
    ``RateLimiter(AdaptiveRate("160/s", 1, 1000), concurrency_limit=30)``.
    The limiter then spaces requests evenly, and every outcome has to be reported:
    `Permit.report_success`, `Permit.report_throttled`. The sessions and transports do that.

    With the upper bound `U`, the rate `L` after the cut, and `x` the time in which the rate was
    used since, from -1 (the cut) over 0 (the middle) to 1 (back at the upper bound), the rate
    is ``sqrt(L * U) * sqrt(U / L) ** x**3``.

    Args:
        initial: The first rate: tokens per second, a string or a `Rate`.
        minimum: The slowest rate.
        maximum: The fastest rate.

    Raises:
        TypeError: One of them is of a kind that is not a rate.
        ValueError: One of them is out of range, or they are not in order.

    >>> adaptive = AdaptiveRate("10/s", minimum=1, maximum=100)
    >>> state = adaptive.start()
    >>> adaptive.throttled(state, now=0.2, sent_at=0.1)
    >>> adaptive.throttled(state, now=0.3, sent_at=0.15)  # sent before the cut: the same event
    >>> state.rate
    5.0
    """

    initial: float
    minimum: float
    maximum: float

    def __init__(self, initial: RateLike, minimum: RateLike, maximum: RateLike) -> None:
        for name, value in (("initial", initial), ("minimum", minimum), ("maximum", maximum)):
            rate = as_rate(value)
            set_fields(self, **{name: rate.limit / rate.period})
        if not 0.0 < self.minimum <= self.initial <= self.maximum < math.inf:
            raise ValueError(f"must be 0 < minimum <= initial <= maximum, got {self}")

    def start(self) -> RateState:
        """Return the state of a new search."""
        return RateState(rate=self.initial)

    def succeeded(self, state: RateState, now: float, sent_at: float, cost: float = 1.0) -> None:
        """Record a request that the server has admitted.

        Args:
            state: Is changed.
            now: When its response arrived.
            sent_at: When it was sent.
            cost: Its tokens.
        """
        if sent_at > state.cut_at:
            if not state.is_open:
                self._cut(state)
                self._end_closure(state, sent_at)
                state.is_open = True
                state.opened_at, state.admitted = sent_at, 0.0
                if state.rate < _SLOW:
                    # Of few tokens the wait for the first one is a part of the average.
                    since = max(state.closed_until, sent_at - 1.0 / state.rate)
                    state.opened_at = min(since, sent_at)
            self._count(state, now, sent_at, cost)
        state.opened_at = min(state.opened_at, sent_at)
        state.admitted += cost
        if not state.is_open:
            self._cut(state)  # a 429 arrives sooner than the response to an earlier request
            if sent_at > state.throttled_at + _WINDOW:
                state.closures = -1  # it was open in between, and answers late

    def throttled(self, state: RateState, now: float, sent_at: float, pause: float = 0.0) -> None:
        """Record a 429.

        Args:
            state: Is changed.
            now: When its response arrived.
            sent_at: When its request was sent.
            pause: Seconds from `now` on in which nothing will be sent.
        """
        if sent_at <= state.cut_at:
            return
        state.cut_at = now
        if state.is_open:
            state.was_probe = state.used > state.scale
            state.scale = self._next_scale(state, now, pause)
            state.throttled_rate, state.throttled_at, state.spaced = state.rate, sent_at, 0.0
            if state.grown_from:
                age = sent_at - state.step_at  # of the growth, when the request was sent
                if age <= 0.0:
                    state.throttled_rate = state.grown_from
                elif age <= _AT_ONCE / state.rate:
                    state.spaced = state.grown_from
                state.grown_from = 0.0
            state.was_early, state.pause = state.used < _WINDOW, pause
            state.closed_until = now + pause
            state.is_open = False
            self._cut(state)
        else:
            # Still closed. The pause that follows is not part of it: it may be our own, doubled.
            state.closed_until = max(state.closed_until, now)
            if state.throttled_rate < math.inf:
                closed_for = max(now - state.throttled_at, 1e-3)
                slowest = max(_TRIES / closed_for, 1.0 / _LATEST)
                self._set(state, min(max((1.0 - _GREATEST_CUT) * state.rate, slowest), state.rate))

    def reported(self, state: RateState, now: float, rate: float) -> None:
        """Adopt a rate that the server reports, and stay a little below it from then on.

        At just that rate, any jitter of the network would be throttled now and then.

        Args:
            state: Is changed.
            now: When the response arrived.
            rate: Tokens per second.
        """
        rate *= 1.0 - _LEAST_CUT
        if rate == state.reported:
            return
        state.reported = rate
        self._set(state, rate)
        state.lower = state.upper = math.inf
        state.cut_at, state.is_open = now, True
        # As good as so much use: a 429 after it cuts only a little.
        state.used = _REPORTED
        state.opened_at, state.admitted = now - _REPORTED, _REPORTED * state.rate
        state.step_at, state.in_step, state.grown_from = math.inf, 0.0, 0.0

    @staticmethod
    def _next_scale(state: RateState, now: float, pause: float) -> float:
        """Return the scale of the next probe, after one that has ended with that pause."""
        longest = max(_LONGEST, _REQUESTS / state.rate)
        if max(pause, state.pause) < _WINDOW:  # and so was the whole closure before
            if not 1.0 / _OTHER < state.rate / state.found < _OTHER:
                state.found, state.found_at = state.rate, now
            stood_for = min(_STANDS * (now - state.found_at), longest)
            return max(_OFTEN, _OFTEN_REQUESTS / state.rate, stood_for)
        shortest = max(_SHORTEST, _FEWEST_PAUSES * pause, _FEWEST_REQUESTS / state.rate)
        scale = max(_LONGER * state.used, 0.5 * state.scale, shortest)
        return min(scale, max(longest, _MOST_PAUSES * pause))

    def _cut(self, state: RateState) -> None:
        """Cut the throttled rate to between the bounds, by what is known so far."""
        if state.throttled_rate == math.inf:
            return  # the search has begun with a 429
        elapsed = state.closed_until - state.opened_at
        state.upper, weight, state.cycle = state.throttled_rate, _WEIGHT, math.inf
        if state.spaced:
            self._begin_at(state, _PART_BEFORE * state.spaced)
            return
        seconds = max(state.throttled_at - state.opened_at, _WINDOW)
        if state.pause < _WINDOW:
            weight = _PROBE_WEIGHT if state.was_probe else _WEIGHT
        elif not state.was_early:
            weight = _BUCKET_WEIGHT
        # In two windows, the rate may not have been used all the time.
        elif state.admitted >= _WINDOW_TOKENS and seconds < 2.0 * _WINDOW:
            state.upper = min(state.upper, state.admitted / seconds)
            elapsed -= _ROUNDED
            if state.admitted <= (1.0 - _GREATEST_CUT) * state.upper * elapsed:
                state.window, state.cycle = state.admitted, elapsed
        admitted = state.admitted / elapsed if elapsed > 0.0 else 0.0
        part = (admitted / state.upper) ** weight
        is_short = _WINDOW <= state.pause <= _SHORT_PAUSE
        most = _PROBE_CUT if is_short and state.was_probe else _GREATEST_CUT
        self._begin_at(state, max(part, 1.0 - most) * state.upper)

    def _end_closure(self, state: RateState, reopened_at: float) -> None:
        """Begin at the average if the server was closed for long twice in a row: it counts so.

        Its 429s have to show that: a pause may be longer than needed.

        Args:
            state: The state, of a server that has admitted a request again.
            reopened_at: When that was sent.
        """
        closed_for = state.cut_at - state.throttled_at
        state.pause = max(state.pause, closed_for)
        if closed_for < LONG_CLOSED:
            state.closures = 0
            return
        state.closures += 1
        if state.closures < _CLOSURES or not state.admitted:
            return  # that was an outage, perhaps
        state.upper = min(state.upper, state.admitted / (state.cut_at - state.opened_at))
        state.scale = max(state.scale, closed_for)
        opened_at = 0.5 * (state.cut_at + reopened_at)  # at some time in between
        self._begin_at(state, state.admitted / (opened_at - state.opened_at))

    def _begin_at(self, state: RateState, rate: float) -> None:
        """Begin to approach the upper bound at that rate, or a little below the bound."""
        self._set(state, min(rate, (1.0 - _LEAST_CUT) * state.upper))
        state.lower = state.rate
        state.used = state.in_step = 0.0
        state.step_at = math.inf

    def _count(self, state: RateState, now: float, sent_at: float, cost: float) -> None:
        """Count a request into the current step; at its end, let the rate grow if it was used."""
        if state.step_at == math.inf:
            state.step_at = state.step_end = sent_at
            return
        if sent_at <= state.step_at:
            return
        state.step_end = max(state.step_end, sent_at)
        state.in_step += cost
        seconds = state.step_end - state.step_at
        least = _STEP_SECONDS
        if state.upper == math.inf:
            least = max(least, _PART_CLOSED * state.pause)
        # A step ends with the request that is nearest to its end.
        if seconds + 0.5 / state.rate < least or state.in_step < _STEP_TOKENS:
            return
        began_at, state.step_at = state.step_at, state.step_end
        state.grown_from = 0.0
        if state.in_step >= _USED * state.rate * seconds:
            if state.upper == math.inf:
                before = state.rate
                self._set(state, _GROWTH * before)
                if state.rate > before:
                    state.grown_from = before
                    # The slower steps before this one say nothing about the window that is open.
                    state.opened_at, state.admitted = began_at, state.in_step
                # Requests that were sent before the rate grew say nothing about the new one.
                state.step_at = state.step_end = max(now, state.step_end)
            elif _is_average_too_low(state):
                rate = state.rate ** (1.0 - _PROVED_WEIGHT) * state.upper**_PROVED_WEIGHT
                self._set(state, rate)
                state.lower, state.used, state.cycle = state.rate, 0.0, math.inf
                state.scale = max(state.scale, _LONGEST)  # the bounds are close together
            else:
                state.used += seconds
                doubled = _DOUBLED if state.pause >= _WINDOW else _DOUBLED_SOON
                most = state.rate * 2.0 ** min(seconds / doubled, 1.0)
                has_risen = state.used > _RISEN * state.scale
                self._set(state, most if has_risen else min(_rate_on_cubic(state), most))
        state.in_step = 0.0

    def _set(self, state: RateState, rate: float) -> None:
        state.rate = max(min(rate, self.maximum, state.reported), self.minimum)


def _is_average_too_low(state: RateState) -> bool:
    """Return whether the server admits more than the pause of its last 429 let expect."""
    seconds = state.step_end - state.opened_at
    # The pause over and over: of a window all of it each time, and a bucket was full once.
    most = state.window * (1.0 + seconds / state.cycle)
    return seconds >= state.cycle and state.admitted > most and state.rate < state.upper


def _rate_on_cubic(state: RateState) -> float:
    """Return the rate after the seconds of use since the last cut."""
    x = state.used / state.scale - 1.0
    half = 0.5 * math.log(state.upper / state.lower)
    # Far beyond any rate, and no overflow.
    return state.lower * math.exp(min(half * (1.0 + x**3), 50.0))
