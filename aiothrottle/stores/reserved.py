"""The reservations of an engine: tokens that a store has granted, as an algorithm of the engine.

Invariant: tokens stay in one of the lists of `ReservedState` until the store has counted or
refunded them; reservations that are ready are in the order of their instants, and those that were
used in the order in which they were.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiothrottle.algorithms.protocol import Algorithm, max_wait, until
from aiothrottle.amounts import ROUNDING, common, covers, positive, total
from aiothrottle.stores.store import Answer

# Used tokens can be refunded while they are remembered; more are hardly ever under way.
_MOST_UNDER_WAY = 4096


@dataclass(slots=True)
class Reservation:
    """Tokens that the store has taken for an instant of its clock."""

    #: The instant here; of tokens that were used, the timestamp at which they were.
    at: float
    cost: float
    #: That of the store's clock; NaN if the tokens are owed.
    instant: float


@dataclass(slots=True)
class ReservedState:
    """The tokens that the store has granted, and those that it has still to count or refund."""

    #: May be used, each from its instant on; in the order of the store.
    ready: deque[Reservation] = field(default_factory=deque[Reservation])
    #: Were used, those that are owed among them.
    used: deque[Reservation] = field(
        default_factory=lambda: deque[Reservation](maxlen=_MOST_UNDER_WAY)
    )
    #: Were not used, and are still to be refunded in the store.
    returned: deque[Reservation] = field(default_factory=deque[Reservation])
    #: Were used without a reservation, and are not counted in the store yet. The call for the first
    #: may be under way: one that ends without an answer is made again, which is safe at the worst.
    owed: deque[Reservation] = field(default_factory=deque[Reservation])
    #: The tokens that remained in the store at its last answer, and until when that counts.
    remaining: float = math.inf
    known_until: float = -math.inf
    #: Whether requests have cost less than was charged, so that tokens come back at any time.
    settles: bool = False

    @property
    def tokens(self) -> float:
        """How many are ready, now or later."""
        if len(self.ready) == 1:
            return self.ready[0].cost
        return total([reservation.cost for reservation in self.ready])

    def serves(self, cost: float, patience: float) -> bool:
        """Return whether reservations for the cost are ready within so many seconds, at any time.

        Others were made for waiters that have left, or that stand behind the one of this cost.
        """
        ready, tokens, first = self.ready, 0.0, 0
        for last in ready:
            tokens += last.cost
            while ready[first].at <= last.at - patience:
                tokens -= ready[first].cost
                first += 1
            if tokens == cost or covers(tokens, cost):
                return True
        return False

    def counted(self, owed: Reservation, cost: float, answer: Answer) -> None:
        """Note that the store has counted what was owed; return what was refunded meanwhile.

        Args:
            owed: The part of the cost that is still used.
            cost: What the store has counted.
            answer: The store's.
        """
        if self.owed and self.owed[0] is owed:  # else all was forgotten meanwhile
            self.owed.popleft()
        owed.instant = answer.now
        if back := positive(cost - owed.cost):
            self.returned.append(Reservation(owed.at, back, answer.now))

    def hold(
        self, now: float, costs: Sequence[float], instants: Sequence[float], there: float
    ) -> None:
        """Add the costs, each with the instant of the store's clock from which it may be used.

        Costs of the same instant are one reservation, unless this answer took longer than that of
        the reservation: it may have been granted to a waiter by now.

        Args:
            now: The time here.
            costs: The tokens.
            instants: The instants of the store's clock.
            there: The time of the store's clock.
        """
        last = self.ready[-1] if self.ready else None
        before, at = math.nan, now
        for cost, instant in zip(costs, instants, strict=True):
            if instant != before:
                before = instant
                at = now if instant <= there else now + until(instant, there)
            if last is not None and last.instant == instant and last.at >= at:
                last.cost += cost
            elif cost:
                last = Reservation(at, cost, instant)
                self._put(last)

    def _put(self, reservation: Reservation) -> None:
        """Add a reservation; the answers of several calls may arrive in another order."""
        place = len(self.ready)
        while place:
            before = self.ready[place - 1]
            if before.instant <= reservation.instant or before.at <= reservation.at:
                break
            place -= 1
        self.ready.insert(place, reservation)

    def forget(self) -> None:
        """Forget all tokens: the record was deleted, so nothing is to be refunded or counted."""
        for tokens in (self.ready, self.used, self.returned, self.owed):
            tokens.clear()
        self.remaining, self.known_until = math.inf, -math.inf

    def give_back(self, behind: int = 0) -> None:
        """Return all but so many, the latest first: so the store can grant the earlier ones."""
        while len(self.ready) > behind:
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
    """Admits tokens that the store has reserved, as soon as they are ready, and no others.

    Args:
        algorithm: The algorithm by which the store decides.

    >>> from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
    >>> algorithm = Reserved(SlidingWindowLog("2/s"))
    >>> state = algorithm.start()
    >>> algorithm.delay(state, 7.0, cost=1)
    inf
    >>> state.hold(7.0, costs=[1, 1], instants=[100.0, 100.5], there=100.0)
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
        """Return the state without a reservation."""
        return ReservedState()

    def delay(self, state: ReservedState, now: float, cost: float) -> float:
        """Seconds until the cost is ready: infinity if it is not reserved."""
        return self.delay_behind(state, now, cost, 0.0) if state.ready or not cost else math.inf

    def delay_behind(self, state: ReservedState, now: float, cost: float, ahead: float) -> float:
        """Seconds until the cost is ready after the `ahead` tokens."""
        if not cost:
            return 0.0
        missing, ready_at = ahead + cost, -math.inf
        for reservation in state.ready:
            missing -= reservation.cost
            ready_at = max(ready_at, reservation.at)
            if covers(0.0, missing):
                return until(ready_at, now)
        return math.inf

    def allowance(self, state: ReservedState, now: float, most: int) -> int:
        """Return how many tokens are ready now."""
        ready = 0.0
        for reservation in state.ready:
            if reservation.at > now or ready >= most:
                break
            ready += reservation.cost.real  # the requests of what is reserved
        return min(most, int(ready + ROUNDING))

    def take(self, state: ReservedState, now: float, cost: float) -> None:
        """Use what is ready; what is missing is owed."""
        ready, place = state.ready, 0
        if ready and ready[0].cost == cost and ready[0].at <= now:  # as a rule
            state.used.append(first := ready.popleft())
            first.at = now
            return
        while not covers(0.0, cost) and place < len(ready) and ready[place].at <= now:
            first = ready[place]
            if part := common(first.cost, cost):
                state.used.append(Reservation(now, part, first.instant))
                first.cost -= part
                cost -= part
            if covers(0.0, first.cost):
                del ready[place]
            else:
                place += 1  # it has other resources, or all of the cost is used
        if not covers(0.0, cost):
            state.owed.append(owed := Reservation(now, cost, math.nan))
            state.used.append(owed)

    def take_each(self, state: ReservedState, timestamps: Sequence[float]) -> None:
        """Use a token at each of the timestamps: many of one reservation, as a rule."""
        ready, used = state.ready, state.used
        first = ready[0] if ready else None
        for now in timestamps:
            if first is not None and first.cost > 1.0 and first.at <= now:
                used.append(Reservation(now, 1.0, first.instant))
                first.cost -= 1.0
            else:
                self.take(state, now, 1.0)
                first = ready[0] if ready else None

    def refund(self, state: ReservedState, now: float, cost: float, at: float) -> None:  # noqa: ARG002
        """Return what was used at that timestamp; what is still owed for it is forgotten."""
        state.settles = True
        for each in reversed(state.used):
            if each.at < at or not cost:
                break
            part = common(each.cost, cost)
            if each.at == at and part:
                each.cost -= part
                cost -= part
                if not math.isnan(each.instant):  # else the store has not counted it yet
                    state.returned.append(Reservation(at, part, each.instant))

    def remaining(self, state: ReservedState, now: float) -> float:
        """Return the tokens that remained at the last answer, while that counts."""
        return state.remaining if now < state.known_until else self.capacity

    def reset_after(self, state: ReservedState, now: float) -> float:
        """Seconds until the store forgets the tokens of its last answer."""
        return until(state.known_until, now)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> ReservedState:  # noqa: ARG002
        """Keep what was reserved: it counts in the store already."""
        return state if isinstance(state, ReservedState) else self.start()
