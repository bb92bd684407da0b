"""A store that may fail, and what serves while it does: the choice of `on_store_error`.

Strategy. While the store is away nobody waits for it. The fallback takes its place, and a task
tries, at growing intervals, whether the store is back. When it is, what was spent meanwhile and
still counts is recorded there before anything is granted by it again, and given back when it would
have left the record. For a while this process keeps to its share as well, until the others are
back, too: so the way back is no burst.

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
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.fallback import SOON, Fallback, Here, OnStoreError
from aiothrottle.stores.health import Health
from aiothrottle.stores.store import Answer, Key, Store

if TYPE_CHECKING:
    from aiothrottle.stores.spent import Spent

__all__ = ["FailoverStore"]

# Seconds within which all who ask have found that the store is back: see `Health`.
_ALL_BACK = 2.0


class FailoverStore(Store):
    """The store of one limiter, or what stands in for it.

    Args:
        store: That may fail.
        choice: What to do then.
        clock: Gives the time in seconds.
        changed: Called when the store is away or back, with that event, and when it may have more
            to give, with None; a method, which is held weakly.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_both_until",
        "_changed",
        "_choice",
        "_clock",
        "_down_since",
        "_guarded",
        "_life",
        "_recorded",
        "_returning",
        "_stand_in",
        "_task",
        "_timer",
        "_what",
        "is_down",
    )

    def __init__(
        self,
        store: Store,
        choice: OnStoreError,
        clock: Callable[[], float],
        changed: Callable[[StoreDown | StoreUp | None], None],
    ) -> None:
        self._guarded = store
        self._choice = choice
        self._clock = clock
        self._changed = WeakMethod(changed)
        self._life = Health.of(store)
        #: Whether the store is away, as far as this limiter knows.
        self.is_down: bool = False
        self._down_since: float = 0.0
        self._asked = False
        # What the task is about: the key and the algorithm of the last call.
        self._what: tuple[Key, Algorithm[Any]] | None = None
        # What is done beside those who ask: see whether the store is back, and so on.
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._returning = False  # what was spent is being recorded: nobody is let go meanwhile
        self._stand_in = Fallback(choice, self._life)
        # What was recorded when it came back, and for which instant.
        self._recorded: tuple[Spent, float] | None = None
        self._both_until = -math.inf  # until then the share counts beside the store

    @property
    def reserves_ahead(self) -> bool:
        """Whether it gives out what may go only later."""
        return not (self.is_down or self._is_both())

    def _is_both(self) -> bool:
        """Tell whether the share counts beside the store."""
        return self._both_until > -math.inf and self._clock() < self._both_until

    # ---- the methods
    # -------------------------------------------------------------------------------

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        """Ask the store, or what stands in for it."""
        if self._returning:
            await self._cleared()
        if self._is_away(key, algorithm):
            return self._instead(algorithm, costs, horizon)
        here = self._instead(algorithm, costs) if self._is_both() else None
        if here is not None:
            costs, horizon = costs[: len(here.instants)], 0.0
            if not costs:
                return here
        try:
            answer = await self._guarded.reserve(key, algorithm, costs, horizon=horizon)
        except StoreUnavailable as error:
            self._fell(error, algorithm)
            return here or self._instead(algorithm, costs, horizon)
        if here is None:
            if self._choice == "local" or self.is_down or self._life.failures:
                self._heard(answer, math.fsum(costs[: len(answer.instants)]))
            return answer
        for cost, instant in zip(costs[len(answer.instants) :], here.instants, strict=False):
            self._stand_in.refund(self._clock(), cost, instant)
        self._heard(answer)
        wait = answer.retry_after or here.retry_after
        return dataclasses.replace(answer, retry_after=wait)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Ask the store, or what stands in for it."""
        if self._returning:
            await self._cleared()
        if not self._is_away(key, algorithm):
            try:
                answer = await self._guarded.peek(key, algorithm, cost)
            except StoreUnavailable as error:
                self._fell(error, algorithm)
            else:
                self._heard(answer)
                if not self._is_both():
                    return answer
                wait = max(answer.retry_after, self._stand_in.wait(self._clock(), cost))
                return dataclasses.replace(answer, retry_after=wait)
        return self._stand_in.peek(algorithm, self._clock(), cost)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Count it in the store, or here until the store is back."""
        if self._returning:
            await self._cleared()
        if not self._is_away(key, algorithm):
            try:
                answer = await self._guarded.record(key, algorithm, cost)
            except StoreUnavailable as error:
                self._fell(error, algorithm)
            else:
                self._heard(answer)
                return answer
        return self._stand_in.record(algorithm, self._clock(), cost)

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Give it back to who has given it. What cannot be given back stays spent."""
        if self._returning:
            await self._cleared()
        away = self._is_away(key, algorithm)
        if isinstance(instant, Here):
            if away:  # else it is recorded in the store, of which no instant is known
                self._stand_in.refund(self._clock(), cost, instant)
        elif not away:
            try:
                await self._guarded.refund(key, algorithm, cost, instant)
            except StoreUnavailable as error:
                self._fell(error, algorithm)

    async def clear(self, key: Key) -> None:
        """Forget the record of the key, in the store."""
        await self._guarded.clear(key)

    def _instead(
        self, algorithm: Algorithm[Any], costs: Sequence[float], horizon: float = 0
    ) -> Answer:
        return self._stand_in.reserve(algorithm, self._clock(), costs, horizon)

    # ---- away and back ---------------------------------------------------------------------------

    async def _cleared(self) -> None:
        """Wait until what was spent is recorded, or could not be."""
        while self._returning and self._task is not None:
            await asyncio.wait([self._task])

    def _is_away(self, key: Key, algorithm: Algorithm[Any]) -> bool:
        """Tell whether something has to stand in; see to it that the store is tried again."""
        if self._choice == "raise":
            if self.is_down:
                self._raise_early()
            return False
        self._what = key, algorithm
        self._stand_in.use(algorithm, self._clock())
        if not self._asked:
            self._asked = True
            if self._life.failures and not self.is_down:
                self._go_without(algorithm)  # as other limiters have found before
        self._tend()
        return self.is_down

    def _raise_early(self) -> None:
        """Raise without asking, if the store has just failed, and not for the first time."""
        life = self._life
        if life.failures > 1 and life.pause(self._clock()) > 0.0:
            raise StoreUnavailable(f"not asked again yet: {life.error}") from life.error

    def _fell(self, error: StoreUnavailable, algorithm: Algorithm[Any]) -> None:
        """Go on without the store, or raise."""
        now = self._clock()
        self._life.failed(now, error)
        if not self.is_down:
            self._life.went(now, self._choice, str(error))
            self._go_without(algorithm)
        if self._choice == "raise":
            raise error

    def _go_without(self, algorithm: Algorithm[Any]) -> None:
        self.is_down = True
        self._down_since = self._clock()
        self._stand_in.begin(algorithm)
        self._recorded = None  # what is not given back by now stays spent
        if self._task is not None:
            self._task.cancel()
        assert self._life.error is not None
        self._tell(StoreDown(None, self._life.error, self._life.outage))

    def _heard(self, answer: Answer, spent: float = 0.0) -> None:
        """Note what the store has answered."""
        if not self.is_down:
            self._life.answered(self._clock())
        elif self._choice == "raise":
            self._go_on()
        if self._choice == "local" and self.reserves_ahead:
            now = self._clock()
            self._stand_in.told(now, answer, spent)
            if self._task is None and self._life.should_sign(now):
                self._start(self._sign())

    def _go_on(self) -> None:
        self.is_down = False
        self._stand_in.spent = None
        now = self._clock()
        if self._choice == "local" and not self._stand_in.reserves_ahead:
            self._both_until = now + _ALL_BACK
        self._life.came(now)
        self._tell(StoreUp(None, now - self._down_since))

    def _tell(self, change: StoreDown | StoreUp | None = None) -> None:
        changed = self._changed()
        if changed is not None:
            changed(change)

    # ---- the task
    # ---------------------------------------------------------------------------------

    def _tend(self) -> None:
        """Do what is due beside those who ask, or see to it that it is done in time."""
        if self._task is not None:
            return
        now = self._clock()
        if self.is_down:
            life, pause = self._life, self._life.pause(now)
            # One limiter tries for all, until it has found that the store is back.
            if pause == 0.0 and not (life.tried and life.failures):
                life.tried = True
                self._start(self._come_back()).add_done_callback(self._tried)
                return
            pause = max(SOON, pause)
        elif self._recorded is not None:
            pause = self._recorded[0].over_at - now
            if pause <= 0.0:
                self._start(self._give_back())
                return
        else:
            return
        if self._timer is None:
            self._ring(pause)

    def _ring(self, seconds: float) -> None:
        # A weak reference: a timer is no reason for a limiter to live on.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, _call, WeakMethod(self._tend_unasked))

    def _tend_unasked(self) -> None:
        """Do what is due also if nobody asks, as long as the store has to hear of something."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._recorded is not None or self._stand_in.total(self._clock()):
            self._tend()

    async def _come_back(self) -> None:
        """See whether the store is back, and tell it what was spent."""
        assert self._what is not None
        (key, algorithm), store, instead = self._what, self._guarded, self._stand_in
        spent = instead.spent
        assert spent is not None
        try:
            answer = await store.peek(key, algorithm, 0.0)
            self._returning = self._choice != "open"
            now = self._clock()
            most = answer.remaining if self._choice == "open" else instead.most(algorithm, now)
            spent.total(now)
            if cost := spent.keep(most):
                answer = await store.record(key, algorithm, cost)
                self._recorded = spent, answer.now
            else:  # nothing changes, but a server that may only be read refuses
                await store.refund(key, algorithm, 0.0, answer.now)
        except StoreUnavailable as error:
            self._life.failed(self._clock(), error)
            return
        except Exception:  # noqa: BLE001, S110 - whatever it is, who asks next is to hear of it
            pass
        finally:
            self._returning = False
        self._go_on()

    async def _give_back(self) -> None:
        """Have the store forget what would have left its record by now."""
        assert self._what is not None
        assert self._recorded is not None
        (key, algorithm), (spent, instant) = self._what, self._recorded
        with contextlib.suppress(Exception):  # it stays spent; the next call raises
            await self._guarded.refund(key, algorithm, spent.pop_over(self._clock()), instant)
            self._tell()
        if spent.over_at == math.inf:
            self._recorded = None

    async def _sign(self) -> None:
        with contextlib.suppress(Exception):  # the count stays as it was
            await self._life.sign(self._guarded)

    def _start(self, task: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        # As with the consumer of a line: a plain Task, in an empty context.
        self._task = asyncio.Task(
            task, loop=asyncio.get_running_loop(), name="aiothrottle store", context=Context()
        )
        self._task.add_done_callback(self._ended, context=Context())
        return self._task

    def _tried(self, _: "asyncio.Task[None]") -> None:
        self._life.tried = False

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is task:
            self._task = None
            if not task.cancelled():
                self._tend_unasked()
            elif self._timer is None:  # whoever sweeps up all tasks wants no new one at once
                self._ring(SOON)

    def restart(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """Go on, on another loop, by another clock perhaps: its instants mean nothing then."""
        if clock != self._clock:
            self._clock = clock
            self._stand_in.forget()
            self._recorded = None
            self._both_until = -math.inf
            self.is_down = False
        self._task = self._timer = None
        self._returning = False
        self._life.move_to(loop)

    async def close(self) -> None:
        """Leave no task."""
        self._recorded = self._stand_in.spent = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._timer is not None:
            self._timer.cancel()

    def is_forgettable(self, now: float) -> bool:
        """Tell whether a new one would do the same."""
        return self._task is None and self._recorded is None and self._stand_in.is_forgettable(now)


def _call(method: "WeakMethod[Callable[[], None]]") -> None:
    call = method()
    if call is not None:
        call()
