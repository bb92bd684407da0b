"""The shared semaphore: slots that an engine leases from a store, where all processes share them.

The user writes `SharedConcurrency` in place of a concurrency limit, as with `AdaptiveConcurrency`,
beside a `store` and a `key`. A plain number stays the limit of this process: adding a store to a
program changes nothing about its slots.

Strategy. To the engine the leased slots are its concurrency limit: it begins with none. A request
without a free slot waits in the queue, as always. Beside the queue there is one task, only while
there is something to send: how many slots are held, and how many more are of use (`Claim`). One
call is under way at a time, and carries all that was released and all that is wanted since the last
one. A released slot goes back at once, even if somebody waits here: others may have waited longer,
and the next call asks for it again. Only as many are wanted as the rate will let use of soon.

While any are held or waited for, the claim is renewed each third of the lease. The store wakes the
waiters (`SlotStore.listen`), or the task asks again after a pause that grows, with jitter.

If the store has given slots of ours to others, as a renewal came too late, the requests under way
go on and still count: the limit is exceeded until as many have ended, and one line is logged.

While the store is away nobody waits for it, unless that was chosen (`on_store_error`): slots are
then granted without it, and it learns of them with the first claim that it answers.

Invariant: the store knows of at least as many slots as the engine has, or is about to be told.
"""

import asyncio
import logging
import math
import os
import random
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING

from aiothrottle.errors import StoreUnavailable, twin
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.health import Health
from aiothrottle.stores.share_size import slots_of_share
from aiothrottle.stores.slots import Claim, SlotStore

if TYPE_CHECKING:
    from aiothrottle._core.engine import Engine
    from aiothrottle.stores.share_size import OnStoreError
    from aiothrottle.stores.shared_concurrency import SharedConcurrency
    from aiothrottle.stores.slots import Granted
    from aiothrottle.stores.store import Key

__all__ = ["SharedSemaphore"]

_LOG = logging.getLogger("aiothrottle")

# So many more are wanted at a time. With it, nobody who waits is behind more of one process.
_MOST_WANTED = 64
# Seconds between two questions of one who waits and cannot be woken: the first pause, by how much
# it grows, and the longest. Half of it is jitter.
_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.01, 1.5, 0.5
# Seconds after a call that failed.
_RETRY, _LONGEST_RETRY = 0.1, 1.0
# Seconds. Who asks just when a lease is over can be too early by a rounding.
_SHORTEST_BREAK = 0.001
# Slots without a bound.
_NO_BOUND = 1 << 29
# Seconds: see `SharedSemaphore.look`.
_AFTER_A_SWEEP = 0.01


class SharedSemaphore:
    """The leased slots of an engine, and the task that calls the store."""

    __slots__ = (
        "_ask_at",
        "_choice",
        "_down_since",
        "_engine",
        "_failures",
        "_heard_at",
        "_is_away",
        "_key",
        "_letters",
        "_listens",
        "_local_share",
        "_most_here",
        "_number",
        "_pause",
        "_store",
        "_task",
        "_timer",
        "_told",
        "_tries",
        "_trying",
        "_woken",
        "shared",
    )

    def __init__(
        self,
        engine: "Engine",
        shared: "SharedConcurrency",
        *,
        store: SlotStore,
        key: "Key",
        on_store_error: "OnStoreError",
        local_share: float | None,
    ) -> None:
        #: What the user said.
        self.shared: SharedConcurrency = shared
        self._engine = engine
        self._store = store
        self._key = key
        self._choice = on_store_error
        self._local_share = local_share
        # Whether the store fails, and slots are had, or not, without it.
        self._is_away = False
        # So many there may be meanwhile.
        self._most_here = 0
        self._letters = secrets.token_hex(8)
        self._number = 0
        # What the store knows, as far as that is known: how many are held, how many wanted.
        self._told: tuple[int, int] | None = (0, 0)
        self._heard_at = -math.inf
        self._ask_at = math.inf
        self._pause = _PAUSE
        self._failures = 0
        # Since when the store does not answer, if it does not.
        self._down_since: float | None = None
        self._woken = self._listens = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Of those who want a slot only if there is one: see `at_hand`.
        self._trying = 0
        self._tries: list[asyncio.Future[None]] = []

    @property
    def _owner(self) -> str:
        # The process is part of the name: a child that was forked has the same letters.
        return f"{os.getpid():x}x{self._letters}"

    @property
    def store_up(self) -> bool:
        """Whether the store has answered when it was last asked."""
        return self._down_since is None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, wanted or still to be said."""
        return self._task is None and self._told == (0, 0)

    # ---- what the engine asks
    # ----------------------------------------------------------------------

    def look(self) -> None:
        """Send the store what it does not know: in the next turn, all at once."""
        loop = self._engine.loop
        if self._is_away:
            self._grant_here()
        if self._task is None and loop is not None and not loop.is_closed():
            task = asyncio.current_task(loop)
            if task is not None and task.cancelling():
                # Whoever sweeps up all tasks is about to close the loop. A task of ours would be
                # left behind then; a timer is not missed.
                self._look_after(_AFTER_A_SWEEP)
            else:
                self._start_task(loop)

    def freed(self) -> None:
        """Take a slot that has just come free: it goes back."""
        self._give_back(1)
        self.look()

    def restart(self) -> None:
        """Begin anew on another loop, with what is still in flight."""
        self._give_back(self._engine.semaphore.free)
        self._task = self._timer = None
        self._trying, self._tries = 0, []
        self._unlisten()
        if self._ask_at < math.inf:
            self._ask_at = -math.inf  # the clock may be another one

    async def close(self) -> None:
        """Give back what is not in use, and wait until that is said."""
        assert self._engine.loop is not None
        while not self.is_idle:
            if self._task is None:
                if not self._has_to_ask():
                    return  # some are in flight, or the store has failed
                self._start_task(self._engine.loop)
            assert self._task is not None
            await asyncio.wait([self._task])
            if self._failures:
                return

    @asynccontextmanager
    async def at_hand(self) -> AsyncGenerator[None]:
        """Have a free slot inside, if there is one for somebody who does not wait.

        Raises:
            StoreUnavailable: The store does not tell.
        """
        engine = self._engine
        self._trying += 1
        try:
            if self._is_away:
                self._grant_here()
            elif not (engine.semaphore.free or engine.waiting or engine.closed):
                assert engine.loop is not None
                asked = engine.loop.create_future()
                self._tries.append(asked)
                self._start_task(engine.loop)
                await asked
            yield
        finally:
            self._trying -= 1
            self.look()

    # ---- the task --------------------------------------------------------------------------------

    def _start_task(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None:
            # As with the consumer of the engine: a plain Task, in an empty context.
            self._task = asyncio.Task(
                self._run(), loop=loop, name="aiothrottle slots", context=Context()
            )
            self._task.add_done_callback(self._task_ended, context=Context())

    async def _run(self) -> None:
        while self._has_to_ask():
            if not await self._ask():
                break
        self._task = None
        if self._ask_at < math.inf:
            self._look_after(self._ask_at - self._engine.bucket.clock())

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is task:  # it was cancelled, but what it had to say is still to be said
            self._task = None
            self._look_after(_AFTER_A_SWEEP)

    def _look_after(self, seconds: float) -> None:
        self._stop_timer()
        loop = self._engine.loop
        if loop is not None and not loop.is_closed():
            self._timer = loop.call_later(max(0.0, seconds), self.look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _has_to_ask(self) -> bool:
        """Tell whether it is the time to ask."""
        now = self._engine.bucket.clock()
        held, wanted = self._need()
        if (
            self._told is None
            and not (held or wanted)
            and now >= self._heard_at + self.shared.lease
        ):
            self._rest()  # what could not be given back is over by now
            return False
        if self._failures:  # who comes anew asks anew; all others wait for the end of the pause
            return (bool(wanted) and not self._is_away) or now >= self._ask_at
        asked = self._woken or bool(self._tries)
        return asked or (held, wanted) != self._told or now >= self._ask_at

    def _need(self) -> tuple[int, int]:
        """Tell how many are held, without what is of no use, and how many more would be."""
        engine, shared = self._engine, self.shared
        of_use = engine.startable(_MOST_WANTED) + self._trying
        self._give_back(max(0, engine.semaphore.free - of_use))
        held = engine.semaphore.slots
        most = _MOST_WANTED
        if shared.per_process is not None:
            most = min(most, shared.per_process - held)
        return held, max(0, min(of_use - engine.semaphore.free, most))

    def _give_back(self, slots: int) -> None:
        """Take free slots from the engine."""
        self._have(self._engine.semaphore.slots - slots)

    def _have(self, slots: int) -> None:
        """Let the engine have so many slots, taken ones and free ones."""
        self._engine.semaphore.slots = slots

    async def _ask(self) -> bool:
        """Say how it stands, and take what is granted. Tells whether the store has answered."""
        shared = self.shared
        held, wanted = self._need()
        self._number += 1
        self._told, self._woken = None, False
        tries, self._tries = self._tries, []
        claim = Claim(self._owner, shared.limit, held, wanted, shared.lease, self._number)
        try:
            granted = await self._store.claim(self._key, claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are to hear of it
            self._failed(error, tries)
            return False
        except BaseException:
            self._tries += tries  # the next task asks for them
            raise
        self._heard(granted, held, wanted)
        _settle(tries)
        return True

    def _heard(self, granted: "Granted", held: int, wanted: int) -> None:
        engine, lease = self._engine, self.shared.lease
        self._heard_at = now = engine.bucket.clock()
        if self._failures:
            Health.of(self._store).end_outage(now)
        if self._down_since is not None:
            # The clock may be that of another loop.
            after, self._down_since = max(0.0, now - self._down_since), None
            engine.report_store(StoreUp(None, after), self)
        if granted.lost and not self._is_away:
            _LOG.warning(
                "%d of the shared slots of %r were not renewed in time: others may have them too",
                *(granted.lost, self._key),
            )
        self._failures, self._is_away = 0, False
        self._have(engine.semaphore.slots + granted.granted)
        held, wanted = self._told = (held + granted.granted, wanted - granted.granted)
        if not (held or wanted):
            self._rest()
            return
        self._ask_at = now + lease / 3
        if granted.granted:
            self._pause = _PAUSE
            engine.wake()
        if wanted:
            self._ask_at = min(self._ask_at, now + self._patience(granted))

    def _patience(self, granted: "Granted") -> float:
        """Seconds after which one who waits asks again, if it is not woken before."""
        if not self._listens:
            self._listens = self._store.listen(self._owner, self._wake)
            self._woken = self._listens  # it may have been called before it was listening
        patience = granted.retry_after + _SHORTEST_BREAK
        if not self._listens:
            patience = min(patience, self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * _GROWTH, _LONGEST_PAUSE)
        return patience

    def _failed(self, error: Exception, tries: "list[asyncio.Future[None]]") -> None:
        """Have those who wait hear of it, or go on without; and try again later."""
        now = self._engine.bucket.clock()
        self._failures += 1
        pause = min(_RETRY * 2 ** min(self._failures, 16), _LONGEST_RETRY, self.shared.lease / 3)
        self._ask_at = now + pause * random.uniform(0.5, 1.0)
        tries, self._tries = tries + self._tries, []
        if isinstance(error, StoreUnavailable):
            health = Health.of(self._store)
            health.begin_outage(now, self._choice, str(error))
            if self._down_since is None:
                self._down_since = now
                self._engine.report_store(StoreDown(None, error, health.outage), self)
            if self._choice != "raise":
                self._go_without()
                _settle(tries)
                return
        self._is_away = False
        self._engine.fail_all(error)
        for asked in tries:
            if not asked.done():
                asked.set_exception(twin(error, self._engine.key))

    # ---- without the store -----------------------------------------------------------------------

    def _go_without(self) -> None:
        """Have what was chosen stand in for the store."""
        if not self._is_away:
            self._is_away = True
            # Also if it was never heard: for a lease it is tried, and what it may have granted is
            # to be given back.
            self._heard_at = max(self._heard_at, self._engine.bucket.clock())
            held, _ = self._need()
            self._most_here = self._slots_alone(held)
        self._grant_here()

    def _slots_alone(self, held: int) -> int:
        """Return how many slots this process may use without the store."""
        shared = self.shared
        if self._choice == "open":
            return _NO_BOUND
        if self._choice != "local":
            return 0
        if self._local_share is not None:
            return slots_of_share(shared.limit, self._local_share)
        # What each held when the store failed is not more than all may have together.
        return shared.per_process or max(1, held)

    def _grant_here(self) -> None:
        """Take as many slots as may be had without the store: they count when it is back."""
        held, wanted = self._need()
        granted = min(wanted, self._most_here - held)
        if granted > 0:
            self._have(held + granted)
            self._engine.wake()

    def _rest(self) -> None:
        """Have nothing to say until something happens."""
        self._told, self._woken = (0, 0), False
        self._ask_at, self._failures, self._is_away = math.inf, 0, False
        self._pause = _PAUSE
        self._stop_timer()
        self._unlisten()

    def _unlisten(self) -> None:
        if self._listens:
            self._listens = False
            self._store.unlisten(self._owner)

    def _wake(self) -> None:
        self._woken = True
        self.look()


def _settle(tries: "list[asyncio.Future[None]]") -> None:
    """Have those who try look."""
    for asked in tries:
        if not asked.done():
            asked.set_result(None)
