"""The queue: the waiters, in the order in which they are served.

Strategy. First come, first served, but that priority counts as time already waited. All age alike,
so the order of two waiters never changes: it is that of ``arrival - AGEING * priority``. One deque
for each priority then is in order by itself, and nobody starves: who comes later than `AGEING`
seconds per step of priority is behind. Nearly all waiters have no priority and share one deque that
is not looked up.

Invariant: `count` waiters have a future; a waiter without one has left. It may stay in its deque as
a gap, but never at the head.
"""

import heapq
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterator

__all__ = ["AGEING", "WaitQueue", "Waiter"]

#: One step of priority counts for as much as so many seconds of waiting.
AGEING = 10.0


class Waiter:
    """One request on its way through a limiter: it arrives, waits, starts."""

    __slots__ = (
        "above",
        "at",
        "cost",
        "future",
        "later_charges",
        "priority",
        "started",
        "timeout",
        "waited",
    )

    #: Its waiter at the next limiter of a chain, once there is one.
    above: "Waiter | None"
    #: When it arrived; from its start on, when its tokens were taken.
    at: float
    #: Tokens that it takes when it starts; after `settle`, that it has cost.
    cost: float
    #: What it waits on, while it is in the queue.
    future: "Future[None] | None"
    #: What `settle` has charged after the start: the instants and the tokens.
    later_charges: list[tuple[float, float]] | None
    priority: float
    #: Whether it was let in: its slot is taken, its tokens are or will be.
    started: bool
    #: Seconds that it waits at the most; None: as long as it takes.
    timeout: float | None
    #: Seconds that it has waited.
    waited: float

    def __init__(
        self, cost: float = 1.0, priority: float = 0.0, timeout: float | None = None
    ) -> None:
        self.cost = cost
        self.priority = priority
        self.timeout = timeout
        self.future = self.above = self.later_charges = None
        self.started = False
        self.waited = 0.0


class _Level(deque[Waiter]):
    """Waiters of one priority, in the order of their arrival.

    A waiter that leaves from the middle stays as a gap until it is the head, or until half of the
    level is gaps: so leaving costs the same however many wait.
    """

    __slots__ = ("gaps", "surcharge")

    def __init__(self) -> None:
        super().__init__()
        #: What they cost together more than 1 each.
        self.surcharge: float = 0.0
        self.gaps: int = 0

    @property
    def cost(self) -> float:
        """What they cost together."""
        return len(self) - self.gaps + self.surcharge

    def drop(self, waiter: Waiter) -> None:
        """Take out a waiter, which is a gap by now. The level may be empty afterwards."""
        if self[0] is not waiter:
            self.gaps += 1
            if 2 * self.gaps > len(self):
                self._close_gaps()
            return
        self.popleft()
        while self.gaps and self[0].future is None:
            self.popleft()
            self.gaps -= 1

    def _close_gaps(self) -> None:
        kept = [waiter for waiter in self if waiter.future is not None]
        self.clear()
        self.extend(kept)
        self.gaps = 0


class WaitQueue:
    """Who waits, in order."""

    __slots__ = ("count", "others", "usual")

    def __init__(self) -> None:
        #: How many wait.
        self.count: int = 0
        #: Those of priority 0.
        self.usual: _Level = _Level()
        #: Those of other priorities, if there are any: then the last to come may be the head.
        self.others: dict[float, _Level] = {}

    @property
    def head(self) -> Waiter:
        """Who is served next, while anybody waits."""
        return next(iter(self))

    def add(self, waiter: Waiter, future: "Future[None]") -> None:
        """Put the waiter behind those who came before; it waits on the future."""
        level = self.usual
        if waiter.priority:
            level = self.others.setdefault(waiter.priority, _Level())
        waiter.future = future
        self.count += 1
        if waiter.cost != 1.0:
            level.surcharge += waiter.cost - 1.0
        level.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Take the waiter out, wherever it stands."""
        level = self.others[waiter.priority] if waiter.priority else self.usual
        waiter.future = None
        self.count -= 1
        if waiter.cost != 1.0:
            level.surcharge -= waiter.cost - 1.0
        if level[0] is waiter and not level.gaps:  # as in `drop`, for nearly all of them
            level.popleft()
        else:
            level.drop(waiter)
        if not level:
            level.surcharge = 0.0  # what rounding has left of it
            if waiter.priority:
                del self.others[waiter.priority]

    def cost_ahead(self, waiter: Waiter) -> float:
        """Add up what those cost who would be served before a waiter that arrives now."""
        cost, place = 0.0, _place(waiter)
        for priority, level in ((0.0, self.usual), *self.others.items()):
            if priority >= waiter.priority:
                cost += level.cost
                continue
            for other in level:
                if _place(other) > place:
                    break
                if other.future is not None:
                    cost += other.cost
        return cost

    def __iter__(self) -> "Iterator[Waiter]":
        """Give them in order. Between them are gaps, which have no future."""
        if not self.others:
            return iter(self.usual)
        # Of two with the same place the one with the priority is first.
        levels = sorted({0.0: self.usual, **self.others}.items(), reverse=True)
        return heapq.merge(*(level for _, level in levels), key=_place)

    def clear(self) -> None:
        """Forget all."""
        for waiter in self:
            waiter.future = None
        self.usual, self.count = _Level(), 0
        self.others.clear()


def _place(waiter: Waiter) -> float:
    return waiter.at - AGEING * waiter.priority
