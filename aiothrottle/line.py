"""The line: those who wait, in order, and the one task that waits for time on their behalf.

Strategy. A newcomer that finds nobody waiting, a free slot and room in the bucket never comes here
(`Permit.__aenter__`). Everybody else joins the line and sleeps on a future. One consumer task,
started by the first of them and gone with the last, sleeps until the bucket has room for the head,
or until something changes (`wake`), and then grants to as many as fit, in one turn.

To grant is to take a slot and to wake the waiter; no more. Its tokens are taken after it has really
resumed, so a token is never stamped earlier than the request that it pays for, and a waiter that is
cancelled between the two has nothing to give back but the slot. Until then it stays in the line,
which keeps newcomers off the fast path and the order first in, first out. While some are resuming
nobody else is granted anything, so what the bucket said for the whole batch holds.

Invariants: a line that is not empty has a consumer; a slot is either free or held by one permit,
and changes hands in synchronous code only, so no await can lose one.
"""

import asyncio
from collections import OrderedDict
from contextvars import Context
from threading import get_ident
from typing import TYPE_CHECKING, Any

from aiothrottle.algorithms.algorithm import until
from aiothrottle.errors import LimiterClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.permit import Permit

__all__ = ["Line"]

# So many are woken in one turn: more would keep the loop from its sockets.
_BATCH = 256
# Some loops cannot sleep longer; who wakes early looks at the clock and sleeps on.
_LONGEST_NAP = 86400.0
# Slots where there is no limit: more than can be in flight.
_NO_LIMIT = 1 << 29


class Line:
    """The waiting line in front of one bucket, its slots, and its consumer."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_consumer",
        "_given_clock",
        "_resuming",
        "_started",
        "_waiters",
        "admit",
        "algorithm",
        "clear_on",
        "clock",
        "closed",
        "concurrency_limit",
        "free",
        "loop",
        "paused_until",
        "starved",
        "state",
        "thread",
    )

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
    ) -> None:
        self.algorithm = algorithm
        self.admit = algorithm.admit
        self.state = algorithm.start()
        self.clock = self._given_clock = clock
        self.concurrency_limit = concurrency_limit
        #: Free slots. A small number, which Python counts with at its fastest.
        self.free = _NO_LIMIT if concurrency_limit is None else concurrency_limit
        #: The loop on which a newcomer need only ask for a slot and tokens, since nobody waits and
        #: nothing is paused or closed; None while there is no such loop.
        self.clear_on: asyncio.AbstractEventLoop | None = None
        #: The head waits for a slot, so the next one that comes free has to wake the consumer.
        self.starved = False
        self.paused_until = float("-inf")
        self.closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int | None = None
        self._waiters: OrderedDict[Permit, asyncio.Future[None]] = OrderedDict()
        self._resuming = 0
        self._started = 0.0  # the cost of who resumed last: not taken yet, see `now`
        self._consumer: asyncio.Task[None] | None = None
        self._alarm: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    @property
    def in_flight(self) -> int:
        """How many slots are taken."""
        limit = self.concurrency_limit
        return (_NO_LIMIT if limit is None else limit) - self.free

    async def join(self, permit: "Permit") -> None:
        """Wait in line until the permit has a slot and has taken its tokens.

        Cancelled at any point, it leaves the line as if it had never come.
        """
        self.bind()
        if permit._held is not None or permit in self._waiters:
            raise RuntimeError(f"{permit!r} was used before: call throttle() for each block")
        arrived = self.now()
        if self.try_now(permit, arrived):
            return
        self.clear_on = None
        now = await self._turn(permit)
        self._started = permit.cost
        self._leave(permit)
        permit._held = True
        permit.waited = max(0.0, now - arrived)

    def now(self) -> float:
        """Read the clock, and take the tokens of whoever resumed last: by now it has started.

        The system may stop a process between any two of its steps. A token that were stamped
        before its request starts could be early by as much.
        """
        now = self.clock()
        if self._started:
            cost, self._started = self._started, 0.0
            self.algorithm.take(self.state, now, cost)
        return now

    def try_now(self, permit: "Permit", now: float) -> bool:
        """Grant at once if nobody waits and everything fits."""
        if self.closed:
            raise LimiterClosed
        if self._waiters or now < self.paused_until or not self.free:
            return False
        self.clear_on = self.loop
        if not self.admit(self.state, now, permit.cost):
            return False
        self.free -= 1
        permit._held = True
        permit.waited = 0.0
        return True

    def delay(self, now: float, cost: float) -> float:
        """Seconds until the pause and the rate can let `cost` go, behind all who wait."""
        capacity = self.algorithm.capacity
        for permit in self._waiters:
            cost += permit.cost
            if cost >= capacity:
                break
        wait = self.algorithm.delay(self.state, now, min(cost, capacity))
        return max(wait, until(self.paused_until, now))

    def free_slot(self) -> None:
        """Take a slot back."""
        self.free += 1
        if self.starved:
            self.wake()

    def pause(self, seconds: float) -> None:
        """Grant nothing for so long from now; a pause under way is never shortened."""
        self.paused_until = max(self.paused_until, self.clock() + seconds)
        self.clear_on = None
        self.wake()

    async def close(self) -> None:
        """Turn away all who wait, and leave no task behind."""
        self.closed = True
        self.clear_on = None
        self.wake()
        if self._consumer is not None and self.loop is asyncio.get_running_loop():
            await asyncio.wait([self._consumer])

    def bind(self) -> None:
        """Belong to the running loop, or refuse if another one still lives."""
        loop = asyncio.get_running_loop()
        if self.loop is loop:
            return
        if self.loop is not None:
            if not self.loop.is_closed():
                raise RuntimeError(
                    f"this limiter belongs to {self.loop!r}, which is still open, and cannot serve "
                    f"{loop!r} as well: use one limiter for each loop, or close the first loop"
                )
            # Who waited there is dead, and so is the task that served them. The budget lives on.
            self.free += self._resuming
            self._resuming = 0
            self._waiters.clear()
            self._consumer = self._alarm = None
        self.loop = loop
        self.thread = get_ident()
        self._follow_time_of(loop)

    def _follow_time_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the clock that the loop says stands for ours, as a `VirtualTimeLoop` does."""
        clock_for = getattr(loop, "clock_for", None)
        clock = self._given_clock if clock_for is None else clock_for(self._given_clock)
        if clock != self.clock:
            # Instants of another clock mean nothing; what is left of a pause does.
            self.paused_until += clock() - self.clock()
            self.clock = clock
            self.state = self.algorithm.start()

    def wake(self) -> None:
        """Have the consumer look again, since something changed; start it if there is none."""
        if self.loop is None or self.loop.is_closed():
            return
        if self._alarm is not None:
            if not self._alarm.done():
                self._alarm.set_result(None)
        elif self._consumer is None and self._waiters:
            # A plain Task whatever the loop's task factory: an eager one would run it here and
            # now. In an empty context: it works for all who wait, not for the first of them.
            self._consumer = asyncio.Task(
                self._consume(), loop=self.loop, name="aiothrottle consumer", context=Context()
            )
            self._consumer.add_done_callback(self._consumer_ended, context=Context())

    def _consumer_ended(self, consumer: "asyncio.Task[None]") -> None:
        # Also one that was cancelled before its first step, and could not look at who waits.
        if self._consumer is consumer:
            self._consumer = None
            self.wake()

    async def _turn(self, permit: "Permit") -> float:
        """Sleep until the permit is granted and nothing is paused. Gives the instant."""
        assert self.loop is not None
        while True:
            # A permit that is in line already keeps its place.
            future = self._waiters[permit] = self.loop.create_future()
            if self._consumer is None:
                self.wake()
            try:
                await future
                now = self.now()
            except BaseException:
                # A line that has moved to another loop in the meantime has forgotten this one.
                if self._waiters.get(permit) is future:
                    if _is_granted(future):
                        self._take_back()
                    self._leave(permit)
                raise
            if now >= self.paused_until and not self.closed:
                self._resuming -= 1
                return now
            # It was granted, but before it could go there was a pause, or the end.
            self._take_back()
            if self.closed:
                self._leave(permit)
                raise LimiterClosed
            self.wake()

    def _take_back(self) -> None:
        self._resuming -= 1
        self.free += 1

    def _leave(self, permit: "Permit") -> None:
        """Take the permit out of line, and see to those behind it."""
        was_head = next(iter(self._waiters)) is permit
        del self._waiters[permit]
        if was_head and not self._resuming:
            self.wake()

    async def _consume(self) -> None:
        try:
            while self._waiters:
                try:
                    await self._nap(self._serve())
                except asyncio.CancelledError:
                    # Whoever sweeps up all tasks, as asyncio.run does at its end, means those who
                    # wait; if they are still there, they still need this one.
                    if not self._waiters:
                        raise
            self.now()
        except Exception as error:  # noqa: BLE001 - an algorithm that fails, fails those who wait
            for future in self._waiters.values():
                if not future.done():
                    future.set_exception(error)

    def _serve(self) -> float | None:
        """Grant to as many as fit now. Gives the seconds until the next one may fit, if known."""
        self.starved = False
        if self._resuming:
            return None  # the last of them wakes the consumer
        now = self.now()
        wait = 0.0 if self.closed else until(self.paused_until, now)
        if wait > 0.0:
            return wait
        cost = 0.0
        for permit, future in self._waiters.items():
            if future.done():
                continue  # cancelled, and about to leave by itself
            if not self.closed:
                if not self.free:
                    self.starved = True
                    return None
                cost += permit.cost
                wait = self.algorithm.delay(self.state, now, cost)
                if wait > 0.0:
                    break
            future.set_result(None)
            self.free -= 1
            self._resuming += 1
            if self._resuming == _BATCH:
                break
        return None if self._resuming else wait

    async def _nap(self, seconds: float | None) -> None:
        """Sleep for so long, without end if not told, or until `wake`."""
        assert self.loop is not None
        self._alarm = self.loop.create_future()
        timer = None
        if seconds is not None:
            timer = self.loop.call_later(min(seconds, _LONGEST_NAP), self.wake)
        try:
            await self._alarm
        finally:
            self._alarm = None
            if timer is not None:
                timer.cancel()


def _is_granted(future: "asyncio.Future[None]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
