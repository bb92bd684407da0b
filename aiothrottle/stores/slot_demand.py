"""The leased slots of an engine: how many it holds, and how many more are of use.

Invariant: after `count` the engine has no free slot that no request can use soon.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiothrottle._core.engine import Engine

__all__ = ["SlotDemand"]

# The most slots that are wanted at a time: so no waiter is behind more requests of one process.
_MOST_WANTED = 64


class SlotDemand:
    """Counts, adds and drops the slots of one engine."""

    __slots__ = ("_engine",)

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def count(self, tries: int, per_process: int | None) -> tuple[int, int]:
        """Return how many slots are held, and how many more are of use; drop the useless ones.

        Args:
            tries: Requests outside the queue, each of which may use a slot.
            per_process: The most slots that the engine may hold; None: any number.
        """
        semaphore = self._engine.semaphore
        of_use = self._engine.startable(_MOST_WANTED) + tries
        self.drop(max(0, semaphore.free - of_use))
        most = _MOST_WANTED
        if per_process is not None:
            most = min(most, per_process - semaphore.slots)
        return semaphore.slots, max(0, min(of_use - semaphore.free, most))

    def add(self, slots: int) -> None:
        """Give the engine slots, and serve its queue."""
        if slots > 0:
            self._engine.semaphore.add(slots)
            self._engine.wake()

    def drop(self, slots: int) -> None:
        """Take free slots from the engine; the next claim returns them."""
        self._engine.semaphore.add(-slots)

    def drop_free(self) -> None:
        """Take all free slots from the engine."""
        self.drop(self._engine.semaphore.free)
