"""The line: who comes, waits, goes on, gives up or is refused, in order.

Strategy. A newcomer that finds nobody waiting, a free slot and room in the bucket never comes here
(`Permit.__aenter__`). Everybody else joins the line and sleeps on a future, until the consumer
(`aiothrottle.consumer`) grants to it.

To grant is to take a slot and to wake the waiter; no more. Its tokens are taken after it has really
resumed, so a token is never stamped earlier than the request that it pays for, and a waiter that is
cancelled between the two has nothing to give back but the slot. Until then it stays in the line,
which keeps newcomers off the fast path and the order first in, first out. While some are resuming
nobody else is granted anything, so what the bucket said for the whole batch holds.

Invariants: a line that is not empty has a consumer; a slot is either free or held by one permit,
and changes hands in synchronous code only, so no await can lose one.
"""

import asyncio
import math
from asyncio import Future, get_running_loop
from typing import TYPE_CHECKING, Any

from aiothrottle import events
from aiothrottle.algorithms.algorithm import until
from aiothrottle.consumer import Consumer, fail, future_of, is_granted
from aiothrottle.errors import CostTooHigh, LimiterClosed, QueueFull, ThrottleTimeout
from aiothrottle.permit import make_permit

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.permit import Permit
    from aiothrottle.sharing.slots import LeasedSlots

__all__ = ["Line"]


class Line(Consumer):
    """The waiting line in front of one bucket."""

    __slots__ = (
        "__weakref__",
        "_patient",
        "closed",
        "max_queue",
    )

    # Of those above, which are moved here too: without their types again the public types of this
    # class count as incomplete.
    leased: "LeasedSlots | None"
    loop: asyncio.AbstractEventLoop | None
    paused_until: float
    room: int
    state: Any
    taken: int
    watched: bool

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
        *,
        max_queue: int | None = None,
    ) -> None:
        super().__init__(algorithm, concurrency_limit, clock)
        self.max_queue: int | None = max_queue
        # Nobody is refused for the length of the line or of the wait.
        self._patient = max_queue is None and algorithm.longest_wait == math.inf
        self.closed: bool = False

    @property
    def store_up(self) -> bool | None:
        """Whether the store answers that leases the slots; None if none does."""
        return None if self.leased is None else self.leased.store_up

    def holds_place_of(self, permit: "Permit") -> bool:
        """Tell whether the permit waits here."""
        return future_of(permit) is not None

    @property
    def parent(self) -> "Line | None":
        """The line that has to let each go as well, if there is one."""
        return None

    @property
    def capacity(self) -> float:
        """The greatest cost that can ever be admitted."""
        return self.algorithm.capacity

    def is_forgettable(self) -> bool:
        """Tell whether a new line would do the same: nothing waits, is out, paused or spent."""
        now = self.now()
        return (
            not (self._waiters.count or self.in_flight or self._consumer)
            and not (self.closed or (self.updated and self.followed is None))
            and now >= self.paused_until
            and self.algorithm.reset_after(self.state, now) <= 0.0
            and (self.feedback is None or self.feedback.is_forgettable(now))
            and (self.leased is None or self.leased.is_idle)
        )

    # ---- coming and going ----------------------------------------------------------------------

    def arrive(self, permit: "Permit", *, as_head: bool = False) -> "asyncio.Future[None] | None":
        """Let the permit start, if it may now: None. Else put it in line: what to wait on.

        What was waited on is followed by `resume`, and any failure by `give_up`. The head of
        another line has queued there, and is not refused for the length of this one.
        """
        loop = get_running_loop()
        if self.loop is not loop:
            self.bind()
        if permit._held is not None and permit.was_asked_for:
            if permit._held and permit.is_to_be_entered():
                return None
            raise RuntimeError(f"{permit!r} was used before: call throttle() for each block")
        waiters = self._waiters
        if waiters.count:
            now = self.clock()
        else:
            now = self.now()
            if self.try_now(permit, now):
                return None
        if self.closed:
            raise LimiterClosed(key=self.key)
        if self.updated and (error := self._too_high(permit._tokens, self.capacity)):
            raise error  # the limit was lowered since the permit was made
        permit._at = now
        if not self._patient or permit._timeout is not None:
            self._refuse_the_hopeless(permit, now, as_head=as_head)
        permit._held = False
        # Not by `loop.create_future`: on every loop that is a call more, for the same future.
        future: Future[None] = Future(loop=loop)
        try:
            waiters.add(permit, future)
            # With several priorities the newcomer may be the new head.
            if self._consumer is None or waiters.others:
                self._see_to_newcomer()
            elif self.leased is not None:
                self.leased.look()
        except BaseException:
            self.give_up(permit)
            raise
        return future

    def _see_to_newcomer(self) -> None:
        """Have the consumer look, who may be the first or the new head."""
        self.wake()

    def resume(self, permit: "Permit") -> "asyncio.Future[None] | None":
        """Let the permit start after what it waited on: None. Or give what to wait on next."""
        now = self.clock()
        started = self._started
        if started is not None:
            if started._tokens == 1.0:  # as in `_stamp`, without a call
                self._started = None
                started._at = now
                self.stamps.append(now)
            else:
                self._stamp(started, now)
        if self._granted_in != self.epoch and not self._may_start(permit):
            return self._stay(permit)
        self._resuming -= 1
        self._started = permit
        permit._held = True
        self._waiters.remove(permit)
        if not self._resuming:
            self._last_has_started()
        waited = now - permit._at
        permit._waited = waited if waited > 0.0 else 0.0
        permit._at = now
        self._waits.recent.append(permit._waited)
        if self.listeners:
            self.tell(events.Granted(self.key, permit.cost, permit._waited))
        return None

    def _last_has_started(self) -> None:
        assert self.loop is not None
        self.loop.call_soon(self._all_started)
        if not self._waiters.count:
            self.wake()  # the consumer, to its end: the loop may stop with this one's task

    def _stay(self, permit: "Permit") -> "asyncio.Future[None]":
        """Have the permit wait on: it was granted, but before it could go something came between.

        Gives what to wait on; raises if it may not wait any more.
        """
        self._take_back(permit)
        if self._rejects_waiters:
            error: Exception | None = LimiterClosed(key=self.key)
        else:
            error = self._too_high(permit._tokens, self.algorithm.capacity)
        if error is not None:
            self._leave(permit, resumed=True)
            raise error
        future = permit._future = Future(loop=self.loop)
        self.wake()
        return future

    def give_up(self, permit: "Permit") -> None:
        """Take the permit out of line at any point, as if it had never come."""
        future = future_of(permit)
        # A line that has moved to another loop in the meantime has forgotten it.
        if future is not None:
            resumed = not permit._held and is_granted(future)
            if resumed:
                self._take_back(permit)
                loop = self.loop
                if self._started is not None and loop is not None and not loop.is_closed():
                    # Had it gone on, it or the last one would see to the tokens of that one.
                    loop.call_soon(self._all_started)
            self._leave(permit, resumed=resumed)

    def timed_out(self, permit: "Permit") -> ThrottleTimeout:
        """Count one that has waited for as long as it would, and give what to raise."""
        self.refuse("timeout")
        return ThrottleTimeout(self.delay(self.now(), permit), key=self.key)

    def try_now(self, permit: "Permit", now: float) -> bool:
        """Grant at once if nobody waits and everything fits."""
        if self.closed:
            raise LimiterClosed(key=self.key)
        if self.decide_at_once(permit, now) > 0.0:
            return False
        self.start(permit, now)
        self.taken += 1
        permit._held = True
        permit._at = now
        if self.listeners:
            self.tell(events.Granted(self.key, permit.cost, 0.0))
        return True

    def slot_freed(self, permit: "Permit") -> None:
        """See to a slot that the permit has just made free."""
        super().slot_freed(permit)
        if self.leased is not None:
            self.leased.freed()

    def watch(self) -> None:
        """Decide whether a slot that comes free is of interest."""
        super().watch()
        self.watched = self.watched or self.leased is not None

    def use(self, algorithm: "Algorithm[Any]") -> None:
        """Go on with another algorithm, for those who wait too."""
        super().use(algorithm)
        self._patient = self.max_queue is None and algorithm.longest_wait == math.inf
        for permit in self._waiters:
            if error := self._too_high(permit._tokens, algorithm.capacity):
                fail(permit, error)

    def _too_high(self, cost: float, capacity: float) -> CostTooHigh | None:
        return CostTooHigh(cost, capacity, key=self.key) if cost > capacity else None

    # ---- asking --------------------------------------------------------------------------------

    def delay(self, now: float, permit: "Permit", *, ahead: float | None = None) -> float:
        """Seconds until the pauses and the rates let the permit go, behind those ahead of it.

        Slots are not foreseen: nobody knows when one comes free. `ahead` is the cost of those
        ahead, where it is known.
        """
        if ahead is None:
            ahead = self._waiters.cost_ahead(permit)
        pause = until(self.paused_until, now)
        wait = self.algorithm.delay_behind(self.state, now + pause, permit._tokens, ahead)
        if math.isinf(wait):  # a law that cannot tell about more than its capacity
            wait = self.algorithm.delay(self.state, now + pause, permit._tokens)
        return pause + wait

    def decide_at_once(self, permit: "Permit", now: float) -> float:
        """Decide for a newcomer, which never overtakes a waiter: 0.0 if it may start now.

        Raises:
            LimiterClosed: The limiter is closed.
        """
        if self.closed:
            raise LimiterClosed(key=self.key)
        return math.inf if self._waiters.count else self.decide(now, permit._tokens)

    # ---- the end -------------------------------------------------------------------------------

    async def close(self, *, drain: bool) -> None:
        """Turn away newcomers, and all who wait unless they are to be served; leave no task."""
        self.check_loop(asyncio.get_running_loop())
        self.closed = True
        self.room = 0
        if not drain:
            self._rejects_waiters = True
            self.epoch += 1
            if self.loop is asyncio.get_running_loop():
                self.fail_all(LimiterClosed(key=self.key))
        self.wake()
        while self._consumer is not None and self.loop is asyncio.get_running_loop():
            # Another one follows if this one is swept up before its first step.
            await asyncio.wait([self._consumer])
        if self.leased is not None and self.loop is asyncio.get_running_loop():
            await self.leased.close()

    # ---- going on, or not ----------------------------------------------------------------------

    def _may_start(self, permit: "Permit") -> bool:
        """Decide again on a waiter that was granted in an older epoch; none overtakes another."""
        if self._rejects_waiters or self._waiters.head is not permit:
            return False
        return self.decide(self.now(), permit._tokens, has_slot=True) <= 0.0

    def _take_back(self, permit: "Permit") -> None:  # noqa: ARG002 - a child needs it
        """Undo a grant that was not used."""
        self._resuming -= 1
        self.taken -= 1

    def undo(self, permit: "Permit") -> None:
        """Take back a permit that was held, but not used."""
        if permit._held:
            self._refund(permit, self.now(), permit.cost)
            self._undone += 1
            permit._release()
            self.wake()

    def _leave(self, permit: "Permit", *, resumed: bool) -> None:
        """Take the permit out of line, and see to those behind it."""
        # While some are resuming, the consumer may sleep on for the one that was behind them.
        affected = resumed or self._resuming or self._waiters.head is permit
        self._waiters.remove(permit)
        if affected:
            self.wake()
        if self.leased is not None:
            self.leased.look()

    # ---- refusing ------------------------------------------------------------------------------

    def _refuse_the_hopeless(self, permit: "Permit", now: float, *, as_head: bool) -> None:
        """Raise at once where waiting is of no use."""
        full = not as_head and self.max_queue is not None and self.waiting >= self.max_queue
        longest = self.algorithm.longest_wait
        if not full and permit._timeout is None and longest == math.inf:
            return
        wait = self.delay(now, permit)
        if full:
            self.refuse("queue full")
            raise QueueFull(self.waiting, wait, key=self.key)
        if wait > longest:
            self._charge_refusal(permit, now)
        elif permit._timeout is None or wait <= permit._timeout:
            return
        self.refuse("timeout")
        raise ThrottleTimeout(wait, key=self.key)

    def _charge_refusal(self, permit: "Permit", now: float) -> None:
        """Have the refused one pay, where the law says so, when those before it have gone."""
        ahead = self._waiters.cost_ahead(permit)
        cost = self.algorithm.cost_of_refusal(self.state, now, permit._tokens, ahead)
        if cost:
            assert self.loop is not None
            ghost = make_permit(self, cost, permit._priority)
            ghost._at = now
            self._ghosts.add(ghost)
            self._waiters.add(ghost, self.loop.create_future())
            if self._waiters.count == len(self._ghosts):
                self._lay_ghosts(now)
