"""What the server has announced: so many are left until it starts to count anew."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from aiothrottle.algorithms.algorithm import Algorithm, until

__all__ = ["Announced", "AnnouncedState"]

# Seconds. Servers round the time that is left, to whole seconds mostly: two answers that differ by
# less speak of the same window.
_SAME_WINDOW = 1.5
# What was sent since a request was is looked up among so many; more are hardly ever under way.
_MOST_UNDER_WAY = 4096


@dataclass(slots=True)
class AnnouncedState:
    """What is left of the server's quota, until when that holds, and when what went last.

    `next_at` is the instant at which the next token may go, where they are spread.
    """

    left: float = math.inf
    resets_at: float = -math.inf
    next_at: float = -math.inf
    log: deque[tuple[float, float]] = field(
        default_factory=lambda: deque[tuple[float, float]](maxlen=_MOST_UNDER_WAY)
    )


@dataclass(frozen=True, slots=True)
class Announced(Algorithm[AnnouncedState]):
    """No more than the server has said is left, until it starts to count anew.

    Before it has said anything, and after that instant, everything may go: this algorithm stands
    beside one that holds in any case (`AllOf`), and only makes it tighter.

    Args:
        evenly: Whether what is left is spread over the time until then. Otherwise it may be used up
            at once, after which there is nothing to be had until then.

    >>> algorithm = Announced()
    >>> state = algorithm.start()
    >>> algorithm.learn(state, now=100.0, left=2, reset_after=30.0, sent_at=99.9)
    >>> [algorithm.admit(state, now, cost=1) for now in (100.0, 101.0, 102.0, 130.0)]
    [True, True, False, True]
    """

    evenly: bool = False

    @property
    def capacity(self) -> float:
        """Endless: nobody knows what the server allows after it has started anew."""
        return math.inf

    def start(self) -> AnnouncedState:
        """Give the state of one that has heard nothing."""
        return AnnouncedState()

    def learn(
        self, state: AnnouncedState, now: float, left: float, reset_after: float, sent_at: float
    ) -> None:
        """Take down what a response says.

        It is older than what was sent since its request was, so that is taken off. And of all that
        is said about one window the least counts, as responses overtake each other.

        Args:
            state: What was known.
            now: Seconds by the clock that `take` goes by.
            left: Tokens that were left when the server answered.
            reset_after: Seconds until the server starts to count anew.
            sent_at: The instant at which the request went.
        """
        for instant, cost in reversed(state.log):
            if instant <= sent_at:
                break
            left -= cost
        resets_at = now + reset_after
        if now < state.resets_at and abs(resets_at - state.resets_at) < _SAME_WINDOW:
            left = min(left, state.left)
            resets_at = max(resets_at, state.resets_at)
        state.left, state.resets_at = left, resets_at

    def delay(self, state: AnnouncedState, now: float, cost: float) -> float:
        """Seconds until the quota has room, which is now or when it is new."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: AnnouncedState, now: float, cost: float, ahead: float) -> float:
        """The same behind others; of quotas to come nothing is known, so they have room for all."""
        if now >= state.resets_at or cost == 0:
            return 0.0
        reset = until(state.resets_at, now)
        if ahead + cost > state.left:
            return reset
        if not self.evenly:
            return 0.0
        begins = max(now, state.next_at) + ahead * self._interval(state, now)
        return min(reset, until(begins, now))

    def take(self, state: AnnouncedState, now: float, cost: float) -> None:
        """Take `cost` of what is left."""
        state.log.append((now, cost))
        if now < state.resets_at:
            if self.evenly:
                interval = self._interval(state, now)
                state.next_at = max(now, state.next_at) + cost * interval
            state.left -= cost

    def remaining(self, state: AnnouncedState, now: float) -> float:
        """What is left, if that is known."""
        return max(0.0, state.left) if now < state.resets_at else math.inf

    def reset_after(self, state: AnnouncedState, now: float) -> float:
        """Seconds until the server starts to count anew."""
        return until(state.resets_at, now)

    def refund(self, state: AnnouncedState, now: float, cost: float, at: float) -> None:
        """Nothing comes back: only the server knows what it has counted."""

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> AnnouncedState:  # noqa: ARG002
        """Keep the quota; the server has counted what was spent under another algorithm."""
        return state if isinstance(state, AnnouncedState) else self.start()

    def _interval(self, state: AnnouncedState, now: float) -> float:
        """Seconds for each of the tokens that are left."""
        begins = max(now, state.next_at)
        return max(0.0, state.resets_at - begins) / max(1.0, state.left)
