"""The semaphore: slots for the requests in flight.

Invariant: a slot is free, or held by exactly one permit. `taken` exceeds `slots` only after the
limit was lowered, until enough slots are released.

Both numbers are public, as the fast path of `Permit` updates them in place: a method call would
take a tenth of its time.
"""

__all__ = ["NO_LIMIT", "Semaphore"]

#: Slots without a limit: more than can be in flight, and still a small integer for Python.
NO_LIMIT = 1 << 29


class Semaphore:
    """Counts slots. It never waits: waiters are in the queue."""

    __slots__ = ("slots", "taken", "watched")

    def __init__(self, limit: int | None) -> None:
        self.slots: int = NO_LIMIT if limit is None else limit
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
        self.slots = NO_LIMIT if limit is None else limit
