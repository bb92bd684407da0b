"""Rejected requests that cost tokens all the same, where the algorithm says so (`WaitUntil`).

Invariant: a rejected request is charged when the waiters ahead of it have started, not earlier: the
queue has an entry for it, on which no task waits.
"""

from asyncio import AbstractEventLoop, Future
from typing import TYPE_CHECKING

from aiothrottle._core.wait_queue import Waiter, WaitQueue

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket

__all__ = ["ChargedRejects"]


class ChargedRejects:
    """The entries of rejected requests in a queue."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: set[Waiter] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._entries

    def add(
        self,
        waiter: Waiter,
        now: float,
        *,
        queue: WaitQueue,
        bucket: "LocalBucket",
        loop: AbstractEventLoop | None,
    ) -> None:
        """Charge a rejected request, behind the waiters ahead of it."""
        ahead = queue.cost_ahead(waiter)
        cost = bucket.cost_of_reject(now, waiter.cost, ahead)
        if cost:
            entry = Waiter(cost, waiter.priority)
            entry.at = now
            self._entries.add(entry)
            queue.add(entry, Future(loop=loop))
            if queue.count == len(self._entries):
                self.charge_at_head(now, queue=queue, bucket=bucket)

    def charge_at_head(self, now: float, *, queue: WaitQueue, bucket: "LocalBucket") -> None:
        """Take the tokens of the entries at the head of the queue, and remove them."""
        while self._entries:
            entry = queue.head
            if entry not in self._entries:
                return
            bucket.charge(now, entry.cost)
            self._entries.discard(entry)
            queue.remove(entry)

    def clear(self) -> None:
        """Forget all entries; the queue is cleared too."""
        self._entries.clear()
