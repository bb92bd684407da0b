"""The reserver: the one task that calls the store for a shared bucket.

Strategy. While there is something to send, the task sends it, one call after the other, and then
ends: an idle limiter has none. It returns reservations that nobody needs, records what is owed, and
reserves tokens for the waiters at the head of the queue, for many of them in one call. A
reservation belongs to no particular request: the head of the queue takes it when it is ready.

The store answers with durations. Here they begin when the answer is read, which is later than when
the store made it: so no request starts too early, however long the answer took.

Invariant: of the calls that reserve tokens for waiters one is under way at a time.
"""

import asyncio
import functools
import math
import weakref
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from aiothrottle._core.engine import Engine, is_granted
from aiothrottle.algorithms.protocol import Algorithm
from aiothrottle.algorithms.timestamps import until
from aiothrottle.stores.batching import MOST_AHEAD, Batching
from aiothrottle.stores.reserved import Reserved, ReservedState

if TYPE_CHECKING:
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.stores.failover import FailoverStore
    from aiothrottle.stores.prefetch import Prefetch
    from aiothrottle.stores.store import Answer, Key

__all__ = ["SHORTEST_BREAK", "Reserver"]

#: Seconds. A call at the very instant that the store named can be too early by a rounding.
SHORTEST_BREAK = 0.001
# Tokens that are as good as none: the sum of a few costs is off by less.
_ROUNDING = 1e-9


class Reserver:
    """The task of one shared bucket, and what it knows of the record in the store.

    Args:
        algorithm: The algorithm that decides in the store.
        store: The store.
        key: The key of the record.
        max_reservation: Seconds ahead that tokens are reserved, at the most; None: what suits.
        prefetch: The tokens to reserve before anybody asks.
    """

    __slots__ = (
        "_ask_at",
        "_queue",
        "_rejected_cost",
        "_rejected_until",
        "_task",
        "_timer",
        "algorithm",
        "batching",
        "key",
        "max_reservation",
        "prefetch",
        "store",
        "undecided",
    )

    def __init__(
        self,
        algorithm: Algorithm[Any],
        *,
        store: "FailoverStore",
        key: "Key",
        max_reservation: float | None,
        prefetch: "Prefetch",
    ) -> None:
        self.store: FailoverStore = store
        self.key: Key = key
        self.max_reservation: float | None = max_reservation
        self.prefetch: Prefetch = prefetch
        #: Waiters about whom the store has not decided yet, in order: see `Newcomers`.
        self.undecided: dict[Waiter, None] = {}
        self._task: asyncio.Task[None] | None = None
        # Of the prefetched tokens that are kept while nobody waits.
        self._timer: asyncio.TimerHandle | None = None
        self.use(algorithm)

    def use(self, algorithm: Algorithm[Any]) -> None:
        """Continue with another algorithm, and forget what the store rejected under the old one."""
        self.algorithm: Algorithm[Any] = algorithm
        self.batching: Batching = Batching.of(algorithm, self.max_reservation)
        self.prefetch.reset()
        # Seconds that others have reserved ahead, if that is more than `max_reservation`.
        self._queue = 0.0
        self.ask_again()

    def ask_again(self) -> None:
        """Forget that the store has rejected a cost."""
        # A call for such a cost, or a greater one, is of no use before `_ask_at`.
        self._rejected_cost, self._rejected_until, self._ask_at = 0.0, -math.inf, -math.inf

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The task, while there is one."""
        return self._task

    def forget_task(self) -> None:
        """Begin anew on another loop: the old one is closed, with the task and the timer."""
        self._task = self._timer = None

    # ---- the task --------------------------------------------------------------------------------

    def start(self, engine: Engine) -> None:
        """Start the task if there is something to send."""
        if self._task is None and engine.loop is not None and not engine.loop.is_closed():
            reserved = reserved_of(engine)
            if reserved.returned or reserved.owed or self._costs_to_ask(engine, 1):
                self.begin(engine)

    def begin(self, engine: Engine) -> None:
        """Start the task."""
        # As with the consumer: a plain Task, in an empty context.
        self._task = asyncio.Task(
            self._run(engine),
            loop=engine.loop,
            name="aiothrottle reserver",
            context=Context(),
        )
        ended = functools.partial(self._task_ended, engine)
        self._task.add_done_callback(ended, context=Context())

    async def _run(self, engine: Engine) -> None:
        while True:
            if reserved_of(engine).returned or reserved_of(engine).owed:
                await self._settle(engine)
            elif costs := self._costs_to_ask(engine, self.batching.batch):
                await self._reserve(engine, costs)
            else:
                break
        self._task = None  # now: a waiter that joins in this turn starts another one
        engine.wake()  # the consumer finds out when to call again

    def _task_ended(self, engine: Engine, task: "asyncio.Task[None]") -> None:
        if self._task is task:  # it was cancelled, and the waiters still need an answer
            self._task = None
            engine.wake()

    async def _settle(self, engine: Engine) -> None:
        """Return one reservation, or record what one request owes.

        If that fails no caller is there to get the error: what was to be returned stays spent, and
        what was owed is not counted.
        """
        reserved = reserved_of(engine)
        try:
            if reserved.returned:
                returned = reserved.returned.popleft()
                await self.store.refund(self.key, self.algorithm, returned.cost, returned.instant)
            else:
                owed = reserved.owed.popleft()
                reserved.recorded.append(owed)
                cost = owed.cost
                answer = await self.store.record(self.key, self.algorithm, cost)
                reserved.counted(owed, cost, answer.now)
        except Exception:  # noqa: BLE001 - a store that fails is not asked for the rest either
            reserved.returned.clear()
            reserved.owed.clear()

    async def _reserve(self, engine: Engine, costs: list[float]) -> None:
        """Reserve the costs, and serve the queue with what is granted."""
        algorithm, ahead = self.algorithm, self._ahead()
        wanted = len(costs)
        costs += self._prefetched(engine, costs)
        try:
            answer = await self.store.reserve(self.key, algorithm, costs, horizon=ahead)
        except Exception as error:  # noqa: BLE001 - the waiters get it, whatever it is
            self.prefetch.reset()
            engine.fail_all(error)
            return
        taken = len(answer.instants)
        now = self.hold(engine, costs[:taken], answer)
        self._note_queue(answer, ahead, rejected=not taken)
        if taken < wanted:
            self._rejected_cost = costs[taken]
            self._rejected_until = now + answer.retry_after
            ahead = self._ahead() if self.store.reserves_ahead else 0.0
            self._ask_at = max(now + SHORTEST_BREAK, self._rejected_until - ahead)
        if engine.queue.count:
            engine.turn()
        else:
            self.give_back(engine)

    def _ahead(self) -> float:
        """Return how many seconds ahead the next call may reserve."""
        least = self.batching.max_reservation
        return least if self.max_reservation is not None else max(least, self._queue)

    def _note_queue(self, answer: "Answer", ahead: float, *, rejected: bool) -> None:
        """Learn how far ahead the processes have reserved.

        Where each has a token and that takes longer than `ahead`, the others would be rejected in
        turns, and the tokens go to whoever asks at the right instant: they have to queue as well.
        """
        if rejected and 0.0 < answer.retry_after < math.inf:
            self._queue = min(max(2.0 * ahead, answer.retry_after), MOST_AHEAD)
        elif answer.instants and answer.instants[-1] - answer.now < self._queue / 4:
            self._queue /= 2.0

    def hold(self, engine: Engine, costs: list[float], answer: "Answer") -> float:
        """Keep what the store has granted. Return the time."""
        now = self.note(engine, answer)
        held = cast("Reserved", engine.bucket.own[0])
        held.hold(reserved_of(engine), now, costs, answer.instants, answer.now)
        return now

    def note(self, engine: Engine, answer: "Answer") -> float:
        """Note the state of the record. Return the time."""
        now, reserved = engine.now(), reserved_of(engine)
        reserved.remaining, reserved.known_until = answer.remaining, now + answer.reset_after
        return now

    # ---- what is returned ------------------------------------------------------------------------

    def give_back(self, engine: Engine) -> None:
        """Return the reservations if nobody waits, except prefetched tokens that may be kept."""
        now, reserved = engine.now(), reserved_of(engine)  # a request that just started used one
        if not self.prefetch.is_given or engine.closed:
            reserved.give_back()
            return
        reserved.give_back_later(now)
        reserved.give_back_older(now - self.prefetch.patience)
        loop = engine.loop
        if reserved.ready and self._timer is None and loop is not None and not loop.is_closed():
            # A weak reference: a timer must not keep a limiter alive.
            over = functools.partial(self._prefetch_over, weakref.ref(engine))
            self._timer = loop.call_later(self.prefetch.patience, over)

    def _prefetch_over(self, engine_ref: "weakref.ref[Engine]") -> None:
        """Return the prefetched tokens that were not used in time."""
        self._timer = None
        engine = engine_ref()
        if engine is not None and not engine.queue.count:
            self.give_back(engine)
            self.start(engine)

    def stop_timer(self) -> None:
        """Leave no timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- what to ask for -------------------------------------------------------------------------

    def _prefetched(self, engine: Engine, costs: list[float]) -> list[float]:
        """Return the costs to reserve beyond those of the waiters, if so much remains."""
        alone = len(costs) == 1 and engine.queue.count == 1
        most = self.prefetch.tokens(self.batching.batch, alone=alone)
        if not most:
            return []
        reserved = reserved_of(engine)
        known = engine.now() < reserved.known_until
        remaining = reserved.remaining if known else engine.capacity
        more = min(most, math.floor(remaining - math.fsum(costs)))
        return self.prefetch.costs(more) if more >= 1 else []

    def _costs_to_ask(self, engine: Engine, most: int) -> list[float]:
        """Return the costs to reserve now, `most` at the most; none if it is too early."""
        costs = self.missing(engine, most)
        return costs if costs and not self.wait_to_ask(engine, costs[0]) else []

    def wait_to_ask(self, engine: Engine, cost: float) -> float:
        """Seconds for which a call for the cost is of no use."""
        now = engine.now()
        wait = until(self._ask_at, now) if cost >= self._rejected_cost else 0.0
        return max(wait, engine.bucket.quota_delay(now, cost))

    def rejected_for(self, now: float, cost: float, ahead: float) -> float:
        """Seconds for which the store has rejected the cost, or the `ahead` tokens before it."""
        return until(self._rejected_until, now) if ahead or cost >= self._rejected_cost else 0.0

    def missing(self, engine: Engine, most: int) -> list[float]:
        """Return the costs at the head of the queue that are not reserved, the first `most`.

        There are none while half of a batch is still reserved, for waiters without a free slot, and
        in a pause.
        """
        if engine.rejects_waiters or engine.now() < engine.pause.ends_at:
            return []
        reserved, free = reserved_of(engine), engine.semaphore.free
        tokens, begun = reserved.tokens, False
        costs: list[float] = []
        for waiter in engine.queue:
            future = waiter.future
            if future is None or waiter in self.undecided:
                continue
            if not future.done():
                if not free or len(costs) == most:
                    break
                free -= 1
            elif not is_granted(future):
                continue
            cost = waiter.cost
            if not cost:
                continue
            if not costs and tokens >= cost - _ROUNDING:
                if not begun and 2 * tokens > self.batching.batch:
                    break
                tokens -= cost
            else:
                if not begun and tokens > 0.0 and not engine.resuming:
                    # Parts, each ready at another time: they would never be usable all at once.
                    reserved.give_back()
                costs.append(cost)
                tokens = 0.0
            begun = True
        return costs


def reserved_of(engine: Engine) -> ReservedState:
    """Return the reservations of an engine."""
    state: ReservedState = engine.bucket.own[1]
    return state
