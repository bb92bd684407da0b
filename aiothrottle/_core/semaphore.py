"""The semaphore: slots for the requests in flight.

Slots may open by and by. What a server admits at once is not known before its first answers, nor
after it has throttled: all but one slot are closed then, and each answer opens another one. So they
double in a round trip. An answer that is late is no 429, for a server throttles at once: while
requests wait for a slot, each second opens more, twice as many as the one before.

Invariant: a slot is closed, free, or held by exactly one permit. `taken` exceeds `slots` only after
the limit was lowered or slots were closed, until enough slots are released.

Both numbers are public, as the fast path of `Permit` updates them in place: a method call would
take a tenth of its time.
"""

import math
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import weakref

#: Slots without a limit: more than can be in flight, and still a small integer for Python.
NO_LIMIT = 1 << 29
# Open slots after which the others open at once; seconds for which a request waits for an answer.
_ENOUGH, _PATIENCE = 64, 1.0


@dataclass(slots=True, eq=False, repr=False)
class Semaphore:
    """Counts slots. It never waits: waiters are in the queue."""

    first: InitVar[int | None]
    #: The slots that are open, and those that are not.
    slots: int = field(init=False)
    closed: int = field(init=False)
    #: The slots for requests on the fast path. The last one is not: see `filled_by`.
    for_fast: int = field(init=False)
    #: The task that took the last slot, for a block, if none was released since: it would wait
    #: for itself if it needed another one.
    filled_by: "weakref.ref[asyncio.Task[Any]] | None" = field(init=False)
    taken: int = 0
    # When closed slots open without an answer, and how many; infinity: nobody waits.
    _opens_at: float = math.inf
    _late: int = 1
    #: Whether each release of a slot has to call the engine's `slot_released`.
    watched: bool = False

    def __post_init__(self, first: int | None) -> None:
        """Open the slots of the limit; None: no limit."""
        self.resize(first)

    @property
    def limit(self) -> int | None:
        """The concurrency limit; None: no limit."""
        limit = self.slots + self.closed
        return None if limit == NO_LIMIT else limit

    @property
    def free(self) -> int:
        """The number of free slots."""
        return max(0, self.slots - self.taken)

    def resize(self, limit: int | None, *, opens: bool = True) -> None:
        """Change the limit; slots that are held stay held.

        Args:
            limit: The number of slots; None: no limit.
            opens: Whether closed slots open. Else, if there are some, no more are open than before.
        """
        number = NO_LIMIT if limit is None else limit
        self.slots = number if opens or not self.closed else min(self.slots, number)
        self.closed = number - self.slots
        self.for_fast = self.slots - 1
        self.filled_by = None

    def add(self, slots: int) -> None:
        """Add slots, or remove some that are free."""
        self.slots += slots
        self.for_fast += slots

    def close(self) -> None:
        """Close all slots but one."""
        self.closed += self.slots - 1
        self.add(1 - self.slots)
        self._opens_at, self._late = math.inf, 1

    def open(self, slots: int) -> None:
        """Open so many slots, or all that are closed if many are open."""
        self._open(self.closed if self.slots + slots > _ENOUGH else slots)

    def _open(self, slots: int) -> None:
        slots = min(slots, self.closed)
        self.closed -= slots
        self.add(slots)

    def opens_in(self, now: float) -> float:
        """Return the seconds until closed slots open without an answer.

        The time begins with the first request that lacks a slot.
        """
        if self._opens_at == math.inf:
            self._opens_at = now + _PATIENCE
        return max(0.0, self._opens_at - now)

    def open_late(self, now: float) -> None:
        """Open slots, besides those that are held, if requests have waited for a second."""
        if now >= self._opens_at:
            self._open(max(0, self.taken - self.slots) + self._late)
            self._opens_at, self._late = now + _PATIENCE, min(2 * self._late, _ENOUGH)

    def restart(self) -> None:
        """Forget since when requests wait, as there is another clock."""
        self._opens_at = math.inf
