"""The consumer: the one task that waits for time, on behalf of all who wait in a line.

It is started by the first of them and gone with the last. It sleeps until something changes
(`wake`), and keeps a timer for the instant at which the bucket has room for the head. Either has
it look, and grant to as many as fit, in one turn.
"""

import asyncio
import math
from contextvars import Context
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, cast

from aiothrottle.algorithms.algorithm import until
from aiothrottle.errors import twin
from aiothrottle.pauses import Pauses
from aiothrottle.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.permit import Permit
    from aiothrottle.sharing.slots import LeasedSlots

__all__ = ["Consumer", "fail", "future_of", "is_granted"]

# So many are woken in one turn: more would keep the loop from its sockets.
_BATCH = 256
# Some loops cannot sleep longer; who wakes early looks at the clock and sleeps on.
_LONGEST_NAP = 86400.0
# Where several go at once, as many may go so much later; one by one each would cost two turns of
# the loop, whose timers are no finer than a millisecond anyway.
_SHORTEST_NAP = 0.0005
# So many waits are sorted into the histogram together: each class costs, not each wait.
_MANY_WAITS = 512


class Consumer(Pauses):
    """A bucket, those who wait in front of it, and the task that serves them."""

    __slots__ = (
        "_alarm",
        "_consumer",
        "_ghosts",
        "_given_clock",
        "_granted_in",
        "_rejects_waiters",
        "_resuming",
        "_timer",
        "_waiters",
        "leased",
        "loop",
        "thread",
    )

    #: Whether one is let go at a time, as it may not go after all.
    one_by_one: ClassVar[bool] = False

    # The bucket's, which are moved here too: see `Line`.
    clock: "Callable[[], float]"
    paused_until: float
    state: Any
    taken: int

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
    ) -> None:
        super().__init__(algorithm, concurrency_limit, clock)
        self._given_clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        #: That of the loop.
        self.thread: int | None = None
        #: What leases the slots, if all processes have so many together.
        self.leased: LeasedSlots | None = None
        self._waiters = Waiters()
        # Entries for refused hits that count: see `Line._charge_refusal`.
        self._ghosts: set[Permit] = set()
        self._rejects_waiters: bool = False  # closed without draining
        # How many were granted and have not resumed yet, and the epoch in which that was decided.
        self._resuming: int = 0
        self._granted_in: int = 0
        self._consumer: asyncio.Task[None] | None = None
        self._alarm: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiters.count - len(self._ghosts)

    @property
    def resuming(self) -> int:
        """How many slots are given to some who have not gone on yet."""
        return self._resuming

    # ---- slots that are leased -----------------------------------------------------------------

    def lease(self, leased: "LeasedSlots") -> None:
        """Have no slots but those that are leased; it must be new, and have none."""
        self.leased = leased
        self.watch()

    def startable(self, most: int) -> int:
        """Tell how many of those who wait would go if they had slots, `most` at the most."""
        if self._rejects_waiters or self.clock() < self.paused_until:
            return 0
        waiting = self.waiting - self.resuming
        return min(waiting, self._allowed_soon(most)) if waiting else 0

    def _allowed_soon(self, most: int) -> int:
        return max(1, self.algorithm.allowance(self.state, self.now(), most))

    # ---- the loop ------------------------------------------------------------------------------

    def bind(self) -> None:
        """Belong to the running loop, or refuse if another one still lives."""
        loop = asyncio.get_running_loop()
        self.check_loop(loop)
        if self.loop is not loop:
            self._move_to(loop)

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse to serve the loop while another one lives that this serves."""
        if self.loop is not loop and self.loop is not None and not self.loop.is_closed():
            raise RuntimeError(
                f"this limiter belongs to {self.loop!r}, which is still open, and cannot serve "
                f"{loop!r} as well: use one limiter for each loop, or close the first loop"
            )

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        # Who waited on the old loop is dead, and so is the task that served them. The budget
        # lives on.
        while self._resuming:
            self._resuming -= 1
            self.taken -= 1
        if self.leased is not None:
            self.leased.restart()
        self._waiters.clear()
        self._ghosts.clear()
        self._consumer = self._alarm = self._timer = None
        self.loop = loop
        self.thread = get_ident()
        # A loop with a time of its own, a `VirtualTimeLoop`, says which clock stands for ours.
        clock = self._given_clock
        if (clock_for := getattr(loop, "clock_for", None)) is not None:
            clock = cast("Callable[[], float]", clock_for(clock))
        if clock != self.clock:
            # Instants of another clock mean nothing; what is left of a pause does.
            self.now()
            self.paused_until += clock() - self.clock()
            self.clock = clock
            self.state = self.algorithm.start()
            if self.feedback is not None:
                self.feedback.restart()

    # ---- serving -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the consumer look again, since something changed; start it if there is none."""
        if self.loop is None or self.loop.is_closed():
            return
        if self._alarm is not None:
            if not self._alarm.done():
                self._alarm.set_result(None)
        elif self._consumer is None and self._waiters.count:
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
            self._stop_timer()
            self.wake()

    async def _consume(self) -> None:
        assert self.loop is not None
        while self._waiters.count:
            self._look()
            if not self._waiters.count:
                return  # the last of them were ghosts
            self._alarm = self.loop.create_future()
            try:
                await self._alarm
            except asyncio.CancelledError:
                # Whoever sweeps up all tasks, as asyncio.run does at its end, means those who
                # wait; if they are still there, they still need this one.
                if not self._waiters.count:
                    raise
            finally:
                self._alarm = None
                self._stop_timer()

    def _look(self) -> None:
        """Grant to as many as fit now, and look again when the next one may."""
        assert self.loop is not None
        try:
            self._stop_timer()
            if self.leased is not None:
                self.leased.look()  # while the store fails there may be slots at once
            seconds = self._serve()
        except Exception as error:  # noqa: BLE001 - an algorithm that fails, fails those who wait
            self.fail_all(error)
        else:
            if not self._waiters.count:
                self.wake()  # the consumer, to its end
            elif seconds is not None:
                self._timer = self.loop.call_later(min(seconds, _LONGEST_NAP), self._look)

    def _all_started(self) -> None:
        """Take the tokens of the last one, and look, unless it is known when to look again."""
        if self._timer is None and self._consumer is not None:
            self._look()
            return
        try:
            self.now()
        except Exception as error:  # noqa: BLE001 - as above
            self.fail_all(error)

    def fail_all(self, error: Exception) -> None:
        """Have all waiters raise the error."""
        for permit in self._waiters:
            if permit not in self._ghosts:
                fail(permit, twin(error, self.key))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve(self) -> float | None:
        """Grant to as many as fit now. Gives the seconds until the next one may fit, if known."""
        self._starved = False
        self.watch()
        if len(self._waits.recent) >= _MANY_WAITS:
            self._waits.count_recent()
        if self._resuming:
            return None  # the last of them has it look again
        now = self.now()
        wait = until(self.paused_until, now)
        if wait > 0.0:
            return wait
        self._lay_ghosts(now)
        return self._grant(now)

    def decide(
        self, now: float, cost: float, *, ahead: float = 0.0, has_slot: bool = False
    ) -> float:
        """Decide when a request may start: 0.0 is now; else seconds, infinity if a slot is missing.

        This is the one decision: for those who come, wait, resume, try and ask. The caller sees to
        the order of the queue; `now` was just read here.

        Args:
            now: The time.
            cost: Tokens.
            ahead: Tokens of requests that start before it.
            has_slot: It has taken a slot already.
        """
        if self.taken >= self.slots + has_slot:
            return math.inf
        if now < self.paused_until:
            return until(self.paused_until, now)
        return self.algorithm.delay_behind(self.state, now, cost, ahead)

    def _grant(self, now: float) -> float | None:
        self._granted_in = self.epoch
        granted, cost, wait, ghosts = 0, 0.0, 0.0, self._ghosts
        most = 1 if self.one_by_one else _BATCH
        # So many of those with a cost of 1 may start without a further decision.
        sure = 0 if ghosts else self.slots - self.taken
        if sure > 0:
            sure = min(sure, self.algorithm.allowance(self.state, now, most))
        for permit in self._waiters:
            future = permit._future
            if future is None or future.done():
                continue  # it has left, or is cancelled and about to leave by itself
            tokens = permit._tokens
            if granted >= sure or tokens != 1.0:
                sure = 0  # what the law has told is of costs of 1 only
                if permit in ghosts:
                    break  # behind some who go now
                wait = self.decide(now, tokens, ahead=cost)
                if wait > 0.0:
                    if self.taken >= self.slots:
                        self._starved = True
                        self.watch()
                        return None
                    break
            cost += tokens
            self.taken += 1
            self._resuming += 1
            future.set_result(None)
            granted += 1
            if granted == most:
                break
        if wait > 0.0 and granted > 1:
            wait = max(wait, _SHORTEST_NAP)
        return wait or None

    def _lay_ghosts(self, now: float) -> None:
        """Take the tokens of those refused ones that have come to the head of the line."""
        while self._ghosts:
            permit = self._waiters.head
            if permit not in self._ghosts:
                return
            self.algorithm.take(self.state, now, permit._tokens)
            self._ghosts.discard(permit)
            self._waiters.remove(permit)


def future_of(permit: "Permit") -> "asyncio.Future[None] | None":
    """Give what the permit waits on, if it waits."""
    return getattr(permit, "_future", None)


def fail(permit: "Permit", error: Exception) -> None:
    """Have what the permit waits on, if it still does, raise the error."""
    future = future_of(permit)
    if future is not None and not future.done():
        future.set_exception(error)


def is_granted(future: "asyncio.Future[None]") -> bool:
    """Tell whether who waits on the future was let go."""
    return future.done() and not future.cancelled() and future.exception() is None
