"""What a store has let go, and when: an algorithm that is fed from outside."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.algorithms.protocol import Algorithm
from aiothrottle.algorithms.timestamps import until

__all__ = ["Reservation", "Reserved", "ReservedState", "Used"]

Used: TypeAlias = tuple[float, float, float]
"""When tokens were used, how many, and the instant for which the store has taken them."""

# Tokens that are as good as none: the sum of a few costs is off by less.
_ROUNDING = 1e-9
# What was used may be given back as long as it is remembered; more are hardly ever under way.
_MOST_UNDER_WAY = 4096


@dataclass(slots=True)
class Reservation:
    """Tokens that the store has taken for an `instant` of its clock, and `at`, when that is here.

    Of those that are owed, `at` is when they were used.
    """

    at: float
    cost: float
    instant: float


@dataclass(slots=True)
class ReservedState:
    """Tokens on their way from the store, to the store, and between."""

    #: May be used, each from its instant on; in the order of the store.
    ready: deque[Reservation] = field(default_factory=deque[Reservation])
    #: Were used.
    used: deque[Used] = field(default_factory=lambda: deque[Used](maxlen=_MOST_UNDER_WAY))
    #: Went without having been reserved, and are counted in the store by now; or the store is just
    #: being told, if the instant is not known.
    charged: deque[Reservation] = field(
        default_factory=lambda: deque[Reservation](maxlen=_MOST_UNDER_WAY)
    )
    #: Were not needed: the store has still to hear of it.
    returned: deque[Reservation] = field(default_factory=deque[Reservation])
    #: Went without having been reserved: the store has still to count them.
    owed: deque[Reservation] = field(default_factory=deque[Reservation])
    #: What the store said last: so many were left, and until when that is of interest.
    left: float = math.inf
    known_until: float = -math.inf

    @property
    def tokens(self) -> float:
        """How many are ready, now or later."""
        return math.fsum([slot.cost for slot in self.ready])

    def counted(self, slot: Reservation, cost: float, instant: float) -> None:
        """Note when the store has counted the slot; return what was given back meanwhile."""
        slot.instant = instant
        if slot.cost < cost:
            self.returned.append(Reservation(slot.at, cost - slot.cost, instant))

    def put(self, slot: Reservation) -> None:
        """Have one more ready; answers of several calls may come in another order."""
        place = len(self.ready)
        while place:
            before = self.ready[place - 1]
            if before.instant <= slot.instant or before.at <= slot.at:
                break
            place -= 1
        self.ready.insert(place, slot)

    def give_back(self) -> None:
        """Return all that is ready, the latest first: those before it may go on its strength."""
        self.returned.extend(reversed(self.ready))
        self.ready.clear()

    def give_back_behind(self, count: int) -> None:
        """Return all that is ready but the first so many slots, the latest first."""
        while len(self.ready) > count:
            self.returned.append(self.ready.pop())

    def give_back_later(self, instant: float) -> None:
        """Return what is not ready by the instant, the latest first."""
        while self.ready and self.ready[-1].at > instant:
            self.returned.append(self.ready.pop())

    def give_back_older(self, instant: float) -> None:
        """Return what was ready by the instant."""
        while self.ready and self.ready[0].at <= instant:
            self.returned.append(self.ready.popleft())


@dataclass(frozen=True, slots=True)
class Reserved:
    """Admits what was reserved elsewhere, as soon as it is ready, and nothing else.

    Args:
        algorithm: By which it was reserved.

    >>> from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
    >>> algorithm = Reserved(SlidingWindowLog("2/s"))
    >>> state = algorithm.start()
    >>> algorithm.delay(state, 7.0, cost=1)
    inf
    >>> algorithm.hold(state, 7.0, costs=[1, 1], instants=[100.0, 100.5], there=100.0)
    >>> algorithm.delay(state, 7.0, cost=1), algorithm.delay(state, 7.0, cost=2)
    (0.0, 0.5)
    """

    algorithm: Algorithm[Any]

    @property
    def capacity(self) -> float:
        """That of the algorithm."""
        return self.algorithm.capacity

    @property
    def max_wait(self) -> float:
        """That of the algorithm."""
        return max_wait(self.algorithm)

    def start(self) -> ReservedState:
        """Give the state of one for whom nothing was reserved."""
        return ReservedState()

    def hold(
        self,
        state: ReservedState,
        now: float,
        costs: Sequence[float],
        instants: Sequence[float],
        there: float,
    ) -> None:
        """Have the costs ready, each from an instant of the store's clock on, which says `there`.

        What has the same instant is one slot, unless this answer was longer under way: what is
        held may be somebody's by now, who is let go.
        """
        last = state.ready[-1] if state.ready else None
        before, at = math.nan, now
        for cost, instant in zip(costs, instants, strict=True):
            if instant != before:
                before, at = instant, now + until(instant, there)
            if last is not None and last.instant == instant and last.at >= at:
                last.cost += cost
            elif cost:
                last = Reservation(at, cost, instant)
                state.put(last)

    def delay(self, state: ReservedState, now: float, cost: float) -> float:
        """Seconds until so many are ready: infinity if they are not reserved."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: ReservedState, now: float, cost: float, ahead: float) -> float:
        """The same when those ahead have taken theirs."""
        if cost == 0:
            return 0.0
        missing, ready_at = ahead + cost - _ROUNDING, -math.inf
        for slot in state.ready:
            missing -= slot.cost
            ready_at = max(ready_at, slot.at)
            if missing <= 0:
                return until(ready_at, now)
        return math.inf

    def allowance(self, state: ReservedState, now: float, most: int) -> int:
        """All that are ready now."""
        ready = 0.0
        for slot in state.ready:
            if slot.at > now or ready >= most:
                break
            ready += slot.cost
        return min(most, int(ready + _ROUNDING))

    def take(self, state: ReservedState, now: float, cost: float) -> None:
        """Use what is ready; what is missing is owed."""
        ready = state.ready
        while cost > _ROUNDING and ready and ready[0].at <= now:
            slot = ready[0]
            part = min(slot.cost, cost)
            state.used.append((now, part, slot.instant))
            slot.cost -= part
            cost -= part
            if slot.cost <= _ROUNDING:
                ready.popleft()
        if cost > _ROUNDING:
            state.owed.append(Reservation(now, cost, math.nan))

    def take_each(self, state: ReservedState, timestamps: Sequence[float]) -> None:
        """Use a token at each of the timestamps: of one slot many, as a rule."""
        ready, used = state.ready, state.used
        slot = ready[0] if ready else None
        for now in timestamps:
            if slot is not None and slot.cost > 1.0 and slot.at <= now:
                used.append((now, 1.0, slot.instant))
                slot.cost -= 1.0
            else:
                self.take(state, now, 1.0)
                slot = ready[0] if ready else None

    def refund(self, state: ReservedState, now: float, cost: float, at: float) -> None:  # noqa: ARG002
        """Return what was used at that instant; what is still owed for it need not be paid."""
        for slots in (state.owed, state.charged):
            for slot in reversed(slots):
                if slot.at < at or cost <= 0.0:
                    break
                part = min(slot.cost, cost)
                if slot.at == at and part > 0.0:
                    slot.cost -= part
                    cost -= part
                    if not math.isnan(slot.instant):  # else the store has not counted it yet
                        state.returned.append(Reservation(at, part, slot.instant))
        used = state.used
        for place in range(len(used) - 1, -1, -1):
            used_at, left, instant = used[place]
            if used_at < at or cost <= 0.0:
                break
            part = min(left, cost)
            if used_at == at and part > 0.0:
                used[place] = (at, left - part, instant)
                cost -= part
                state.returned.append(Reservation(at, part, instant))

    def remaining(self, state: ReservedState, now: float) -> float:
        """What the store said was left, while that is of interest."""
        return state.left if now < state.known_until else self.capacity

    def reset_after(self, state: ReservedState, now: float) -> float:
        """Seconds until the store forgets what it last told of."""
        return until(state.known_until, now)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> ReservedState:  # noqa: ARG002
        """Keep what was reserved: it counts in the store already."""
        return state if isinstance(state, ReservedState) else self.start()
