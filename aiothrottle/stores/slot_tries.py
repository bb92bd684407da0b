"""Requests that use a shared slot only if one is free now: `try_acquire` and `peek`.

Invariant: a future that is taken is settled, or put back for the next call.
"""

import asyncio

from aiothrottle.errors import Label, twin

__all__ = ["SlotTries", "fail_tries", "settle_tries"]


class SlotTries:
    """The requests of one limiter that try, and the futures of those that need a call."""

    __slots__ = ("_futures", "count")

    def __init__(self) -> None:
        #: How many requests try now: each may use one slot.
        self.count: int = 0
        self._futures: list[asyncio.Future[None]] = []

    @property
    def need_call(self) -> bool:
        """Whether a request waits for an answer of the store."""
        return bool(self._futures)

    def add(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future that is done when a call that starts from now on has ended."""
        future = loop.create_future()
        self._futures.append(future)
        return future

    def take(self) -> list[asyncio.Future[None]]:
        """Return the futures that the next call settles."""
        futures, self._futures = self._futures, []
        return futures

    def put_back(self, futures: list[asyncio.Future[None]]) -> None:
        """Leave the futures to the next call."""
        self._futures += futures

    def restart(self) -> None:
        """Begin anew on another loop: the requests of the old one are dead."""
        self.count, self._futures = 0, []


def settle_tries(futures: list[asyncio.Future[None]]) -> None:
    """Let the requests go on: each finds out whether there is a free slot."""
    for future in futures:
        if not future.done():
            future.set_result(None)


def fail_tries(futures: list[asyncio.Future[None]], error: Exception, label: Label) -> None:
    """Raise the error in the requests, for each an error of its own."""
    for future in futures:
        if not future.done():
            future.set_exception(twin(error, label))
