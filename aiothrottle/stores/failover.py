"""A store that may fail, with the fallback that serves meanwhile: the choice of `on_store_error`.

Strategy. While the store fails no request waits for it. The fallback answers, and one limiter tries
the server that has its key, at growing intervals, for all of them (`Health`). When it is back, what
was spent meanwhile and still counts is recorded there before it grants anything, and refunded when
it would have left the record. For a while this process keeps to its share as well, until the other
processes are back, too: so the return is no burst.

Invariant: a failed call raises, or the fallback answers it; never both.
"""

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from aiothrottle.algorithms import Algorithm
from aiothrottle.amounts import total
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.fallback import SHORTEST_PAUSE, Fallback, Here
from aiothrottle.stores.health import Health
from aiothrottle.stores.share import ShareSize
from aiothrottle.stores.store import Answer, Key, OnStoreError, Store

if TYPE_CHECKING:
    from aiothrottle.stores.share import Spent

__all__ = ["FailoverStore"]

# Seconds within which all processes that call find that the store is back: see `Health`.
_ALL_BACK = 2.0


class FailoverStore(Store):
    """The store of one limiter, or its fallback.

    Args:
        store: The store that may fail.
        choice: What serves then: `on_store_error`.
        local_share: The share of this process, with "local"; None to count the processes.
        clock: Returns the time in seconds.
        changed: Called with the event when the store fails or is back, and with None when it may
            have more to grant; a method, which is held weakly.
    """

    __slots__ = (
        "__weakref__",
        "_changed",
        "_choice",
        "_clock",
        "_down_since",
        "_fallback",
        "_guarded",
        "_last_used",
        "_loop",
        "_recorded",
        "_returning",
        "_share_size",
        "_share_until",
        "_store_health",
        "_task",
        "_timer",
        "_waits",
        "_was_used",
        "is_down",
    )

    def __init__(
        self,
        store: Store,
        choice: OnStoreError,
        local_share: float | None,
        clock: Callable[[], float],
        changed: Callable[[StoreDown | StoreUp | None], None],
    ) -> None:
        self._guarded = store
        self._choice = choice
        self._clock = clock
        self._changed = WeakMethod(changed)
        # `Store._health` is that of a store itself.
        self._store_health = Health.of(store)
        self._share_size = ShareSize(local_share, self._store_health.counter)
        #: Whether the store fails, as far as this limiter knows.
        self.is_down: bool = False
        self._down_since: float = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._was_used = False
        self._waits = False  # whether requests wait that the fallback does not grant soon
        # The key and the algorithm of the last call: those of the task.
        self._last_used: tuple[Key, Algorithm[Any]] | None = None
        # Tries the store, refunds in it, or counts the processes.
        self._task: asyncio.Task[None] | None = None
        # For the next refund.
        self._timer: asyncio.TimerHandle | None = None
        self._returning = False  # the spent tokens are being recorded: nothing is granted meanwhile
        self._fallback = Fallback(choice, self._store_health, self._share_size)
        # What was recorded when the store was back, and for which instant.
        self._recorded: tuple[Spent, float] | None = None
        self._share_until = -math.inf  # until then the share holds as well as the store

    @property
    def reserves_ahead(self) -> bool:
        """Whether it grants tokens for later instants."""
        return not (self.is_down or self._share_holds())

    def _share_holds(self) -> bool:
        """Return whether the share holds as well as the store."""
        return self._share_until > -math.inf and self._clock() < self._share_until

    # ---- the methods of a store ------------------------------------------------------------------

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        """Ask the store, or its fallback."""
        if self._returning:
            await self._returned()
        if self._is_away(key, algorithm):
            return self._reserve_here(algorithm, costs, horizon)
        here = self._reserve_here(algorithm, costs) if self._share_holds() else None
        if here is not None:
            costs, horizon = costs[: len(here.instants)], 0.0
            if not costs:
                return here
        try:
            answer = await self._guarded.reserve(key, algorithm, costs, horizon=horizon)
        except StoreUnavailable as error:
            self._call_failed(error, algorithm)
            return here or self._reserve_here(algorithm, costs, horizon)
        if here is None:
            if self._choice == "local" or self.is_down or self._store_health.failures:
                self._call_answered(answer, total(costs[: len(answer.instants)]))
            return answer
        for cost, instant in zip(costs[len(answer.instants) :], here.instants, strict=False):
            self._fallback.refund(self._clock(), cost, instant)
        self._call_answered(answer)
        wait = answer.retry_after or here.retry_after
        return dataclasses.replace(answer, retry_after=wait)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Ask the store, or its fallback."""
        if self._returning:
            await self._returned()
        if not self._is_away(key, algorithm):
            try:
                answer = await self._guarded.peek(key, algorithm, cost)
            except StoreUnavailable as error:
                self._call_failed(error, algorithm)
            else:
                self._call_answered(answer)
                if not self._share_holds():
                    return answer
                wait = max(answer.retry_after, self._fallback.wait(self._clock(), cost))
                return dataclasses.replace(answer, retry_after=wait)
        return self._fallback.peek(algorithm, self._clock(), cost)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Count the cost in the store, or here until the store is back."""
        if self._returning:
            await self._returned()
        if not self._is_away(key, algorithm):
            try:
                answer = await self._guarded.record(key, algorithm, cost)
            except StoreUnavailable as error:
                self._call_failed(error, algorithm)
            else:
                self._call_answered(answer)
                return answer
        return self._fallback.record(algorithm, self._clock(), cost)

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Give the cost back where it was granted; if that is not possible it stays spent."""
        if self._returning:
            await self._returned()
        away = self._is_away(key, algorithm)
        if isinstance(instant, Here):
            if away:  # else it is recorded in the store, for an instant that is not known
                self._fallback.refund(self._clock(), cost, instant)
        elif not away:
            try:
                await self._guarded.refund(key, algorithm, cost, instant)
            except StoreUnavailable as error:
                self._call_failed(error, algorithm)

    async def clear(self, key: Key) -> None:
        """Forget the record of the key, in the store."""
        await self._guarded.clear(key)

    def _reserve_here(
        self, algorithm: Algorithm[Any], costs: Sequence[float], horizon: float = 0
    ) -> Answer:
        return self._fallback.reserve(algorithm, self._clock(), costs, horizon)

    # ---- away and back ---------------------------------------------------------------------------

    async def _returned(self) -> None:
        """Wait until the spent tokens are recorded, or the attempt has failed."""
        while self._returning and self._task is not None:
            await asyncio.wait([self._task])

    def _is_away(self, key: Key, algorithm: Algorithm[Any]) -> bool:
        """Return whether the fallback has to answer; make sure that the store is tried again."""
        if not self.is_down:
            self._find_health(key)
        if self._choice == "raise":
            if self.is_down:
                self._raise_early()
            return False
        self._last_used = key, algorithm
        self._fallback.use(algorithm, self._clock())
        if not self._was_used:
            self._was_used = True
            if self._store_health.failures and not self.is_down:
                self._begin_outage(algorithm)  # other limiters have found that the store fails
        self._maintain()
        return self.is_down

    def _find_health(self, key: Key) -> None:
        """Find the health of the server that has the key now: keys may move."""
        health = Health.of(self._guarded, key)
        if health is not self._store_health:
            health.move_to(self._loop)
            self._store_health = self._fallback.health = health

    def _raise_early(self) -> None:
        """Raise without a call if the store has just failed, and not for the first time."""
        health = self._store_health
        if health.failures > 1 and not health.take_turn():
            cause = health.error and health.error.__cause__
            raise StoreUnavailable(f"not asked again yet: {health.error}") from cause

    def _call_failed(self, error: StoreUnavailable, algorithm: Algorithm[Any]) -> None:
        """Go on without the store, or raise the error."""
        self._note_failure(error)
        if not self.is_down:
            self._begin_outage(algorithm)
        if self._choice == "raise":
            raise error

    def _note_failure(self, error: StoreUnavailable) -> None:
        self._store_health.call_failed(error)
        self._store_health.begin_outage(self._choice, str(error))

    def _begin_outage(self, algorithm: Algorithm[Any]) -> None:
        self.is_down = True
        self._down_since = self._clock()
        self._fallback.begin_outage(algorithm)
        self._recorded = None  # what is not refunded by now stays spent
        if self._task is not None:
            self._task.cancel()
        if self._choice != "raise":  # else the next request finds out
            self._store_health.follow(self)
        assert self._store_health.error is not None
        self._report(StoreDown(None, self._store_health.error, self._store_health.outage))

    def _call_answered(self, answer: Answer, spent: float = 0.0) -> None:
        """Note an answer of the store, which has just granted `spent` tokens."""
        if not self.is_down:
            self._store_health.call_answered()
        elif self._choice == "raise":
            self._end_outage()
            self._store_health.end_outage()
        if self._choice == "local" and self.reserves_ahead:
            now = self._clock()
            self._fallback.note_answer(now, answer, spent)
            if self._task is None and self._share_size.must_count(now):
                self._start(self._count_processes())

    def _end_outage(self) -> None:
        self.is_down = self._waits = False
        self._fallback.spent = None
        now = self._clock()
        if self._choice == "local" and not self._fallback.reserves_ahead:
            self._share_until = now + _ALL_BACK
        self._report(StoreUp(None, now - self._down_since))

    def _report(self, change: StoreDown | StoreUp | None) -> None:
        changed = self._changed()
        if changed is not None:
            changed(change)

    # ---- as a follower of the server's health ----------------------------------------------------

    @property
    def needs_probe(self) -> bool:
        """Whether requests wait for the store, or it has to get what was spent."""
        return self._task is None and (self._waits or self._fallback.total(self._clock()) > 0.0)

    def probe(self) -> None:
        """Try the store, for all limiters."""
        self._store_health.is_tried = True
        self._start(self._try_store()).add_done_callback(self._probe_ended, context=Context())

    def _probe_ended(self, _: "asyncio.Task[None]") -> None:
        self._store_health.probe_ended()

    def server_returned(self) -> None:
        """Continue with the store, once it has got what was spent here."""
        if not self.is_down or self._task is not None:
            return
        if self._store_health.failures:  # it has failed again meanwhile
            self._store_health.follow(self)
        elif self._fallback.total(self._clock()):
            self._start(self._try_store())
        else:
            self._end_outage()

    def wait_for_return(self, cost: float) -> float:
        """Note that requests wait while the store fails; `changed` is called when it is back.

        Returns:
            The seconds after which the fallback may grant the cost; infinity if it does not.
        """
        self._waits = True
        self._store_health.probe_later()
        return self._fallback.patience(self._clock(), cost)

    def stop_waiting(self) -> None:
        """Note that no request waits."""
        self._waits = False

    # ---- the task --------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Start the task if something is due, or a timer until it is."""
        if self._task is not None:
            return
        if self.is_down:
            health = self._store_health
            health.follow(self)
            if not health.failures:
                self.server_returned()
            elif health.pause() == 0.0 and not health.is_tried:
                self.probe()
            else:
                health.probe_later()
        elif self._recorded is not None:
            pause = self._recorded[0].expires_at - self._clock()
            if pause <= 0.0:
                self._start(self._refund_expired())
            elif self._timer is None:
                self._start_timer(pause)

    def _start_timer(self, seconds: float) -> None:
        # A weak reference: a timer must not keep a limiter alive.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, _call, WeakMethod(self._maintain_unused))

    def _maintain_unused(self) -> None:
        """Do what is due without a call of the limiter, if the store has to get something."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._recorded is not None:
            self._maintain()

    async def _try_store(self) -> None:
        """Call the store, and record there what was spent."""
        assert self._last_used is not None
        (key, algorithm), store, fallback = self._last_used, self._guarded, self._fallback
        spent = fallback.spent
        assert spent is not None
        try:
            answer = await store.peek(key, algorithm, 0.0)
            self._returning = self._choice != "open"
            now = self._clock()
            most = answer.remaining
            if self._choice != "open":
                most = fallback.most_counting(algorithm, now)
            spent.total(now)
            if cost := spent.cap(most):
                answer = await store.record(key, algorithm, cost)
                self._recorded = spent, answer.now
            else:  # changes nothing, but a server that is read-only rejects it
                await store.refund(key, algorithm, 0.0, answer.now)
        except StoreUnavailable as error:
            self._note_failure(error)
            return
        except Exception:  # noqa: BLE001, S110 - the store answers: the next call raises the same
            pass
        finally:
            self._returning = False
        self._end_outage()
        self._store_health.end_outage()

    async def _refund_expired(self) -> None:
        """Refund in the store what would have left its record by now."""
        assert self._last_used is not None
        assert self._recorded is not None
        (key, algorithm), (spent, instant) = self._last_used, self._recorded
        cost = spent.pop_expired(self._clock())
        if spent.expires_at == math.inf:
            self._recorded = None
        try:
            await self._guarded.refund(key, algorithm, cost, instant)
        except (StoreUnavailable, ValueError):
            return  # it stays spent; the next call raises the same
        self._report(None)

    async def _count_processes(self) -> None:
        # The count stays as it was. A TypeError: the store takes its own algorithms only.
        with contextlib.suppress(StoreUnavailable, TypeError, ValueError):
            await self._share_size.count(self._guarded)

    def _start(self, task: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        # As with the consumer: a plain Task, in an empty context.
        self._task = asyncio.Task(
            task, loop=asyncio.get_running_loop(), name="aiothrottle store", context=Context()
        )
        self._task.add_done_callback(self._task_ended, context=Context())
        return self._task

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is not task:
            return
        self._task = None
        if self.is_down:
            self._store_health.follow(self)
            self._store_health.probe_later()
        elif not task.cancelled():
            self._maintain_unused()
        elif self._timer is None:  # code that cancels all tasks wants no new one at once
            self._start_timer(SHORTEST_PAUSE)

    def restart(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """Continue on another loop, perhaps by another clock, for which no instant is valid."""
        if clock != self._clock:
            self._clock = clock
            self._fallback.forget()
            self._recorded = None
            self._share_until = -math.inf
            self.is_down = False
        self._task = self._timer = None
        self._returning = self._waits = False
        self._loop = loop
        self._store_health.move_to(loop)

    async def close(self) -> None:
        """Leave no task."""
        self._recorded = self._fallback.spent = None
        self._store_health.unfollow(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._timer is not None:
            self._timer.cancel()

    def is_forgettable(self, now: float) -> bool:
        """Return whether a new one would do the same."""
        return self._task is None and self._recorded is None and self._fallback.is_forgettable(now)


def _call(method: "WeakMethod[Callable[[], None]]") -> None:
    call = method()
    if call is not None:
        call()
