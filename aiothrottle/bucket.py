"""The bucket: what is spent and what is free. The half of a line that never waits.

Everything here happens at once, in synchronous code. Who waits, and for what, is in `line`.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aiothrottle.algorithms.algorithm import until
from aiothrottle.statistics import Statistics, Waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.permit import Permit

__all__ = ["Bucket"]

# Slots where there is no limit: more than can be in flight.
_NO_LIMIT = 1 << 29
# The fast path counts down from it, since small numbers are what Python counts with at its fastest.
_UNCOUNTED = 256


class Bucket(ABC):
    """An algorithm with its state and clock, the slots, and the count of what was done."""

    __slots__ = (
        "_charges",
        "_counted",
        "_doubtful",
        "_owed",
        "_started",
        "_starved",
        "_undone",
        "_waits",
        "admit",
        "algorithm",
        "clock",
        "concurrency_limit",
        "free",
        "paused_until",
        "refused",
        "state",
        "uncounted",
        "updated",
        "watched",
    )

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
    ) -> None:
        self.algorithm = algorithm
        self.admit = algorithm.admit
        self.state = algorithm.start()
        self.clock = clock
        self.paused_until = -math.inf
        self.concurrency_limit = concurrency_limit
        #: Free slots; never below 0. `_owed` more will not come back, as the limit was lowered.
        self.free = _number(concurrency_limit)
        self._owed = 0
        #: Somebody wants to know of each slot that comes free: see `slot_freed`.
        self.watched = False
        self._starved = False  # that is the head of the line
        self._started: Permit | None = None  # who resumed last: its tokens are not taken, see `now`
        self._doubtful = False  # something was charged since the last grants were decided
        # What permits were charged later than they were granted: the instants and the tokens.
        self._charges: dict[Permit, list[tuple[float, float]]] = {}
        self.uncounted = _UNCOUNTED
        self._counted = 0
        self._undone = 0
        #: How many were told no, here or by the limiter.
        self.refused = 0
        self._waits = Waits()
        #: Whether the limits were ever changed.
        self.updated = False

    @abstractmethod
    def wake(self) -> None:
        """Have whoever waits looked at again, since something changed."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many wait."""

    @property
    @abstractmethod
    def resuming(self) -> int:
        """How many slots are given to some who have not gone on yet."""

    @property
    def in_flight(self) -> int:
        """How many permits are out."""
        return _number(self.concurrency_limit) + self._owed - self.free - self.resuming

    def now(self) -> float:
        """Read the clock, and take the tokens of whoever resumed last: by now it has started.

        The system may stop a process between any two of its steps. A token that were stamped
        before its request starts could be early by as much.
        """
        now = self.clock()
        permit = self._started
        if permit is not None:
            self._started = None
            permit._at = now
            self.algorithm.take(self.state, now, permit.cost)
        return now

    # ---- slots ---------------------------------------------------------------------------------

    def count_one(self) -> None:
        """Count one who was let through without having waited."""
        if not self.uncounted:
            self._counted += _UNCOUNTED
            self.uncounted = _UNCOUNTED
        self.uncounted -= 1

    def give_back_slot(self) -> None:
        """Make a slot free, unless it is owed."""
        if self._owed:
            self._owed -= 1
            self.watch()
        else:
            self.free += 1

    def slot_freed(self, permit: "Permit") -> None:
        """See to a slot that the permit has just made free, while somebody watches."""
        self._charges.pop(permit, None)
        self.free -= 1
        self.give_back_slot()
        self.watch()
        if self._starved:
            self.wake()

    def watch(self) -> None:
        """Decide whether a slot that comes free is of interest."""
        self.watched = self._starved or self._owed > 0 or bool(self._charges)

    def bound(self, concurrency_limit: int | None) -> None:
        """Go on with another number of slots; whoever is inside stays."""
        free = _number(concurrency_limit) - self.in_flight - self.resuming
        self.concurrency_limit = concurrency_limit
        self.free, self._owed = max(0, free), max(0, -free)
        self.updated = True
        self.watch()
        self.wake()

    # ---- tokens --------------------------------------------------------------------------------

    def settle(self, permit: "Permit", cost: float) -> None:
        """Charge the permit `cost` in place of what it was charged."""
        now = self.now()
        more = cost - permit.cost
        if more > 0:
            self.algorithm.take(self.state, now, more)
            self._charges.setdefault(permit, []).append((now, more))
            self._doubtful = True
            self.watch()
        else:
            self._refund(permit, now, -more)
            self.wake()
        permit.cost = cost

    def _refund(self, permit: "Permit", now: float, cost: float) -> None:
        """Give tokens back, those that were charged last first, each to its own instant."""
        charges = self._charges.get(permit, [])
        while charges and cost > 0:
            at, charged = charges.pop()
            back = min(charged, cost)
            self.algorithm.refund(self.state, now, back, at)
            cost -= back
            if back < charged:
                charges.append((at, charged - back))
        if cost > 0:
            self.algorithm.refund(self.state, now, cost, permit._at)

    def record(self, cost: float) -> None:
        """Count what has happened already, whether it fitted or not."""
        self.algorithm.take(self.state, self.now(), cost)
        self._doubtful = True

    def use(self, algorithm: "Algorithm[Any]") -> None:
        """Go on with another algorithm; what was spent stays spent."""
        self.state = algorithm.inherit(self.algorithm, self.state, self.now())
        self.algorithm = algorithm
        self.admit = algorithm.admit
        self.updated = self._doubtful = True
        self.wake()

    def statistics(self) -> Statistics:
        """Tell what was done, and how things stand."""
        now = self.now()
        waits, at_once = self._waits, self._counted + _UNCOUNTED - self.uncounted
        capacity = self.algorithm.capacity
        remaining = self.algorithm.remaining(self.state, now)
        return Statistics(
            granted=at_once + waits.count - self._undone,
            refused=self.refused,
            waiting=self.waiting,
            in_flight=self.in_flight,
            waited_total=waits.total,
            waited_p50=waits.percentile(0.5, at_once=at_once),
            waited_p90=waits.percentile(0.9, at_once=at_once),
            waited_p99=waits.percentile(0.99, at_once=at_once),
            waited_max=waits.longest,
            paused_for=until(self.paused_until, now),
            utilisation=0.0 if math.isinf(capacity) else 1.0 - remaining / capacity,
        )


def _number(concurrency_limit: int | None) -> int:
    return _NO_LIMIT if concurrency_limit is None else concurrency_limit
