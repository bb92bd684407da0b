"""What answers for the tokens of a limiter while its store fails: the choice of `on_store_error`.

Strategy. While the store fails no request waits for it. The fallback answers, and one limiter tries
the server that has its key, at growing intervals, for all of them (`Health`). When it is back, what
was spent meanwhile and still counts is recorded there before it grants anything, and refunded when
it would have left the record. For a while this process keeps to its share as well, until the other
processes are back, too: so the return is no burst.

Invariant: a failed call raises, or the fallback answers it; never both. Every instant that the
fallback gives out is a `Here`: no store has taken tokens for it.
"""

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Self

from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import max_wait, memory_of
from aiothrottle.amounts import common, nothing, total
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.caller import weakly
from aiothrottle.stores.health import FIRST_PAUSE, Outage, message_of
from aiothrottle.stores.share import LocalShare, Spent, divisor_of
from aiothrottle.stores.store import Answer, Key, Method, OnStoreError, Step, Store

# Seconds within which all processes that call find that the store is back: see `Health`.
_ALL_BACK = 2.0
_TO_A_REFUND = Answer(0.0, (), 0.0, 0.0, 0.0)  # `Store.refund` returns none


class FailoverStore:
    """The store of one limiter, or its fallback.

    Args:
        store: The store that may fail.
        key: Of the record.
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
        choice: OnStoreError,
        local_share: float | None,
        clock: Callable[[], float],
        changed: Callable[[StoreDown | StoreUp | None], None],
    ) -> None:
        self._guarded = store
        #: Of the record.
        self.key: Key = key
        self._clock = clock
        #: Whether the store fails, and what serves then.
        self.outage: Outage = Outage(
            *(store, key, choice),
            report=changed,
            server_returned=weakly(self._server_returned),
            probe=weakly(self._probe),
        )
        self._fallback = Fallback(self.outage, local_share)
        #: Whether requests wait that the fallback does not grant soon.
        self.waits: bool = False
        # The algorithm of the last call: that of the task.
        self._last_used: Algorithm[Any] | None = None
        # Tries the store, refunds in it, or counts the processes.
        self._task: asyncio.Task[None] | None = None
        # For the next refund.
        self._timer: asyncio.TimerHandle | None = None
        self._returning = False  # the spent tokens are being recorded: nothing is granted meanwhile
        # What was recorded when the store was back, and for which instant.
        self._recorded: tuple[Spent, float] | None = None
        self._share_until = -math.inf  # until then the share holds as well as the store

    @property
    def reserves_ahead(self) -> bool:
        """Whether it grants tokens for later instants."""
        return not (self.outage.is_down or self._share_holds())

    def _share_holds(self) -> bool:
        """Return whether the share holds as well as the store."""
        return self._share_until > -math.inf and self._clock() < self._share_until

    # ---- a step ----------------------------------------------------------------------------------

    async def execute(
        self,
        algorithm: Algorithm[Any],
        method: Method,
        costs: Sequence[float],
        seconds: float,
    ) -> Answer:
        """Do a step in the store, or in its fallback; the last arguments are those of `Step`.

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
        if not self._is_away(algorithm) and not isinstance(step.seconds, Here):
            try:
                if share_counts and self._share_holds():
                    return await self._ask_both(algorithm, step)
                answer = await step.sent_to(self._guarded, self.key, algorithm)
            except StoreUnavailable as error:
                self._begin_outage(algorithm)
                self.outage.call_failed(error)
                if self.outage.choice == "raise":
                    ours = self.outage.error_for(error)
                    raise ours from ours.__cause__
            else:
                if answer is None:
                    return _TO_A_REFUND
                self._call_answered(answer, step)
                return answer
        return self._fallback.apply(algorithm, self._clock(), step)

    async def _ask_both(self, algorithm: Algorithm[Any], step: Step) -> Answer:
        """Ask the share, and the store for what the share grants."""
        here = self._fallback.apply(algorithm, self._clock(), Step(step.method, step.costs))
        granted, taken = step.costs[: len(here.instants)], 0
        if step.method == "reserve":
            if not granted:
                return here
            step = Step("reserve", granted)
        try:
            answer = await step.sent_to(self._guarded, self.key, algorithm)
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
        # A call from before the outage does not end it: the store has to get what was spent.
        ends = outage.choice == "raise" if outage.is_down else outage.health.failures > 0
        if ends:
            outage.call_answered()
        if outage.choice == "local" and self.reserves_ahead:
            now, spent = self._clock(), 0.0
            if step is not None and step.method == "reserve":
                spent = total(step.costs[: len(answer.instants)])
            self._fallback.note_answer(now, answer, spent)
            if self._task is None and self._fallback.must_count(now):
                self._start(self._count_processes())

    # ---- away and back ---------------------------------------------------------------------------

    def _is_away(self, algorithm: Algorithm[Any]) -> bool:
        """Return whether the fallback has to answer; make sure that the store is tried again."""
        outage = self.outage
        outage.find()
        if outage.choice == "raise":
            if outage.is_down:
                outage.check_turn()
            return False
        is_first, self._last_used = self._last_used is None, algorithm
        self._fallback.use(algorithm, self._clock())
        if is_first and outage.health.failures:  # other limiters have found that the store fails
            self._begin_outage(algorithm)
            outage.begin()
        self._maintain()
        return outage.is_down

    def _begin_outage(self, algorithm: Algorithm[Any]) -> None:
        if not self.outage.is_down:
            self._fallback.begin_outage(algorithm)
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
        algorithm, store, key, fallback = self._last_used, self._guarded, self.key, self._fallback
        assert algorithm is not None
        spent, this = fallback.spent, self._task
        assert spent is not None
        try:
            answer = await store.peek(key, algorithm, 0.0)
            self._returning = self.outage.choice != "open"
            now = self._clock()
            most = answer.remaining
            if self.outage.choice != "open":
                most = fallback.most_counting(algorithm, now)
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
        assert self._last_used is not None
        assert self._recorded is not None
        spent, instant = self._recorded
        cost = spent.pop_expired(self._clock())
        if spent.expires_at == math.inf:
            self._recorded = None
        try:
            await self._guarded.refund(self.key, self._last_used, cost, instant)
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
        """Leave no task."""
        self._recorded = self._fallback.spent = None
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


# ---- the fallback --------------------------------------------------------------------------------


class Here(float):
    """An instant of this process's clock, of which the store knows nothing."""

    __slots__ = ("divisor",)

    #: The cost was multiplied by this, see `LocalShare`.
    divisor: float

    def __new__(cls, instant: float, divisor: float = 1.0) -> Self:
        """Return the instant with its mark."""
        here = super().__new__(cls, instant)
        here.divisor = divisor
        return here


class Fallback:
    """The fallback of one limiter: a store that reserves nothing ahead, except with `WaitUntil`.

    Args:
        outage: The choice of what serves, and the health of the server.
        local_share: The share of this process, with "local"; None to count the processes.
    """

    __slots__ = ("_given", "_outage", "_share", "spent")

    def __init__(self, outage: Outage, local_share: float | None) -> None:
        self._outage = outage
        self._given = None if local_share is None else divisor_of(local_share)
        self._share: LocalShare | None = None
        #: The tokens that were granted since the store fails; None while it does not fail.
        self.spent: Spent | None = None

    @property
    def _divisor(self) -> float:
        """The limit divided by this is the share: 1.0 or more."""
        return self._given or self._outage.health.counter.processes

    def must_count(self, now: float) -> bool:
        """Return whether it is time to count the processes; if so, the caller has to."""
        return self._given is None and self._outage.health.counter.is_due(now)

    @property
    def reserves_ahead(self) -> bool:
        """Whether it grants tokens for later instants."""
        return self._share is not None and self._share.reserves_ahead

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Decide by that algorithm from now on."""
        if self._outage.choice == "local":
            if self._share is None:
                self._share = LocalShare(algorithm)
            self._share.use(algorithm, now)

    def note_answer(self, now: float, answer: Answer, spent: float) -> None:
        """Take in an answer of the store, to know as much when the store fails."""
        if self._share is not None:
            self._share.note_answer(now, answer, spent)

    def begin_outage(self, algorithm: Algorithm[Any]) -> None:
        """Count what is granted from now on, as the store fails."""
        self.spent = Spent(memory_of(algorithm))

    def forget(self) -> None:
        """Begin anew, by another clock."""
        self._share = self.spent = None

    def apply(self, algorithm: Algorithm[Any], now: float, step: Step) -> Answer:
        """Do the step."""
        if step.method == "reserve":
            return self._reserve(algorithm, now, step.costs, step.seconds)
        (cost,) = step.costs
        if step.method == "refund":
            self.refund(now, cost, step.seconds)
        elif step.method == "record":
            self._record(now, cost)
        wait = self._wait(now, cost) if step.method == "peek" else 0.0
        return self._answer(algorithm, now, (), wait)

    def _reserve(
        self, algorithm: Algorithm[Any], now: float, costs: Sequence[float], max_reservation: float
    ) -> Answer:
        """Grant, in order, as many of the costs as may start now, or soon enough."""
        divisor, longest = self._divisor, max_reservation if self.reserves_ahead else 0.0
        instants: list[float] = []
        for place, cost in enumerate(costs):
            wait = self._wait(now, cost)
            if wait > longest:
                if max_wait(algorithm) <= longest < wait < math.inf:
                    # Rejected requests count, as in a store.
                    self._record(now, total(costs[place:]))
                return self._answer(algorithm, now, tuple(instants), wait)
            if self._share is not None:
                self._share.spend(now, cost, divisor)
            if self.spent is not None:
                self.spent.add(now, cost)
            instants.append(Here(now + wait, divisor))
        return self._answer(algorithm, now, tuple(instants), 0.0)

    def _record(self, now: float, cost: float) -> None:
        """Count a cost that was spent already."""
        if self._share is not None:
            self._share.record(now, cost)
        if self.spent is not None:
            self.spent.add(now, cost)

    def refund(self, now: float, cost: float, instant: float) -> None:
        """Give back what was granted for that instant, if it was granted here."""
        if isinstance(instant, Here):
            if self._share is not None:
                self._share.refund(now, cost, instant.divisor, instant)
            if self.spent is not None:
                self.spent.subtract(cost, instant)

    def _wait(self, now: float, cost: float) -> float:
        """Seconds after which to ask again for the cost; 0.0 if it may start."""
        if not cost or self._outage.choice == "open":
            return 0.0
        pause = max(FIRST_PAUSE, self._outage.health.pause())
        if self._share is None:
            return pause
        wait = self._share.wait(now, cost, self._divisor)
        return wait if self._share.reserves_ahead else min(pause, wait)

    def patience(self, now: float, cost: float) -> float:
        """Seconds after which it may grant the cost by itself; infinity if it never does."""
        return math.inf if self._share is None else self._share.wait(now, cost, self._divisor)

    def total(self, now: float) -> float:
        """Return how many of the tokens granted since the store fails still count."""
        return 0.0 if self.spent is None else self.spent.total(now)

    def most_counting(self, algorithm: Algorithm[Any], now: float) -> float:
        """Return how many of them the store has to count, at the most: a debt is bounded."""
        if self._share is None:
            return algorithm.capacity
        return self._share.most_counting(now, self._divisor)

    def is_forgettable(self, now: float) -> bool:
        """Return whether a new fallback would answer the same."""
        share = self._share
        return not self.total(now) and (share is None or share.reset_after(now) == 0.0)

    def _answer(
        self, algorithm: Algorithm[Any], now: float, instants: tuple[float, ...], wait: float
    ) -> Answer:
        remaining, reset_after = nothing(algorithm.capacity), 0.0
        if self._share is not None:
            remaining = self._share.remaining(now, self._divisor)
            reset_after = self._share.reset_after(now)
        elif self._outage.choice == "open":
            remaining = algorithm.capacity
        return Answer(Here(now), instants, wait, remaining, reset_after)
