"""The adaptive rate: finds a limit that nobody tells, and follows it.

Strategy. The rate is paced, so that a refusal says something about the rate and not about a burst.
At first it trebles, much as TCP's slow start does, until something is refused. From then on the
limit is between two bounds: what was refused, and what was admitted in spite of the pause. The rate
goes between them, again if need be, until a refusal comes late. That one finds the rate on its way
up, and a server that counts in windows may be late by one: the limit is what the rate was a little
before. From then on the rate follows a cubic of the time in which it was used (Ha, Rhee, Xu:
"CUBIC", 2008): after a cut it comes back to where it was refused, lingers there, and only then
probes beyond, slowly at first. Many requests are under way
when the first of them is refused. They are one event, and cut once.

What makes it quiet is the long scale of that time, two minutes once the limit is well known; what
makes it quick is that the scale is the shorter the further the bounds are apart, and shrinks when
nothing is refused far beyond the old ceiling. If the server admits nothing for a good part of the
time, then what it admitted on the whole is its limit, and not the rate.
"""

import math
from dataclasses import dataclass, field

from aiothrottle.rate import RateLike, as_rate

__all__ = ["AdaptiveRate", "RateState"]

# ---- tuned with benchmarks/adaptive.py ----

# The part of the rate that a cut takes, at a refusal that comes late. The time scale alone makes
# refusals rare; and those who share a limit lose what a cut takes to whoever comes by first, so the
# less it is, the more evenly they go on sharing.
_CUT = 0.03
# If it comes "at once", before that part of the way back to the ceiling, or after so few seconds:
# what the bounds tell, within these; a quarter, if too little was admitted to tell. A limit that is
# known is not doubted for three of them.
_SOON, _SOON_SECONDS = 0.12, 3.0
_LEAST_CUT, _MOST_CUT, _BLIND_CUT, _GREATEST_CUT = 0.1, 0.3, 0.25, 0.5
_LENIENT = 3
_ENOUGH = 5
# How far from the upper to the lower bound to go. While it grew, the lower one is that part of the
# upper one. A window is hardly ever shorter than a second.
_BETWEEN, _LOWER, _SHORTEST_WINDOW = 0.55, 0.57, 1.0
# A window may be full only one window after the limit was passed: so many seconds before.
_LATE = 2.0
# Seconds of use until the ceiling is reached again, once it is known; requests, for slow rates; and
# times the longest outage, which tells the server's window.
_SECONDS, _REQUESTS, _OUTAGES = 120.0, 100.0, 2.0
_FORGET_OUTAGE = 0.8
# How well the ceiling is known: that part of the scale. The less the bounds make it cut, the better
# it is; and it grows with each event near the ceiling.
_GUESSED, _DOUBTED, _HALF_KNOWN, _KNOWN, _LEARN = 0.12, 0.1, 0.4, 1.0, 4.0
_KNOWN_BY_CUT = 0.04
# Beyond the ceiling: the cubic's factor, its greater speed, and where there is no ceiling any more.
_PROBE, _FASTER, _BEYOND = 0.15, 2.0, 1.15
# Shut for more than that part of the time: what was admitted is the limit. A second of an outage is
# forgiven, since Retry-After is rounded up to whole ones.
_FAR, _ROUNDING, _HEADROOM = 0.25, 1.0, 1.1
# A step ends after so many tokens and seconds; that part of the rate has to be used for it to grow.
_FIRST_STEP_SECONDS, _FIRST_GROWTH = 0.25, 3.0
_STEP, _STEP_SECONDS = 10, 0.1
_USED = 0.9
_GREATEST_GROWTH = 1.5


@dataclass(slots=True)
class RateState:
    """Where the search for the limit stands. Instants are of the clock of whoever reports."""

    #: Tokens per second that may go now.
    rate: float
    #: The rate that was refused last; infinite as long as none was.
    ceiling: float = math.inf
    #: The part of the ceiling that the last cut took.
    cut: float = _BLIND_CUT
    #: How well the ceiling is known, from 0 to 1.
    known: float = _GUESSED
    #: Seconds of use since the last cut.
    used: float = 0.0
    #: Refusals in a row that came again at once.
    soon: int = 0
    #: Whether the ceiling was passed at speed, and not met since.
    is_guess: bool = True
    #: Whether the limit is sought between bounds, and a lower bound that is not measured.
    is_between: bool = True
    lower: float = 0.0
    #: What was sent up to here is part of an event that has been counted.
    cut_at: float = -math.inf
    #: The last refusal that counted: at which rate the limit was passed, when the request was sent,
    #: and whether it is the first.
    refused_rate: float = 0.0
    refused_sent_at: float = 0.0
    is_first: bool = True
    #: Up to here the server still works off what it admitted before a long outage.
    settled_at: float = -math.inf
    #: Whether anything was admitted since the last cut, and if not, since when it is shut.
    is_open: bool = True
    shut_at: float = -math.inf
    #: For how long it surely is, and until when at the longest.
    shut_for: float = 0.0
    reopens_at: float = -math.inf
    #: Whether it was refused again meanwhile, so that nobody knew how long it would be shut.
    blind: bool = False
    #: The longest outage, forgotten little by little.
    outage: float = 0.0
    #: Since when, by the time of sending, the tokens are counted that were admitted.
    opened_at: float = math.inf
    admitted: float = 0.0
    #: The same at the steps of the first growth, as long as nothing was refused.
    marks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    #: The same for the step under way, with the last one sent in it.
    step_at: float = math.inf
    step_end: float = -math.inf
    in_step: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class AdaptiveRate:
    """A rate limit that is found by trying, for servers that do not say theirs.

    It stands where a rate limit stands:
    ``RateLimiter(AdaptiveRate("160/s", 1, 1000), concurrency_limit=30)``.
    The limiter then paces evenly, and has to be told how each request ended:
    `Permit.report_success`, `Permit.report_throttled`. The sessions and transports of this package
    do that by themselves.

    With the ceiling `C` where it was refused last, and `x` the time in which the rate was used
    since, from -1 (the cut) over 0 (back at the ceiling), the rate is ``C * (1 + cut * x**3)``
    below the ceiling and ``C * (1 + 0.15 * (2 * x)**3)`` beyond.

    Args:
        initial: Where to begin: tokens per second, a string or a `Rate`.
        minimum: It is never slower.
        maximum: It is never faster.

    Raises:
        TypeError: One of them is of a kind that is no rate.
        ValueError: One of them is no rate, or they are not in order.

    >>> adaptive = AdaptiveRate("10/s", minimum=1, maximum=100)
    >>> state = adaptive.start()
    >>> adaptive.refused(state, now=0.2, sent_at=0.1)
    >>> adaptive.refused(state, now=0.3, sent_at=0.15)  # sent before the cut: the same event
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
            raise ValueError(f"an adaptive rate begins between minimum and maximum, not as {self}")

    def start(self) -> RateState:
        """Give the state of a search that begins."""
        return RateState(rate=self.initial)

    def succeeded(self, state: RateState, now: float, sent_at: float, cost: float = 1.0) -> None:
        """Hear of a request that was admitted.

        Args:
            state: Is changed.
            now: When its response came.
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
            self._cut(state)  # a refusal is answered faster: what was admitted before is heard now

    def refused(self, state: RateState, now: float, sent_at: float, pause: float = 0.0) -> None:
        """Hear of a request that was refused.

        Args:
            state: Is changed.
            now: When its response came.
            sent_at: When it was sent.
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
        state.refused_rate, state.refused_sent_at = state.rate, sent_at
        if state.ceiling < math.inf:
            _decide_cut(state)
        elif state.marks:
            state.cut = _GREATEST_CUT
        state.shut_at, state.shut_for = now, pause
        state.reopens_at = now + pause
        state.outage *= _FORGET_OUTAGE
        state.is_open = state.blind = False
        self._cut(state)

    def _cut(self, state: RateState) -> None:
        """Cut the rate that was refused, by what is known until now."""
        longest = state.reopens_at - state.shut_at
        elapsed = state.reopens_at - state.opened_at
        state.outage = max(longest, state.outage)
        is_told = state.admitted >= _ENOUGH and elapsed > 0.0
        if is_told or state.is_first or not state.is_between:
            state.ceiling = state.refused_rate
        else:
            # That the server is still shut tells nothing of the rate.
            state.ceiling = max(state.ceiling, state.refused_rate)
            state.cut = 1.0 - (1.0 - _BLIND_CUT) * state.refused_rate / state.ceiling
        if state.is_first:
            _take_first_bounds(state)
        if is_told:
            admitted_rate = state.admitted / elapsed
            if state.shut_for - _ROUNDING > _FAR * elapsed:
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
        """Begin to count anew: the server admits again."""
        state.is_open = True
        if state.blind:
            # Since the last refusal it may have been open, and nobody tried.
            state.shut_for, state.reopens_at = state.cut_at - state.shut_at, sent_at
            self._cut(state)
        state.is_first = False
        state.marks.clear()
        if state.soon and state.is_between:
            return  # of a few outages in a row, all together tell more than the last
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
        """End a step in which nothing was refused, as never before."""
        if state.in_step >= _USED * state.rate * (state.step_end - state.step_at):
            state.rate = self._clamp(_FIRST_GROWTH * state.rate)
            state.marks.append((state.step_end, state.admitted + cost))
            _forget(state.marks, state.step_end - _SHORTEST_WINDOW)
        # What was sent before the rate grew says nothing about the new one.
        state.step_at = state.step_end = max(now, state.step_end)
        state.in_step = 0.0

    def _grow(self, state: RateState, seconds: float) -> None:
        """Go on along the cubic by so many seconds of use."""
        state.used += seconds
        x = state.used / _scale(state) - 1.0
        rate = min(_rate_after(state, state.used), _GREATEST_GROWTH * state.rate)
        state.rate = self._clamp(max(rate, state.rate))
        if state.rate > _BEYOND * state.ceiling and state.known > _DOUBTED:
            # The limit has risen: the same place on a cubic that is faster.
            state.known = max(_DOUBTED, state.known / 3.0)
            state.used = (1.0 + x) * _scale(state)

    def _clamp(self, rate: float) -> float:
        return min(max(rate, self.minimum), self.maximum)


def _scale(state: RateState) -> float:
    """Seconds of use from a cut until the ceiling is reached again."""
    seconds = max(_SECONDS, _REQUESTS / state.ceiling)
    return max(state.known * seconds, _OUTAGES * state.outage)


def _rate_after(state: RateState, used: float) -> float:
    """Give the rate on the cubic after so many seconds of use."""
    x = used / _scale(state) - 1.0
    if x < 0.0:
        return state.ceiling * (1.0 + state.cut * x**3)
    return state.ceiling * (1.0 + _PROBE * min(_FASTER * x, 100.0) ** 3)


def _take_first_bounds(state: RateState) -> None:
    """See what was admitted in the second before the first refusal: the limit is no more."""
    if state.admitted < _ENOUGH:
        return
    marks = [(state.opened_at, 0.0), *state.marks]
    _forget(marks, state.refused_sent_at - _SHORTEST_WINDOW)
    at, admitted = marks[0]
    seconds = max(state.refused_sent_at - at, _SHORTEST_WINDOW)
    within = state.admitted - admitted
    # In more than two windows, the rate may not have been used all the time.
    if within > 0.0 and seconds < 2.0 * _SHORTEST_WINDOW:
        state.ceiling = min(state.ceiling, within / seconds)
    if state.marks:
        state.lower = _LOWER * state.ceiling


def _forget(marks: list[tuple[float, float]], before: float) -> None:
    """Forget all marks before that instant but the last."""
    while len(marks) > 1 and marks[1][0] <= before:
        del marks[0]


def _decide_cut(state: RateState) -> None:
    """Tell by how much to cut, from when the refusal came, and at which rate."""
    state.lower = 0.0
    is_known = state.known >= _HALF_KNOWN
    soon = _SOON * _scale(state)
    if state.used < (soon if is_known else max(soon, _SOON_SECONDS)):
        state.soon += 1
        state.is_between = not is_known or state.is_guess or state.soon > _LENIENT
        return
    state.soon = 0
    state.is_between = state.rate > _BEYOND * state.ceiling  # it has risen: who knows how far
    state.is_guess = not is_known
    if state.is_guess:
        passed = _rate_after(state, max(0.0, state.used - _LATE))
        state.refused_rate = min(state.refused_rate, passed)
    state.cut = _CUT
    state.known = min(_KNOWN, state.known * _LEARN)


def _cut_between(state: RateState, admitted_rate: float) -> None:
    """Go between the bounds: what was refused, and what was admitted on the whole."""
    lower = min(max(admitted_rate, state.lower), state.ceiling)
    wanted = 1.0 - (lower / state.ceiling) ** _BETWEEN
    most = _MOST_CUT if state.soon else _GREATEST_CUT
    state.cut = min(max(wanted, _LEAST_CUT), most)
    state.known = min(_HALF_KNOWN, _KNOWN_BY_CUT / state.cut)
