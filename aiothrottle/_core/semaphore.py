"""The semaphore: slots for the requests that are in flight.

Invariant: a slot is free, or held by exactly one permit. `taken` exceeds `slots` only after the
limit was lowered, until as many have been released.

The two numbers are public, as the fast path of `Permit` counts with them in place: a call of a
method would cost it a tenth.
"""

__all__ = ["NO_LIMIT", "Semaphore"]

#: Slots where there is no limit: more than can be in flight, and still a small number for Python.
NO_LIMIT = 1 << 29


class Semaphore:
    """Counts slots. It never waits: who does stands in the queue."""

    __slots__ = ("slots", "taken", "watched")

    def __init__(self, limit: int | None) -> None:
        self.slots: int = NO_LIMIT if limit is None else limit
        self.taken: int = 0
        #: Whether `slot_released` of the engine has to be called for each slot that is released.
        self.watched: bool = False

    @property
    def limit(self) -> int | None:
        """How many slots there are; None: there is no limit."""
        return None if self.slots == NO_LIMIT else self.slots

    @property
    def free(self) -> int:
        """How many slots are free."""
        return max(0, self.slots - self.taken)

    def resize(self, limit: int | None) -> None:
        """Have another number of slots; those that are held stay held."""
        self.slots = NO_LIMIT if limit is None else limit
