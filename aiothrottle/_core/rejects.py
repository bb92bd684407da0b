"""Rejecting: requests that the limiter does not queue, as the queue is full or the wait too long.

Some algorithms charge rejected requests all the same (`WaitUntil`). Invariant: such a request is
charged when the waiters ahead of it have started, not earlier: the queue has an entry for it, on
which no task waits.
"""

import math
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

from aiothrottle import events
from aiothrottle._core.wait_queue import Waiter, WaitQueue
from aiothrottle.errors import QueueFull, ThrottleTimeout

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.shared import SharedTokens

__all__ = ["Rejects"]


class Host(Protocol):
    """The engine, as far as a rejection needs it."""

    bucket: "LocalBucket"
    key: Hashable
    loop: AbstractEventLoop | None
    queue: WaitQueue
    shared: "SharedTokens | None"

    @property
    def waiting(self) -> int: ...
    def reject(self, reason: events.Rejection) -> None: ...


class Rejects:
    """The longest queue, and the entries of rejected requests that are still to be charged."""

    __slots__ = ("_entries", "_max_queue")

    def __init__(self, max_queue: int | None) -> None:
        self._max_queue = max_queue
        self._entries: set[Waiter] = set()

    @property
    def bounds_queue(self) -> bool:
        """Whether there is a longest queue."""
        return self._max_queue is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._entries

    def check(
        self,
        host: Host,
        waiter: Waiter,
        now: float,
        estimate: "Callable[[float, Waiter], float]",
        *,
        as_head: bool,
    ) -> None:
        """Reject a request if the queue is full, or if its estimated wait is too long.

        Args:
            host: The engine.
            waiter: The request.
            now: The time.
            estimate: Returns the seconds until pauses and rates admit the request.
            as_head: Whether it is the head of another queue, and has queued there.

        Raises:
            QueueFull, ThrottleTimeout: The request is rejected.
        """
        full = not as_head and self._max_queue is not None and host.waiting >= self._max_queue
        longest = host.bucket.max_wait
        if not full and waiter.timeout is None and longest == math.inf:
            return
        wait = estimate(now, waiter)
        timeout = longest if waiter.timeout is None else min(waiter.timeout, longest)
        if full:
            host.reject("queue full")
            raise QueueFull(host.waiting, wait, key=host.key)
        if wait > longest and host.shared is not None:
            host.shared.charge_reject(waiter.cost)
        elif wait > longest:
            self._add(host, waiter, now)
        elif wait <= timeout:
            return
        host.reject("timeout")
        raise ThrottleTimeout(wait, timeout=timeout, key=host.key)

    def _add(self, host: Host, waiter: Waiter, now: float) -> None:
        """Charge a rejected request, behind the waiters ahead of it."""
        queue, bucket = host.queue, host.bucket
        cost = bucket.cost_of_reject(now, waiter.cost, queue.cost_ahead(waiter))
        if cost:
            entry = Waiter(cost, waiter.priority)
            entry.at = now
            self._entries.add(entry)
            queue.add(entry, Future(loop=host.loop))
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
