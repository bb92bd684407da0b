"""The dispatcher: grants to the waiters of a queue, several in one turn.

Strategy. One decision covers a batch: the bucket says how many requests with a cost of 1 may start,
and each of them takes a slot and is woken. Their tokens are taken as they resume.

Invariant: while granted waiters have not resumed, nothing else is granted, so the decision about
the batch holds unless a new epoch has begun.
"""

import math
from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING, Protocol

from aiothrottle._core.stall import Stall

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.observers import Observers
    from aiothrottle._core.pause import Pause
    from aiothrottle._core.rejects import Rejects
    from aiothrottle._core.semaphore import Semaphore
    from aiothrottle._core.wait_queue import Waiter, WaitQueue

__all__ = ["Dispatcher"]

# Waiters that are woken in one turn: more would keep the loop from its sockets.
_BATCH = 256
# Seconds. The least wait between two batches: waiters that start one by one would cost two turns of
# the loop each, and its timers are no finer than a millisecond anyway.
_SHORTEST_NAP = 0.0005


class Host(Protocol):
    """The engine, as the dispatcher sees it."""

    bucket: "LocalBucket"
    chained: bool
    epoch: int
    loop: AbstractEventLoop | None
    observers: "Observers"
    pause: "Pause"
    queue: "WaitQueue"
    rejects: "Rejects"
    semaphore: "Semaphore"

    @property
    def in_flight(self) -> int: ...
    def decide(self, now: float, cost: float, *, ahead: float = 0.0) -> float: ...
    def estimate(self, now: float, waiter: "Waiter", ahead: float | None = None) -> float: ...
    def watch(self) -> None: ...


class Dispatcher:
    """Grants in batches, and knows whether the head of the queue lacks only a slot."""

    __slots__ = ("_stall", "epoch", "resuming", "starved")

    def __init__(self) -> None:
        #: Waiters that were granted and have not resumed yet.
        self.resuming: int = 0
        #: The epoch in which they were granted.
        self.epoch: int = 0
        #: Whether the head of the queue lacks only a slot.
        self.starved: bool = False
        # Made when the head lacks a slot for the first time.
        self._stall: Stall | None = None

    def serve(self, host: Host) -> float | None:
        """Grant to all waiters that may start now. Returns the seconds until the next, if known."""
        self.starved = False
        host.watch()
        host.observers.tidy()
        if self.resuming:
            return None  # the last of them makes the consumer serve again
        now = host.bucket.now()
        if now < host.pause.opens_at:
            return host.pause.closed_for(now)
        if host.rejects:
            host.rejects.charge_at_head(now, queue=host.queue, bucket=host.bucket)
        return self._grant(host, now)

    def _grant(self, host: Host, now: float) -> float | None:
        self.epoch = host.epoch
        semaphore, rejects = host.semaphore, host.rejects
        granted, cost, wait = 0, 0.0, 0.0
        most = 1 if host.chained else _BATCH
        if host.pause.awaits_trial:
            most, self.epoch = 1, -1  # it is decided again as it resumes, and becomes the trial
        # Waiters with a cost of 1 that may start without a further decision.
        sure = 0 if rejects else semaphore.slots - semaphore.taken
        if sure > 0:
            sure = min(sure, host.bucket.startable(now, most))
        for waiter in host.queue:
            future = waiter.future
            if future is None or future.done():
                continue  # it has left, or is cancelled and about to leave
            tokens = waiter.cost
            if granted >= sure or tokens != 1.0:
                sure = 0  # it holds for costs of 1 only
                if waiter in rejects:
                    break  # it is charged when the waiters ahead of it have started
                if semaphore.taken >= semaphore.slots and self._starve(host):
                    return None
                wait = host.decide(now, tokens, ahead=cost)
                if wait > 0.0:
                    break
            cost += tokens
            semaphore.taken += 1
            self.resuming += 1
            future.set_result(None)
            granted += 1
            if granted == most:
                break
        if wait > 0.0 and granted > 1:
            wait = max(wait, _SHORTEST_NAP)
        return wait or None

    def _starve(self, host: Host) -> bool:
        """Watch each release of a slot from now on. Returns False if a slot is free by then."""
        assert host.loop is not None
        self.starved = True
        host.watch()
        if host.semaphore.free:  # a garbage collection has released a slot before the watch
            self.starved = False
            return False
        self._stall = self._stall or Stall()
        self._stall.watch(host.loop, lambda: self._lacks_slot_in(host))
        return True

    def _lacks_slot_in(self, host: Host) -> float | None:
        """Return the seconds until the head lacks only a slot; None: it does not lack a slot.

        Also None if no permit of this engine holds a slot that could be released.
        """
        if not (self.starved and host.queue.count and host.in_flight):
            return None
        wait = host.estimate(host.bucket.now(), host.queue.head, 0.0)
        # Infinity: the store is called only with a free slot.
        return 0.0 if wait == math.inf else wait

    def slot_released(self) -> None:
        """Note a released slot: the queue moves."""
        if self._stall is not None:
            self._stall.slot_released()

    def end(self) -> None:
        """Note that the queue is empty."""
        if self._stall is not None:
            self._stall.end()

    def forget(self) -> None:
        """Forget the grants and the timer of a closed loop."""
        self.resuming = 0
        self._stall = None
