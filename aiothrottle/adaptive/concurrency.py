"""The adaptive number of slots: for servers that slow down or throttle if too many are in flight.

Invariant: the limit grows only after whole rounds in which it was used, and to a limit that was
throttled only after many.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from aiothrottle._checks import check_choice, check_number, check_whole
from aiothrottle.adaptive.guard import Extremes

Controller: TypeAlias = Literal["aimd", "gradient2"]
"""The controller that moves the limit."""

# The greatest part of the limit that a cut takes.
_GREATEST_CUT = 0.5
# Responses of a round at least, however few the slots are.
_ROUND = 10
# Response times are compared by means of so many: single ones differ by much more than the load
# explains. The best mean is of so many such means.
_SAMPLE, _BEST_OF = 50, 100
# The part of a limit without a queue that drains one: the best mean must not include it.
_DRAINED = 0.9
# Rounds before the limit is raised again to where it was throttled.
_PATIENCE = 64
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
    #: Requests sent up to here belong to an event that has been counted.
    cut_at: float = -math.inf
    #: The current round: successes, the sum of their times, failures, the most in flight.
    count: int = 0
    total: float = 0.0
    failures: int = 0
    busiest: int = 0
    #: The successes since the last mean, below 0 while they are skipped; the best recent mean.
    sampled: int = 0
    sampled_total: float = 0.0
    means: Extremes = field(default_factory=lambda: Extremes(_BEST_OF))
    #: The limit at which the server throttled last; that of the last round, since it was cut.
    ceiling: float = math.inf
    proven: float = 0.0
    #: Rounds that were spent below the ceiling.
    waited: int = 0
    #: The slow mean of how many rounds ("gradient2").
    long: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class AdaptiveConcurrency:
    """A concurrency limit that adapts to the response times, and to throttled requests.

    Used in place of a concurrency limit:
    ``RateLimiter(9, concurrency_limit=AdaptiveConcurrency(4, 1, 64))``.
    Every outcome has to be reported: `Permit.report_success`, `Permit.report_throttled`. The limit
    moves once per round, which is as many responses as there are slots, and ten at least, all of
    requests that were sent after the last cut. It never grows while less than half of it is used.

    ``"aimd"`` adds a slot per round. It compares the mean time of fifty responses or more with the
    best of the last hundred such means. If it is more than `tolerance` times as long, it cuts to
    ``0.9 * limit * best / mean``, a little less than the server works on at once, but at most to
    half.

    ``"gradient2"`` is that of Netflix' concurrency-limits: with the mean of the round and the mean
    of the last 600 rounds, ``limit * max(0.5, min(1, tolerance * long / short)) + 4``, towards
    which it moves by a fifth. It tolerates noise better, but under a constant load it takes a
    queue for normal after some hundred rounds, and grows further.

    With both, a throttled request takes the limit back to that of the last round, which was not
    throttled, or to half if there was none since the last cut. It counts only if it was sent after
    that cut. The limit at which it was throttled is tried again after 64 rounds. Failures (a 5xx,
    a cut connection) say nothing by their times; a round of which most failed counts as throttled.

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
    >>> for _ in range(10):
    ...     adaptive.succeeded(state, now=0.1, sent_at=0.0, in_flight=4)
    >>> state.limit
    5.0
    >>> adaptive.throttled(state, now=0.3, sent_at=0.2)
    >>> state.limit
    4.0
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
        """Record a request that the server has answered.

        Args:
            state: Is changed.
            now: When its response arrived.
            sent_at: When it was sent.
            in_flight: Requests in flight when it arrived, this one included.
        """
        if sent_at <= state.cut_at:
            return
        seconds = max(0.0, now - sent_at)
        state.count += 1
        state.total += seconds
        state.busiest = max(state.busiest, in_flight)
        state.sampled += 1
        if state.sampled > 0:
            state.sampled_total += seconds
        self._end_round_if_full(state, now)

    def failed(self, state: SlotsState, now: float, sent_at: float) -> None:
        """Record a request that failed: a 5xx, or no response; arguments as for `succeeded`.

        How long it took says nothing. A round of which most failed counts as throttled.
        """
        if sent_at > state.cut_at:
            state.failures += 1
            self._end_round_if_full(state, now)

    def throttled(self, state: SlotsState, now: float, sent_at: float) -> None:
        """Record a throttled request; arguments as for `succeeded`."""
        if sent_at > state.cut_at:
            self._back_off(state, now)

    def _back_off(self, state: SlotsState, now: float) -> None:
        """Return to the last limit that was not throttled, and stay there for long."""
        state.ceiling = state.limit
        proven = min(state.proven, state.limit - 1.0)
        state.proven = 0.0
        state.waited = 0
        self._cut(state, now, max(proven, (1.0 - _GREATEST_CUT) * state.limit))

    def _end_round_if_full(self, state: SlotsState, now: float) -> None:
        if state.count + state.failures < max(int(state.limit), _ROUND):
            return
        if state.failures > state.count:
            self._back_off(state, now)
            return
        used = 2 * state.busiest >= state.limit
        if self.controller == "gradient2":
            if used:
                self._move(state, self._gradient2(state, state.total / state.count))
        elif state.sampled >= _SAMPLE and (part := self._share_in_service(state)) < 1.0:
            self._cut(state, now, part * state.limit)
        elif used:
            self._move(state, state.limit + 1.0)
        _begin_round(state)

    def _share_in_service(self, state: SlotsState) -> float:
        """Return the part of the slots that the server works on; 1.0 if it is not slow."""
        mean = state.sampled_total / state.sampled
        state.sampled, state.sampled_total = 0, 0.0
        state.means.add(mean)
        best = state.means.least
        if mean <= self.tolerance * best:
            return 1.0
        # The rest of the time was spent in a queue.
        return max(1.0 - _GREATEST_CUT, _DRAINED * best / mean)

    def _move(self, state: SlotsState, limit: float) -> None:
        """Move the limit after a round in which it was used; to the ceiling only after many."""
        state.proven = state.limit
        if state.limit >= state.ceiling:
            state.ceiling = math.inf
        if limit >= state.ceiling:
            state.waited += 1
            if state.waited < _PATIENCE:
                return
            state.waited = 0
        self._set(state, limit)

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

    def _cut(self, state: SlotsState, now: float, limit: float) -> None:
        self._set(state, limit)
        state.cut_at = now
        _begin_round(state)
        # Of the requests that are sent from now on, the first to end are the fast ones.
        state.sampled, state.sampled_total = -int(state.limit), 0.0

    def _set(self, state: SlotsState, limit: float) -> None:
        state.limit = min(max(limit, float(self.minimum)), float(self.maximum))


def _begin_round(state: SlotsState) -> None:
    state.count = state.failures = state.busiest = 0
    state.total = 0.0
