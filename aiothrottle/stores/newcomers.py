"""Newcomers of a shared bucket whose algorithm rejects by the wait: `WaitUntil`.

Strategy. Such an algorithm decides about a request when it arrives, and the timestamp by which it
decides is in the store. So the store is called once for each request that arrives, as far ahead as
the algorithm lets a request wait. A request that gets an instant waits for it in the queue, as
everywhere; one that gets none is rejected, and the store has counted it. What is reserved belongs
to no particular request, so a request that leaves the queue leaves the last reservation.

Invariant: a waiter is undecided, or it is not rejected any more: if its reservation went back, for
a pause or as there was no slot, the reserver asks again until there is another.
"""

import asyncio
import functools
import math
import weakref
from contextvars import Context
from typing import TYPE_CHECKING

from aiothrottle._core.engine import Engine, fail, is_granted
from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.algorithms.timestamps import until
from aiothrottle.errors import ThrottleTimeout, twin
from aiothrottle.stores.reserver import SHORTEST_BREAK, Reserver, reserved_of

if TYPE_CHECKING:
    from aiothrottle._core.wait_queue import Waiter

__all__ = ["Newcomers"]


class Newcomers:
    """The waiters about whom the store has not decided yet, in the order in which they arrived."""

    __slots__ = ("_ask_at", "_calls", "_reserver", "_timer")

    def __init__(self, reserver: Reserver) -> None:
        self._reserver = reserver
        # The call that is under way for each; None: it is to be made.
        self._calls: dict[Waiter, asyncio.Task[None] | None] = {}
        # What serves while the store is away says when to call again.
        self._ask_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the store is called for nobody."""
        return not self._calls

    def add(self, engine: Engine, waiter: "Waiter") -> None:
        """Call the store for a waiter that has just joined the queue."""
        future = waiter.future
        assert future is not None
        self._calls[waiter] = None
        self._reserver.undecided.add(waiter)
        # A waiter that is granted, perhaps with another one's reservation, is decided, too.
        decided = functools.partial(self._decided, engine, waiter)
        future.add_done_callback(decided, context=Context())
        self.dispatch(engine)

    def dispatch(self, engine: Engine) -> None:
        """Make the calls that are to be made, in order, or set a timer for them."""
        self._stop_timer()
        loop = engine.loop
        assert loop is not None
        for waiter, call in [*self._calls.items()]:
            if call is not None:
                continue
            if wait := self._wait_to_ask(engine, waiter):
                later = functools.partial(self._dispatch_later, weakref.ref(engine))
                self._timer = loop.call_later(wait, later)
                return
            ask = self._ask(engine, waiter)
            task = asyncio.Task(ask, loop=loop, name="aiothrottle newcomer", context=Context())
            ended = functools.partial(self._ended, engine, waiter)
            task.add_done_callback(ended, context=Context())
            self._calls[waiter] = task

    def _dispatch_later(self, engine_ref: "weakref.ref[Engine]") -> None:
        engine = engine_ref()
        if engine is not None:
            self.dispatch(engine)

    def ask_again(self, engine: Engine) -> None:
        """Call again at once: what the store, or its fallback, has said is over."""
        self._ask_at = -math.inf
        if self._calls:
            self.dispatch(engine)

    def _wait_to_ask(self, engine: Engine, waiter: "Waiter") -> float:
        """Seconds for which a call is of no use: a pause, or the quota of the server."""
        now = engine.now()
        wait = until(max(engine.pause.ends_at, self._ask_at), now)
        return max(wait, engine.bucket.quota_delay(now, waiter.cost))

    async def _ask(self, engine: Engine, waiter: "Waiter") -> None:
        reserver, cost = self._reserver, waiter.cost
        algorithm = reserver.algorithm
        patience = max_wait(algorithm)
        if waiter.timeout is not None:
            waited = engine.bucket.clock() - waiter.at
            patience = max(0.0, min(patience, waiter.timeout - waited))
        try:
            answer = await reserver.store.reserve(reserver.key, algorithm, [cost], horizon=patience)
        except Exception as error:  # noqa: BLE001 - the request is to fail by it, whatever it is
            fail(waiter, twin(error, engine.key))
            return
        wait = answer.retry_after
        if answer.instants:
            reserver.hold(engine, [cost], answer)
        elif wait > patience:
            reserver.note(engine, answer)
            if not _has_left(waiter):
                engine.reject("timeout")
                timeout = max_wait(algorithm)
                if waiter.timeout is not None:
                    timeout = min(timeout, waiter.timeout)
                fail(waiter, ThrottleTimeout(wait, timeout=timeout, key=engine.key))
        else:
            self._ask_at = reserver.note(engine, answer) + max(SHORTEST_BREAK, wait)
            self._calls[waiter] = None
            return
        reserver.undecided.discard(waiter)

    def _ended(self, engine: Engine, waiter: "Waiter", call: "asyncio.Task[None]") -> None:
        if waiter not in self._calls:
            return  # the loop is another one
        if waiter in self._reserver.undecided and not _has_left(waiter):
            self._calls[waiter] = None  # it was cancelled, or is to be made again
        else:
            del self._calls[waiter]
        if engine.queue.count:
            engine.wake()  # the consumer makes the calls that are left
        elif not self._calls:
            self._reserver.give_back(engine)
            if not call.cancelled():  # else the loop may be closing: no new task
                self._reserver.start(engine)

    def _decided(self, engine: Engine, waiter: "Waiter", _: "asyncio.Future[None]") -> None:
        """Note that a waiter was granted, or has left."""
        self._reserver.undecided.discard(waiter)
        if self._calls.get(waiter, engine) is None:
            del self._calls[waiter]
        engine.wake()

    def fit(self, engine: Engine) -> None:
        """Return the reservations that do not fit the waiters, and all behind those.

        One reservation is for one request here: two requests of a cost of 1 would start at once by
        a reservation of 2.
        """
        reserved = reserved_of(engine)
        ready, fitting = iter(reserved.ready), 0
        for waiter in engine.queue:
            if waiter in self._reserver.undecided or not waiter.cost or _has_left(waiter):
                continue
            slot = next(ready, None)
            if slot is None or not math.isclose(slot.cost, waiter.cost):
                break
            fitting += 1
        reserved.give_back_behind(fitting)

    def clear(self) -> None:
        """Begin anew on another loop: the old one is closed, with the tasks and the timer."""
        self._calls.clear()
        self._reserver.undecided.clear()
        self._ask_at, self._timer = -math.inf, None

    async def close(self) -> None:
        """Leave no task and no timer."""
        self._stop_timer()
        while calls := [call for call in self._calls.values() if call is not None]:
            await asyncio.wait(calls)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _has_left(waiter: "Waiter") -> bool:
    """Tell whether the waiter was cancelled or has failed; if it is granted it may yet stay."""
    future = waiter.future
    return future is None or (future.done() and not is_granted(future))
