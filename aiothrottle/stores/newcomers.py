"""Newcomers of a shared bucket whose algorithm rejects by the wait: `WaitUntil`.

Strategy. Such an algorithm decides about a request when it arrives, and the timestamp by which it
decides is in the store. So the store is called for the requests that have arrived, in order and
many in one call, as far ahead as the algorithm lets a request wait. A request that gets an instant
waits for it in the queue, as everywhere; the first one that gets none is rejected with all behind
it, and the store has counted them. A reservation belongs to no particular request: when a request
leaves the queue, the last reservation is free.

Invariant: a waiter is undecided, or it is not rejected any more: if its reservation was returned,
for a pause or for want of a slot, the reserver asks again until there is another.
"""

import asyncio
import functools
import math
import weakref
from contextvars import Context
from typing import TYPE_CHECKING, cast

from aiothrottle._core.engine import Engine, fail
from aiothrottle._core.wait_queue import is_granted
from aiothrottle.algorithms.protocol import max_wait, until
from aiothrottle.errors import ThrottleTimeout, twin
from aiothrottle.stores.reserved import Reservation
from aiothrottle.stores.reserver import SHORTEST_BREAK, Reserver, reserved_of

if TYPE_CHECKING:
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.algorithms import WaitUntil

__all__ = ["Newcomers"]

_MOST_PER_CALL = 1024


class Newcomers:
    """The waiters that the store has not decided about yet, and the task that calls it for them."""

    __slots__ = ("_ask_at", "_reserver", "_task", "_timer")

    def __init__(self, reserver: Reserver) -> None:
        self._reserver = reserver
        # When to call again while the store fails; infinity: when it is back.
        self._ask_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no waiter is undecided and no call is under way."""
        return self._task is None and not self._reserver.undecided

    def add(self, engine: Engine, waiter: "Waiter") -> None:
        """Call the store for a waiter that has just joined the queue."""
        future = waiter.future
        assert future is not None
        self._reserver.undecided[waiter] = None
        # A waiter that is granted, perhaps with another one's reservation, is decided, too.
        decided = functools.partial(self._decided, engine, waiter)
        future.add_done_callback(decided, context=Context())
        self.start(engine)

    def start(self, engine: Engine) -> None:
        """Start the task if there is a waiter to call for, or set a timer if it is too early."""
        loop = engine.loop
        if self._task is not None or loop is None or loop.is_closed():
            return
        self._stop_timer()
        for waiter in self._reserver.undecided:
            if wait := self._wait_to_ask(engine, waiter):
                # A weak reference: a timer must not keep a limiter alive.
                later = functools.partial(self._start_later, weakref.ref(engine))
                if wait < math.inf:
                    self._timer = loop.call_later(wait, later)
                return
            self._task = asyncio.Task(
                self._run(engine), loop=loop, name="aiothrottle newcomers", context=Context()
            )
            ended = functools.partial(self._task_ended, engine)
            self._task.add_done_callback(ended, context=Context())
            return

    def _start_later(self, engine_ref: "weakref.ref[Engine]") -> None:
        engine = engine_ref()
        if engine is not None:
            self.start(engine)

    def ask_again(self, engine: Engine) -> None:
        """Call again at once: what the store, or its fallback, has rejected is over."""
        self._ask_at = -math.inf
        self.start(engine)

    def _wait_to_ask(self, engine: Engine, waiter: "Waiter") -> float:
        """Seconds for which a call is of no use: a pause, or the quota of the server."""
        now = engine.now()
        wait = until(max(engine.pause.opens_at, self._ask_at), now)
        return max(wait, engine.bucket.quota_delay(now, waiter.cost))

    async def _run(self, engine: Engine) -> None:
        while batch := self._next_batch():
            if self._wait_to_ask(engine, batch[0]):
                return
            await self._ask(engine, batch)

    def _next_batch(self) -> list["Waiter"]:
        """Return the first waiters that have the same timeout: one call can decide about them."""
        undecided, batch = self._reserver.undecided, list["Waiter"]()
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

    async def _ask(self, engine: Engine, batch: list["Waiter"]) -> None:
        reserver, first = self._reserver, batch[0]
        costs = [waiter.cost for waiter in batch]
        patience = max_wait(reserver.algorithm)
        if first.timeout is not None:
            waited = engine.bucket.clock() - first.at
            patience = max(0.0, min(patience, first.timeout - waited))
        try:
            answer = await reserver.store.reserve(
                reserver.key, reserver.algorithm, costs, horizon=patience
            )
        except Exception as error:  # noqa: BLE001 - the waiters get it, whatever it is
            for waiter in batch:
                reserver.undecided.pop(waiter, None)
                fail(waiter, twin(error, engine.label))
            return
        taken = len(answer.instants)
        now = reserver.hold(engine, costs[:taken], answer)
        for waiter in batch[:taken]:
            reserver.undecided.pop(waiter, None)
        if answer.retry_after > patience:
            self._reject(engine, batch[taken:], answer.retry_after, patience)
        elif taken < len(batch):
            wait = answer.retry_after
            if reserver.store.is_down:  # its return voids this, see `ask_again`
                wait = reserver.store.wait_for_return(costs[taken])
            self._ask_at = now + max(SHORTEST_BREAK, wait)
        if engine.queue.count:
            engine.turn()

    def _reject(
        self, engine: Engine, rejected: list["Waiter"], wait: float, patience: float
    ) -> None:
        """Reject the waiters, of which the first would have to wait so many seconds.

        Each one that the algorithm rejects makes the wait of the next one longer.
        """
        algorithm = cast("WaitUntil", self._reserver.algorithm)
        longest, counted = max_wait(algorithm), 0.0
        # The store has counted them, unless the call had a shorter horizon than the algorithm's.
        if wait > longest > patience:
            cost = math.fsum(waiter.cost for waiter in rejected)
            reserved_of(engine).owed.append(Reservation(math.nan, cost, math.nan))
        for waiter in rejected:
            retry_after = max(wait, min(wait + counted * algorithm.interval, algorithm.limit))
            if wait > longest:
                counted += waiter.cost
            if waiter in self._reserver.undecided:  # else it has left meanwhile
                del self._reserver.undecided[waiter]
                engine.reject("timeout")
                timeout = longest if waiter.timeout is None else min(longest, waiter.timeout)
                error = ThrottleTimeout(retry_after, timeout=timeout, **engine.label)
                fail(waiter, error)

    def _task_ended(self, engine: Engine, task: "asyncio.Task[None]") -> None:
        if self._task is not task:
            return  # the loop is another one
        self._task = None
        if engine.queue.count:
            engine.wake()  # the consumer starts the calls that are still due
        else:
            self._reserver.give_back(engine)
            if not task.cancelled():  # else the loop may be closing: no new task
                self._reserver.start(engine)

    def _decided(self, engine: Engine, waiter: "Waiter", _: "asyncio.Future[None]") -> None:
        """Note that a waiter was granted, or has left."""
        self._reserver.undecided.pop(waiter, None)
        engine.wake()

    def fit(self, engine: Engine) -> None:
        """Return the reservations that do not fit the waiters, and all behind those.

        One reservation is for one request here: with a reservation of 2 two requests of a cost of 1
        would start at once.
        """
        reserved = reserved_of(engine)
        ready, fitting = iter(reserved.ready), 0
        for waiter in engine.queue:
            if waiter in self._reserver.undecided or not waiter.cost or _has_left(waiter):
                continue
            reservation = next(ready, None)
            if reservation is None or not math.isclose(reservation.cost, waiter.cost):
                break
            fitting += 1
        reserved.give_back_behind(fitting)

    def clear(self) -> None:
        """Begin anew on another loop: the old one is closed, with the task and the timer."""
        self._reserver.undecided.clear()
        self._ask_at, self._task, self._timer = -math.inf, None, None

    async def close(self) -> None:
        """Leave no task and no timer."""
        self._stop_timer()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _has_left(waiter: "Waiter") -> bool:
    """Return whether the waiter was cancelled or has failed; a granted one is still there."""
    future = waiter.future
    return future is None or (future.done() and not is_granted(future))
