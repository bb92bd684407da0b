"""The calls for the shared slots of one limiter, and what the store knows from them.

Invariant: `known` is what the last answered claim made of the store's record, or None while that
is uncertain: a claim is under way, or was not answered.
"""

import math
import os
import secrets
from typing import TYPE_CHECKING

from aiothrottle.stores.slots import Claim, SlotStore

if TYPE_CHECKING:
    from aiothrottle.stores.shared_concurrency import SharedConcurrency
    from aiothrottle.stores.slots import Granted
    from aiothrottle.stores.store import Key

__all__ = ["SlotClaims"]


class SlotClaims:
    """Sends claims under the name of one owner; one at a time."""

    __slots__ = ("_answered_at", "_key", "_letters", "_number", "_store", "known")

    def __init__(self, store: SlotStore, key: "Key") -> None:
        self._store = store
        self._key = key
        self._letters = secrets.token_hex(8)
        self._number = 0
        self._answered_at = -math.inf
        #: How many slots the store has as held and as wanted.
        self.known: tuple[int, int] | None = (0, 0)

    @property
    def owner(self) -> str:
        """The name of the owner."""
        # The process is part of the name: a forked child has the same letters.
        return f"{os.getpid():x}x{self._letters}"

    async def send(self, shared: "SharedConcurrency", held: int, wanted: int) -> "Granted":
        """Claim slots. Raises what the store raises; `answered` is to be called after it."""
        self._number += 1
        self.known = None
        claim = Claim(self.owner, shared.limit, held, wanted, shared.lease, self._number)
        return await self._store.claim(self._key, claim)

    def answered(self, now: float, held: int, wanted: int) -> None:
        """Note what the store knows by its answer."""
        self._answered_at = now
        self.known = (held, wanted)

    def count_lease_from(self, now: float) -> None:
        """Note that a claim without an answer may have been granted until now."""
        self._answered_at = max(self._answered_at, now)

    def forget(self) -> None:
        """Note that the store has no slot and no ticket of this owner any more."""
        self.known = (0, 0)

    def are_over(self, now: float, lease: float) -> bool:
        """Return whether every lease that the store may have granted has expired."""
        return now >= self._answered_at + lease
