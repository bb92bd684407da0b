"""The adaptive rate: finds a limit that the server does not report, and follows it.

Strategy. Requests are evenly spaced, so that a 429 is due to the rate and not to a burst. At
first the rate trebles, much as TCP's slow start does, until the first 429. From then on the limit
is between two bounds: the throttled rate, and what was admitted in spite of the pause. The rate is
set between them, repeatedly if need be, until a 429 comes late. That one finds the rate rising, and
a server that counts in windows may be late by one window: the limit is what the rate was a little
before. From then on the rate follows a cubic of the time in which it was used (Ha, Rhee, Xu:
"CUBIC", 2008): after a cut it returns to where it was throttled, stays close, and only then probes
beyond, slowly at first. Many requests are in flight when the first 429 arrives: all of theirs are
one event, and cut once.

The long scale of that time keeps it quiet, two minutes once the limit is well known. It is quick
since the scale is the shorter the further the bounds are apart, and shrinks without a 429 far
beyond the old ceiling. If the server admits nothing for a good part of the time, then its limit is
what it admitted on average, and not the rate.
"""

import math
from dataclasses import dataclass, field

from aiothrottle.rate import RateLike, as_rate

__all__ = ["AdaptiveRate", "RateState"]

# ---- tuned with benchmarks/adaptive.py ----

# The part of the rate that a cut takes, at a 429 that comes late. The time scale alone makes 429s
# rare; and of several clients that share a limit, another one takes what a cut frees, so a small
# cut keeps their shares even.
_CUT = 0.03
# If it comes "at once", before that part of the way back to the ceiling, or within so few seconds,
# the bounds decide on the cut, within these; a quarter if too little was admitted to decide. A
# known limit is not doubted for three of them.
_SOON, _SOON_SECONDS = 0.12, 3.0
_LEAST_CUT, _MOST_CUT, _BLIND_CUT, _GREATEST_CUT = 0.1, 0.3, 0.25, 0.5
_LENIENT = 3
_ENOUGH = 5
# How far from the upper towards the lower bound. While it grew, the lower one is that part of the
# upper one. A window is hardly ever shorter than a second.
_BETWEEN, _LOWER, _SHORTEST_WINDOW = 0.55, 0.57, 1.0
# Seconds: a window may be full only one window after the limit was exceeded.
_LATE = 2.0
# Seconds of use until the ceiling is reached again, once it is known; requests, for slow rates; and
# multiples of the longest outage, which is about the server's window.
_SECONDS, _REQUESTS, _OUTAGES = 120.0, 100.0, 2.0
_FORGET_OUTAGE = 0.8
# How well the ceiling is known: that part of the scale. The less the bounds make it cut, the better
# it is; and it grows with each event near the ceiling.
_GUESSED, _DOUBTED, _HALF_KNOWN, _KNOWN, _LEARN = 0.12, 0.1, 0.4, 1.0, 4.0
_KNOWN_BY_CUT = 0.04
# Beyond the ceiling: the cubic's factor, its greater speed, and from where the ceiling is obsolete.
_PROBE, _FASTER, _BEYOND = 0.15, 2.0, 1.15
# Closed for more than that part of the time: what was admitted is the limit. A second of an outage
# is ignored, since Retry-After is rounded up to whole seconds.
_FAR, _ROUNDING, _HEADROOM = 0.25, 1.0, 1.1
# A step ends after so many tokens and seconds; that part of the rate has to be used for it to grow.
_FIRST_STEP_SECONDS, _FIRST_GROWTH = 0.25, 3.0
_STEP, _STEP_SECONDS = 10, 0.1
_USED = 0.9
_GREATEST_GROWTH = 1.5


@dataclass(slots=True)
class RateState:
    """The state of the search for the limit. Timestamps are of the reporting limiter's clock."""

    #: Tokens per second that can be taken now.
    rate: float
    #: The rate that was throttled last; infinite before the first 429.
    ceiling: float = math.inf
    #: The part of the ceiling that the last cut took.
    cut: float = _BLIND_CUT
    #: How well the ceiling is known, from 0 to 1.
    known: float = _GUESSED
    #: Seconds of use since the last cut.
    used: float = 0.0
    #: 429s in a row that came at once after a cut.
    soon: int = 0
    #: Whether the ceiling was exceeded fast, and not reached since.
    is_guess: bool = True
    #: Whether the limit is searched between bounds, and a lower bound that is not measured.
    is_between: bool = True
    lower: float = 0.0
    #: Requests sent up to here belong to an event that has been counted.
    cut_at: float = -math.inf
    #: The last 429 that counted: the rate at which the limit was exceeded, when its request was
    #: sent, and whether it is the first.
    throttled_rate: float = 0.0
    throttled_sent_at: float = 0.0
    is_first: bool = True
    #: Up to here the server still works on what it admitted before a long outage.
    settled_at: float = -math.inf
    #: Whether anything was admitted since the last cut, and if not, since when it is closed.
    is_open: bool = True
    closed_at: float = -math.inf
    #: For how long it certainly is, and until when at the latest.
    closed_for: float = 0.0
    reopens_at: float = -math.inf
    #: Whether there was another 429 since then, so that the end of the outage is unknown.
    blind: bool = False
    #: The longest outage, which fades.
    outage: float = 0.0
    #: Since when, by the time of sending, admitted tokens are counted.
    opened_at: float = math.inf
    admitted: float = 0.0
    #: The same at the steps of the first growth, before the first 429.
    marks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    #: The same for the current step, with the last request sent in it.
    step_at: float = math.inf
    step_end: float = -math.inf
    in_step: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class AdaptiveRate:
    """A rate limit that adapts to 429s, for servers that do not report their limit.

    Used in place of a rate limit:
    ``RateLimiter(AdaptiveRate("160/s", 1, 1000), concurrency_limit=30)``.
    The limiter then spaces requests evenly, and every outcome has to be reported:
    `Permit.report_success`, `Permit.report_throttled`. The sessions and transports do that.

    With the ceiling `C` where it was throttled last, and `x` the time in which the rate was used
    since, from -1 (the cut) over 0 (back at the ceiling), the rate is ``C * (1 + cut * x**3)``
    below the ceiling and ``C * (1 + 0.15 * (2 * x)**3)`` beyond.

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
    7.5
    """

    initial: float
    minimum: float
    maximum: float

    def __init__(self, initial: RateLike, minimum: RateLike, maximum: RateLike) -> None:
        for name, value in (("initial", initial), ("minimum", minimum), ("maximum", maximum)):
            rate = as_rate(value)
            object.__setattr__(self, name, rate.limit / rate.period)  # frozen
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
                self._reopen(state, sent_at)
            self._count(state, now, sent_at, cost)
        state.opened_at = min(state.opened_at, sent_at)
        state.admitted += cost
        if not state.is_open and not state.blind:
            self._cut(state)  # a 429 arrives sooner than the response to an earlier request

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
        if sent_at < state.settled_at:
            return
        if not state.is_open:
            state.blind = True
            state.rate = self._clamp(state.rate * (1.0 - _GREATEST_CUT))
            return
        state.throttled_rate, state.throttled_sent_at = state.rate, sent_at
        if state.ceiling < math.inf:
            _decide_cut(state)
        elif state.marks:
            state.cut = _GREATEST_CUT
        state.closed_at, state.closed_for = now, pause
        state.reopens_at = now + pause
        state.outage *= _FORGET_OUTAGE
        state.is_open = state.blind = False
        self._cut(state)

    def _cut(self, state: RateState) -> None:
        """Cut the throttled rate, by what is known so far."""
        longest = state.reopens_at - state.closed_at
        elapsed = state.reopens_at - state.opened_at
        state.outage = max(longest, state.outage)
        enough = state.admitted >= _ENOUGH and elapsed > 0.0
        if enough or state.is_first or not state.is_between:
            state.ceiling = state.throttled_rate
        else:
            # That the server is still closed says nothing about the rate.
            state.ceiling = max(state.ceiling, state.throttled_rate)
            state.cut = 1.0 - (1.0 - _BLIND_CUT) * state.throttled_rate / state.ceiling
        if state.is_first:
            _take_first_bounds(state)
        if enough:
            admitted_rate = state.admitted / elapsed
            if state.closed_for - _ROUNDING > _FAR * elapsed:
                state.ceiling = min(state.ceiling, _HEADROOM * admitted_rate)
                state.cut = _CUT
                state.settled_at = state.reopens_at + longest
            elif state.is_between:
                _cut_between(state, admitted_rate)
        state.ceiling = self._clamp(state.ceiling)
        state.rate = self._clamp(state.ceiling * (1.0 - state.cut))
        state.used = state.in_step = 0.0
        state.step_at = math.inf

    def _reopen(self, state: RateState, sent_at: float) -> None:
        """Restart the counts: the server admits again."""
        state.is_open = True
        if state.blind:
            # Since the last 429 it may have been open, and nothing was sent.
            state.closed_for, state.reopens_at = state.cut_at - state.closed_at, sent_at
            self._cut(state)
        state.is_first = False
        state.marks.clear()
        if state.soon and state.is_between:
            return  # a few outages in a row say more together than the last one
        state.opened_at = sent_at
        state.admitted = 0.0

    def _count(self, state: RateState, now: float, sent_at: float, cost: float) -> None:
        if state.step_at == math.inf:
            state.step_at = state.step_end = sent_at
            return
        if sent_at <= state.step_at:
            return
        state.step_end = max(state.step_end, sent_at)
        state.in_step += cost
        if state.ceiling == math.inf:
            if now - state.step_at >= _FIRST_STEP_SECONDS:
                self._grow_at_first(state, now, cost)
        elif state.in_step >= max(_STEP, _STEP_SECONDS * state.rate):
            seconds = state.step_end - state.step_at
            if state.in_step >= _USED * state.rate * seconds:
                self._grow(state, seconds)
            state.step_at = state.step_end
            state.in_step = 0.0

    def _grow_at_first(self, state: RateState, now: float, cost: float) -> None:
        """End a step before the first 429."""
        if state.in_step >= _USED * state.rate * (state.step_end - state.step_at):
            state.rate = self._clamp(_FIRST_GROWTH * state.rate)
            state.marks.append((state.step_end, state.admitted + cost))
            _forget(state.marks, state.step_end - _SHORTEST_WINDOW)
        # Requests sent before the rate grew say nothing about the new one.
        state.step_at = state.step_end = max(now, state.step_end)
        state.in_step = 0.0

    def _grow(self, state: RateState, seconds: float) -> None:
        """Move along the cubic by so many seconds of use."""
        state.used += seconds
        x = state.used / _scale(state) - 1.0
        rate = min(_rate_after(state, state.used), _GREATEST_GROWTH * state.rate)
        state.rate = self._clamp(max(rate, state.rate))
        if state.rate > _BEYOND * state.ceiling and state.known > _DOUBTED:
            # The limit has risen: the same place on a faster cubic.
            state.known = max(_DOUBTED, state.known / 3.0)
            state.used = (1.0 + x) * _scale(state)

    def _clamp(self, rate: float) -> float:
        return min(max(rate, self.minimum), self.maximum)


def _scale(state: RateState) -> float:
    """Seconds of use from a cut until the ceiling is reached again."""
    seconds = max(_SECONDS, _REQUESTS / state.ceiling)
    return max(state.known * seconds, _OUTAGES * state.outage)


def _rate_after(state: RateState, used: float) -> float:
    """Return the rate on the cubic after so many seconds of use."""
    x = used / _scale(state) - 1.0
    if x < 0.0:
        return state.ceiling * (1.0 + state.cut * x**3)
    return state.ceiling * (1.0 + _PROBE * min(_FASTER * x, 100.0) ** 3)


def _take_first_bounds(state: RateState) -> None:
    """Bound the limit by what was admitted in the second before the first 429."""
    if state.admitted < _ENOUGH:
        return
    marks = [(state.opened_at, 0.0), *state.marks]
    _forget(marks, state.throttled_sent_at - _SHORTEST_WINDOW)
    at, admitted = marks[0]
    seconds = max(state.throttled_sent_at - at, _SHORTEST_WINDOW)
    within = state.admitted - admitted
    # Within more than two windows, the rate may not have been used all the time.
    if within > 0.0 and seconds < 2.0 * _SHORTEST_WINDOW:
        state.ceiling = min(state.ceiling, within / seconds)
    if state.marks:
        state.lower = _LOWER * state.ceiling


def _forget(marks: list[tuple[float, float]], before: float) -> None:
    """Drop all marks before that timestamp but the last."""
    while len(marks) > 1 and marks[1][0] <= before:
        del marks[0]


def _decide_cut(state: RateState) -> None:
    """Decide by how much to cut, by when the 429 came, and at which rate."""
    state.lower = 0.0
    is_known = state.known >= _HALF_KNOWN
    soon = _SOON * _scale(state)
    if state.used < (soon if is_known else max(soon, _SOON_SECONDS)):
        state.soon += 1
        state.is_between = not is_known or state.is_guess or state.soon > _LENIENT
        return
    state.soon = 0
    state.is_between = state.rate > _BEYOND * state.ceiling  # it has risen by an unknown factor
    state.is_guess = not is_known
    if state.is_guess:
        passed = _rate_after(state, max(0.0, state.used - _LATE))
        state.throttled_rate = min(state.throttled_rate, passed)
    state.cut = _CUT
    state.known = min(_KNOWN, state.known * _LEARN)


def _cut_between(state: RateState, admitted_rate: float) -> None:
    """Cut to between the bounds: the throttled rate, and what was admitted on average."""
    lower = min(max(admitted_rate, state.lower), state.ceiling)
    wanted = 1.0 - (lower / state.ceiling) ** _BETWEEN
    most = _MOST_CUT if state.soon else _GREATEST_CUT
    state.cut = min(max(wanted, _LEAST_CUT), most)
    state.known = min(_HALF_KNOWN, _KNOWN_BY_CUT / state.cut)
