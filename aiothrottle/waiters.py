"""Those who wait, in the order in which they are served."""

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from aiothrottle.permit import Permit

__all__ = ["AGEING", "Waiters"]

#: One step of priority counts for as much as so many seconds of waiting.
AGEING = 10.0

Waiter: TypeAlias = "tuple[Permit, asyncio.Future[None]]"


class _Lane(OrderedDict["Permit", "asyncio.Future[None]"]):
    """Those of one priority, first come first, and what they cost together.

    An OrderedDict: leaving from the middle, and looking at the head, cost the same however many
    wait. A dict would look for its head among all that have left.
    """

    cost = 0.0


class Waiters:
    """First come, first served, except that priority counts as time already waited.

    All age alike, so of two who wait the order never changes: it is that of
    ``arrival - AGEING * priority``. One lane for each priority then is in order by itself, and
    nobody starves: who comes later than `AGEING` seconds per step of priority is behind.
    """

    __slots__ = ("_lanes", "mixed")

    def __init__(self) -> None:
        self._lanes: dict[float, _Lane] = {}
        #: Whether there is more than one priority, so that who comes last may be first.
        self.mixed = False

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, permit: "Permit", future: "asyncio.Future[None]") -> None:
        """Have the permit wait on the future, behind those who came before."""
        lane = self._lanes.get(permit._priority)
        if lane is None:
            lane = self._lanes[permit._priority] = _Lane()
            self.mixed = len(self._lanes) > 1
        lane.cost += permit.cost
        lane[permit] = future

    def replace(self, permit: "Permit", future: "asyncio.Future[None]") -> None:
        """Have a permit that waits wait on another future, in its place."""
        self._lanes[permit._priority][permit] = future

    def future_of(self, permit: "Permit") -> "asyncio.Future[None] | None":
        """Give what the permit waits on, if it waits."""
        lane = self._lanes.get(permit._priority)
        return None if lane is None else lane.get(permit)

    def remove(self, permit: "Permit") -> bool:
        """Take the permit out. Tells whether it was the head."""
        lane = self._lanes[permit._priority]
        head = next(iter(self))[0] if self.mixed else next(iter(lane))
        del lane[permit]
        lane.cost -= permit.cost
        if not lane:
            del self._lanes[permit._priority]
            self.mixed = len(self._lanes) > 1
        return head is permit

    def cost_ahead(self, permit: "Permit") -> float:
        """Add up what those cost who would be served before a permit that comes now."""
        cost, place = 0.0, _place((permit, None))
        for priority, lane in self._lanes.items():
            if priority >= permit._priority:
                cost += lane.cost
                continue
            for waiter in lane.items():
                if _place(waiter) > place:
                    break
                cost += waiter[0].cost
        return cost

    def __iter__(self) -> "Iterator[Waiter]":
        lanes = self._lanes
        if len(lanes) == 1:
            (lane,) = lanes.values()
            return iter(lane.items())
        # Of two with the same place in line the one with the priority goes first.
        return heapq.merge(*(lanes[p].items() for p in sorted(lanes, reverse=True)), key=_place)

    def clear(self) -> None:
        """Forget all."""
        self._lanes.clear()
        self.mixed = False


def _place(waiter: "tuple[Permit, object]") -> float:
    permit, _ = waiter
    return permit._at - AGEING * permit._priority
