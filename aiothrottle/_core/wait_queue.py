"""The queue: the waiters, in the order in which they are served.

Strategy. First come, first served, except that priority counts as time already waited. All waiters
age alike, so the order of two waiters never changes: it is that of ``arrival - AGEING * priority``.
So one table for each priority, a level, is in order by itself; and no waiter starves, as requests
that arrive more than `AGEING` seconds later per step of priority are behind it. Waiters without a
priority share one level that needs no lookup. An `OrderedDict` finds its head, and removes a waiter
from the middle, in constant time.

With limiters below, each of which sends up its head, the limiter's own waiters are one more queue:
they take turns with the heads, so that a long queue of its own starves none of them.

Invariant: the waiters of the queue are those that have a future.
"""

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterator

#: Seconds of waiting that one step of priority is worth.
AGEING = 10.0


@dataclass(slots=True, eq=False, repr=False)
class Waiter:
    """One request on its way through a limiter: it arrives, waits, starts."""

    #: Tokens that it takes at its start; after `settle`, its final cost.
    cost: float = 1.0
    priority: float = 0.0
    #: The longest wait in seconds; None: no limit.
    timeout: float | None = None
    #: When it arrived; after its start, when its tokens were taken.
    at: float = field(init=False)
    #: The future that its task awaits, while it is in the queue.
    future: "Future[None] | None" = field(init=False, default=None)
    #: Its waiter at the next limiter of a chain, if there is one yet.
    above: "Waiter | None" = field(init=False, default=None)
    #: Charges of `settle` after the start: instants and tokens.
    later_charges: list[tuple[float, float]] | None = field(init=False, default=None)
    #: Whether it was granted: its slot is taken, and its tokens are or will be.
    started: bool = field(init=False, default=False)
    #: Seconds that it waited.
    waited: float = field(init=False, default=0.0)

    @property
    def is_patient(self) -> bool:
        """Whether its task waits without a timeout."""
        return self.timeout is None


class Head(Waiter):
    """The head of the queue of a limiter below, in the queue of the limiter above it.

    Its timeout is kept by the limiter below.
    """

    __slots__ = ("_is_patient",)

    def __init__(self, cost: float, below: Waiter) -> None:
        super().__init__(cost, below.priority)
        self.at = below.at
        self._is_patient = below.is_patient

    @property
    def is_patient(self) -> bool:
        """Whether its task waits without a timeout."""
        return self._is_patient


class Charge(Waiter):
    """A rejected request that is charged all the same, after the waiters ahead of it.

    No task waits on it.
    """

    __slots__ = ()


class _Level(OrderedDict[Waiter, None]):
    """Waiters of one priority, in the order of their arrival."""

    __slots__ = ("surcharge",)

    def __init__(self) -> None:
        super().__init__()
        #: The sum of the costs, less 1 for each waiter.
        self.surcharge: float = 0.0

    @property
    def cost(self) -> float:
        """The sum of the costs."""
        return len(self) + self.surcharge


class WaitQueue:
    """The waiters of a limiter, in order."""

    __slots__ = ("count", "others", "resuming", "usual")

    #: Whether one waiter is granted at a time, so that another queue gets its turn.
    takes_turns: ClassVar[bool] = False

    def __init__(self) -> None:
        #: The number of waiters.
        self.count: int = 0
        #: How many of them were granted and have not resumed yet.
        self.resuming: int = 0
        #: The waiters with priority 0.
        self.usual: _Level = _Level()
        #: The waiters with other priorities. If there are any, a new waiter may be the head.
        self.others: dict[float, _Level] = {}

    @property
    def head(self) -> Waiter:
        """The next waiter to serve; the queue must not be empty."""
        return next(iter(self))

    def add(self, waiter: Waiter, future: "Future[None]") -> None:
        """Append the waiter to its level; it waits on the future."""
        level = self.usual
        if waiter.priority:
            level = self.others.setdefault(waiter.priority, _Level())
        waiter.future = future
        self.count += 1
        if waiter.cost != 1.0:
            level.surcharge += waiter.cost - 1.0
        level[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Remove the waiter, wherever it is in the queue."""
        level = self.others[waiter.priority] if waiter.priority else self.usual
        waiter.future = None
        self.count -= 1
        if waiter.cost != 1.0:
            level.surcharge -= waiter.cost - 1.0
        del level[waiter]
        if not level:
            level.surcharge = 0.0  # removes rounding errors
            if waiter.priority:
                del self.others[waiter.priority]

    @property
    def cost(self) -> float:
        """The cost of all waiters."""
        return sum((level.cost for level in self.others.values()), self.usual.cost)

    def cost_ahead(self, waiter: Waiter) -> float:
        """Return the cost of all waiters that precede a waiter that arrives now."""
        cost, place = 0.0, _place(waiter)
        for priority, level in ((0.0, self.usual), *self.others.items()):
            if priority >= waiter.priority:
                cost += level.cost
                continue
            for other in level:
                if _place(other) > place:
                    break
                cost += other.cost
        return cost

    def __iter__(self) -> "Iterator[Waiter]":
        """Iterate in order."""
        if not self.others:
            return iter(self.usual)
        levels = {0.0: self.usual, **self.others} if self.usual else self.others
        # Of two waiters with the same place, the higher priority is first.
        ordered = [levels[priority] for priority in sorted(levels, reverse=True)]
        return heapq.merge(*ordered, key=_place) if ordered[1:] else iter(ordered[0])

    def clear(self) -> None:
        """Remove all waiters."""
        for waiter in self:
            waiter.future = None
        self.usual, self.count = _Level(), 0
        self.others.clear()


class TurnQueue:
    """The own waiters of a limiter, and the heads of those below, which take turns.

    The next of its own waiters has the place of one that arrived when the one before it started, as
    the next head of a limiter below arrives when the one before it has started.
    """

    __slots__ = ("_head_was_last", "_heads", "_own", "_turn", "resuming")

    def __init__(self, own: WaitQueue) -> None:
        self._own = own
        self._heads = WaitQueue()
        #: How many waiters were granted and have not resumed yet.
        self.resuming: int = own.resuming
        # When the last of its own waiters started.
        self._turn = -math.inf
        # Whether the last waiter that left is a head: the next one may be on its way.
        self._head_was_last = False

    @property
    def count(self) -> int:
        """The number of waiters."""
        return self._own.count + self._heads.count

    @property
    def cost(self) -> float:
        """The cost of all waiters."""
        return self._own.cost + self._heads.cost

    @property
    def takes_turns(self) -> bool:
        """Whether one waiter is granted at a time: there are heads and own waiters."""
        return self._own.count > 0 and (self._heads.count > 0 or self._head_was_last)

    @property
    def others(self) -> dict[float, _Level]:
        """Waiters with a priority other than 0, if there are any."""
        return self._own.others or self._heads.others

    @property
    def head(self) -> Waiter:
        """The next waiter to serve; the queue must not be empty."""
        return next(iter(self))

    def add(self, waiter: Waiter, future: "Future[None]") -> None:
        """Append the waiter to the queue of its kind; it waits on the future."""
        self._queue_of(waiter).add(waiter, future)

    def remove(self, waiter: Waiter) -> None:
        """Remove the waiter; if it starts, `at` is the time of that already."""
        self._head_was_last = isinstance(waiter, Head)
        if not self._head_was_last and waiter.future and is_granted(waiter.future):
            self._turn = waiter.at
        self._queue_of(waiter).remove(waiter)

    def cost_ahead(self, waiter: Waiter) -> float:
        """Return the cost of all waiters that are known to precede one that arrives now."""
        cost = self._heads.cost_ahead(waiter)
        if not isinstance(waiter, Head):
            cost += self._own.cost_ahead(waiter)
        elif self._own.count:
            first = self._own.head
            if self._order(first) <= self._order(waiter):
                cost += first.cost
        return cost

    def __iter__(self) -> "Iterator[Waiter]":
        """Iterate in order."""
        if not (self._own.count and self._heads.count):
            return iter(self._heads if self._heads.count else self._own)
        return heapq.merge(self._own, self._heads, key=self._order)

    def clear(self) -> None:
        """Remove all waiters."""
        self._own.clear()
        self._heads.clear()
        self._turn, self._head_was_last = -math.inf, False

    def _order(self, waiter: Waiter) -> tuple[float, bool]:
        """Return by what waiters are ordered: at one instant heads precede the next turn."""
        if isinstance(waiter, Head) or waiter.at > self._turn:
            return _place(waiter), False
        return self._turn - AGEING * waiter.priority, True

    def _queue_of(self, waiter: Waiter) -> WaitQueue:
        return self._heads if isinstance(waiter, Head) else self._own


#: What an engine waits in.
Queue: TypeAlias = WaitQueue | TurnQueue


def _place(waiter: Waiter) -> float:
    return waiter.at - AGEING * waiter.priority


def is_granted(future: "Future[None]") -> bool:
    """Return whether the waiter on the future was granted."""
    return future.done() and not future.cancelled() and future.exception() is None


def fail(waiter: Waiter, error: Exception) -> None:
    """Raise the error in the waiter, if it still waits."""
    future = waiter.future
    if future is not None and not future.done() and not isinstance(waiter, Charge):
        future.set_exception(error)
