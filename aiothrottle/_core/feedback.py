"""Feedback: passes the outcomes of requests to the controllers, and returns their changes.

The controllers are pure (`aiothrottle.adaptive`); the engine applies the changes. A limiter without
controllers has no `Feedback`, except after a 429, while it counts the 429s in a row.

Invariant: a success costs one comparison for each controller that has nothing to learn from it.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from aiothrottle.adaptive.concurrency import AdaptiveConcurrency, SlotsState
from aiothrottle.adaptive.evidence import Evidence, LearnedSlots
from aiothrottle.adaptive.guard import GuardControl
from aiothrottle.adaptive.rate import AdaptiveRate, RateState
from aiothrottle.adaptive.silent_limit import SilentLimit

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket

#: Seconds, the longest pause: only a hostile server, or a broken one, asks for more.
LONGEST_PAUSE = 3600.0
# Seconds. Enough jitter for many clients, and no long wait for each.
_LONGEST_JITTER = 1.0
# Seconds. A shorter duration is the wait of one request, while all that wait are throttled.
_SHORTEST_WAIT = 0.1
# A Retry-After that was too short several times in a row is extended to that part of their pauses,
# as far as a pause without one would be: an outage may be over sooner than it seems.
_TOO_SHORT = 0.25
# Where a rate is known, the server may be open again as soon as so many tokens are due.
_INTERVALS = 3.0
# Seconds without reports after which learned values are out of date; the most for a slow rate.
_MEMORY, _LONGEST_MEMORY = 600.0, 86400.0


def lasts(seconds: float | None) -> bool:
    """Return whether a duration that a server sent is long enough for a pause."""
    return seconds is not None and seconds >= _SHORTEST_WAIT


class PauseRule(NamedTuple):
    """How long the pauses after throttled requests are."""

    #: A pause is longer by up to this part of it, and by a second at the most.
    jitter: float = 0.1
    #: Seconds, the longest pause.
    longest: float = LONGEST_PAUSE
    #: Seconds of a pause if the server sent no duration, or one of milliseconds. They double with
    #: each pause in a row.
    backoff: float = 0.5
    #: Seconds up to which they double.
    max_backoff: float = 30.0


# What a controller may change.
_What: TypeAlias = Literal["rate", "slots", "guard", "burst"]


class Change(NamedTuple):
    """A change that a controller decided."""

    what: _What
    value: float
    before: float


def _change(what: _What, value: float, before: float) -> tuple[Change, ...]:
    return () if value == before else (Change(what, value, before),)


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


@dataclass(slots=True, eq=False, repr=False)
class Feedback:
    """The controllers of one limiter, and its count of 429s in a row."""

    rate: RateControl | None = None
    slots: SlotsControl | None = None
    guard: GuardControl | None = None
    #: Where a rate may be learned: what the server admits since it throttled.
    evidence: Evidence | None = None
    #: The failures, while there were some not long ago.
    silent: SilentLimit | None = None
    #: The number of pauses in a row, without a success, and their seconds.
    streak: int = 0
    streak_seconds: float = 0.0
    #: Whether the server was open again after the first of the last ones.
    reopens_soon: bool = False
    #: The instant of the last report.
    reported_at: float = 0.0

    def fresh(self) -> "Feedback":
        """Return another one with the same controllers, which have learned nothing."""
        rate, slots, guard = self.rate, self.slots, self.guard
        return Feedback(
            rate and RateControl(rate.adaptive),
            slots and SlotsControl(slots.adaptive),
            guard and guard.fresh(),
        )

    @property
    def is_needed(self) -> bool:
        """Whether it has a controller, evidence, failures or a streak."""
        return self.guard is not None or self._has_learned

    @property
    def _has_learned(self) -> bool:
        """Whether it has anything of these but the guard."""
        return bool(self.rate or self.slots or self.evidence or self.silent or self.streak)

    def is_forgettable(self, now: float) -> bool:
        """Return whether all learned values are out of date.

        The guard does not count, unless it has learned the burst: it concerns two requests one
        period apart, and the limiter is forgotten only if no token is spent.
        """
        learned = self._has_learned or (self.guard and self.guard.burst.was_throttled)
        kept_for = _MEMORY
        if self.rate is not None and self.evidence is not None:
            kept_for = min(self.evidence.kept_for(self.rate.state), _LONGEST_MEMORY)
        return not learned or now - self.reported_at >= kept_for

    def restart(self) -> None:
        """Start anew with another clock, as the timestamps of the old one are void."""
        if self.evidence is not None:
            evidence = self.evidence
            self.evidence = Evidence(evidence.fastest, slots=LearnedSlots(evidence.slots.most))
        if self.rate is not None:
            self.rate = RateControl(self.rate.adaptive)
        self.silent = None
        if self.slots is not None:
            self.slots.state = self.slots.adaptive.start()
        if self.guard is not None:
            self.guard.burst.restart()
        self.reported_at = 0.0

    def succeeded(
        self,
        now: float,
        sent_at: float,
        cost: float,
        in_flight: int,
        paused_at: float,
        own: bool,
        bucket: "LocalBucket",
    ) -> tuple[Change, ...]:
        """Record a request that the server answered without a 429.

        Args:
            now: The time.
            sent_at: When the request was sent.
            cost: Tokens.
            in_flight: Requests in flight, including this one.
            paused_at: When the last pause began.
            own: Whether the request is of this limiter, not of a limiter below.
            bucket: Knows whether the whole burst is in use.

        Returns:
            The changes to apply.
        """
        self.reported_at = now
        changes: tuple[Change, ...] = ()
        if self.streak and sent_at > paused_at:
            self.reopens_soon = self.streak == 1
            self.streak, self.streak_seconds = 0, 0.0
        if self.silent is not None:
            self.silent.succeeded(sent_at)
            if self.silent.is_over(now):
                self.silent = None
        if self.rate is not None:
            before = self.rate.state.rate
            self.rate.adaptive.succeeded(self.rate.state, now, sent_at, cost)
            changes += _change("rate", self.rate.state.rate, before)
            if self.evidence is not None and self.evidence.has_room(self.rate.state, now):
                before = self.rate.state.rate
                self.rate = None
                changes = (Change("rate", math.inf, before),)
        if self.evidence is not None and own:
            size = self.evidence.slots.size
            self.evidence.succeeded(sent_at, cost)
            if self.evidence.slots.size != size:
                changes += (Change("slots", self.evidence.slots.size, size),)
        if self.slots is not None:
            before = int(self.slots.state.limit)
            self.slots.adaptive.succeeded(self.slots.state, now, sent_at, in_flight)
            changes += _change("slots", int(self.slots.state.limit), before)
        guard = self.guard
        if guard is not None and (own or guard.of_children):
            before, burst = guard.measured.seconds, guard.burst
            size, changed = burst.size, guard.measured.observe(now - sent_at)
            # With credit the burst is not in use.
            if now >= burst.due_at or (not bucket.credit and burst.may_grow):
                in_use = bucket.is_burst_used_up()
                changed |= guard.succeeded(now, sent_at, in_use=in_use)
            if changed:
                changes += _change("guard", guard.measured.seconds, before)
                changes += _change("burst", burst.size, size)
        return changes

    def throttled(
        self,
        now: float,
        sent_at: float,
        pause: float,
        *,
        used: float,
        in_flight: int,
        own: bool,
        sent: int,
        undecided: int,
        of_all: float,
    ) -> tuple[Change, ...]:
        """Record a 429, after which the limiter pauses for `pause` seconds.

        Args:
            now: The time.
            sent_at: When the request was sent.
            pause: Seconds.
            used: Tokens that count under the limit.
            in_flight: Requests in flight, including this one.
            own: Whether the request is of this limiter, not of a limiter below.
            sent: The requests that were sent so far.
            undecided: Those of them that the server may not have decided about yet.
            of_all: Tokens per second for all clients, if others use the server's quota; else 0.0.

        Returns:
            The changes to apply.
        """
        self.reported_at = now
        changes: tuple[Change, ...] = ()
        if self.rate is not None:
            before = self.rate.state.rate
            if self.evidence and self.evidence.is_chance(now, sent_at, before, of_all):
                self.rate = None
                changes = (Change("rate", math.inf, before),)
            else:
                self.rate.adaptive.throttled(self.rate.state, now, sent_at, pause)
                changes += _change("rate", self.rate.state.rate, before)
        elif self.evidence is not None and own:
            size = self.evidence.slots.size
            search = self.evidence.throttled(
                now, sent_at, pause, in_flight, sent, undecided, of_all
            )
            changes = _change("slots", self.evidence.slots.size, size)
            # A known rate is kept to until nothing else can be the reason.
            if search is not None and not (self.guard and self.guard.burst.explains_429s):
                changes += self._begin(search, now)
        if self.slots is not None:
            before = int(self.slots.state.limit)
            self.slots.adaptive.throttled(self.slots.state, now, sent_at)
            changes += _change("slots", int(self.slots.state.limit), before)
        guard = self.guard
        if guard is not None and (own or guard.of_children):
            before, size = guard.measured.seconds, guard.burst.size
            if guard.throttled(now, sent_at, used, pause, sent):
                changes += _change("guard", guard.measured.seconds, before)
                changes += _change("burst", guard.burst.size, size)
        return changes

    def waits_alone(self) -> bool:
        """Record a 429; return whether only its request waits, as 429s come by chance."""
        if self.evidence is None or self.rate is not None:
            return False
        is_chance = self.guard is not None and self.guard.burst.sees_chance
        return self.evidence.waits_alone(is_chance=is_chance)

    def share(self, now: float, of_all: float) -> tuple[Change, ...]:
        """Begin to learn a rate, if other clients use the server's quota. Returns the changes.

        Args:
            now: The time.
            of_all: Tokens per second for all clients, if others use the quota; else 0.0.
        """
        if not of_all or self.evidence is None:
            return ()
        search = self.evidence.share(now, of_all)
        return () if search is None else self._begin(search, now)

    def _begin(self, search: AdaptiveRate, now: float) -> tuple[Change, ...]:
        """Begin the search for a rate."""
        self.rate = RateControl(search)
        assert self.evidence is not None
        self.rate.state.begin_throttled(now, self.evidence.closed_for)
        return (Change("rate", search.initial, math.inf),)

    def failed(self, now: float, sent_at: float) -> tuple[Change, ...]:
        """Record an error: a 5xx that is not throttled, or no response. Returns the changes.

        Neither the rate nor the guard learns from it: the server did not throttle, and the time
        of an error is not that of an answer.
        """
        self.reported_at = now
        if self.slots is None:
            return ()
        before = int(self.slots.state.limit)
        self.slots.adaptive.failed(self.slots.state, now, sent_at)
        return _change("slots", int(self.slots.state.limit), before)

    def reported(self, now: float, rate: float) -> tuple[Change, ...]:
        """Record a rate that the server reported, in tokens per second. Returns the changes."""
        if self.rate is None:
            return ()
        before = self.rate.state.rate
        self.rate.adaptive.reported(self.rate.state, now, rate)
        return _change("rate", self.rate.state.rate, before)

    def pause(self, seconds: float | None, rule: PauseRule) -> float:
        """Return the seconds of a pause after a throttled request, with jitter.

        Without a duration a pause doubles with each one in a row. Where a rate was learned, the
        second is a token's time at least, and the first may be shorter, if the server was open
        again after the last one.

        Many clients get a 429 at the same instant, and should not return at the same instant. The
        jitter only makes a pause longer, never less than the server's Retry-After.
        """
        self.streak += 1
        if seconds is None or not lasts(seconds):
            quick = self.rate if self.reopens_soon else None
            before = min(self.streak - 1, 16)
            pause = rule.backoff * 2.0 ** (before if quick is None else max(0, before - 1))
            if self.rate is not None and before:  # the next request comes no sooner than a token
                pause = max(pause, 2.0 ** (before - 1) / self.rate.state.rate)
            pause = min(pause, rule.max_backoff)
            if quick is not None and self.streak == 1:
                pause = min(pause, _INTERVALS / quick.state.rate)
            seconds = max(seconds or 0.0, pause)
        else:
            least = min(_TOO_SHORT * self.streak_seconds, rule.max_backoff)
            seconds = min(max(seconds, least), rule.longest)
        from random import random

        jitter = random() * min(_LONGEST_JITTER, rule.jitter * seconds)
        seconds = min(seconds + jitter, rule.longest)
        self.streak_seconds += seconds
        return seconds
