"""Those who wait, in the order in which they are served."""

import heapq
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from aiothrottle.permit import Permit

__all__ = ["AGEING", "Waiters"]

#: One step of priority counts for as much as so many seconds of waiting.
AGEING = 10.0


class _Lane(deque["Permit"]):
    """Those of one priority, first come first.

    Who leaves from the middle stays as a gap, without a future, until it is the head or half of
    the lane is gaps: so leaving costs the same however many wait. The head is no gap.
    """

    __slots__ = ("dear", "gaps")

    def __init__(self) -> None:
        super().__init__()
        #: What they cost together more than 1 each.
        self.dear: float = 0.0
        self.gaps: int = 0

    @property
    def cost(self) -> float:
        """What they cost together."""
        return len(self) - self.gaps + self.dear

    def drop(self, permit: "Permit") -> None:
        """Take the permit out, which is a gap by now. The lane may be empty afterwards."""
        if self[0] is not permit:
            self.gaps += 1
            if 2 * self.gaps > len(self):
                self._close_gaps()
            return
        self.popleft()
        while self.gaps and self[0]._future is None:
            self.popleft()
            self.gaps -= 1

    def _close_gaps(self) -> None:
        kept = [permit for permit in self if permit._future is not None]
        self.clear()
        self.extend(kept)
        self.gaps = 0


class Waiters:
    """First come, first served, except that priority counts as time already waited.

    All age alike, so of two who wait the order never changes: it is that of
    ``arrival - AGEING * priority``. One lane for each priority then is in order by itself, and
    nobody starves: who comes later than `AGEING` seconds per step of priority is behind.

    What each of them waits on is kept in its permit.
    """

    __slots__ = ("count", "others", "usual")

    def __init__(self) -> None:
        #: How many wait.
        self.count: int = 0
        #: Those of priority 0, which is what nearly all have.
        self.usual: _Lane = _Lane()
        #: Those of other priorities, if there are any: then who comes last may be first.
        self.others: dict[float, _Lane] = {}

    @property
    def head(self) -> "Permit":
        """Who is next, while anybody waits."""
        return next(iter(self))

    def add(self, permit: "Permit", future: "asyncio.Future[None]") -> None:
        """Have the permit wait on the future, behind those who came before."""
        lane = self.usual
        if permit._priority:
            lane = self.others.setdefault(permit._priority, _Lane())
        permit._future = future
        self.count += 1
        if permit._tokens != 1.0:
            lane.dear += permit._tokens - 1.0
        lane.append(permit)

    def remove(self, permit: "Permit") -> None:
        """Take the permit out."""
        lane = self.others[permit._priority] if permit._priority else self.usual
        permit._future = None
        self.count -= 1
        if permit._tokens != 1.0:
            lane.dear -= permit._tokens - 1.0
        if lane[0] is permit and not lane.gaps:  # as in `drop`, for nearly all of them
            lane.popleft()
        else:
            lane.drop(permit)
        if not lane:
            lane.dear = 0.0  # what rounding has left of it
            if permit._priority:
                del self.others[permit._priority]

    def cost_ahead(self, permit: "Permit") -> float:
        """Add up what those cost who would be served before a permit that comes now."""
        cost, place = 0.0, _place(permit)
        for priority, lane in ((0.0, self.usual), *self.others.items()):
            if priority >= permit._priority:
                cost += lane.cost
                continue
            for waiter in lane:
                if _place(waiter) > place:
                    break
                if waiter._future is not None:
                    cost += waiter._tokens
        return cost

    def __iter__(self) -> "Iterator[Permit]":
        """Give them in order. Between them are some who have left: they wait on nothing."""
        if not self.others:
            return iter(self.usual)
        # Of two with the same place in line the one with the priority goes first.
        lanes = sorted({0.0: self.usual, **self.others}.items(), reverse=True)
        return heapq.merge(*(lane for _, lane in lanes), key=_place)

    def clear(self) -> None:
        """Forget all."""
        for permit in self:
            permit._future = None
        self.usual, self.count = _Lane(), 0
        self.others.clear()


def _place(permit: "Permit") -> float:
    return permit._at - AGEING * permit._priority
