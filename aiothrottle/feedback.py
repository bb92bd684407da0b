"""What a limiter makes of how its requests ended: each controller, and what it moves.

The controllers are pure (`adaptive`). Here each is tied to the bucket whose rate, slots or guard it
moves. A limiter that adapts nothing has no such thing, but for the time after a refusal, in which
it counts how many came in a row.
"""

import random
from typing import TYPE_CHECKING, Any

from aiothrottle import events
from aiothrottle.adaptive.concurrency import AdaptiveConcurrency, SlotsState
from aiothrottle.adaptive.guard import SelfTuningGuard
from aiothrottle.adaptive.pace import Pace
from aiothrottle.adaptive.rate import AdaptiveRate, RateState

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.bucket import Bucket
    from aiothrottle.permit import Permit

__all__ = ["LONGEST_PAUSE", "SPREAD", "Feedback", "GuardControl", "RateControl", "SlotsControl"]

#: Seconds, and a part: how long a pause is at the most, and how much longer it may be by chance.
LONGEST_PAUSE, SPREAD = 120.0, 0.1
# Seconds. Enough to spread many clients, and no long wait for the one.
_LONGEST_JITTER = 1.0
# Seconds of a pause where the server has not said any; they double with each refusal in a row.
_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
# Seconds for which what was learned is worth keeping while nothing is asked.
_MEMORY = 600.0


class RateControl:
    """An `AdaptiveRate` that moves the pace of a bucket."""

    __slots__ = ("adaptive", "state")

    def __init__(self, adaptive: AdaptiveRate) -> None:
        self.adaptive: AdaptiveRate = adaptive
        self.state: RateState = adaptive.start()

    def succeeded(self, bucket: "Bucket", now: float, sent_at: float, cost: float) -> None:
        """Hear of a request that was answered."""
        before = self.state.rate
        self.adaptive.succeeded(self.state, now, sent_at, cost)
        self._move(bucket, before)

    def refused(self, bucket: "Bucket", now: float, sent_at: float, pause: float) -> None:
        """Hear of a request that was refused."""
        before = self.state.rate
        self.adaptive.refused(self.state, now, sent_at, pause)
        self._move(bucket, before)

    def _move(self, bucket: "Bucket", before: float) -> None:
        if self.state.rate == before:
            return
        now = bucket.now()
        pace, state = bucket.own_law
        assert isinstance(pace, Pace)
        pace.follow(state, now, self.state.rate)
        bucket.reconsider()
        if bucket.listeners:
            bucket.tell(events.Adapted(bucket.key, "rate", self.state.rate, before))


class SlotsControl:
    """An `AdaptiveConcurrency` that moves the number of slots of a bucket."""

    __slots__ = ("adaptive", "state")

    def __init__(self, adaptive: AdaptiveConcurrency) -> None:
        self.adaptive: AdaptiveConcurrency = adaptive
        self.state: SlotsState = adaptive.start()

    def succeeded(self, bucket: "Bucket", now: float, sent_at: float, in_flight: int) -> None:
        """Hear of a request that was answered."""
        self.adaptive.succeeded(self.state, now, sent_at, in_flight)
        self._move(bucket)

    def refused(self, bucket: "Bucket", now: float, sent_at: float) -> None:
        """Hear of a request that was refused."""
        self.adaptive.refused(self.state, now, sent_at)
        self._move(bucket)

    def _move(self, bucket: "Bucket") -> None:
        before, slots = bucket.concurrency_limit, int(self.state.limit)
        if slots != before and before is not None and not bucket.asking:
            updated = bucket.updated
            bucket.bound(slots)
            bucket.updated = updated  # by the user, that is
            if bucket.listeners:
                bucket.tell(events.Adapted(bucket.key, "slots", slots, before))


class GuardControl:
    """A `SelfTuningGuard` that stretches the periods of a bucket's law."""

    __slots__ = ("_build", "_held", "measured", "of_children")

    def __init__(
        self,
        measured: SelfTuningGuard,
        build: "Callable[[float], Algorithm[Any]]",
        *,
        of_children: bool,
    ) -> None:
        self.measured: SelfTuningGuard = measured
        #: Whether the requests of limiters below count. They may be of several servers, whose
        #: answers differ by more than a network's jitter.
        self.of_children: bool = of_children
        self._build = build
        self._held = measured.seconds  # what the bucket keeps to

    def move(self, bucket: "Bucket") -> None:
        """Have the bucket keep to the guard that is measured."""
        before, self._held, updated = self._held, self.measured.seconds, bucket.updated
        bucket.use(self._build(self._held))
        bucket.updated = updated
        if bucket.listeners:
            bucket.tell(events.Adapted(bucket.key, "guard", self._held, before))


class Feedback:
    """All that listens to how the requests of one bucket end."""

    __slots__ = ("guard", "heard_at", "rate", "slots", "streak")

    def __init__(
        self,
        rate: RateControl | None = None,
        slots: SlotsControl | None = None,
        guard: GuardControl | None = None,
    ) -> None:
        self.rate = rate
        self.slots: SlotsControl | None = slots
        self.guard: GuardControl | None = guard
        #: How often in a row, without a success, it was refused.
        self.streak: int = 0
        self.heard_at: float = 0.0

    @property
    def is_needed(self) -> bool:
        """Whether it would make a difference not to have it."""
        return bool(self.rate or self.slots or self.guard or self.streak)

    def is_forgettable(self, now: float) -> bool:
        """Tell whether what was learned is worth nothing any more.

        A guard is for two requests a period apart, and there is none for a limit that is free.
        """
        learned = self.rate or self.slots or self.streak
        return not learned or now - self.heard_at >= _MEMORY

    def restart(self) -> None:
        """Begin anew, for a clock of which no instant is known."""
        if self.rate is not None:
            self.rate = RateControl(self.rate.adaptive)
        if self.slots is not None:
            self.slots.state = self.slots.adaptive.start()
        self.heard_at = 0.0

    def succeeded(self, bucket: "Bucket", permit: "Permit", now: float, sent_at: float) -> None:
        """Hear of a request that was answered, and not refused."""
        self.heard_at = now
        if self.streak and sent_at > bucket.paused_at:
            self.streak = 0
        if self.rate is not None:
            self.rate.succeeded(bucket, now, sent_at, permit.cost)
        if self.slots is not None:
            self.slots.succeeded(bucket, now, sent_at, max(1, bucket.in_flight))
        # Nearly every request of a session comes by here: the fewer calls the better.
        guard = self.guard
        if (
            guard is not None
            and (permit._line is bucket or guard.of_children)
            and guard.measured.observe(now - sent_at)
        ):
            guard.move(bucket)

    def refused(self, bucket: "Bucket", now: float, sent_at: float, pause: float) -> None:
        """Hear of a request that was refused, after which nothing is sent for so long."""
        self.heard_at = now
        if self.rate is not None:
            self.rate.refused(bucket, now, sent_at, pause)
        if self.slots is not None:
            self.slots.refused(bucket, now, sent_at)
        if self.guard is not None and self.guard.measured.refused():
            self.guard.move(bucket)

    def pause(self, seconds: float | None, *, spread: float, longest: float) -> float:
        """Give the seconds of a pause after a refusal, with some jitter.

        Many clients are refused at the same moment, and are not to come back at the same moment.
        It only makes a pause longer: what the server asks for is the least.
        """
        self.streak += 1
        if seconds is None:
            doublings = min(self.streak - 1, 16)
            seconds = min(_BACKOFF * 2.0**doublings, _LONGEST_BACKOFF)
        return min(seconds + random.random() * min(_LONGEST_JITTER, spread * seconds), longest)
