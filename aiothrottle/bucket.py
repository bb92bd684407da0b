"""The bucket: what is spent and what is free. The half of a line that never waits.

Everything here happens at once, in synchronous code. Who waits, and for what, is in `line`.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

from aiothrottle import events
from aiothrottle.algorithms.algorithm import until
from aiothrottle.algorithms.all_of import AllOf
from aiothrottle.algorithms.announced import Announced
from aiothrottle.statistics import Statistics, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.feedback import Feedback
    from aiothrottle.permit import Permit
    from aiothrottle.rate import Rate

__all__ = ["Bucket"]

# Slots where there is no limit: more than can be in flight.
_NO_LIMIT = 1 << 29
# So many may go before the law is asked again: small numbers, see `Bucket.taken`.
_ALLOWANCE = 256


class Bucket(ABC):
    """An algorithm with its state and clock, the slots, and the count of what was done."""

    __slots__ = (
        "_announced",
        "_charges",
        "_granted",
        "_started",
        "_starved",
        "_undone",
        "_waits",
        "algorithm",
        "asking",
        "clock",
        "concurrency_limit",
        "epoch",
        "feedback",
        "followed",
        "key",
        "listeners",
        "paused_at",
        "paused_until",
        "refused",
        "room",
        "slots",
        "stamps",
        "state",
        "taken",
        "updated",
        "watched",
    )

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
    ) -> None:
        self.algorithm: Algorithm[Any] = algorithm
        self.state: Any = algorithm.start()
        self.clock: Callable[[], float] = clock
        self.paused_at: float = -math.inf
        self.paused_until: float = -math.inf
        self.concurrency_limit = concurrency_limit
        #: So many slots there are, and so many are taken: more than that after the limit was
        #: lowered. Counted up from 0, as small numbers are what Python counts with fastest.
        self.slots: int = _number(concurrency_limit)
        self.taken: int = 0
        #: Somebody wants to know of each slot that comes free: see `slot_freed`.
        self.watched: bool = False
        self._starved = False  # that is the head of the line
        self._started: Permit | None = None  # who resumed last: its tokens are not taken, see `now`
        #: So many newcomers with a cost of 1 need only leave the instant at which they went, in
        #: `stamps`; the law is told later, see `now`. 0 while anybody waits, or may not start.
        self.room: int = 0
        self.stamps: list[float] = []
        self._granted = 0  # without those in `stamps`
        #: Counts the changes of what decides: limits, pauses, and tokens taken out of turn. A grant
        #: of an older epoch is decided again when its waiter resumes.
        self.epoch: int = 0
        # What permits were charged later than they were granted: the instants and the tokens.
        self._charges: dict[Permit, list[tuple[float, float]]] = {}
        self._undone = 0
        #: How many were told no, here or by the limiter.
        self.refused: int = 0
        self._waits = Waits()
        # The law of what the server has said, if it has: `algorithm` is that beside the given one.
        self._announced: Announced | None = None
        #: The rates that the server has announced, if they are to be followed; () before it has.
        self.followed: tuple[Rate, ...] | None = None
        #: Whether the server has still to say anything, and one request at a time asks it.
        self.asking: bool = False
        #: Whether the limits were ever changed.
        self.updated: bool = False
        #: What listens to how requests end, if anything does.
        self.feedback: Feedback | None = None
        #: Who it is among the limiters of a `KeyedRateLimiter`.
        self.key: Hashable = None
        #: Who is told what is decided here. While anybody is, `room` stays 0: each is seen to go.
        self.listeners: tuple[events.Listener, ...] = ()

    @abstractmethod
    def wake(self) -> None:
        """Have whoever waits looked at again, since something changed."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many wait."""

    @property
    def store_up(self) -> bool | None:
        """Whether the store answers; None if there is none."""
        return None

    @property
    @abstractmethod
    def resuming(self) -> int:
        """How many slots are given to some who have not gone on yet."""

    @property
    def in_flight(self) -> int:
        """How many permits are out."""
        return self.taken - self.resuming

    def now(self) -> float:
        """Read the clock, and tell the law of all that went, so that it may be asked."""
        now = self.clock()
        if self._started is not None:
            self._stamp(self._started, now)
        self.room = 0
        if self.stamps:
            self._tell()
        return now

    def _stamp(self, started: "Permit", now: float) -> None:
        """Take the tokens of whoever resumed last: by now it has started.

        The system may stop a process between any two of its steps. A token that were stamped
        before its request starts could be early by as much.
        """
        started._at = now
        if started._tokens == 1.0:
            self._started = None
            self.stamps.append(now)
        else:
            self._started = None
            self._tell()
            self.take(started, now)

    def _tell(self) -> None:
        """Tell the law of those that went unasked."""
        self._granted += len(self.stamps)
        stamps, self.stamps = self.stamps, []
        self.algorithm.take_each(self.state, stamps)

    def take(self, permit: "Permit", now: float) -> None:
        """Take the tokens of a permit."""
        self._granted += 1
        self.algorithm.take(self.state, now, permit._tokens)

    def start(self, permit: "Permit", now: float) -> None:
        """Take the tokens of a newcomer, and learn how many more may start without a decision."""
        self.take(permit, now)
        if not self.listeners:
            self.room = self.algorithm.allowance(self.state, now, _ALLOWANCE)

    # ---- who wants to know ---------------------------------------------------------------------

    def listen(self, listener: events.Listener) -> None:
        """Tell one more what is decided here."""
        self.listeners += (listener,)
        self.room = 0

    def forget(self, listener: events.Listener) -> None:
        """Tell one fewer."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)

    def tell(self, event: events.Event) -> None:
        """Tell whoever wants to know; nobody makes an event if nobody does."""
        for listener in self.listeners:
            listener.hear(event)

    def tell_of_store(self, change: events.StoreDown | events.StoreUp) -> None:
        """Tell whoever wants to know that the store is away, or back."""
        if self.listeners:
            change.key = self.key
            self.tell(change)

    def refuse(self, reason: events.Refusal) -> None:
        """Count one that was told no."""
        self.refused += 1
        if self.listeners:
            self.tell(events.Refused(self.key, reason))

    # ---- slots ---------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many slots are free."""
        return max(0, self.slots - self.taken)

    def slot_freed(self, permit: "Permit") -> None:
        """See to a slot that the permit has just made free, while somebody watches."""
        self._charges.pop(permit, None)
        self.watch()
        if self._starved:
            self.wake()

    def watch(self) -> None:
        """Decide whether a slot that comes free is of interest."""
        self.watched = self._starved or bool(self._charges)

    def bound(self, concurrency_limit: int | None) -> None:
        """Go on with another number of slots; whoever is inside stays."""
        self.concurrency_limit = concurrency_limit
        self.slots = _number(concurrency_limit)
        self.updated = True
        self.epoch += 1
        self.wake()

    # ---- tokens --------------------------------------------------------------------------------

    def settle(self, permit: "Permit", cost: float) -> None:
        """Charge the permit `cost` in place of what it was charged."""
        now = self.now()
        more = cost - permit.cost
        if more > 0:
            self.algorithm.take(self.state, now, more)
            self._charges.setdefault(permit, []).append((now, more))
            self.epoch += 1
            self.watch()
        else:
            self._refund(permit, now, -more)
            self.wake()
        permit._settled = cost

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
        self.epoch += 1

    def use(self, algorithm: "Algorithm[Any]") -> None:
        """Go on with another algorithm; what was spent stays spent, and what was heard is heard."""
        now, old, state = self.now(), self.algorithm, self.state
        if self._announced is not None:
            (old, _), state = cast("AllOf", old).algorithms, state[0]
        inherited = algorithm.inherit(old, state, now)
        if self._announced is None:
            self.algorithm, self.state = algorithm, inherited
        else:
            self.algorithm = AllOf(algorithm, self._announced)
            self.state = (inherited, self.state[1])
        self.updated = True
        self.epoch += 1
        self.wake()

    def learn(self, permit: "Permit", left: float, reset_after: float, *, evenly: bool) -> None:
        """Heed what the server has said in its answer to the permit's request."""
        now = self.now()
        if self._announced is None:  # from now on that law stands beside the other one
            self._announced = Announced(evenly=evenly)
            self.algorithm = AllOf(self.algorithm, self._announced)
            self.state = (self.state, self._announced.start())
            left -= self.in_flight - (permit._held is True)  # sent since, or not counted yet
        self._announced.learn(self.state[1], now, left, reset_after, permit._at)
        self.epoch += 1
        self.wake()
        if self.listeners:
            self.tell(events.Announced(self.key, left, reset_after))

    @property
    def own_law(self) -> "tuple[Algorithm[Any], Any]":
        """Give the law and its state, without what the server has announced."""
        if self._announced is None:
            return self.algorithm, self.state
        return cast("AllOf", self.algorithm).algorithms[0], self.state[0]

    def reconsider(self) -> None:
        """Have grants decided anew that were decided on another state."""
        self.epoch += 1
        self.wake()

    def remaining(self, now: float) -> float:
        """Tokens that may go now; `now` was just read here."""
        return self.algorithm.remaining(self.state, now)

    def reset_after(self, now: float) -> float:
        """Seconds until the state is as good as new; `now` was just read here."""
        return self.algorithm.reset_after(self.state, now)

    def statistics(self) -> Statistics:
        """Tell what was done, and how things stand."""
        now = self.now()
        if self._waits.recent:
            self._waits.count_recent()
        waits, at_once = self._waits, self._granted - self._waits.count
        capacity = self.algorithm.capacity
        remaining = self.algorithm.remaining(self.state, now)
        rate = self.feedback and self.feedback.rate
        guard = self.feedback and self.feedback.guard
        return Statistics(
            granted=self._granted - self._undone,
            refused=self.refused,
            waiting=self.waiting,
            in_flight=self.in_flight,
            waited_total=waits.total,
            waited_p50=waits.percentile(0.5, at_once=at_once),
            waited_p90=waits.percentile(0.9, at_once=at_once),
            waited_p99=waits.percentile(0.99, at_once=at_once),
            waited_max=waits.longest,
            paused_for=until(self.paused_until, now),
            announced_left=self._announced_left(now),
            utilisation=0.0 if math.isinf(capacity) else 1.0 - remaining / capacity,
            rate_limit=rate.state.rate if rate else None,
            concurrency_limit=self.concurrency_limit,
            guard=guard.measured.seconds if guard else None,
            store_up=self.store_up,
        )

    def _announced_left(self, now: float) -> float | None:
        if self._announced is None or self._announced.reset_after(self.state[1], now) == 0.0:
            return None
        return self._announced.remaining(self.state[1], now)


def _number(concurrency_limit: int | None) -> int:
    return _NO_LIMIT if concurrency_limit is None else concurrency_limit
