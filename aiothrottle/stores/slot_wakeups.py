"""When waiters for a shared slot ask again: the store wakes them, or a pause ends.

Invariant: once waiters have no slot, the store was asked to wake them, or the pauses between their
calls are bounded.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiothrottle.stores.slots import SlotStore

__all__ = ["SlotWakeups"]

# Seconds between two calls for waiters that the store cannot wake: the first pause, by how much it
# grows, and the longest. Half of it is jitter.
_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.01, 1.5, 0.5
# Seconds. A call at the very instant at which a lease expires can be too early by a rounding.
_SHORTEST_BREAK = 0.001


class SlotWakeups:
    """Wakes the task of one owner.

    Args:
        store: The store that may wake the owner.
        woken: Called when the store has woken the owner.
    """

    __slots__ = ("_owner", "_pause", "_store", "_woken", "is_woken")

    def __init__(self, store: "SlotStore", woken: Callable[[], None]) -> None:
        self._store = store
        self._woken = woken
        # The owner that the store wakes, if it does.
        self._owner: str | None = None
        self._pause = _PAUSE
        #: Whether the store has woken the owner since the last claim.
        self.is_woken: bool = False

    def patience(self, owner: str, retry_after: float) -> float:
        """Seconds after which the owner asks again if it is not woken before.

        Args:
            owner: The owner that waits.
            retry_after: Seconds until a lease may expire.
        """
        if self._owner is None and self._store.listen(owner, self._wake):
            self._owner = owner
            self.is_woken = True  # a wake-up before that call was lost
        patience = retry_after + _SHORTEST_BREAK
        if self._owner is None:
            patience = min(patience, self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * _GROWTH, _LONGEST_PAUSE)
        return patience

    def reset_pause(self) -> None:
        """Begin with the shortest pause again."""
        self._pause = _PAUSE

    def stop(self) -> None:
        """Stop the store from waking the owner."""
        if self._owner is not None:
            self._store.unlisten(self._owner)
            self._owner = None

    def _wake(self) -> None:
        self.is_woken = True
        self._woken()
