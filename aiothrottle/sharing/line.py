"""A line whose budget is in a store that other processes share.

Strategy. The line stays as it is, and knows only what is reserved: its algorithm (`Reserved`) lets
go what the store has let go, as soon as it is ready. Beside the consumer there is one more task,
which reserves for those who wait (`aiothrottle.sharing.talk`). When the line is empty the rest is
given back.
"""

import asyncio
import math
from typing import TYPE_CHECKING, Any

from aiothrottle import events
from aiothrottle._core.engine import Verdict
from aiothrottle.algorithms.algorithm import Algorithm, until
from aiothrottle.algorithms.reserved import Reserved, Slot
from aiothrottle.errors import LimiterClosed, StoreUnavailable
from aiothrottle.sharing.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.stores.store import Answer

__all__ = ["SharedLine"]


class SharedLine(Talk):
    """The waiting line in front of a record in a store."""

    __slots__ = ()

    @property
    def store_up(self) -> bool:
        """Whether the store has answered when it was last asked."""
        return not self._store.is_down and super().store_up is not False

    # ---- the line, with what a store makes different -------------------------------------------

    @property
    def shares_rate(self) -> bool:
        """Whether the rate is counted in a store."""
        return True

    def settle(self, waiter: "Waiter", cost: float) -> None:
        """Charge the request `cost` in place of what it was charged; the store hears of it soon."""
        super().settle(waiter, cost)
        self._start_talk()

    def use(self, algorithm: Algorithm[Any]) -> None:
        """Go on with another algorithm; the record stays."""
        self._learn_pace(algorithm)
        super().use(Reserved(algorithm))

    def estimate(self, now: float, waiter: "Waiter", ahead: float | None = None) -> float:
        """Seconds until the request may start, as far as that is known here: it may be longer."""
        if ahead is None:
            ahead = self.queue.cost_ahead(waiter)
        wait = super().estimate(now, waiter, ahead)
        if wait < math.inf:
            return wait
        ready = self._reserved.ready
        wait = until(max(self.pause.ends_at, ready[-1].at if ready else now), now)
        if ahead or waiter.cost >= self._refused_cost:
            wait = max(wait, until(self._refused_until, now))
        return wait

    def _startable_soon(self, most: int) -> int:
        return min(most, self._pace.soon)

    def is_forgettable(self) -> bool:
        """Tell whether a new line would do the same."""
        return not self._is_busy and super().is_forgettable()

    @property
    def _is_busy(self) -> bool:
        """Whether there is something to say to the store, or to remember of it."""
        return bool(
            self._talk is not None
            or self._asking
            or self._reserved.ready
            or not self._store.is_forgettable(self.bucket.clock())
        )

    async def close(self, *, drain: bool) -> None:
        """Turn away newcomers, give back what is reserved, and leave no task."""
        await super().close(drain=drain)
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self.loop is asyncio.get_running_loop():
            self._give_back()
            while tasks := [*self._asking, *([self._talk] if self._talk else [])]:
                await asyncio.wait(tasks)
            await self._store.close()

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._move_to(loop)
        self._store.restart(loop, self.bucket.clock)
        self._talk = self._lease_timer = None
        self._lingers, self._hasty = False, 0
        self._asking.clear()
        self.now()  # whoever has just started has used a slot
        self._reserved.give_back()
        self._refused_until = self._ask_at = -math.inf

    def consumer_ended(self, *, swept: bool) -> None:
        """Give back what is reserved, now that nobody waits."""
        super().consumer_ended(swept=swept)
        if not self.queue.count:
            self._give_back(talk=not swept)  # after a sweep the loop is about to close: no new task

    def _see_to_newcomer(self) -> None:
        """Have the consumer look; for who is alone the talk is enough, which then lets it go."""
        alone = self.queue.count == 1 and self.consumer.task is None
        if alone and self.leased is None:  # a slot is another store's matter
            if self._talk is None:
                self._start_talk()
                self._lingers = self._talk is not None
            if self._lingers:
                return
        super()._see_to_newcomer()

    def decide_at_once(self, waiter: "Waiter", now: float) -> float:
        """Decide for a newcomer: what is reserved and not fresh any more is not for it."""
        if self._lease is None:
            self._reserved.give_back_older(now - self._patience)
        return super().decide_at_once(waiter, now)

    def start(self, waiter: "Waiter", now: float) -> None:
        """Take a slot and the tokens of a newcomer that may start."""
        super().start(waiter, now)
        if self._lease is None:
            self.bucket.credit = 0  # the next one is looked at as closely: its turn may be long

    def cancel(self, waiter: "Waiter") -> None:
        """Take the permit out of line at any point, as if it had never come."""
        super().cancel(waiter)
        if self.consumer.task is None and not self.queue.count:
            self._give_back()  # else the end of the consumer sees to it

    def serve(self) -> float | None:
        """Grant to as many as fit now, and ask the store for those behind them."""
        now = self.now()
        if now < self.pause.ends_at:
            self._reserved.give_back()
        elif not self._resuming:
            self._reserved.give_back_older(now - self._patience)
        wait = math.inf
        if self._talk is None:
            costs = [] if self.rejects_waiters or now < self.pause.ends_at else self._missing(1)
            if costs:
                wait = self._wait_to_ask(now, costs[0])
            if not wait or self._has_news:
                self._begin_talk()  # it asks before those run who are let go now
        seconds = super().serve()
        if seconds is None:
            return None
        seconds = min(seconds, wait or math.inf)
        return None if seconds == math.inf else seconds  # the talk, or who starts, has it look

    # ---- a question of its own -----------------------------------------------------------------

    async def try_start(self, waiter: "Waiter") -> Verdict:
        """Start the request if the store lets it start now and nobody waits."""
        self.bind()
        if self.leased is None:
            return await self._try_start(waiter)
        async with self.leased.at_hand():
            return await self._try_start(waiter)

    async def _try_start(self, waiter: "Waiter") -> Verdict:
        if not self._has_room():
            self.reject("no room")
            return await self._rejection(waiter)
        self.semaphore.taken += 1  # nobody else gets it while the store is asked
        try:
            answer = await self._ask(waiter.cost)
        except BaseException:
            self._free_slot()
            raise
        now = self._note(answer)
        if not answer.instants:
            self._free_slot()
            self.reject("no room")
            return _verdict(answer, allowed=False)
        waiter.at = now
        waiter.started = True
        self.bucket.granted += 1
        self._reserved.used.append((now, waiter.cost, answer.instants[0]))
        if self.observers.listeners:
            self.observers.emit(events.Granted(self.key, waiter.cost, 0.0))
        return _verdict(answer, allowed=True)

    async def peek(self, waiter: "Waiter") -> Verdict:
        """Tell what `try_start` would do."""
        self.bind()
        if self.leased is None:
            return await self._peek(waiter)
        async with self.leased.at_hand():
            return await self._peek(waiter)

    async def _peek(self, waiter: "Waiter") -> Verdict:
        if not self._has_room():
            return await self._rejection(waiter)
        answer = await self._told(self._store.peek(self._key, self._algorithm, waiter.cost))
        self._note(answer)
        return _verdict(answer, allowed=answer.retry_after == 0.0)

    async def record(self, cost: float) -> None:
        """Count in the store what has happened already."""
        self.bind()
        self._note(await self._told(self._store.record(self._key, self._algorithm, cost)))

    def _has_room(self) -> bool:
        """Tell whether all but the store would let somebody start now."""
        if self.closed:
            raise LimiterClosed(key=self.key)
        return self.queue.count == 0 and self.decide(self.now(), 0.0) <= 0.0

    async def _rejection(self, waiter: "Waiter") -> Verdict:
        """Reject a request that would not be the next to start."""
        waiter.at = now = self.now()
        wait = self.estimate(now, waiter)
        answer = await self._told(self._store.peek(self._key, self._algorithm, waiter.cost))
        return _verdict(answer, allowed=False, wait=wait)

    async def _ask(self, cost: float) -> "Answer":
        """Reserve what may go now. Who is cancelled meanwhile gets nothing, and nothing is lost."""
        reserve = self._store.reserve(self._key, self._algorithm, [cost])
        asking = asyncio.create_task(reserve, name="aiothrottle store")
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            return await self._told(asyncio.shield(asking))
        except asyncio.CancelledError:
            asking.add_done_callback(lambda _: self._return(asking, cost))
            raise

    async def _told(self, asked: "Awaitable[Answer]") -> "Answer":
        """Wait for the answer; an error of the store says of which limiter it is."""
        try:
            return await asked
        except StoreUnavailable as error:
            error.key = self.key
            raise

    def _return(self, asking: "asyncio.Task[Answer]", cost: float) -> None:
        """Give back what nobody is there to use."""
        if not asking.cancelled() and asking.exception() is None:
            for instant in asking.result().instants:
                self._reserved.returned.append(Slot(math.nan, cost, instant))
            self._start_talk()

    def _free_slot(self) -> None:
        self.semaphore.taken -= 1
        if self._starved:
            self.wake()


def _verdict(answer: "Answer", *, allowed: bool, wait: float = 0.0) -> Verdict:
    return Verdict(allowed, answer.remaining, max(wait, answer.retry_after), answer.reset_after)
