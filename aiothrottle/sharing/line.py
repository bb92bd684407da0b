"""A line whose budget is in a store that other processes share.

Strategy. The line stays as it is, and knows only what is reserved: its law (`Reserved`) lets go
what the store has let go, as soon as it is ready. Beside the consumer there is one more task, the
talk: while there is something to say to the store it says it, one call after the other, and then
it ends. An idle limiter has none. It gives back what was not needed, charges what is owed, and
then reserves for those at the head of the line, in one call. What it has reserved belongs to no
one: whoever is the head when it is ready goes. When the line is empty the rest is given back.

The store answers with durations. Here they begin when the answer is read, which is later than when
it was given: so nobody goes too early, however long it was under way.
"""

import asyncio
import math
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from aiothrottle import events
from aiothrottle.algorithms import AllOf
from aiothrottle.algorithms.algorithm import Algorithm, until
from aiothrottle.algorithms.reserved import Reserved, ReservedState, Slot
from aiothrottle.consumer import is_granted
from aiothrottle.decision import Decision
from aiothrottle.errors import LimiterClosed
from aiothrottle.line import Line
from aiothrottle.sharing.guarded import GuardedStore
from aiothrottle.sharing.standin import OnStoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.permit import Permit
    from aiothrottle.rate import Rate
    from aiothrottle.stores.store import Answer, Key, Store

__all__ = ["SharedLine"]

# One call asks for as many as go in so many seconds, and for this number at the most.
_SECONDS_PER_CALL, _MOST_PER_CALL = 0.03, 1000
# Seconds ahead. Enough for sixteen processes that have reserved one each, the first of them when
# all is spent: with less they would be refused in turns, and ask again.
_PROCESSES = 16
_LEAST_HORIZON, _MOST_HORIZON = 0.2, 60.0
# Slots are leased for those who go in so many seconds, or within the horizon if that is less: a
# slot and then a token take two calls, and the network may be slow.
_SECONDS_OF_SLOTS = 0.5
# Seconds. Who asks again just when it may can be too early by a rounding.
_SHORTEST_BREAK = 0.001
# Seconds that a slot may be used late. The store counts it at its instant: what goes much later
# goes together with what the store lets go then.
_PATIENCE = 0.02


class SharedLine(Line):
    """The waiting line in front of a record in a store."""

    __slots__ = (
        "_ask_at",
        "_asking",
        "_batch",
        "_given_horizon",
        "_horizon",
        "_key",
        "_lease",
        "_lease_timer",
        "_lingers",
        "_refused_cost",
        "_refused_until",
        "_soon",
        "_store",
        "_talk",
    )

    taken: int  # the bucket's, as in `Line`

    def __init__(
        self,
        algorithm: Algorithm[Any],
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
        *,
        store: "Store",
        key: "Key",
        horizon: float | None = None,
        lease: "Rate | None" = None,
        on_store_error: OnStoreError = "raise",
        max_queue: int | None = None,
    ) -> None:
        super().__init__(Reserved(algorithm), concurrency_limit, clock, max_queue=max_queue)
        self._store = GuardedStore(store, on_store_error, clock, self._store_changed)
        self._key = key
        self._given_horizon = horizon
        self._lease = lease
        self._lease_timer: asyncio.TimerHandle | None = None
        self._talk: asyncio.Task[None] | None = None
        self._lingers = False  # the talk waits a turn for who is alone, and was just let go
        # Questions whose askers were cancelled: what they are given goes back.
        self._asking: set[asyncio.Task[Answer]] = set()
        self._learn_pace(algorithm)

    def _learn_pace(self, algorithm: Algorithm[Any]) -> None:
        """Find out how much to ask for, and forget what the store said of another law."""
        interval = _interval(algorithm)
        self._batch = int(min(max(1.0, _SECONDS_PER_CALL / interval), _MOST_PER_CALL))
        self._horizon = self._given_horizon
        if self._horizon is None:
            horizon = _wait_when_spent(algorithm) + _PROCESSES * interval
            self._horizon = min(max(_LEAST_HORIZON, horizon), _MOST_HORIZON)
        seconds = min(self._horizon, _SECONDS_OF_SLOTS)
        self._soon = int(min(max(1.0, seconds / interval), _MOST_PER_CALL))
        # The store has refused this cost, until that instant: until shortly before it need not be
        # asked.
        self._refused_cost, self._refused_until, self._ask_at = 0.0, -math.inf, -math.inf

    @property
    def store_up(self) -> bool:
        """Whether the store has answered when it was last asked."""
        return not self._store.is_down and super().store_up is not False

    @property
    def _law(self) -> Algorithm[Any]:
        return cast("Reserved", self.own_law[0]).law

    @property
    def _reserved(self) -> ReservedState:
        state: ReservedState = self.state if self._announced is None else self.state[0]
        return state

    # ---- the line, with what a store makes different -------------------------------------------

    def settle(self, permit: "Permit", cost: float) -> None:
        """Charge the permit `cost` in place of what it was charged; the store hears of it soon."""
        super().settle(permit, cost)
        self._start_talk()

    def use(self, algorithm: Algorithm[Any]) -> None:
        """Go on with another algorithm; the record stays."""
        self._learn_pace(algorithm)
        super().use(Reserved(algorithm))

    def delay(self, now: float, permit: "Permit", *, ahead: float | None = None) -> float:
        """Seconds until the permit may go, as far as that is known here: it may be longer."""
        if ahead is None:
            ahead = self._waiters.cost_ahead(permit)
        wait = super().delay(now, permit, ahead=ahead)
        if wait < math.inf:
            return wait
        ready = self._reserved.ready
        wait = until(max(self.paused_until, ready[-1].at if ready else now), now)
        if ahead or permit._tokens >= self._refused_cost:
            wait = max(wait, until(self._refused_until, now))
        return wait

    def _allowed_soon(self, most: int) -> int:
        return min(most, self._soon)

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
            or not self._store.is_forgettable(self.clock())
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
        self._store.restart(loop, self.clock)
        self._talk = self._lease_timer = None
        self._lingers = False
        self._asking.clear()
        self._reserved.give_back()
        self._refused_until = self._ask_at = -math.inf

    def _consumer_ended(self, consumer: "asyncio.Task[None]") -> None:
        super()._consumer_ended(consumer)
        if not self._waiters.count:
            # Whoever sweeps up all tasks is about to close the loop: no new one then.
            self._give_back(talk=not consumer.cancelling())

    def _see_to_newcomer(self) -> None:
        """Have the consumer look; for who is alone the talk is enough, which then lets it go."""
        alone = self._waiters.count == 1 and self._consumer is None
        if alone and self.leased is None:  # a slot is another store's matter
            if self._talk is None:
                self._start_talk()
                self._lingers = self._talk is not None
            if self._lingers:
                return
        super()._see_to_newcomer()

    def give_up(self, permit: "Permit") -> None:
        """Take the permit out of line at any point, as if it had never come."""
        super().give_up(permit)
        if self._consumer is None and not self._waiters.count:
            self._give_back()  # else the end of the consumer sees to it

    def _serve(self) -> float | None:
        """Grant to as many as fit now, and ask the store for those behind them."""
        now = self.now()
        if now < self.paused_until:
            self._reserved.give_back()
        elif not self._resuming:
            self._reserved.give_back_older(now - self._patience)
        seconds = super()._serve()
        wait = math.inf
        if self._talk is None:
            costs = [] if self._turned_away or now < self.paused_until else self._missing(1)
            if costs:
                wait = self._wait_to_ask(now, costs[0])
            if not wait or self._has_news:
                self._begin_talk()
        if seconds is None:
            return None
        seconds = min(seconds, wait or math.inf)
        return None if seconds == math.inf else seconds  # the talk, or who starts, has it look

    @property
    def _patience(self) -> float:
        """Seconds that a slot may be used late."""
        return _PATIENCE if self._lease is None else max(_PATIENCE, self._lease.period)

    def _give_back(self, *, talk: bool = True) -> None:
        """Return what nobody waits for, but for a lease, while it lasts."""
        now, reserved = self.now(), self._reserved  # whoever has just started has used a slot
        if self._lease is None or self.closed:
            reserved.give_back()
        else:
            reserved.give_back_later(now)
            reserved.give_back_older(now - self._patience)
        if talk:
            self._start_talk()

    def _watch_lease(self) -> None:
        """See to it that what is taken ahead is given back in time."""
        if self._lease_timer is None and self.loop is not None:
            self._lease_timer = self.loop.call_later(self._patience, self._lease_over)

    def _lease_over(self) -> None:
        self._lease_timer = None
        if not self._waiters.count:
            self._give_back()
        if self._reserved.ready:
            self._watch_lease()

    # ---- the talk ------------------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        """Whether there is anything that the store has still to hear of."""
        return bool(self._reserved.returned or self._reserved.owed)

    def _start_talk(self) -> None:
        """See to it that what there is to say to the store is said."""
        if self._talk is not None or self.loop is None or self.loop.is_closed():
            return
        if self._has_news or self._wanted(1):
            self._begin_talk()

    def _begin_talk(self) -> None:
        # As with the consumer: a plain Task, in an empty context.
        self._talk = asyncio.Task(
            self._say_all(), loop=self.loop, name="aiothrottle store", context=Context()
        )
        self._talk.add_done_callback(self._talk_ended, context=Context())

    async def _say_all(self) -> None:
        while True:
            self._lingers = False
            if self._has_news:
                await self._settle_up()
            elif costs := self._wanted(self._batch):
                await self._reserve(costs)
            elif self._resuming and self._consumer is None:
                # Who was alone, and has just been let go, may come again within a turn.
                self._lingers = True
                await asyncio.sleep(0)
            else:
                self._talk = None  # now: whoever comes in this turn starts another one
                # The consumer has to find out when to ask again; one who is alone may need one.
                if self._consumer is not None or not self._resuming:
                    self.wake()
                return

    def _talk_ended(self, talk: "asyncio.Task[None]") -> None:
        if self._talk is talk:  # it was cancelled, but who still waits still needs an answer
            self._talk, self._lingers = None, False
            self.wake()

    async def _settle_up(self) -> None:
        """Give back one slot, or charge what one request owes.

        If that fails nobody is there to hear of it: what was to be given back stays spent, and
        what was owed is not counted.
        """
        reserved = self._reserved
        try:
            if reserved.returned:
                slot = reserved.returned.popleft()
                await self._store.refund(self._key, self._law, slot.cost, slot.instant)
            else:
                slot = reserved.owed.popleft()
                reserved.charged.append(slot)
                cost = slot.cost
                answer = await self._store.record(self._key, self._law, cost)
                reserved.counted(slot, cost, answer.now)
        except Exception:  # noqa: BLE001 - a store that fails is not asked for the rest either
            reserved.returned.clear()
            reserved.owed.clear()

    async def _reserve(self, costs: list[float]) -> None:
        """Ask for the costs, and have the line look at what it was given."""
        law, horizon = cast("Reserved", self.own_law[0]), self._horizon
        assert horizon is not None
        wanted = len(costs)
        costs += self._ahead(costs)
        try:
            answer = await self._store.reserve(self._key, law.law, costs, horizon=horizon)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are to hear of it
            self.fail_all(error)
            return
        now = self._note(answer)
        taken = len(answer.instants)
        law.hold(self._reserved, now, costs[:taken], answer.instants, answer.now)
        if taken > wanted:
            self._watch_lease()
        elif taken < wanted:
            self._refused_cost = costs[taken]
            self._refused_until = now + answer.retry_after
            ahead = horizon if self._store.reserves_ahead else 0.0
            self._ask_at = max(now + _SHORTEST_BREAK, self._refused_until - ahead)
        if self._consumer is not None:
            self._look()
        elif self._waiters.count:
            self._let_go_alone()
        else:
            self._give_back()

    def _ahead(self, costs: list[float]) -> list[float]:
        """Give the cost to take for those who come later: one, of what is left after these."""
        if self._lease is None:
            return []
        left = self._reserved.left if self.now() < self._reserved.known_until else self.capacity
        more = min(math.floor(self._lease.limit), math.floor(left - math.fsum(costs)))
        return [float(more)] if more >= 1 else []

    def _let_go_alone(self) -> None:
        """Grant to the only one who waits, for whom there is no consumer; or have one wait.

        There would be one if anything had changed meanwhile, such as a pause.
        """
        self._doubtful = False
        self._grant(self.now())
        if not self._resuming:
            self.wake()

    def _store_changed(self, change: events.StoreDown | events.StoreUp | None) -> None:
        """Ask again at once: what the store, or what stood in for it, has refused is over."""
        self._refused_until = self._ask_at = -math.inf
        self.wake()
        # Of two things that the store is away from, the first is told, and the last that is back.
        if change is not None and (self.leased is None or self.leased.store_up):
            super().tell_of_store(change)

    def tell_of_store(self, change: events.StoreDown | events.StoreUp) -> None:
        """Tell it of the slots, unless it has been told of the rate, or will be."""
        if not self._store.is_down:
            super().tell_of_store(change)

    def _note(self, answer: "Answer") -> float:
        """Remember how the record stands. Gives the instant."""
        now, reserved = self.now(), self._reserved
        reserved.left, reserved.known_until = answer.remaining, now + answer.reset_after
        return now

    def _wanted(self, most: int) -> list[float]:
        """Give the costs to ask for now, `most` at the most; none if it is not the time to ask."""
        now = self.now()
        if self._turned_away or now < self.paused_until:
            return []
        costs = self._missing(most)
        return costs if costs and not self._wait_to_ask(now, costs[0]) else []

    def _wait_to_ask(self, now: float, cost: float) -> float:
        """Seconds for which it is of no use to ask for the cost."""
        wait = until(self._ask_at, now) if cost >= self._refused_cost else 0.0
        if self._announced is not None:
            wait = max(wait, self._announced.delay(self.state[1], now, cost))
        return wait

    def _missing(self, most: int) -> list[float]:
        """Give the costs at the head of the line for which nothing is reserved, the first `most`.

        None while half of what a call asks for is reserved still, and none for those for whom
        there is no slot.
        """
        reserved, free = self._reserved, self.free
        tokens, begun = reserved.tokens, False
        costs: list[float] = []
        for permit in self._waiters:
            future = permit._future
            if future is None:
                continue
            if not future.done():
                if not free or len(costs) == most:
                    break
                free -= 1
            elif not is_granted(future):
                continue
            cost = permit._tokens
            if not cost:
                continue
            if not costs and tokens >= cost - 1e-9:
                if not begun and 2 * tokens > self._batch:
                    break
                tokens -= cost
            else:
                if not begun and tokens > 0.0 and not self._resuming:
                    # Scraps, each ready at another time: they would never be all there at once.
                    reserved.give_back()
                costs.append(cost)
                tokens = 0.0
            begun = True
        return costs

    # ---- a question of its own -----------------------------------------------------------------

    async def try_acquire(self, permit: "Permit") -> Decision:
        """Spend the permit's cost if it may go now and nobody waits."""
        if not self._has_room():
            self.refuse("no room")
            return await self._refusal(permit)
        self.taken += 1  # nobody else gets it while the store is asked
        try:
            answer = await self._ask(permit._tokens)
        except BaseException:
            self._free_slot()
            raise
        now = self._note(answer)
        if not answer.instants:
            self._free_slot()
            self.refuse("no room")
            return self._decide(answer, allowed=False)
        permit._at = now
        permit._held = permit._given = True
        self._granted += 1
        self._reserved.used.append((now, permit._tokens, answer.instants[0]))
        if self.listeners:
            self.tell(events.Granted(self.key, permit._tokens, 0.0))
        return self._decide(answer, allowed=True, permit=permit)

    async def peek(self, permit: "Permit") -> Decision:
        """Tell what `try_acquire` would say."""
        if not self._has_room():
            return await self._refusal(permit)
        answer = await self._store.peek(self._key, self._law, permit._tokens)
        self._note(answer)
        return self._decide(answer, allowed=answer.retry_after == 0.0)

    async def count(self, cost: float) -> None:
        """Count in the store what has happened already."""
        self._note(await self._store.record(self._key, self._law, cost))

    def _has_room(self) -> bool:
        """Tell whether all but the store would let somebody go now."""
        if self.closed:
            raise LimiterClosed(key=self.key)
        return not self._waiters.count and self.now() >= self.paused_until and self.free > 0

    async def _refusal(self, permit: "Permit") -> Decision:
        """Refuse what would not be the next to go."""
        permit._at = now = self.now()
        wait = self.delay(now, permit)
        answer = await self._store.peek(self._key, self._law, permit._tokens)
        return self._decide(answer, allowed=False, wait=wait)

    async def _ask(self, cost: float) -> "Answer":
        """Reserve what may go now. Who is cancelled meanwhile gets nothing, and nothing is lost."""
        reserve = self._store.reserve(self._key, self._law, [cost])
        asking = asyncio.create_task(reserve, name="aiothrottle store")
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda _: self._return(asking, cost))
            raise

    def _return(self, asking: "asyncio.Task[Answer]", cost: float) -> None:
        """Give back what nobody is there to use."""
        if not asking.cancelled() and asking.exception() is None:
            for instant in asking.result().instants:
                self._reserved.returned.append(Slot(math.nan, cost, instant))
            self._start_talk()

    def _free_slot(self) -> None:
        self.taken -= 1
        if self._starved:
            self.wake()

    def _decide(
        self,
        answer: "Answer",
        *,
        allowed: bool,
        wait: float = 0.0,
        permit: "Permit | None" = None,
    ) -> Decision:
        return Decision(
            allowed=allowed,
            limit=self.capacity,
            remaining=answer.remaining,
            retry_after=max(wait, answer.retry_after),
            reset_after=answer.reset_after,
            permit=permit,
        )


def _interval(algorithm: Algorithm[Any]) -> float:
    """Seconds between two tokens, on average, at the pace of the fastest limit."""
    laws = algorithm.algorithms if isinstance(algorithm, AllOf) else (algorithm,)
    return min(_drained_in(law) / law.capacity for law in laws)


def _wait_when_spent(law: Algorithm[Any]) -> float:
    """Seconds until one more may go, when all that may has gone."""
    state = law.start()
    law.take(state, 0.0, law.capacity)
    return law.delay(state, 0.0, min(1.0, law.capacity))


def _drained_in(law: Algorithm[Any]) -> float:
    state = law.start()
    law.take(state, 0.0, law.capacity)
    return law.reset_after(state, 0.0)
