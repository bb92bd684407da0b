"""What an engine asks of the parts whose limit is counted in a store, for all processes.

The parts themselves are in `aiothrottle.stores`: the engine knows nothing of stores.
"""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from aiothrottle._core.verdict import Verdict
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.algorithms import Algorithm
    from aiothrottle.stores.shared_concurrency import SharedConcurrency

__all__ = ["SharedSlots", "SharedTokens"]


class SharedTokens(Protocol):
    """The rate limit that all processes share: reserves tokens for the waiters of one engine."""

    @property
    def store_up(self) -> bool:
        """Whether the store answered the last call."""
        ...

    @property
    def may_grant_credit(self) -> bool:
        """Whether newcomers may use reservations without a further decision."""
        ...

    def joined(self, waiter: "Waiter") -> None:
        """Note that a waiter has joined the queue."""
        ...

    def drop_stale(self, now: float) -> None:
        """Return the reservations that are too old for a newcomer."""
        ...

    def prepare(self, now: float) -> float:
        """Get ready to grant: call the store if it is time to.

        Returns:
            Seconds until it is time to call; infinity if a call is under way or not needed.
        """
        ...

    def charge_reject(self, cost: float) -> None:
        """Count a request in the store that the algorithm rejects without a call."""
        ...

    def flush(self) -> None:
        """Send the store what has changed: refunds, charges, missing reservations."""
        ...

    def queue_is_empty(self, *, swept: bool) -> None:
        """Return what was reserved for waiters; `swept`: start no task, the loop may be closing."""
        ...

    def estimate(self, now: float, cost: float, ahead: float) -> float:
        """Return the known seconds until tokens that are not reserved may be granted."""
        ...

    def startable_soon(self, most: int) -> int:
        """Return for how many waiters slots are worth having, at most `most`."""
        ...

    def use(self, algorithm: "Algorithm[Any]") -> "Algorithm[Any]":
        """Continue with another algorithm. Returns the one that the engine has to use."""
        ...

    async def reset(self) -> None:
        """Delete the record in the store, and forget the reservations of it."""
        ...

    def is_idle(self, now: float) -> bool:
        """Return whether nothing is reserved, under way or to be remembered."""
        ...

    def restart(self) -> None:
        """Start anew on another loop."""
        ...

    async def close(self) -> None:
        """Return what is reserved, and leave no task."""
        ...

    async def try_start(self, waiter: "Waiter") -> "Verdict":
        """Take the tokens of a request that has a slot, if the store grants them now."""
        ...

    async def peek(self, cost: float) -> "Verdict":
        """Return the verdict of `try_start`, and change nothing."""
        ...

    async def record(self, cost: float) -> None:
        """Count tokens in the store, whether they fit or not."""
        ...


class SharedSlots(Protocol):
    """Slots that all processes share: what the engine asks of the part that leases them."""

    #: What the user asked for.
    shared: "SharedConcurrency"

    @property
    def store_up(self) -> bool:
        """Whether the store answered the last call."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no slot is leased or wanted, and no call is under way or due."""
        ...

    def refresh(self) -> None:
        """Report to the store what has changed: waiters, free slots."""
        ...

    def slot_released(self) -> None:
        """Return a slot that was just released."""
        ...

    def restart(self) -> None:
        """Start anew on another loop."""
        ...

    def try_lease(self) -> "AbstractAsyncContextManager[None]":
        """Lease a free slot, if there is one, for a request that does not wait in the queue."""
        ...

    async def close(self) -> None:
        """Return the free slots, and leave no task."""
        ...
