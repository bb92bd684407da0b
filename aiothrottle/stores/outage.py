"""What answers for the tokens of a limiter while its store fails: the choice of `on_store_error`.

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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

from aiothrottle.algorithms import Algorithm
from aiothrottle.amounts import common, total
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.caller import weakly
from aiothrottle.stores.fallback import Fallback, Here, Spent
from aiothrottle.stores.health import FIRST_PAUSE, Outage, message_of
from aiothrottle.stores.store import Answer, Key, Method, OnStoreError, Step, Store

# Seconds within which all processes that call find that the store is back: see `Health`.
_ALL_BACK = 2.0
_TO_A_REFUND = Answer(0.0, (), 0.0, 0.0, 0.0)  # `Store.refund` returns none


class FailoverStore:
    """The store of one limiter, or its fallback.

    Args:
        store: The store that may fail.
        key: Of the record.
        algorithm: Decides in the store.
        choice: What serves then: `on_store_error`.
        local_share: The share of this process, with "local"; None to count the processes.
        clock: Returns the time in seconds.
        changed: Called with the event when the store fails or is back, and with None when it may
            have more to grant; it does not keep the limiter alive.
    """

    def __init__(
        self,
        store: Store,
        key: Key,
        algorithm: Algorithm[Any],
        choice: OnStoreError,
        local_share: float | None,
        clock: Callable[[], float],
        changed: Callable[[StoreDown | StoreUp | None], None],
    ) -> None:
        self._guarded = store
        #: Of the record.
        self.key: Key = key
        self._algorithm = algorithm
        self._clock = clock
        #: Whether the store fails, and what serves then.
        self.outage: Outage = Outage(
            *(store, key, choice),
            report=changed,
            server_returned=weakly(self._server_returned),
            probe=weakly(self._probe),
        )
        self._fallback = Fallback(self.outage, local_share, algorithm)
        #: Whether requests wait that the fallback does not grant soon.
        self.waits: bool = False
        # Whether a call was made.
        self._is_used = False
        # Tries the store, refunds in it, or counts the processes.
        self._task: asyncio.Task[None] | None = None
        # For the next refund.
        self._timer: asyncio.TimerHandle | None = None
        self._returning = False  # the spent tokens are being recorded: nothing is granted meanwhile
        # What was recorded when the store was back, and for which instant.
        self._recorded: tuple[Spent, float] | None = None
        self._share_until = -math.inf  # until then the share holds as well as the store

    def use(self, algorithm: Algorithm[Any]) -> None:
        """Continue with another algorithm."""
        self._algorithm = algorithm
        self._fallback.use(algorithm, self._clock())

    @property
    def reserves_ahead(self) -> bool:
        """Whether it grants tokens for later instants."""
        return not (self.outage.is_down or self._share_holds())

    def _share_holds(self) -> bool:
        """Return whether the share holds as well as the store."""
        return self._clock() < self._share_until

    # ---- a step ----------------------------------------------------------------------------------

    async def execute(self, method: Method, costs: Sequence[float], seconds: float = 0.0) -> Answer:
        """Do a step in the store, or in its fallback; the arguments are those of `Step`.

        Raises:
            StoreUnavailable: The store does not answer, and nothing serves meanwhile.
        """
        step = Step(method, costs, seconds)
        share_counts = self.outage.choice == "local" and method in {"reserve", "peek"}
        while self._returning and self._task is not None:
            await asyncio.wait([self._task])
        # What was granted here is given back here. After the return it is recorded in the store for
        # an instant that is not known: it stays spent there, as does in an outage what the store
        # has granted.
        if not self._is_away() and not isinstance(step.seconds, Here):
            try:
                if share_counts and self._share_holds():
                    return await self._ask_both(step)
                answer = await self._send(step)
            except StoreUnavailable as error:
                self._begin_outage()
                self.outage.call_failed(error)
                if self.outage.choice == "raise":
                    raise self.outage.error_for(error) from error.__cause__
                self._maintain()  # no other call may follow
            else:
                if answer is None:
                    return _TO_A_REFUND
                self._call_answered(answer, step)
                return answer
        return self._fallback.apply(self._clock(), step)

    def _send(self, step: Step) -> Awaitable[Answer | None]:
        return step.sent_to(self._guarded, self.key, self._algorithm)

    async def _ask_both(self, step: Step) -> Answer:
        """Ask the share, and the store for what the share grants."""
        here = self._fallback.apply(self._clock(), Step(step.method, step.costs))
        granted, taken = step.costs[: len(here.instants)], 0
        if step.method == "reserve":
            if not granted:
                return here
            step = Step("reserve", granted)
        try:
            answer = await self._send(step)
            assert answer is not None
            taken = len(answer.instants)
        finally:
            for cost, instant in zip(granted[taken:], here.instants[taken:], strict=True):
                self._fallback.refund(self._clock(), cost, instant)
        self._call_answered(answer, None)
        wait = max(answer.retry_after, here.retry_after)
        return dataclasses.replace(answer, retry_after=wait)

    async def clear(self) -> None:
        """Forget the record, in the store."""
        try:
            await self._guarded.clear(self.key)
        except StoreUnavailable as error:
            more = f"the record of {self.key!r:.200} may still be there"
            ours = StoreUnavailable(f"{message_of(error)}; {more}")
            raise ours from error.__cause__

    def _call_answered(self, answer: Answer, step: Step | None) -> None:
        """Note an answer of the store to a step, unless the share has counted that."""
        outage = self.outage
        if outage.is_down:
            # A call from before the outage does not end it: the store has to get what was spent.
            if outage.choice == "raise":
                outage.call_answered()
        elif outage.health.failures:
            outage.health.call_answered()
        if outage.choice == "local" and self.reserves_ahead:
            now, spent = self._clock(), 0.0
            if step is not None and step.method == "reserve":
                spent = total(step.costs[: len(answer.instants)])
            self._fallback.note_answer(now, answer, spent)
            if self._task is None and self._fallback.must_count(now):
                self._start(self._count_processes())

    # ---- away and back ---------------------------------------------------------------------------

    def _is_away(self) -> bool:
        """Return whether the fallback has to answer; make sure that the store is tried again."""
        outage = self.outage
        outage.find()
        if outage.choice == "raise":
            if outage.health.failures and (error := outage.too_early()):
                outage.begin()
                try:
                    raise error
                finally:
                    del error  # its traceback has this frame
            return False
        is_first, self._is_used = not self._is_used, True
        # Other limiters have found that the store fails: once is enough before the first call.
        if outage.health.failures >= (1 if is_first else 2):
            self._begin_outage()
            outage.begin()
        self._maintain()
        return outage.is_down

    def _begin_outage(self) -> None:
        if not self.outage.is_down:
            self._fallback.begin_outage()
            self._recorded = None  # what is not refunded by now stays spent
            if self._task is not None:
                self._task.cancel()

    def _server_returned(self) -> None:
        """Continue with the store, once it has got what was spent here."""
        if not self.outage.is_down or self._task is not None:
            return
        if self.outage.health.failures:  # it has failed again meanwhile
            self.outage.follow()
        elif self._fallback.total(self._clock()):
            self._start(self._try_store())
        else:
            self._end_outage()

    def _end_outage(self) -> None:
        now = self._clock()
        self.waits, self._fallback.spent = False, None
        if self.outage.choice == "local" and not self._fallback.reserves_ahead:
            self._share_until = now + _ALL_BACK
        self.outage.end()

    def wait_for_return(self, cost: float) -> float:
        """Note that requests wait while the store fails; `changed` is called when it is back.

        Returns:
            The seconds after which the fallback may grant the cost; infinity if it does not.
        """
        self.waits = True
        self.outage.health.probe_later()
        return self._fallback.patience(self._clock(), cost)

    # ---- the task --------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Start the task if something is due, or a timer until it is."""
        if self._task is not None:
            return
        if self.outage.is_down:
            health = self.outage.health
            self.outage.follow()
            if not health.failures:
                self._server_returned()
            elif health.pause() == 0.0 and not health.is_tried:
                health.try_with(self._start(self._try_store()))
            else:
                health.probe_later()
        elif self._recorded is not None:
            pause = self._recorded[0].expires_at - self._clock()
            if pause <= 0.0:
                self._start(self._refund_expired())
            elif self._timer is None:
                self._start_timer(pause)

    def _probe(self) -> bool:
        """Try the store if requests wait for it, or it has to get what was spent."""
        if self._task is not None or not (self.waits or self._fallback.total(self._clock())):
            return False
        self.outage.health.try_with(self._start(self._try_store()))
        return True

    def _start_timer(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, weakly(self._maintain_unused))

    def _maintain_unused(self) -> None:
        """Do what is due without a call of the limiter, if the store has to get something."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._recorded is not None:
            self._maintain()

    async def _try_store(self) -> None:
        """Call the store, and record there what was spent."""
        store, key, algorithm, fallback = self._guarded, self.key, self._algorithm, self._fallback
        spent, this = fallback.spent, self._task
        assert spent is not None
        try:
            answer = await store.peek(key, algorithm, 0.0)
            self._returning = self.outage.choice != "open"
            now = self._clock()
            most = answer.remaining
            if self.outage.choice != "open":
                most = fallback.most_counting(now)
            spent.total(now)
            if cost := spent.cap(most):
                answer = await store.record(key, algorithm, cost)
                self._recorded = spent, answer.now
            else:
                # A server that is read-only, and one whose disk is full, answers all but a change.
                token = common(1.0, algorithm.capacity)
                answer = await store.reserve(key, algorithm, (token,))
                token, instant = (token, *answer.instants) if answer.instants else (0.0, answer.now)
                await store.refund(key, algorithm, token, instant)
        except StoreUnavailable as error:
            self.outage.call_failed(error)
            return
        except Exception:  # noqa: BLE001, S110 - the store answers: the next call raises the same
            pass
        finally:
            if self._task is this:  # else it is the task of a closed loop
                self._returning = False
        self._end_outage()
        self.outage.health.end_outage()

    async def _refund_expired(self) -> None:
        """Refund in the store what would have left its record by now."""
        assert self._recorded is not None
        spent, instant = self._recorded
        cost = spent.pop_expired(self._clock())
        if spent.expires_at == math.inf:
            self._recorded = None
        try:
            await self._guarded.refund(self.key, self._algorithm, cost, instant)
        except (StoreUnavailable, ValueError):
            return  # it stays spent; the next call raises the same
        self.outage.report(None)

    async def _count_processes(self) -> None:
        # The count stays as it was. A TypeError: the store takes its own algorithms only.
        with contextlib.suppress(StoreUnavailable, TypeError, ValueError):
            await self.outage.health.counter.register(self._guarded)

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
        if self.outage.is_down:
            self.outage.follow()
            self.outage.health.probe_later()
        elif not task.cancelled():
            self._maintain_unused()
        elif self._timer is None:  # code that cancels all tasks wants no new one at once
            self._start_timer(FIRST_PAUSE)

    def restart(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """Continue on another loop, perhaps by another clock, for which no instant is valid."""
        if clock != self._clock:
            self._clock = clock
            self._fallback.forget()
            self._recorded = None
            self._share_until = -math.inf
            self.outage.is_down = False
        self._task = self._timer = None
        self._returning = self.waits = False
        self.outage.move_to(loop)

    async def close(self) -> None:
        """Leave no task, and nothing to return; a call after that begins anew."""
        self._recorded, self.waits = None, False
        if self._fallback.spent is not None:
            self._fallback.begin_outage()
        task, self._task = self._task, None  # so that its end has it try no more
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.outage.unfollow()
        if self._timer is not None:
            self._timer.cancel()

    def is_forgettable(self, now: float) -> bool:
        """Return whether a new one would do the same."""
        return self._task is None and self._recorded is None and self._fallback.is_forgettable(now)
