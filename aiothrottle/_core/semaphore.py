"""The semaphore: slots for the requests in flight.

Invariant: a slot is free, or held by exactly one permit. `taken` exceeds `slots` only after the
limit was lowered, until enough slots are released.

Both numbers are public, as the fast path of `Permit` updates them in place: a method call would
take a tenth of its time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import weakref

#: Slots without a limit: more than can be in flight, and still a small integer for Python.
NO_LIMIT = 1 << 29


class Semaphore:
    """Counts slots. It never waits: waiters are in the queue."""

    __slots__ = ("filled_by", "for_fast", "slots", "taken", "watched")

    def __init__(self, limit: int | None) -> None:
        self.resize(limit)
        self.taken: int = 0
        #: Whether each release of a slot has to call the engine's `slot_released`.
        self.watched: bool = False

    @property
    def limit(self) -> int | None:
        """The concurrency limit; None: no limit."""
        return None if self.slots == NO_LIMIT else self.slots

    @property
    def free(self) -> int:
        """The number of free slots."""
        return max(0, self.slots - self.taken)

    def resize(self, limit: int | None) -> None:
        """Change the limit; slots that are held stay held."""
        self.slots: int = NO_LIMIT if limit is None else limit
        #: The slots for requests on the fast path. The last one is not: see `filled_by`.
        self.for_fast: int = self.slots - 1
        #: The task that took the last slot, for a block, if none was released since: it would wait
        #: for itself if it needed another one.
        self.filled_by: weakref.ref[asyncio.Task[Any]] | None = None

    def add(self, slots: int) -> None:
        """Add slots, or remove some that are free."""
        self.slots += slots
        self.for_fast += slots
