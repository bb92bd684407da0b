"""What adapts to the outcomes of requests: the controllers, and the changes that they ask for.

The controllers are pure (`aiothrottle.adaptive`). Here they are fed, and return changes, which the
engine applies. A limiter that adapts nothing has no such object, but for the time after a 429, in
which it counts how many came in a row.
"""

import random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from aiothrottle.adaptive.concurrency import AdaptiveConcurrency, SlotsState
from aiothrottle.adaptive.guard import SelfTuningGuard
from aiothrottle.adaptive.rate import AdaptiveRate, RateState

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm

__all__ = [
    "JITTER",
    "LONGEST_PAUSE",
    "Change",
    "Feedback",
    "GuardControl",
    "RateControl",
    "SlotsControl",
]

#: Seconds, and a part: how long a pause is at the most, and how much longer it may be by chance.
LONGEST_PAUSE, JITTER = 120.0, 0.1
# Seconds. Enough to spread many clients, and no long wait for the one.
_LONGEST_JITTER = 1.0
# Seconds of a pause where the server has named none; they double with each 429 in a row.
_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
# Seconds for which what was learned is worth keeping while nothing is asked.
_MEMORY = 600.0


class Change(NamedTuple):
    """What a controller wants changed."""

    what: Literal["rate", "slots", "guard"]
    value: float
    before: float


class RateControl:
    """An `AdaptiveRate` with its state."""

    __slots__ = ("adaptive", "state")

    def __init__(self, adaptive: AdaptiveRate) -> None:
        self.adaptive: AdaptiveRate = adaptive
        self.state: RateState = adaptive.start()


class SlotsControl:
    """An `AdaptiveConcurrency` with its state."""

    __slots__ = ("adaptive", "state")

    def __init__(self, adaptive: AdaptiveConcurrency) -> None:
        self.adaptive: AdaptiveConcurrency = adaptive
        self.state: SlotsState = adaptive.start()


class GuardControl:
    """A `SelfTuningGuard`, and how to make an algorithm with the guard that it has measured."""

    __slots__ = ("build", "held", "measured", "of_children")

    def __init__(
        self,
        measured: SelfTuningGuard,
        build: "Callable[[float], Algorithm[Any]]",
        *,
        of_children: bool,
    ) -> None:
        self.measured: SelfTuningGuard = measured
        #: Makes the algorithm for a guard.
        self.build: Callable[[float], Algorithm[Any]] = build
        #: The guard of the algorithm in use.
        self.held: float = measured.seconds
        #: Whether the requests of limiters below count. They may be of several servers, whose
        #: answers differ by more than a network's jitter.
        self.of_children: bool = of_children


class Feedback:
    """All that listens to the outcomes of one limiter's requests."""

    __slots__ = ("guard", "rate", "reported_at", "slots", "streak")

    def __init__(
        self,
        rate: RateControl | None = None,
        slots: SlotsControl | None = None,
        guard: GuardControl | None = None,
    ) -> None:
        self.rate: RateControl | None = rate
        self.slots: SlotsControl | None = slots
        self.guard: GuardControl | None = guard
        #: How many 429 came in a row, without a success.
        self.streak: int = 0
        #: When an outcome was last reported.
        self.reported_at: float = 0.0

    @property
    def is_needed(self) -> bool:
        """Whether it would make a difference not to have it."""
        return bool(self.rate or self.slots or self.guard or self.streak)

    def is_forgettable(self, now: float) -> bool:
        """Tell whether what was learned is worth nothing any more.

        A guard is for two requests a period apart, and there is none for a limit that is free.
        """
        learned = self.rate or self.slots or self.streak
        return not learned or now - self.reported_at >= _MEMORY

    def restart(self) -> None:
        """Begin anew, for a clock of which no instant is known."""
        if self.rate is not None:
            self.rate = RateControl(self.rate.adaptive)
        if self.slots is not None:
            self.slots.state = self.slots.adaptive.start()
        self.reported_at = 0.0

    def succeeded(
        self,
        now: float,
        sent_at: float,
        cost: float,
        *,
        in_flight: int,
        paused_at: float,
        own: bool,
    ) -> tuple[Change, ...]:
        """Take in a request that the server has answered without a 429.

        Args:
            now: The time.
            sent_at: When it was sent.
            cost: Tokens.
            in_flight: How many are under way, this one included.
            paused_at: When the last pause began.
            own: Whether it is a request of this limiter, not of a limiter below.
        """
        self.reported_at = now
        if self.streak and sent_at > paused_at:
            self.streak = 0
        changes: tuple[Change, ...] = ()
        if self.rate is not None:
            before = self.rate.state.rate
            self.rate.adaptive.succeeded(self.rate.state, now, sent_at, cost)
            changes += self._rate_change(before)
        if self.slots is not None:
            before = int(self.slots.state.limit)
            self.slots.adaptive.succeeded(self.slots.state, now, sent_at, in_flight)
            changes += self._slots_change(before)
        # Nearly every request of a session comes by here: the fewer calls the better.
        guard = self.guard
        if (
            guard is not None
            and (own or guard.of_children)
            and guard.measured.observe(now - sent_at)
        ):
            changes += self._guard_change()
        return changes

    def throttled(self, now: float, sent_at: float, pause: float) -> tuple[Change, ...]:
        """Take in a 429, after which nothing is sent for so many seconds."""
        self.reported_at = now
        changes: tuple[Change, ...] = ()
        if self.rate is not None:
            before = self.rate.state.rate
            self.rate.adaptive.throttled(self.rate.state, now, sent_at, pause)
            changes += self._rate_change(before)
        if self.slots is not None:
            before = int(self.slots.state.limit)
            self.slots.adaptive.throttled(self.slots.state, now, sent_at)
            changes += self._slots_change(before)
        if self.guard is not None and self.guard.measured.throttled():
            changes += self._guard_change()
        return changes

    def pause(self, seconds: float | None, *, jitter: float, longest: float) -> float:
        """Give the seconds of a pause after a 429, with some jitter.

        Many clients get one at the same moment, and are not to come back at the same moment. It
        only makes a pause longer: what the server asks for is the least.
        """
        self.streak += 1
        if seconds is None:
            doublings = min(self.streak - 1, 16)
            seconds = min(_BACKOFF * 2.0**doublings, _LONGEST_BACKOFF)
        return min(seconds + random.random() * min(_LONGEST_JITTER, jitter * seconds), longest)

    def _rate_change(self, before: float) -> tuple[Change, ...]:
        assert self.rate is not None
        rate = self.rate.state.rate
        return () if rate == before else (Change("rate", rate, before),)

    def _slots_change(self, before: int) -> tuple[Change, ...]:
        assert self.slots is not None
        slots = int(self.slots.state.limit)
        return () if slots == before else (Change("slots", slots, before),)

    def _guard_change(self) -> tuple[Change, ...]:
        assert self.guard is not None
        before, self.guard.held = self.guard.held, self.guard.measured.seconds
        return (Change("guard", self.guard.held, before),)
