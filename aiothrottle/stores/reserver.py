"""The reserver: the one task that calls the store for a shared bucket.

Strategy. While there is something to send, the task sends it, one call after the other, and then
ends: an idle limiter has none. It returns reservations that nobody needs, records what is owed, and
reserves tokens for the waiters at the head of the queue, for many of them in one call. A
reservation belongs to no particular request: the head of the queue takes it when it is ready.

The store answers with durations. Here they begin when the answer is read, which is later than when
the store made it: so no request starts too early, however long the answer took.

Of a far store more is reserved, and earlier: what is left has to last for the round trip of the
next call. While nobody waits, the tokens of one round trip are kept, as they could not be reserved
again in time; the first of them that is not used in time returns them all.

Invariant: of the calls that reserve tokens for waiters one is under way at a time.
"""

import asyncio
import functools
import logging
import math
import random
import weakref
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from aiothrottle._core.engine import Engine
from aiothrottle.algorithms.protocol import Algorithm, until
from aiothrottle.amounts import covers, positive
from aiothrottle.errors import StoreUnavailable, reason_of
from aiothrottle.stores.batching import MOST_AHEAD, Batching
from aiothrottle.stores.reserved import Reserved, ReservedState
from aiothrottle.stores.round_trip import RoundTrip

if TYPE_CHECKING:
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.stores.outage import FailoverStore
    from aiothrottle.stores.prefetch import Prefetch
    from aiothrottle.stores.store import Answer, Key

__all__ = ["SHORTEST_BREAK", "Reserver"]

_logger = logging.getLogger("aiothrottle")

#: Seconds. A call at the very instant that the store named can be too early by a rounding.
SHORTEST_BREAK = 0.001
# A call comes later by up to this part of the time between two tokens, and these seconds.
_TURN, _LONGEST_TURN = 0.1, 0.01
# Reservations that are returned to a far store at a time.
_MOST_RETURNED = 32


class Reserver:
    """The task of one shared bucket, and the last known state of the record in the store.

    Args:
        algorithm: The algorithm that decides in the store.
        store: The store.
        key: The key of the record.
        max_reservation: Seconds ahead that tokens are reserved, at the most; None: what suits.
        prefetch: The tokens to reserve before anybody asks.
    """

    __slots__ = (
        "_ask_at",
        "_has_failed",
        "_queue",
        "_rejected_cost",
        "_rejected_until",
        "_round_trip",
        "_task",
        "_timer",
        "_tokens",
        "_turn",
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
        self._round_trip: RoundTrip = RoundTrip()
        #: Waiters that the store has not decided about yet, in order: see `Newcomers`.
        self.undecided: dict[Waiter, None] = {}
        self._task: asyncio.Task[None] | None = None
        # Of the prefetched tokens that are kept while nobody waits.
        self._timer: asyncio.TimerHandle | None = None
        # Whether tokens could not be returned or counted, for which one line is logged.
        self._has_failed = False
        # Tokens granted since the last one that was not ready at once, and the seconds by which the
        # next call may come later: see `_note_others`.
        self._tokens, self._turn = 0.0, 0.0
        self.use(algorithm)

    def use(self, algorithm: Algorithm[Any]) -> None:
        """Continue with another algorithm, and forget what the store rejected under the old one."""
        self.algorithm: Algorithm[Any] = algorithm
        self._follow_round_trip()
        self.prefetch.reset()
        # Seconds that others have reserved ahead, if that is more than `max_reservation`.
        self._queue = 0.0
        self.ask_again()

    def _follow_round_trip(self) -> None:
        """Size the calls to suit the algorithm and the store."""
        self.batching: Batching = Batching.of(
            self.algorithm, self.max_reservation, self._round_trip.seconds
        )

    @property
    def keeps_prefetched(self) -> bool:
        """Whether prefetched tokens are kept while nobody waits."""
        prefetch = self.prefetch
        return prefetch.given is not None or (prefetch.is_learned and self.batching.way > 0)

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
            elif costs := self._costs_to_ask(engine, self._room(engine)):
                if self._turn:
                    turn, self._turn = self._turn, 0.0
                    await asyncio.sleep(random.uniform(0.0, turn))
                    continue  # the queue may have changed
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
        """Return reservations, or record what one request owes.

        If that fails no caller waits for the error: what was to be returned stays spent, and what
        was owed is not counted.
        """
        reserved = reserved_of(engine)
        try:
            if reserved.returned:
                await self._refund(reserved)
            else:
                await self._record(reserved)
        except Exception as error:  # noqa: BLE001 - a store that fails is not called for the rest
            reserved.returned.clear()
            reserved.owed.clear()
            # That a store does not answer is logged already, once for all limiters: see `Health`.
            if not (self._has_failed or isinstance(error, StoreUnavailable)):
                self._has_failed = True
                _logger.warning(
                    "tokens of %.200r could not be returned, or counted: %.300r",
                    *(self.key, reason_of(error, None)),
                )

    async def _record(self, reserved: ReservedState) -> None:
        """Record what one request owes."""
        owed = reserved.owed.popleft()
        reserved.recorded.append(owed)
        cost = owed.cost
        try:
            answer = await self.store.record(self.key, self.algorithm, cost)
        except asyncio.CancelledError:
            reserved.owe_again()
            raise
        reserved.counted(owed, cost, answer.now)

    async def _refund(self, reserved: ReservedState) -> None:
        """Return one reservation; of a far store several at once, in order.

        Cancelled, it does not return them again: done twice, that would free tokens of others.
        """
        count = min(len(reserved.returned), _MOST_RETURNED if self.batching.way else 1)
        returned = [reserved.returned.popleft() for _ in range(count)]
        refunds = [
            self.store.refund(self.key, self.algorithm, each.cost, each.instant)
            for each in returned
        ]
        if count == 1:
            await refunds[0]
        else:
            for result in await asyncio.gather(*refunds, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def _reserve(self, engine: Engine, costs: list[float]) -> None:
        """Reserve the costs, and serve the queue with what is granted."""
        algorithm, ahead = self.algorithm, self._ahead()
        wanted = len(costs)
        costs += self._prefetched(engine, costs)
        begun = engine.bucket.clock()
        try:
            answer = await self.store.reserve(self.key, algorithm, costs, horizon=ahead)
        except Exception as error:  # noqa: BLE001 - the waiters get it, whatever it is
            self.prefetch.reset()
            engine.fail_all(error)
            return
        taken = len(answer.instants)
        now = self.hold(engine, costs[:taken], answer)
        self._note_queue(answer, ahead, rejected=not taken)
        if not engine.resources:  # of which any one can be spent
            self._note_others(answer, math.fsum(costs[:taken]))
        if self._round_trip.note(now - begun):
            self._follow_round_trip()
        if taken < wanted:
            self._rejected_cost = costs[taken]
            self._rejected_until = now + answer.retry_after
            self._ask_at = self._rejected_until - (
                self._ahead() if self.store.reserves_ahead else 0.0
            )
            if self.store.is_down:  # its return voids this, see `ask_again`
                self._ask_at = now + self.store.wait_for_return(costs[taken])
            self._ask_at = max(now + SHORTEST_BREAK, self._ask_at)
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

        Where one token for each process takes longer than `ahead`, the last ones would be rejected
        in turns, and tokens go to the process that asks at the right instant: so they queue too.
        """
        if rejected and 0.0 < answer.retry_after < math.inf:
            self._queue = min(max(2.0 * ahead, answer.retry_after), MOST_AHEAD)
        elif answer.instants and answer.instants[-1] - answer.now < self._queue / 4:
            self._queue /= 2.0

    def _note_others(self, answer: "Answer", tokens: float) -> None:
        """Let the other processes call first now and then, if they use most of the limit.

        Where there are ten tokens for eight processes, two of them are left over. All processes
        call at the same instant, when their reservations are ready, and the fastest one would get
        another token each time. Those of a far store do not.

        After a wait for a slower one of several limits a process that is alone comes late, too.
        """
        self._tokens += tokens
        wait = answer.instants[-1] - answer.now if answer.instants else 0.0
        if wait > 0.0:
            interval = self.batching.interval
            has_others = wait > 2.0 * self._tokens * interval and not self.batching.way
            self._turn = min(_TURN * interval, _LONGEST_TURN) if has_others else 0.0
            self._tokens = 0.0

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

    # ---- reservations that are returned ----------------------------------------------------------

    def give_back(self, engine: Engine) -> None:
        """Return the reservations if nobody waits, except prefetched tokens that may be kept."""
        now, reserved = engine.now(), reserved_of(engine)  # a request that just started used one
        if not self.keeps_prefetched or engine.closed:
            reserved.give_back()
            return
        patience = self.prefetch.patience
        reserved.give_back_later(now if self.prefetch.given else now + self._round_trip.seconds)
        reserved.give_back_older(now - patience)
        loop = engine.loop
        if reserved.ready and self._timer is None and loop is not None and not loop.is_closed():
            # A weak reference: a timer must not keep a limiter alive.
            over = functools.partial(self._prefetch_over, weakref.ref(engine))
            wait = until(reserved.ready[0].at + patience, now)
            self._timer = loop.call_later(max(SHORTEST_BREAK, wait), over)

    def _prefetch_over(self, engine_ref: "weakref.ref[Engine]") -> None:
        """Return the prefetched tokens that were not used in time, and all of a far store."""
        self._timer = None
        engine = engine_ref()
        if engine is not None and not engine.queue.count:
            reserved, too_old = reserved_of(engine), engine.now() - self.prefetch.patience
            if not self.prefetch.given and reserved.ready and reserved.ready[0].at <= too_old:
                self.prefetch.reset()
                reserved.give_back()
            self.give_back(engine)
            self.start(engine)

    def stop_timer(self) -> None:
        """Leave no timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- the costs to ask for --------------------------------------------------------------------

    def _prefetched(self, engine: Engine, costs: list[float]) -> list[float]:
        """Return the costs to reserve beyond those of the waiters."""
        prefetch, batching = self.prefetch, self.batching
        if engine.resources:
            return []  # the next request may need others
        if prefetch.given is not None:
            tokens = self._remaining(engine, costs, math.floor(prefetch.given.limit))
            return [float(tokens)] if tokens else []
        if batching.way:
            most = int((self._room(engine) - math.fsum(costs)) / costs[-1])
            return costs[-1:] * prefetch.learned_ahead(max(0, most))
        if len(costs) > 1 or engine.queue.count > 1:
            prefetch.reset()
            return []
        learned = prefetch.learned(prefetch.of_single_task(batching.batch))
        # One by one, so that a part can be granted.
        return [1.0] * self._remaining(engine, costs, learned)

    def _remaining(self, engine: Engine, costs: list[float], most: int) -> int:
        """Return how many of `most` tokens remain, as far as known, beside the costs."""
        if not most:
            return 0
        reserved = reserved_of(engine)
        known = engine.now() < reserved.known_until
        remaining = reserved.remaining if known else engine.capacity
        return max(0, min(most, math.floor(remaining - math.fsum(costs))))

    def _room(self, engine: Engine) -> int:
        """Return the most costs to ask for now."""
        return self.batching.room(self._left(engine) if self.batching.way else 0.0)

    def _left(self, engine: Engine) -> float:
        """Return the tokens that are reserved beyond those that the queue takes now.

        Of several resources those of requests: a call asks for a number of requests.
        """
        reserved = reserved_of(engine)
        tokens = reserved.tokens.real
        if not self.batching.way:
            return tokens
        now, waiting = engine.now(), engine.queue.cost.real
        ready = math.fsum([each.cost.real for each in reserved.ready if each.at <= now])
        return tokens - min(ready, waiting)

    def _costs_to_ask(self, engine: Engine, most: int) -> list[float]:
        """Return the costs to reserve now, `most` at the most; none if it is too early."""
        costs = self.missing(engine, most)
        return costs if costs and not self.wait_to_ask(engine, costs[0]) else []

    def wait_to_ask(self, engine: Engine, cost: float) -> float:
        """Seconds for which a call for the cost is of no use."""
        now = engine.now()
        wait = until(self._ask_at, now) if covers(cost, self._rejected_cost) else 0.0
        return max(wait, engine.bucket.quota_delay(now, cost))

    def rejected_for(self, now: float, cost: float, ahead: float) -> float:
        """Seconds for which the store has rejected the cost, or the `ahead` tokens before it."""
        is_rejected = bool(ahead) or covers(cost, self._rejected_cost)
        return until(self._rejected_until, now) if is_rejected else 0.0

    def missing(self, engine: Engine, most: int) -> list[float]:
        """Return the costs at the head of the queue that are not reserved, the first `most`.

        There are none while enough is still reserved, for waiters without a free slot, and in a
        pause. If all waiters have theirs, but more is to be prefetched, it is one cost.
        """
        if engine.rejects_waiters or engine.now() < engine.pause.opens_at:
            return []
        reserved, free = reserved_of(engine), engine.semaphore.free
        tokens, begun, cost = reserved.tokens, False, 0.0
        is_enough = self._left(engine) > self.batching.low
        costs: list[float] = []
        undecided = self.undecided  # there are none without a maximum wait
        for waiter in engine.queue:
            future = waiter.future
            if future is None or (undecided and waiter in undecided):
                continue
            if not future.done():
                if not free or len(costs) == most:
                    break
                free -= 1
            elif future.cancelled() or future.exception() is not None:
                continue  # it was not granted
            cost = waiter.cost
            if not cost:
                continue
            if not costs and covers(tokens, cost):
                if not begun and is_enough:
                    return []
                tokens -= cost
            else:
                if not begun and positive(tokens) and not engine.resuming:
                    # Parts, each ready at another time: they would never be usable all at once.
                    reserved.give_back()
                costs.append(cost)
                tokens = 0.0
            begun = True
        if not costs and cost and self.batching.way and self.prefetch.is_due and not is_enough:
            costs.append(cost)
        return costs


def reserved_of(engine: Engine) -> ReservedState:
    """Return the reservations of an engine."""
    state: ReservedState = engine.bucket.own[1]
    return state
