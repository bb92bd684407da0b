"""The adaptive rate: finds a limit that nobody tells, and follows it.

Strategy. The rate is paced, so that a refusal says something about the rate and not about a burst.
At first it doubles, as TCP's slow start does, until something is refused. From then on it follows a
cubic of the time in which it was used (Ha, Rhee, Xu: "CUBIC", 2008): after a cut it comes back to
where it was refused, lingers there, and only then probes beyond, slowly at first. Many requests are
under way when the first of them is refused. They are one event, and cut once.

What makes it quiet is the long scale of that time, two minutes once the limit is well known; what
makes it quick is that it starts with seconds, and returns to them when nothing is refused far
beyond the old ceiling. How far to cut by is told by the server too: if it admits nothing for a good
part of the time, then what it admitted on the whole is its limit, and not the rate.
"""

import math
from dataclasses import dataclass

from aiothrottle.rate import RateLike, as_rate

__all__ = ["AdaptiveRate", "RateState"]

# ---- tuned with benchmarks/adaptive.py ----

# Parts of the rate that a cut takes: as long as the limit is guessed, when it is known, and at the
# most: refusals that come again at once double the cut, from the third on when it is known.
_GUESSED_CUT, _KNOWN_CUT, _GREATEST_CUT = 0.1, 0.05, 0.5
_FIRST_CUT = 0.25
_LENIENT = 2
# Before that part of the way back to the ceiling a refusal comes "again at once".
_SOON = 0.12
# Seconds of use until the ceiling is reached again, once it is known; requests, for slow rates; and
# times the longest outage, which tells the server's window.
_SECONDS, _REQUESTS, _OUTAGES = 120.0, 100.0, 2.0
_FORGET_OUTAGE = 0.8
# How well the ceiling is known: that part of the scale. It grows with each event near the ceiling.
_GUESSED, _DOUBTED, _HALF_KNOWN, _KNOWN, _LEARN = 0.03, 0.1, 0.5, 1.0, 5.0
# Beyond the ceiling: the cubic's factor, its greater speed, and where there is no ceiling any more.
_PROBE, _FASTER, _BEYOND = 0.15, 2.0, 1.15
# Shut for more than that part of the time: what was admitted is the limit. A second of an outage is
# forgiven, since Retry-After is rounded up to whole ones.
_FAR, _ROUNDING, _HEADROOM = 0.25, 1.0, 1.1
_ENOUGH = 5
# A step ends after so many tokens and seconds; that part of the rate has to be used for it to grow.
_FIRST_STEP, _FIRST_STEP_SECONDS = 3, 0.5
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
    cut: float = _FIRST_CUT
    #: How well the ceiling is known, from 0 to 1.
    known: float = _GUESSED
    #: Seconds of use since the last cut.
    used: float = 0.0
    #: Refusals in a row that came again at once.
    soon: int = 0
    #: Whether it has doubled yet.
    grown: bool = False
    #: What was sent up to here is part of an event that has been counted.
    cut_at: float = -math.inf
    #: Up to here the server still works off what it admitted before a long outage.
    settled_at: float = -math.inf
    #: Whether anything was admitted since the last cut, and if not, since when it is shut.
    is_open: bool = True
    shut_at: float = -math.inf
    #: Whether it was refused again meanwhile, so that nobody knew how long it would be shut.
    blind: bool = False
    #: The longest outage, forgotten little by little.
    outage: float = 0.0
    #: Since when, by the time of sending, the tokens are counted that were admitted.
    opened_at: float = math.inf
    admitted: float = 0.0
    #: The same for the step under way, with the last one sent in it.
    step_at: float = math.inf
    step_end: float = -math.inf
    in_step: float = 0.0


@dataclass(frozen=True, slots=True, init=False)
class AdaptiveRate:
    """A rate limit that is found by trying, for servers that do not say theirs.

    It stands where a rate limit stands: ``RateLimiter(AdaptiveRate("160/s", 1, 1000), 30)``. The
    limiter then paces evenly, and has to be told how each request ended: `Permit.succeeded`,
    `Permit.refused`. The sessions and transports of this package do that by themselves.

    With the ceiling `C` where it was refused last, and `x` the time in which the rate was used
    since, from -1 (the cut) over 0 (back at the ceiling), the rate is ``C * (1 + cut * x**3)``
    below the ceiling and ``C * (1 + 0.15 * x**3)`` beyond.

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
        self._decide_cut(state)
        state.ceiling = state.rate
        state.shut_at = now
        state.is_open = state.blind = False
        self._cut(state, now + pause)

    def _decide_cut(self, state: RateState) -> None:
        if state.ceiling == math.inf:
            state.cut = _GREATEST_CUT if state.grown else _FIRST_CUT
        elif state.used < _SOON * _scale(state):
            state.soon += 1
            if state.cut >= _FIRST_CUT or state.known < _HALF_KNOWN or state.soon > _LENIENT:
                state.cut = min(2.0 * state.cut, _GREATEST_CUT)
        else:
            state.soon = 0
            state.cut = _KNOWN_CUT if state.known >= _HALF_KNOWN else _GUESSED_CUT
            state.known = min(_KNOWN, state.known * _LEARN)

    def _cut(self, state: RateState, reopens_at: float) -> None:
        """Cut the rate, if the server is shut until then."""
        outage = reopens_at - state.shut_at
        elapsed = reopens_at - state.opened_at
        state.outage = max(outage, state.outage * _FORGET_OUTAGE)
        if state.admitted >= _ENOUGH and elapsed > 0.0:
            admitted_rate = state.admitted / elapsed
            if outage - _ROUNDING > _FAR * elapsed:
                state.ceiling = min(state.ceiling, _HEADROOM * admitted_rate)
                state.cut = _KNOWN_CUT
                state.settled_at = reopens_at + outage
            elif state.known == _GUESSED and not state.grown and outage > _FAR * elapsed:
                # It could be so, and twice as much if most of the pause was for nothing.
                state.ceiling = min(state.ceiling, 2.0 * admitted_rate)
                state.cut = _GREATEST_CUT
                state.grown = True
        state.ceiling = self._clamp(state.ceiling)
        state.rate = self._clamp(state.ceiling * (1.0 - state.cut))
        state.used = state.in_step = 0.0
        state.step_at = math.inf

    def _reopen(self, state: RateState, sent_at: float) -> None:
        """Begin to count anew: the server admits again."""
        state.is_open = True
        if state.blind:
            self._cut(state, sent_at)
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
        searching = state.ceiling == math.inf
        if searching:
            full = state.in_step >= _FIRST_STEP and now - state.step_at >= _FIRST_STEP_SECONDS
        else:
            full = state.in_step >= max(_STEP, _STEP_SECONDS * state.rate)
        if full:
            seconds = state.step_end - state.step_at
            used = state.in_step >= _USED * state.rate * seconds
            # What was sent before the rate doubled says nothing about the new one.
            state.step_at = state.step_end = (
                max(now, state.step_end) if searching else state.step_end
            )
            state.in_step = 0.0
            if used and searching:
                state.rate = self._clamp(2.0 * state.rate)
                state.grown = True
            elif used:
                self._grow(state, seconds)

    def _grow(self, state: RateState, seconds: float) -> None:
        """Go on along the cubic by so many seconds of use."""
        state.used += seconds
        scale = _scale(state)
        x = state.used / scale - 1.0
        factor = state.cut if x < 0.0 else _PROBE
        if x > 0.0:
            x *= _FASTER
        rate = state.ceiling * (1.0 + factor * min(x, 100.0) ** 3)
        rate = min(rate, _GREATEST_GROWTH * state.rate)
        state.rate = self._clamp(max(rate, state.rate))
        if state.rate > _BEYOND * state.ceiling and state.known > _DOUBTED:
            # The limit has risen: the same place on a cubic that is faster.
            state.known = max(_DOUBTED, state.known / 3.0)
            state.used = (1.0 + x / _FASTER) * _scale(state)

    def _clamp(self, rate: float) -> float:
        return min(max(rate, self.minimum), self.maximum)


def _scale(state: RateState) -> float:
    """Seconds of use from a cut until the ceiling is reached again."""
    seconds = max(_SECONDS, _REQUESTS / state.ceiling)
    return max(state.known * seconds, _OUTAGES * state.outage)
