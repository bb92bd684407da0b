"""The adaptive number of slots: for servers that slow down instead of answering 429."""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from aiothrottle.adaptive.extremes import Extremes
from aiothrottle.checks import check_choice, check_number, check_whole

__all__ = ["AdaptiveConcurrency", "Controller", "SlotsState"]

Controller: TypeAlias = Literal["aimd", "gradient2"]
"""The controller that moves the limit."""

# Factors after a 429, and the lowest after a slow round; the best is of so many responses.
_CUT, _SLOW_CUT = 0.9, 0.5
_BEST_OF = 1000
# Gradient2's, as published; its fast mean is that of one round.
_LONG, _WARM_UP = 600, 10
_SMOOTHING = 0.2
_QUEUE = 4.0
_FORGET, _STEEP = 0.95, 2.0


@dataclass(slots=True)
class SlotsState:
    """The state of the search for the number of slots."""

    #: How many requests may be in flight; it moves by fractions.
    limit: float
    #: Requests sent up to here belong to a round or an event that has been counted.
    round_at: float = -math.inf
    cut_at: float = -math.inf
    #: The current round: responses, the sum of their times, the most that were in flight.
    count: int = 0
    total: float = 0.0
    busiest: int = 0
    #: The best recent response time ("aimd"); the slow mean of how many rounds ("gradient2").
    times: Extremes = field(default_factory=lambda: Extremes(_BEST_OF))
    long: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class AdaptiveConcurrency:
    """A concurrency limit that adapts to the response times.

    Used in place of a concurrency limit:
    ``RateLimiter(9, concurrency_limit=AdaptiveConcurrency(4, 1, 64))``.
    Every outcome has to be reported: `Permit.report_success`, `Permit.report_throttled`. The limit
    moves once per round, which is as many responses as there are slots, all of requests that were
    sent after the last move. It never grows while less than half of it is used.

    ``"aimd"`` adds a slot when the mean response time of the round is at most `tolerance` times the
    best recent one. Otherwise it cuts to ``limit * best / mean``, as many as the server works on
    at once, but at most to half. A 429 cuts by a tenth (as in the AIMD limit of Netflix'
    concurrency-limits), and counts only if its request was sent after the last cut.

    ``"gradient2"`` is that of Netflix' concurrency-limits: with the mean of the round and the mean
    of the last 600 rounds, ``limit * max(0.5, min(1, tolerance * long / short)) + 4``, towards
    which it moves by a fifth. It tolerates noise better, but under a constant load it takes a
    queue for normal after some hundred rounds, and grows further.

    Args:
        initial: Slots at first.
        minimum: The fewest slots, 1 or more.
        maximum: The most slots.
        controller: ``"aimd"`` or ``"gradient2"``.
        tolerance: A response is slow beyond so many times the best response time; above 1.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range.

    >>> adaptive = AdaptiveConcurrency(4, minimum=1, maximum=64)
    >>> state = adaptive.start()
    >>> for _ in range(4):
    ...     adaptive.succeeded(state, now=0.1, sent_at=0.0, in_flight=4)
    >>> state.limit
    5.0
    >>> adaptive.throttled(state, now=0.3, sent_at=0.2)
    >>> state.limit
    4.5
    """

    initial: int
    minimum: int
    maximum: int
    controller: Controller = "aimd"
    tolerance: float = 2.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name in ("initial", "minimum", "maximum"):
            check_whole(name, getattr(self, name), "slots")
        if not 1 <= self.minimum <= self.initial <= self.maximum:
            raise ValueError(f"must be 1 <= minimum <= initial <= maximum, got {self!r}")
        check_choice("controller", self.controller, get_args(Controller))
        check_number("tolerance", self.tolerance, above=1)

    def start(self) -> SlotsState:
        """Return the state of a new search."""
        return SlotsState(float(self.initial))

    def succeeded(self, state: SlotsState, now: float, sent_at: float, in_flight: int) -> None:
        """Record a request that the server has answered without a 429.

        Args:
            state: Is changed.
            now: When its response arrived.
            sent_at: When it was sent.
            in_flight: Requests in flight when it arrived, this one included.
        """
        seconds = max(0.0, now - sent_at)
        state.times.add(seconds)
        if sent_at < state.round_at:
            return
        state.count += 1
        state.total += seconds
        state.busiest = max(state.busiest, in_flight)
        if state.count >= int(state.limit):
            self._end_round(state, now)

    def throttled(self, state: SlotsState, now: float, sent_at: float) -> None:
        """Record a 429; arguments as for `succeeded`."""
        if sent_at > state.cut_at:
            self._set(state, now, _CUT * state.limit)
            state.cut_at = now

    def failed(self, state: SlotsState, now: float, sent_at: float) -> None:
        """Record an error, which is no fast success: its time is not recorded.

        Arguments as for `throttled`.
        """

    def _end_round(self, state: SlotsState, now: float) -> None:
        mean = state.total / state.count
        limit = state.limit
        used = 2 * state.busiest >= limit
        if self.controller == "gradient2":
            if used:
                limit = self._gradient2(state, mean)
        elif mean > self.tolerance * state.times.least:
            # As many as the server works on at once, if the rest of the time was spent in a queue.
            # The queue has to run empty now and then, or the best recent time includes it.
            limit *= max(_SLOW_CUT, state.times.least / mean)
        elif used:
            limit += 1.0
        self._set(state, now, limit)

    def _gradient2(self, state: SlotsState, mean: float) -> float:
        state.rounds += 1
        weight = 1.0 / state.rounds if state.rounds <= _WARM_UP else 2.0 / (_LONG + 1)
        state.long += weight * (mean - state.long)
        if state.long > _STEEP * mean:  # it was slow for long, and no longer is
            state.long *= _FORGET
        gradient = 1.0
        if mean > 0.0:
            gradient = max(0.5, min(1.0, self.tolerance * state.long / mean))
        wanted = state.limit * gradient + _QUEUE
        return state.limit * (1.0 - _SMOOTHING) + wanted * _SMOOTHING

    def _set(self, state: SlotsState, now: float, limit: float) -> None:
        state.limit = min(max(limit, float(self.minimum)), float(self.maximum))
        state.round_at = now
        state.count = state.busiest = 0
        state.total = 0.0
