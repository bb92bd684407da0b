"""A line in front of a store whose algorithm refuses by the wait: `WaitUntil`.

Strategy. Such an algorithm decides on a hit when it comes, and the stamp that it decides by is in
the store. So the store is asked at once for all who come, as far ahead as the algorithm lets
anybody wait (`longest_wait`). Who is given an instant waits for it in line, as everywhere; the
first one who is not, and all who came behind, are refused, and what they cost is then recorded:
refused hits count. That is a call of its own. Between the two nobody goes who may not, as a stamp
only moves on; the others hear of those refused here that much later.

One slot is for one hit here, in order. Who leaves the line leaves the last slot over, or, where the
costs differ, slots that fit nobody: they go back. Who was let in is not refused any more: if its
slot went back, for a pause or as nothing was free, it is asked for again until there is another.
"""

import asyncio
import math
from typing import TYPE_CHECKING, Any, cast

from aiothrottle._core.engine import fail, is_granted
from aiothrottle.algorithms.algorithm import Algorithm, until
from aiothrottle.algorithms.reserved import Reserved, Slot
from aiothrottle.errors import ThrottleTimeout, twin
from aiothrottle.sharing.line import SharedLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiothrottle import events
    from aiothrottle._core.engine import Starter
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.algorithms import WaitUntil

__all__ = ["RefusingLine"]

# Seconds. Who asks again just when it may can be too early by a rounding.
_SHORTEST_BREAK = 0.001


class RefusingLine(SharedLine):
    """The waiting line in front of the stamp of a `WaitUntil` in a store."""

    __slots__ = ("_decide_at", "_undecided", "_unfit")

    def __init__(self, algorithm: Algorithm[Any], *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of `SharedLine`
        super().__init__(algorithm, *arguments, **options)
        # Those in line of whom the store has still to be asked whether they may wait, as they came.
        self._undecided: dict[Waiter, None] = {}
        # Until then it need not be asked: what stands in for it does not tell.
        self._decide_at = -math.inf
        # Something has changed: the slots may not be of those who wait any more.
        self._unfit = False

    # ---- coming and going ------------------------------------------------------------------------

    def arrive(
        self, waiter: "Waiter", *, as_head: bool = False, chain: "Starter | None" = None
    ) -> "asyncio.Future[None] | None":
        """Let the request start, if it may: None. Else queue it, and ask the store about it."""
        future = super().arrive(waiter, as_head=as_head, chain=chain)
        if future is not None and waiter.cost:
            try:
                self._undecided[waiter] = None
                self._start_talk()
            except BaseException:
                self.cancel(waiter)
                raise
        return future

    def resume(self, waiter: "Waiter") -> "asyncio.Future[None] | None":
        """Let the permit start after what it waited on: None. Or give what to wait on next."""
        self._undecided.pop(waiter, None)  # its priority may have brought it another one's slot
        return super().resume(waiter)

    def _leave(self, waiter: "Waiter", *, resumed: bool) -> None:
        self._undecided.pop(waiter, None)
        self._unfit = True
        super()._leave(waiter, resumed=resumed)
        self.wake()

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._move_to(loop)
        self._undecided.clear()
        self._decide_at, self._unfit = -math.inf, False

    def _charge_reject(self, waiter: "Waiter", now: float) -> None:  # noqa: ARG002
        """Have the store count one who need not be asked for: a pause alone is too long."""
        self._owe(waiter.cost)
        self._start_talk()

    def _owe(self, cost: float) -> None:
        # Of no instant: nobody can give it back.
        self._reserved.owed.append(Slot(math.nan, cost, math.nan))

    def estimate(self, now: float, waiter: "Waiter", ahead: float | None = None) -> float:
        """Seconds until the request may start, as far as that is known here: it may be longer."""
        wait = super().estimate(now, waiter, ahead)
        # Or they would come by the thousand, and wait for the server's quota.
        return max(wait, self.bucket.quota_delay(now, waiter.cost))

    # ---- the slots -------------------------------------------------------------------------------

    def _entitled(self) -> "Iterator[Waiter]":
        return (waiter for waiter in self.queue if waiter not in self._undecided)

    def serve(self) -> float | None:
        """Fit what is reserved to the waiters, and grant to as many as may start now."""
        ready, late = self._reserved.ready, self.now() - self._patience
        if not self._resuming and ready and ready[0].at <= late:
            self._reserved.give_back_older(late)
            self._unfit = True
        self._fit()
        seconds = super().serve()
        if self._undecided and self._talk is None and not self._resuming:
            wait = self._wait_to_decide()
            seconds = wait if seconds is None else min(seconds, wait)
        return seconds

    def _fit(self) -> None:
        """Return the slots that do not fit those who wait, one for each, and all behind those."""
        if not self._unfit:
            return
        self._unfit = False
        self.now()  # whoever has just started has used a slot
        slots, fitting = iter(self._reserved.ready), 0
        for waiter in self._entitled():
            future = waiter.future
            if future is None or not waiter.cost or (future.done() and not is_granted(future)):
                continue
            slot = next(slots, None)
            if slot is None or not math.isclose(slot.cost, waiter.cost):
                break
            fitting += 1
        self._reserved.give_back_behind(fitting)

    # ---- the talk --------------------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        """Whether there is anything that the store has still to hear of: who has come, too."""
        if super()._has_news:
            return True
        return bool(self._undecided) and not self.rejects_waiters and not self._wait_to_decide()

    def _wait_to_decide(self) -> float:
        """Seconds for which it is of no use to ask for those of whom nothing is decided."""
        now = self.now()
        wait = until(max(self.pause.ends_at, self._decide_at), now)
        cost = next(iter(self._undecided)).cost
        return max(wait, self.bucket.quota_delay(now, cost))

    async def _settle_up(self) -> None:
        """Give back, charge, or ask whether those who have come may wait; one at a time."""
        if super()._has_news:
            await super()._settle_up()
        else:
            await self._ask_for_newcomers()

    async def _ask_for_newcomers(self) -> None:
        """Ask the store for those who have come, and refuse those for whom it has no instant."""
        asked = self._next_undecided()
        if not asked:
            return
        horizon = self._patience_of(asked[0], self.now())
        costs = [waiter.cost for waiter in asked]
        try:
            answer = await self._store.reserve(self._key, self._algorithm, costs, horizon=horizon)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who came are to hear of it
            for waiter in asked:
                self._undecided.pop(waiter, None)
                fail(waiter, twin(error, self.key))
            return
        now, taken = self._note(answer), len(answer.instants)
        algorithm = cast("Reserved", self.bucket.own[0])
        algorithm.hold(self._reserved, now, costs[:taken], answer.instants, answer.now)
        for waiter in asked[:taken]:
            self._undecided.pop(waiter, None)
        self._unfit = True  # some may have left meanwhile, or lack a slot further in front
        self._refuse_some(asked[taken:], now, answer.retry_after)
        if self.consumer.task is not None:
            self.turn()
        elif not self.queue.count:
            self._give_back()

    def _next_undecided(self) -> list["Waiter"]:
        """Give those who came first, of one time-out: they can be asked for together."""
        asked: list[Waiter] = []
        for waiter in [*self._undecided]:
            future = waiter.future
            if future is None or future.done():  # it leaves just now, or goes
                del self._undecided[waiter]
            elif asked and waiter.timeout != asked[0].timeout:
                break
            else:
                asked.append(waiter)
                if len(asked) == self._pace.batch:
                    break
        return asked

    def _patience_of(self, waiter: "Waiter", now: float) -> float:
        """Seconds that the permit may still wait, by the algorithm and its own time-out."""
        if waiter.timeout is None:
            return self._algorithm.longest_wait
        return max(0.0, min(self._algorithm.longest_wait, waiter.timeout - (now - waiter.at)))

    def _refuse_some(self, rest: list["Waiter"], now: float, wait: float) -> None:
        """Refuse those of the rest who would wait too long, the first of them for so many seconds.

        Each one refused by the algorithm counts, and makes the wait of the next one longer. Who
        only has less patience than the algorithm does not count.
        """
        algorithm = cast("WaitUntil", self._algorithm)
        refused_cost = 0.0
        for waiter in rest:
            told = max(wait, min(wait + refused_cost * algorithm.interval, algorithm.limit))
            if wait > algorithm.longest_wait:
                refused_cost += waiter.cost
            elif wait <= self._patience_of(waiter, now):
                # What stands in for the store tells when to ask it again.
                pause = 0.0 if self._store.reserves_ahead else wait
                self._decide_at = now + max(_SHORTEST_BREAK, pause)
                break
            if waiter in self._undecided:  # else it has left meanwhile
                del self._undecided[waiter]
                self.reject("timeout")
                timeout = algorithm.longest_wait
                if waiter.timeout is not None:
                    timeout = min(timeout, waiter.timeout)
                fail(waiter, ThrottleTimeout(told, timeout=timeout, key=self.key))
        if refused_cost:
            self._owe(refused_cost)

    def _store_changed(self, change: "events.StoreDown | events.StoreUp | None") -> None:
        self._decide_at = -math.inf
        super()._store_changed(change)
