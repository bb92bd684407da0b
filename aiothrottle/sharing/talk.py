"""What a line says to the store, and what it is told.

Strategy. While there is something to say to the store one task says it, the talk, one call after
the other, and then it ends: an idle limiter has none. It gives back what was not needed, charges
what is owed, and then reserves for those at the head of the line, in one call. What it has reserved
belongs to no one: whoever is the head when it is ready goes. Who is alone in line is let go by the
talk itself; for more there is the consumer. If it comes again within the turn, each time, the next
call asks for twice as much: what is not used within its turn goes back, so nothing is used late.

The store answers with durations. Here they begin when the answer is read, which is later than when
it was given: so nobody goes too early, however long it was under way.
"""

import asyncio
import math
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from aiothrottle import events
from aiothrottle._core.engine import Engine, is_granted
from aiothrottle.algorithms.algorithm import Algorithm, until
from aiothrottle.algorithms.reserved import Reserved, ReservedState
from aiothrottle.sharing.guarded import GuardedStore
from aiothrottle.sharing.pace import Pace
from aiothrottle.sharing.standin import OnStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.rate import Rate
    from aiothrottle.stores.store import Answer, Key, Store

__all__ = ["Talk"]

# Seconds. Who asks again just when it may can be too early by a rounding.
_SHORTEST_BREAK = 0.001
# Seconds that a slot may be used late. The store counts it at its instant: what goes much later
# goes together with what the store lets go then.
_PATIENCE = 0.02
# Tokens that are asked for ahead, at the most, for one who comes again within a turn each time.
_MOST_HASTY = 63


class Talk(Engine):
    """A line, what the store has reserved for it, and the task that talks to the store."""

    __slots__ = (
        "_ask_at",
        "_asking",
        "_given_horizon",
        "_hasty",
        "_key",
        "_lease",
        "_lease_timer",
        "_lingers",
        "_pace",
        "_refused_cost",
        "_refused_until",
        "_store",
        "_talk",
    )

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
        """Find out how much to ask for, and forget what the store said of another algorithm."""
        self._pace = Pace.of(algorithm, self._given_horizon)
        # So many are asked for beside the one who is alone: see `_learn_haste`.
        self._hasty = 0
        # The store has refused this cost, until that instant: until shortly before it need not be
        # asked.
        self._refused_cost, self._refused_until, self._ask_at = 0.0, -math.inf, -math.inf

    @property
    def _algorithm(self) -> Algorithm[Any]:
        return cast("Reserved", self.bucket.own[0]).algorithm

    @property
    def _reserved(self) -> ReservedState:
        state: ReservedState = self.bucket.own[1]
        return state

    # ---- giving back -----------------------------------------------------------------------------

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
        if not self.queue.count:
            self._give_back()
        if self._reserved.ready:
            self._watch_lease()

    # ---- the talk --------------------------------------------------------------------------------

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
        said = True
        while said:  # something may come up while the connection is given back
            said = False
            async with self._store.keep():
                while await self._say_next():
                    said = True
        self._talk = None  # now: whoever comes in this turn starts another one
        # The consumer has to find out when to ask again; one who is alone may need one.
        if self.consumer.task is not None or not self._resuming:
            self.wake()

    async def _say_next(self) -> bool:
        """Say what there is to say, if there is anything."""
        self._lingers = False
        if self._resuming and self.consumer.task is None:
            # Who was alone, and has just been let go, may come again within a turn.
            self._lingers = True
            await asyncio.sleep(0)
            self._learn_haste()
        elif self._has_news:
            await self._settle_up()
        elif costs := self._wanted(self._pace.batch):
            await self._reserve(costs)
        else:
            return False
        return True

    def _learn_haste(self) -> None:
        """Ask for twice as much ahead if all of it was used within the turn; else for nothing.

        What was not used goes back: nothing that was asked for ahead is used later than that.
        """
        if self._resuming or self.consumer.task is not None or self._lease is not None:
            return
        self.now()  # whoever has just started has used a slot
        if self.queue.count and not self._reserved.ready:
            self._hasty = min(2 * self._hasty + 1, self._pace.batch - 1, _MOST_HASTY)
        else:
            self._hasty = 0
            if not self.queue.count:
                self._reserved.give_back()

    def _talk_ended(self, talk: "asyncio.Task[None]") -> None:
        if self._talk is talk:  # it was cancelled, but who still waits still needs an answer
            self._talk, self._lingers = None, False
            if not self.queue.count and self.consumer.task is None:
                self._give_back(talk=False)  # whoever sweeps up all tasks wants no new one
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
                await self._store.refund(self._key, self._algorithm, slot.cost, slot.instant)
            else:
                slot = reserved.owed.popleft()
                reserved.charged.append(slot)
                cost = slot.cost
                answer = await self._store.record(self._key, self._algorithm, cost)
                reserved.counted(slot, cost, answer.now)
        except Exception:  # noqa: BLE001 - a store that fails is not asked for the rest either
            reserved.returned.clear()
            reserved.owed.clear()

    async def _reserve(self, costs: list[float]) -> None:
        """Ask for the costs, and have the line look at what it was given."""
        algorithm, horizon = cast("Reserved", self.bucket.own[0]), self._pace.horizon
        wanted = len(costs)
        costs += self._ahead(costs)
        try:
            answer = await self._store.reserve(
                self._key, algorithm.algorithm, costs, horizon=horizon
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are to hear of it
            self._hasty = 0
            self.fail_all(error)
            return
        now = self._note(answer)
        taken = len(answer.instants)
        algorithm.hold(self._reserved, now, costs[:taken], answer.instants, answer.now)
        if taken > wanted:
            if self._lease is not None:
                self._watch_lease()
        elif taken < wanted:
            self._refused_cost = costs[taken]
            self._refused_until = now + answer.retry_after
            ahead = horizon if self._store.reserves_ahead else 0.0
            self._ask_at = max(now + _SHORTEST_BREAK, self._refused_until - ahead)
        if self.consumer.task is not None:
            self.turn()
        elif self.queue.count:
            self._let_go_alone()
        else:
            self._give_back()

    def _ahead(self, costs: list[float]) -> list[float]:
        """Give the costs to take for those who come later, of what is left after these."""
        if self._lease is not None:
            most = math.floor(self._lease.limit)
        else:
            most = self._hasty if self.consumer.task is None else 0
        if not most:
            return []
        left = self._reserved.left if self.now() < self._reserved.known_until else self.capacity
        more = min(most, math.floor(left - math.fsum(costs)))
        if more < 1:
            return []
        return [1.0] * more if self._lease is None else [float(more)]

    def _let_go_alone(self) -> None:
        """Grant to the only one who waits, for whom there is no consumer; or have one wait.

        There would be one if anything had changed meanwhile, such as a pause.
        """
        self.grant(self.now())
        if not self._resuming:
            self.wake()

    def _store_changed(self, change: events.StoreDown | events.StoreUp | None) -> None:
        """Ask again at once: what the store, or what stood in for it, has refused is over."""
        self._refused_until = self._ask_at = -math.inf
        self.wake()
        # Of two things that the store is away from, the first is told, and the last that is back.
        if change is not None and (self.leased is None or self.leased.store_up):
            super().report_store(change)

    def report_store(self, change: events.StoreDown | events.StoreUp) -> None:
        """Report it of the slots, unless it was reported of the rate, or will be."""
        if not self._store.is_down:
            super().report_store(change)

    def _note(self, answer: "Answer") -> float:
        """Remember how the record stands. Gives the instant."""
        now, reserved = self.now(), self._reserved
        reserved.left, reserved.known_until = answer.remaining, now + answer.reset_after
        return now

    def _wanted(self, most: int) -> list[float]:
        """Give the costs to ask for now, `most` at the most; none if it is not the time to ask."""
        now = self.now()
        if self.rejects_waiters or now < self.pause.ends_at:
            return []
        costs = self._missing(most)
        return costs if costs and not self._wait_to_ask(now, costs[0]) else []

    def _wait_to_ask(self, now: float, cost: float) -> float:
        """Seconds for which it is of no use to ask for the cost."""
        wait = until(self._ask_at, now) if cost >= self._refused_cost else 0.0
        return max(wait, self.bucket.quota_delay(now, cost))

    def _entitled(self) -> "Iterable[Waiter]":
        """Give those who wait, in order, for whom the store may be asked."""
        return self.queue

    def _missing(self, most: int) -> list[float]:
        """Give the costs at the head of the line for which nothing is reserved, the first `most`.

        None while half of what a call asks for is reserved still, and none for those for whom
        there is no slot.
        """
        reserved, free = self._reserved, self.semaphore.free
        tokens, begun = reserved.tokens, False
        costs: list[float] = []
        for waiter in self._entitled():
            future = waiter.future
            if future is None:
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
            if not costs and tokens >= cost - 1e-9:
                if not begun and 2 * tokens > self._pace.batch:
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
