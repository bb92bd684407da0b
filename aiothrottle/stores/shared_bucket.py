"""The shared bucket: the rate limit of an engine, counted in a store for all processes.

Strategy. The engine's own bucket knows only what is reserved: its algorithm (`Reserved`) grants
what the store has granted, as soon as it is ready. The `Reserver` calls the store for the waiters.
This file is the rest of what the engine needs: when reservations are returned, how long a wait may
be, and the calls of requests that do not wait in the queue.

Invariant: a reservation is used within `Prefetch.patience` seconds, or is returned to the store;
when nobody waits, only tokens are kept that the user wants to be prefetched, or that are ready
within the round trip of a far store.
"""

import asyncio
import math
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from aiothrottle._core.engine import Engine, Verdict
from aiothrottle.algorithms.protocol import Algorithm, max_wait, until
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.newcomers import Newcomers
from aiothrottle.stores.outage import FailoverStore
from aiothrottle.stores.prefetch import Prefetch
from aiothrottle.stores.reserved import Reservation, Reserved
from aiothrottle.stores.reserver import Reserver, reserved_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiothrottle import events
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.rate import Rate
    from aiothrottle.stores.reserved import ReservedState
    from aiothrottle.stores.store import Answer, Key, OnStoreError, Store

__all__ = ["SharedBucket"]

_Result = TypeVar("_Result")


class SharedBucket:
    """The rate limit that an engine shares through a store.

    Args:
        engine: The engine, whose own bucket has a `Reserved` algorithm; it is held weakly.
        algorithm: The algorithm that decides in the store.
        store: The store.
        key: The key of the record.
        max_reservation: Seconds ahead that tokens are reserved, at the most; None: what suits.
        prefetch: Tokens to reserve before a request needs them, and how long they are kept.
        on_store_error: What serves while the store fails.
        local_share: This process's share then, with "local"; None: the processes are counted.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_engine_ref",
        "_newcomers",
        "_reserver",
        "_store",
    )

    def __init__(
        self,
        engine: Engine,
        algorithm: Algorithm[Any],
        *,
        store: "Store",
        key: "Key",
        max_reservation: float | None = None,
        prefetch: "Rate | None" = None,
        on_store_error: "OnStoreError" = "raise",
        local_share: float | None = None,
    ) -> None:
        # A limiter is freed with the last reference to it, so none leads back to the engine.
        self._engine_ref = weakref.ref(engine)
        self._store = FailoverStore(
            store, on_store_error, local_share, engine.bucket.clock, self._store_changed
        )
        self._reserver = Reserver(
            algorithm,
            store=self._store,
            key=key,
            max_reservation=max_reservation,
            prefetch=Prefetch(prefetch),
        )
        self._newcomers: Newcomers | None = None
        if max_wait(algorithm) < math.inf:
            self._newcomers = Newcomers(self._reserver)
        # The calls of `try_start`. If a caller is cancelled, what its call is granted is returned.
        self._calls: set[asyncio.Task[Answer]] = set()

    @property
    def _engine(self) -> Engine:
        engine = self._engine_ref()
        assert engine is not None
        return engine

    @property
    def _reserved(self) -> "ReservedState":
        return reserved_of(self._engine)

    @property
    def _prefetch(self) -> Prefetch:
        return self._reserver.prefetch

    # ---- the state -------------------------------------------------------------------------------

    @property
    def store_up(self) -> bool:
        """Whether the store answered the last call."""
        return not self._store.is_down

    @property
    def may_grant_credit(self) -> bool:
        """Whether newcomers may use reservations without a further decision."""
        return self._prefetch.given is not None  # else each is checked for its age

    def is_idle(self, now: float) -> bool:
        """Return whether nothing is reserved, under way or to be remembered."""
        reserved = self._reserved
        return (
            self._reserver.task is None
            and not self._calls
            and not (reserved.ready or reserved.returned or reserved.owed)
            and (self._newcomers is None or self._newcomers.is_idle)
            and self._store.is_forgettable(now)
        )

    def estimate(self, now: float, cost: float, ahead: float) -> float:
        """Seconds until tokens that are not reserved may be there, as far as it is known."""
        ready = self._reserved.ready
        wait = until(ready[-1].at, now) if ready else 0.0
        wait = max(wait, self._reserver.rejected_for(now, cost, ahead))
        return max(wait, self._engine.bucket.quota_delay(now, cost))

    def startable_soon(self, most: int) -> int:
        """Return for how many waiters slots are worth having, `most` at the most."""
        return min(most, self._reserver.batching.soon)

    def use(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """Continue with another algorithm; the record in the store stays."""
        self._reserver.use(algorithm)
        return Reserved(algorithm)

    # ---- serving the queue -----------------------------------------------------------------------

    def joined(self, waiter: "Waiter") -> None:
        """Note that a waiter has joined the queue."""
        self._prefetch.joined += 1
        if self._newcomers is not None and waiter.cost:
            self._newcomers.add(self._engine, waiter)

    def prepare(self, now: float) -> float:
        """Return what is too old to be used, and call the store if it is time to."""
        engine, reserver, reserved = self._engine, self._reserver, self._reserved
        if now < engine.pause.opens_at:
            reserved.give_back()
        elif not engine.resuming:
            if reserved.give_back_older(now - self._prefetch.patience):
                self._prefetch.shrink()
            if (
                self._prefetch.is_learned
                and not engine.semaphore.free
                and not reserver.keeps_prefetched
            ):
                self._prefetch.reset()
                reserved.give_back()  # it is unknown when a slot is free to use it
        if self._newcomers is not None:
            self._newcomers.start(engine)
            if not engine.resuming:
                self._newcomers.fit(engine)
        if reserver.task is not None:
            return math.inf  # it serves the queue with what it gets
        costs = reserver.missing(engine, 1)
        wait = reserver.wait_to_ask(engine, costs[0]) if costs else math.inf
        if not wait or reserved.returned or reserved.owed:
            reserver.begin(engine)
        return wait or math.inf

    def charge_reject(self, cost: float) -> None:
        """Count a request in the store that the algorithm rejects without a call."""
        # Of no instant: nobody can return it.
        self._reserved.owed.append(Reservation(math.nan, cost, math.nan))
        self.flush()

    async def reset(self) -> None:
        """Delete the record in the store, and forget the reservations of it.

        Raises:
            StoreUnavailable: The store does not answer; nothing is changed.
        """
        await self._named(self._store.clear(self._reserver.key))
        self._engine.now()  # a request that just started has used a reservation
        self._reserved.forget(keep_ready=self._newcomers is not None)
        self._reserver.ask_again()
        self._prefetch.reset()
        if self._newcomers is not None:
            self._newcomers.ask_again(self._engine)

    def drop_stale(self, now: float) -> None:
        """Return the reservations that are too old for a newcomer."""
        if self._prefetch.given is None:
            self._reserved.give_back_older(now - self._prefetch.patience)

    def queue_is_empty(self, *, swept: bool) -> None:
        """Return what was reserved for waiters; `swept`: start no task, the loop may be closing."""
        if not self._reserver.keeps_prefetched:
            self._prefetch.reset()
        self._reserver.give_back(self._engine)
        if self._store.is_down:
            self._store.stop_waiting()
            self._ask_again()  # the next waiter finds out anew, and waits for the return
        if not swept:
            self.flush()

    def flush(self) -> None:
        """Send the store what has changed: refunds, charges, missing reservations."""
        self._reserver.start(self._engine)

    def _store_changed(self, change: "events.StoreDown | events.StoreUp | None") -> None:
        """Call again at once: rejections of the store, or of its fallback, are void."""
        engine = self._engine_ref()
        if engine is not None:
            self._ask_again()
            engine.wake()
            if change is not None:
                engine.report_store(change, self)

    def _ask_again(self) -> None:
        """Forget what the store, or its fallback, has rejected."""
        self._reserver.ask_again()
        if self._newcomers is not None:
            self._newcomers.ask_again(self._engine)

    # ---- calls of requests that do not wait ------------------------------------------------------

    async def try_start(self, waiter: "Waiter") -> Verdict:
        """Take the tokens of a request that has a slot, if the store grants them now.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        engine, reserver = self._engine, self._reserver
        answer = await self._reserve(waiter.cost)
        now = reserver.note(engine, answer)
        if not answer.instants:
            return _verdict(answer, allowed=False)
        waiter.at = now
        waiter.started = True
        if waiter.cost:  # ahead of those of the waiters that have come since
            self._reserved.ready.appendleft(Reservation(now, waiter.cost, answer.instants[0]))
        engine.bucket.take(now, waiter.cost)
        if engine.observers.listeners:
            engine.report_grant(waiter.cost, 0.0)
        return _verdict(answer, allowed=True)

    async def peek(self, cost: float) -> Verdict:
        """Return the verdict of `try_start`, and change nothing."""
        reserver = self._reserver
        answer = await self._named(self._store.peek(reserver.key, reserver.algorithm, cost))
        reserver.note(self._engine, answer)
        return _verdict(answer, allowed=answer.retry_after == 0.0)

    async def record(self, cost: float) -> None:
        """Count tokens in the store, whether they fit or not."""
        reserver = self._reserver
        answer = await self._named(self._store.record(reserver.key, reserver.algorithm, cost))
        reserver.note(self._engine, answer)

    async def _reserve(self, cost: float) -> "Answer":
        """Reserve what can be taken now. If this is cancelled, what is granted is returned."""
        reserver = self._reserver
        reserve = self._store.reserve(reserver.key, reserver.algorithm, [cost])
        call = asyncio.create_task(reserve, name="aiothrottle store")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await self._named(asyncio.shield(call))
        except asyncio.CancelledError:
            engine = self._engine  # held until then: the limiter may be dropped
            call.add_done_callback(lambda _: self._return(engine, call, cost))
            raise

    async def _named(self, call: "Awaitable[_Result]") -> "_Result":
        """Wait for the answer; an error of the store names the key of the limiter."""
        try:
            return await call
        except StoreUnavailable as error:
            error.key = self._engine.key
            raise

    def _return(self, engine: Engine, call: "asyncio.Task[Answer]", cost: float) -> None:
        """Return what a cancelled caller does not use."""
        if not call.cancelled() and call.exception() is None:
            for instant in call.result().instants:
                reserved_of(engine).returned.append(Reservation(math.nan, cost, instant))
            self._reserver.start(engine)

    # ---- the end, and loops ----------------------------------------------------------------------

    def restart(self) -> None:
        """Begin anew on another loop."""
        engine = self._engine
        assert engine.loop is not None
        self._store.restart(engine.loop, engine.bucket.clock)
        self._reserver.forget_task()
        self._reserver.ask_again()
        self._prefetch.reset()
        self._calls.clear()
        if self._newcomers is not None:
            self._newcomers.clear()
        engine.now()  # a request that just started has used a reservation
        self._reserved.owe_again()
        self._reserved.give_back()

    async def close(self) -> None:
        """Return what is reserved, and leave no task."""
        self._reserver.stop_timer()
        if self._newcomers is not None:
            await self._newcomers.close()
        self._reserver.give_back(self._engine)
        self.flush()
        while tasks := [*self._calls, *([self._reserver.task] if self._reserver.task else [])]:
            await asyncio.wait(tasks)
        await self._store.close()


def _verdict(answer: "Answer", *, allowed: bool) -> Verdict:
    return Verdict(allowed, answer.remaining, answer.retry_after, answer.reset_after)
