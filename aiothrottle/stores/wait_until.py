"""The shared bucket of an algorithm that rejects by the wait: `WaitUntil`.

Strategy. Such an algorithm decides about a request when it arrives, and the timestamp by which it
decides is in the store. So the store is called for the requests that have arrived, in order and
many in one call, as far ahead as the algorithm lets a request wait. (With a call for each, one
after the other, a hundred requests that arrive together would wait for a hundred round trips: more
than `raise_after` where the store is far.) A request that gets an instant
waits for it in the queue, as everywhere; the first one that gets none is rejected with all behind
it, and the store has counted them. A reservation belongs to no particular request: when a request
leaves the queue, the last reservation is free.

Invariant: a waiter is undecided, or it is not rejected any more: if its reservation was returned,
for a pause or for want of a slot, the store is asked again until there is another.
"""

import asyncio
import math
from collections.abc import Iterable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from aiothrottle._core.wait_queue import fail, is_granted
from aiothrottle.algorithms.protocol import max_wait, until
from aiothrottle.errors import ThrottleTimeout, twin
from aiothrottle.stores.batching import Batching
from aiothrottle.stores.caller import SHORTEST_BREAK, Order
from aiothrottle.stores.shared_bucket import SharedBucket

if TYPE_CHECKING:
    from aiothrottle._core.observers import Observers
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.algorithms import WaitUntil
    from aiothrottle.stores.store import Answer

_MOST_PER_CALL = 1024


class SharedWaitUntil(SharedBucket):
    """The tokens of one engine in a store, by an algorithm that rejects.

    Args:
        args: Those of `SharedBucket`.
        observers: Count the rejected requests.
        options: Those of `SharedBucket`.
    """

    def __init__(self, *args: Any, observers: "Observers", **options: Any) -> None:  # noqa: ANN401
        self._observers = observers
        # The waiters that the store has not decided about yet, in order.
        self._undecided: dict[Waiter, None] = {}
        super().__init__(*args, **options)

    def _size_calls(self) -> None:
        # A little less than a request may wait, so that the store does not count a rejection of a
        # waiter that it has accepted before.
        self._max_reservation = math.nextafter(max_wait(self.algorithm), 0.0)
        self.batching: Batching = Batching.of(self.algorithm, self._max_reservation)

    def _waiters(self) -> "Iterable[Waiter]":
        """Return those that the store has decided about."""
        return (waiter for waiter in self._queue if waiter not in self._undecided)

    def is_idle(self, now: float) -> bool:
        """Return whether no waiter is undecided either."""
        return not self._undecided and super().is_idle(now)

    def joined(self, waiter: "Waiter") -> bool:
        """Call the store for a waiter that has just joined the queue."""
        if waiter.cost:
            assert waiter.future is not None
            self._undecided[waiter] = None
            # A waiter that is granted, perhaps with another one's reservation, is decided, too.
            waiter.future.add_done_callback(partial(self._has_ended, waiter), context=Context())
        return True

    def _has_ended(self, waiter: "Waiter", _: "asyncio.Future[None]") -> None:
        """Note that a waiter was granted, or has left."""
        self._undecided.pop(waiter, None)
        self._changed(None)

    def ask_again(self) -> None:
        """Forget what the store, or its fallback, has rejected."""
        super().ask_again()
        # When to call again for the undecided while the store fails; infinity: when it is back.
        self._retry_at = -math.inf

    def tidy(self, now: float) -> None:
        """Return the reservations that do not fit the waiters, and all behind those.

        One reservation is for one request here: with a reservation of 2 two requests of a cost of 1
        would start at once.
        """
        super().tidy(now)
        if self._queue.resuming:
            return
        ready, fitting = iter(self.reserved.ready), 0
        for waiter in self._waiters():
            if not waiter.cost or _has_left(waiter):
                continue
            reservation = next(ready, None)
            if reservation is None or not math.isclose(reservation.cost, waiter.cost):
                break
            fitting += 1
        self.reserved.give_back(behind=fitting)

    # ---- the calls for the undecided -------------------------------------------------------------

    def due_in(self, now: float) -> float:
        """Return the seconds until a call is due: 0.0 is now, infinity: it is not known."""
        wait = self._undecided_due_in(now)
        return min(wait, super().due_in(now)) if wait else 0.0

    def _undecided_due_in(self, now: float) -> float:
        """Return the same of a call for the undecided, which is of no use in a pause."""
        batch = self._next_batch()
        if not batch:
            return math.inf
        wait = until(max(self._pause.opens_at, self._retry_at), now)
        return max(wait, self._bucket.quota_delay(now, batch[0].cost))

    def _next_batch(self) -> list["Waiter"]:
        """Return the first waiters that have the same timeout: one call can decide about them."""
        undecided, batch = self._undecided, list["Waiter"]()
        for waiter in [*undecided]:
            if _has_left(waiter):
                del undecided[waiter]
            elif batch and waiter.timeout != batch[0].timeout:
                break
            else:
                batch.append(waiter)
                if len(batch) == _MOST_PER_CALL:
                    break
        return batch

    def order(self, now: float) -> Order | float:
        """Return the call that is due now, or the seconds until one is."""
        if wait := self._undecided_due_in(now):
            order = super().order(now)
            return order if isinstance(order, Order) else min(order, wait)
        batch = self._next_batch()
        costs = [waiter.cost for waiter in batch]
        patience, timeout = max_wait(self.algorithm), batch[0].timeout
        if timeout is not None:
            patience = max(0.0, min(patience, timeout - (now - batch[0].at)))
        return Order(
            self.store.execute("reserve", costs, patience),
            partial(self._decided, batch, costs, patience),
            partial(self._failed_to_decide, batch),
        )

    def _decided(
        self, batch: list["Waiter"], costs: list[float], patience: float, answer: "Answer"
    ) -> None:
        taken = len(answer.instants)
        now = self.note(answer)
        self.reserved.hold(now, costs[:taken], answer.instants, answer.now)
        for waiter in batch[:taken]:
            self._undecided.pop(waiter, None)
        if answer.retry_after > patience:
            self._reject(batch[taken:], answer.retry_after, patience)
        elif taken < len(batch):
            # The return of the store voids this, see `ask_again`.
            wait = self.store.retry_in(costs[taken], answer.retry_after)
            self._retry_at = now + max(SHORTEST_BREAK, wait)

    def _failed_to_decide(self, batch: list["Waiter"], error: Exception) -> None:
        for waiter in batch:
            self._undecided.pop(waiter, None)
            fail(waiter, twin(error, self._observers.label))

    def _reject(self, rejected: list["Waiter"], wait: float, patience: float) -> None:
        """Reject the waiters, of which the first would have to wait so many seconds.

        Each one that the algorithm rejects makes the wait of the next one longer.
        """
        algorithm = cast("WaitUntil", self.algorithm)
        longest, counted = max_wait(algorithm), 0.0
        # The store has counted them, unless the call had a shorter one than the algorithm's.
        if wait > longest > patience:
            self.charge_reject(math.fsum(waiter.cost for waiter in rejected))
        for waiter in rejected:
            retry_after = max(wait, min(wait + counted * algorithm.interval, algorithm.limit))
            if wait > longest:
                counted += waiter.cost
            if waiter in self._undecided:  # else it has left meanwhile
                del self._undecided[waiter]
                self._observers.reject("timeout")
                timeout = longest if waiter.timeout is None else min(longest, waiter.timeout)
                label = self._observers.label
                fail(waiter, ThrottleTimeout(retry_after, timeout=timeout, **label))

    # ---- anew ------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget all that the store has granted, but for what the waiters have been promised."""
        ready = [*self.reserved.ready]
        super().forget()
        self.reserved.ready.extend(ready)

    def restart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew on another loop."""
        self._undecided.clear()
        super().restart(loop)


def _has_left(waiter: "Waiter") -> bool:
    """Return whether the waiter was cancelled or has failed; a granted one is still there."""
    future = waiter.future
    return future is None or (future.done() and not is_granted(future))
