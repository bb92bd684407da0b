"""How much of a limit this process may use alone while the store fails (`on_store_error="local"`).

Invariant: the size of the share is decided here: it is the user's `local_share`, or without one an
equal part for each of the processes that were counted in the store.
"""

import math
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from aiothrottle._checks import check_choice, shown

if TYPE_CHECKING:
    from aiothrottle.stores.process_count import ProcessCounter
    from aiothrottle.stores.store import Store

__all__ = ["CHOICES", "OnStoreError", "ShareSize", "check_share", "slots_of_share"]

OnStoreError: TypeAlias = Literal["raise", "local", "open", "closed"]
"""What serves while a store fails."""

CHOICES: Final = ("raise", "local", "open", "closed")

# A share of a whole number of slots may be off by a rounding: 0.29 * 100 is below 29.
_ROUNDING = 1e-9
# The inverse of the smallest numbers is infinite, and infinity times a cost of 0 is no number.
_MOST = 1e12


def check_share(on_store_error: OnStoreError, local_share: float | None) -> None:
    """Check the two arguments of a limiter.

    Raises:
        TypeError: `local_share` is not a number.
        ValueError: One of them is out of range, or they contradict each other.
    """
    check_choice("on_store_error", on_store_error, CHOICES)
    if local_share is None:
        return
    wanted = "the part of the limit that this process may use alone, such as 1/8 for 8 processes"
    # A bool is an int for Python, but no part of anything.
    if not isinstance(local_share, int | float) or isinstance(local_share, bool):
        raise TypeError(f"local_share must be a number, {wanted}, got {shown(local_share)}")
    if not 0 < local_share <= 1:
        raise ValueError(
            f"local_share must be above 0 and at most 1, {wanted}, got {shown(local_share)}"
        )
    if on_store_error != "local":
        raise ValueError(
            f"local_share={local_share!r} has no effect with on_store_error={on_store_error!r}: "
            "write on_store_error='local' too, or leave local_share out"
        )


def slots_of_share(limit: int, local_share: float) -> int:
    """Return the slots of a `SharedConcurrency` that are this process's: at least 1.

    >>> slots_of_share(10, 0.25), slots_of_share(3, 0.125)
    (2, 1)
    """
    return max(1, math.floor(limit * local_share + _ROUNDING))


class ShareSize:
    """The size of this process's share of a rate limit.

    Args:
        local_share: The size that the user gives, above 0 and at most 1; None to count processes.
        counter: Counts the processes; not used if a size is given.
    """

    __slots__ = ("_counter", "_given")

    def __init__(self, local_share: float | None, counter: "ProcessCounter") -> None:
        self._given = None if local_share is None else min(1 / local_share, _MOST)
        self._counter = counter

    @property
    def divisor(self) -> float:
        """The limit divided by this is the share: 1.0 or more."""
        return self._counter.processes if self._given is None else self._given

    def must_count(self, now: float) -> bool:
        """Return whether it is time to count the processes; if so, the caller has to."""
        return self._given is None and self._counter.is_due(now)

    async def count(self, store: "Store") -> None:
        """Count the processes that use the store. Raises what the store raises."""
        await self._counter.register(store)
