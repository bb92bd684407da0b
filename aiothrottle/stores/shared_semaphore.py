"""The shared semaphore: slots that an engine leases from a store, where all processes share them.

The user writes `SharedConcurrency` in place of a concurrency limit, as with `AdaptiveConcurrency`,
beside a `store` and a `key`. A plain number stays the limit of this process: adding a store to a
program changes nothing about its slots.

Strategy. For the engine the leased slots are its concurrency limit: it begins with none. A request
without a free slot waits in the queue, as always. Beside the queue there is one task, only while
there is something to send: how many slots are held, and how many more are of use (`SlotClaims`).
One call is under way at a time, and carries all that was released and all that is wanted since the
last one. A released slot goes back at once, even if a request waits here: others may have waited
longer, and the next call asks for it again. Only as many slots are wanted as the rate can use soon.

While any are held or wanted, the claim is renewed each third of the lease. The store wakes the
waiters, or the task asks again after a pause (`SlotWakeups`).

If the store has given slots of this limiter to others, as a renewal came too late, the requests
under way continue and still count: the limit is exceeded until as many have ended, and one line is
logged.

Invariant: the store knows of at least as many slots as the engine has, or a claim is due; without
the store the engine has as many as the fallback allows (`SlotOutage`).
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING

from aiothrottle.stores.slot_claims import SlotClaims
from aiothrottle.stores.slot_demand import SlotDemand
from aiothrottle.stores.slot_outage import SlotOutage
from aiothrottle.stores.slot_tries import SlotTries, fail_tries, settle_tries
from aiothrottle.stores.slot_wakeups import SlotWakeups

if TYPE_CHECKING:
    from aiothrottle._core.engine import Engine
    from aiothrottle.stores.share_size import OnStoreError
    from aiothrottle.stores.shared_concurrency import SharedConcurrency
    from aiothrottle.stores.slots import Granted, SlotStore
    from aiothrottle.stores.store import Key

__all__ = ["SharedSemaphore"]

_LOG = logging.getLogger("aiothrottle")

# Seconds until a task is started after code has cancelled all tasks: see `refresh`.
_AFTER_CANCELLATION = 0.01


class SharedSemaphore:
    """The leased slots of an engine, and the task that calls the store.

    Args:
        engine: Whose semaphore has the leased slots.
        shared: The slots of all processes, as the user gives them.
        store: The store.
        key: Of the record.
        on_store_error: What serves while the store fails.
        local_share: This process's share then, with "local"; None: the slots that it held.
    """

    __slots__ = (
        "_ask_at",
        "_claims",
        "_demand",
        "_engine",
        "_key",
        "_outage",
        "_task",
        "_timer",
        "_tries",
        "_wakeups",
        "shared",
    )

    def __init__(
        self,
        engine: "Engine",
        shared: "SharedConcurrency",
        *,
        store: "SlotStore",
        key: "Key",
        on_store_error: "OnStoreError",
        local_share: float | None,
    ) -> None:
        #: What the user asked for.
        self.shared: SharedConcurrency = shared
        self._engine = engine
        self._key = key
        self._demand = SlotDemand(engine)
        self._claims = SlotClaims(store, key)
        self._wakeups = SlotWakeups(store, self._woken)
        self._outage = SlotOutage(
            store,
            key,
            choice=on_store_error,
            local_share=local_share,
            report=engine.store_changed,
            retry=self._server_returned,
        )
        self._tries = SlotTries()
        # When the next claim is due, if nothing changes before.
        self._ask_at = math.inf
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def store_up(self) -> bool:
        """Whether the store answered the last call."""
        return self._outage.store_up

    @property
    def is_idle(self) -> bool:
        """Whether no slot is leased or wanted, and no call is under way or due."""
        return self._task is None and self._claims.known == (0, 0)

    # ---- what the engine calls -------------------------------------------------------------------

    def refresh(self) -> None:
        """Report to the store what has changed: in the next turn, all of it at once."""
        loop = self._engine.loop
        if self._outage.serves:
            self._grant_here()
        if self._task is None and loop is not None and not loop.is_closed():
            task = asyncio.current_task(loop)
            if task is not None and task.cancelling():
                # Code that cancels all tasks is about to close the loop. A new task would be left
                # over then; a timer is not missed.
                self._refresh_after(_AFTER_CANCELLATION)
            else:
                self._start_task(loop)

    def _woken(self) -> None:
        """Claim, as the store has woken the waiters; while it fails, its return does that."""
        if not self._outage.failures:
            self.refresh()

    def slot_released(self) -> None:
        """Return a slot that was just released."""
        self._demand.drop(1)
        self.refresh()

    def restart(self) -> None:
        """Begin anew on another loop, with the requests that are still in flight."""
        self._demand.drop_free()
        self._task = self._timer = None
        self._tries.restart()
        self._wakeups.stop()
        if self._ask_at < math.inf:
            self._ask_at = -math.inf  # the clock may be another one

    async def close(self) -> None:
        """Return the free slots, and leave no task."""
        assert self._engine.loop is not None
        while not self.is_idle:
            if self._task is None:
                if not self._must_claim():
                    return  # requests are in flight, or the store fails
                self._start_task(self._engine.loop)
            assert self._task is not None
            await asyncio.wait([self._task])

    @asynccontextmanager
    async def try_lease(self) -> AsyncGenerator[None]:
        """Lease a free slot, if there is one, for a request that does not wait in the queue.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        engine = self._engine
        self._tries.count += 1
        try:
            if self._outage.serves:
                self._grant_here()
            elif not (engine.semaphore.free or engine.waiting or engine.closed):
                assert engine.loop is not None
                answered = self._tries.add(engine.loop)
                self._start_task(engine.loop)
                await answered
            yield
        finally:
            self._tries.count -= 1
            self.refresh()

    # ---- the task --------------------------------------------------------------------------------

    def _start_task(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None:
            # As with the consumer of the engine: a plain Task, in an empty context.
            self._task = asyncio.Task(
                self._run(), loop=loop, name="aiothrottle slots", context=Context()
            )
            self._task.add_done_callback(self._task_ended, context=Context())

    async def _run(self) -> None:
        while self._must_claim():
            if not await self._claim():
                break
        self._task = None
        if self._ask_at < math.inf:
            self._refresh_after(self._ask_at - self._engine.bucket.clock())

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is task:  # it was cancelled, and its claim is still due
            self._task = None
            self._refresh_after(_AFTER_CANCELLATION)

    def _refresh_after(self, seconds: float) -> None:
        self._stop_timer()
        loop = self._engine.loop
        if loop is not None and not loop.is_closed():
            self._timer = loop.call_later(max(0.0, seconds), self.refresh)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _must_claim(self) -> bool:
        """Return whether it is time to claim."""
        now = self._engine.bucket.clock()
        held, wanted = self._count()
        known = self._claims.known
        if known is None and not (held or wanted):
            gives_up = self._engine.closed and self._outage.failures
            if gives_up or self._claims.are_over(now, self.shared.lease):
                self._rest()  # what could not be returned expires, or has expired
                return False
        if self._outage.failures:  # new waiters ask at once; otherwise the pause has to end
            return (bool(wanted) and not self._outage.serves) or now >= self._ask_at
        # Only who wants a slot has a use for being woken: a store may wake without a reason.
        asked = (self._wakeups.is_woken and bool(wanted)) or self._tries.need_call
        return asked or (held, wanted) != known or now >= self._ask_at

    async def _claim(self) -> bool:
        """Send a claim, and use what is granted. Return whether the store has answered."""
        held, wanted = self._count()
        self._wakeups.is_woken = False
        tries = self._tries.take()
        try:
            granted = await self._claims.send(self.shared, held, wanted)
        except Exception as error:  # noqa: BLE001 - the waiters get it, whatever it is
            self._claim_failed(error, [*tries, *self._tries.take()])
            return False
        except BaseException:
            self._tries.put_back(tries)
            raise
        self._claim_answered(granted, held, wanted)
        settle_tries(tries)
        return True

    def _claim_answered(self, granted: "Granted", held: int, wanted: int) -> None:
        now = self._engine.bucket.clock()
        if granted.lost and not self._outage.serves:
            _LOG.warning(
                "%d of the shared slots of %r were not renewed in time: others may have them too",
                *(granted.lost, self._key),
            )
        self._outage.call_answered(now)
        self._demand.add(granted.granted)
        held, wanted = held + granted.granted, wanted - granted.granted
        self._claims.answered(now, held, wanted)
        if not (held or wanted):
            self._rest()
            return
        self._ask_at = now + self.shared.lease / 3
        if granted.granted:
            self._wakeups.reset_pause()
        if wanted:
            patience = self._wakeups.patience(self._claims.owner, granted.retry_after)
            self._ask_at = min(self._ask_at, now + patience)

    def _claim_failed(self, error: Exception, tries: "list[asyncio.Future[None]]") -> None:
        """Raise the error in the waiters, or let the fallback serve; and claim again later."""
        now = self._engine.bucket.clock()
        self._ask_at = now + self._outage.call_failed(now, error, self.shared.lease)
        if self._outage.falls_back(error):
            self._fall_back(now)
            settle_tries(tries)
            return
        self._outage.end_fallback()
        self._engine.fail_all(error)
        fail_tries(tries, error, self._engine.observers.label)

    def _server_returned(self) -> None:
        if self._ask_at < math.inf:
            self._ask_at = -math.inf
            self.refresh()

    def _rest(self) -> None:
        """Have no claim due until something changes."""
        self._claims.forget()
        self._outage.forget_failures()
        self._ask_at = math.inf
        self._stop_timer()
        self._wakeups.is_woken = False
        self._wakeups.reset_pause()
        self._wakeups.stop()

    # ---- slots without the store -----------------------------------------------------------------

    def _fall_back(self, now: float) -> None:
        """Let the fallback serve."""
        if not self._outage.serves:
            # A claim without an answer is retried for a lease: slots that the store may have
            # granted have to be returned.
            self._claims.count_lease_from(now)
            held, _ = self._count()
            self._outage.begin_fallback(self.shared, held)
        self._grant_here()

    def _grant_here(self) -> None:
        """Use slots without the store, as many as the fallback allows."""
        held, wanted = self._count()
        self._demand.add(min(wanted, (self._outage.slots or 0) - held))

    def _count(self) -> tuple[int, int]:
        """Return how many slots are held, and how many more are of use."""
        return self._demand.count(self._tries.count, self.shared.per_process)
