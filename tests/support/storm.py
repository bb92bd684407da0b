"""A storm of all operations on a limiter, checked against brute-force books.

Guests come, wait, stay and leave; they are cancelled; limits change; limiters pause and close.
Times and costs are binary fractions, so the sums here are exact.
"""

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from aiothrottle import CostTooHigh, KeyedRateLimiter, LimiterClosed, Permit, RateLimiter
from aiothrottle import ThrottleTimeout as TimedOut
from tests.support.interleaving import InterleavingLoop, Schedule
from tests.support.virtually import counts

PERIOD, PARENTS_LIMIT, PARENTS_SLOTS = 1.0, 4.0, 3
Family: TypeAlias = Literal["alone", "parent", "keyed"]


class Come(NamedTuple):
    where: int
    cost: float
    priority: int
    timeout: float | None
    stay: float
    settle: float | None


class Try(NamedTuple):
    where: int
    cost: float
    stay: float


class Cancel(NamedTuple):
    which: int


class Pause(NamedTuple):
    where: int  # -1: the parent
    seconds: float


class Rate(NamedTuple):
    where: int
    limit: int


class Slots(NamedTuple):
    where: int
    slots: int | None


class Close(NamedTuple):
    where: int  # -1: the parent
    drain: bool


class Wait(NamedTuple):
    seconds: float


Happening: TypeAlias = Come | Try | Cancel | Pause | Rate | Slots | Close | Wait


@dataclass(eq=False)
class Books:
    find: Callable[[], RateLimiter]
    limit: float
    slots: float
    paused_until: float = 0.0
    lowest_limit: float = math.inf
    most_inside: float = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.lowest_limit, self.most_inside = self.limit, self.slots

    @property
    def limiter(self) -> RateLimiter:
        return self.find()


@dataclass(eq=False)
class Guest:
    come: Come | Try
    name: str = ""
    #: The tokens that an observer saw it spend, and when.
    charged: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    #: How many seconds later the limiter may have counted them, as the machine was busy.
    late: float = 0.0
    number: int = -1
    arrived: float = math.nan
    task: "asyncio.Task[None] | None" = None
    waits: bool = False
    inside: bool = False
    hopeless: bool = False
    #: Whether it was the head of its queue, so that it may stand in the queue of the parent.
    was_head: bool = False

    @property
    def priority(self) -> int:
        return self.come.priority if isinstance(self.come, Come) else 0

    @property
    def gives_up(self) -> bool:
        done = self.task is not None and (self.task.done() or self.task.cancelling() > 0)
        return done or self.hopeless

    def used(self, now: float) -> float:
        return math.fsum(cost for at, cost in self.charged if at + PERIOD > now)


class Storm(InterleavingLoop):
    def __init__(self, family: Family = "alone", schedule: Schedule | None = None) -> None:
        super().__init__(schedule)
        self.parent: Books | None = None
        if family != "alone":
            above = RateLimiter(PARENTS_LIMIT, concurrency_limit=PARENTS_SLOTS, clock=self.time)
            self.parent = Books(lambda: above, PARENTS_LIMIT, PARENTS_SLOTS)
        options: dict[str, Any] = {"parent": self.parent and self.parent.limiter}
        options |= {"concurrency_limit": 2, "clock": self.time}
        self.is_keyed = family == "keyed"
        limiters: Any = [RateLimiter(3, **options) for _ in range(2)]
        if self.is_keyed:
            limiters = KeyedRateLimiter(3, **options)
        self.children = [Books(partial(limiters.__getitem__, place), 3, 2) for place in range(2)]
        self.guests: list[Guest] = []
        self.neglected: list[Guest] = []
        #: Those that have entered since time moved on: their tokens may not be counted yet.
        self.fresh: list[Guest] = []
        self.closings: list[asyncio.Task[None]] = []
        #: The tasks of the limiters that serve their queues, in the order of their start.
        self.consumers: list[asyncio.Task[None]] = []
        self.numbers = itertools.count()
        self.over = False  # a promise was broken, or all is done

    # ---- checks --------------------------------------------------------------------------------

    def _run_once(self) -> None:
        super()._run_once()
        if not self.over:
            self.over = True  # it stays so if this raises
            self.check()
            self.over = False

    def step(self) -> int:
        busy = self.busy
        which = super().step()
        for guest in self.fresh:
            guest.late += self.busy - busy
        return which

    def _jump(self) -> bool:
        # Time moves on when nothing is left to do. Then no waiter may be left that fits.
        self.fresh.clear()
        if self.neglected and not self.over:
            self.over = True
            names = [guest.name for guest in self.neglected]
            raise AssertionError(f"{names} could have been granted")
        return super()._jump()

    def of(self, where: int) -> list[Guest]:
        return [guest for guest in self.guests if guest.come.where == where]

    def check(self) -> None:
        heads: list[Guest] = []
        for where, child in enumerate(self.children):
            own = self.of(where)
            self.reprieve(child, own)
            inside = sum(guest.inside for guest in own)
            waiting = sum(guest.waits for guest in own)
            assert counts(child.limiter) == (inside, waiting)
            # Guests inside when the limit was lowered stay; no further ones come in.
            child.most_inside = max(child.slots, min(child.most_inside, inside))
            assert inside <= child.most_inside
            head = self.head_of(own)
            if head and self.has_room(child, own, head.come.cost):
                heads.append(head)
        self.neglected = [] if self.parent and self.is_blocked(self.parent, heads) else heads
        if self.parent:
            in_flight, waiting = counts(self.parent.limiter)
            assert in_flight == sum(guest.inside for guest in self.guests) <= self.parent.slots
            assert waiting <= len(self.children)  # at most one of each

    def reprieve(self, child: Books, guests: list[Guest]) -> None:
        """Clear `hopeless` where the limit was raised before the waiter's turn to fail.

        A waiter in the parent's queue fails when it comes back; the others fail in the next turn.
        So a waiter that still waits when nothing is left to do has not failed.
        """
        if not self._ready:
            for guest in guests:
                guest.hopeless &= not guest.waits or guest.come.cost > child.limit

    def head_of(self, guests: list[Guest]) -> Guest | None:
        queue = [guest for guest in guests if guest.waits and not guest.gives_up]
        head = min(queue, key=self.place, default=None)
        if head:
            head.was_head = True
        return head

    def place(self, guest: Guest) -> tuple[float, int, int]:
        return guest.arrived - 10 * guest.priority, -guest.priority, guest.number

    def is_blocked(self, parent: Books, heads: list[Guest]) -> bool:
        """Return whether the parent's queue may be blocked before the heads.

        A waiter there need not be a head any more: one with a higher priority may have come since.
        """
        _, waiting = counts(parent.limiter)
        costs = {head.come.cost for head in heads}
        if waiting:
            costs |= {guest.come.cost for guest in self.guests if guest.waits and guest.was_head}
        room = all(self.has_room(parent, self.guests, cost) for cost in costs)
        return parent.closed or not room

    def fits(self, books: Books, guests: list[Guest], cost: float, *, late: bool = False) -> bool:
        """Return whether the cost fits, with tokens counted as an observer does, or later.

        The limiter never counts a token before its request starts, but on a busy machine it may be
        some time after that.
        """
        now = self.time()
        used = math.fsum(guest.used(now - (guest.late if late else 0.0)) for guest in guests)
        if now < books.paused_until or sum(guest.inside for guest in guests) >= books.slots:
            return False
        return cost == 0 or used + cost <= books.limit  # a cost of 0 ignores a debt

    def has_room(self, books: Books, guests: list[Guest], cost: float) -> bool:
        return self.fits(books, guests, cost, late=True)

    # ---- guests --------------------------------------------------------------------------------

    async def visit(self, guest: Guest) -> None:
        guest.arrived, guest.number = self.time(), next(self.numbers)
        try:
            if isinstance(guest.come, Try):
                await self.attempt(guest, guest.come)
            else:
                await self.wait_and_stay(guest, guest.come)
        finally:
            self.note(f"{guest.name} leaves")
            guest.waits = guest.inside = False

    async def wait_and_stay(self, guest: Guest, come: Come) -> None:
        limiter, busy = self.children[come.where].limiter, self.busy
        self.head_of(self.of(come.where))  # this guest may replace it in this very turn
        guest.waits = True
        try:
            how: dict[str, Any] = {"priority": come.priority, "timeout": come.timeout}
            if guest.number % 2:
                permit = await limiter.acquire(come.cost, **how)
                try:
                    await self.stay(guest, permit, come)
                finally:
                    permit.release()
            else:
                async with limiter.throttle(come.cost, **how) as permit:
                    await self.stay(guest, permit, come)
        except TimedOut:
            assert come.timeout is not None
            assert self.time() <= guest.arrived + come.timeout + 0.01 + (self.busy - busy)

    async def stay(self, guest: Guest, permit: Permit, come: Come) -> None:
        self.enter(guest)
        await asyncio.sleep(come.stay)
        if come.settle is not None:
            permit.settle(come.settle)
            if come.settle > come.cost:
                guest.charged.append((self.time(), come.settle - come.cost))
            else:
                guest.charged[0] = (guest.charged[0][0], come.settle)
            await asyncio.sleep(0)

    async def attempt(self, guest: Guest, attempt: Try) -> None:
        child, own = self.children[attempt.where], self.of(attempt.where)
        decision = await child.limiter.try_acquire(attempt.cost)
        queue = any(other.waits for other in own)
        if decision.permit is None:
            fits = self.has_room(child, own, attempt.cost)
            assert queue or self.parent or not fits, f"{guest.name} was rejected without a reason"
            return
        assert not queue, f"{guest.name} has overtaken the waiters"
        try:
            self.enter(guest)
            await asyncio.sleep(attempt.stay)
        finally:
            decision.permit.release()

    def enter(self, guest: Guest) -> None:
        self.note(f"{guest.name} enters")
        own = self.of(guest.come.where)
        for other in own:
            before = other.waits and not other.gives_up and other.number < guest.number
            assert not before or other.priority != guest.priority, f"{other.name} was overtaken"
        child, cost = self.children[guest.come.where], guest.come.cost
        assert self.fits(child, own, cost), "above the limit"
        assert not self.parent or self.fits(self.parent, self.guests, cost), "above the parent's"
        guest.waits, guest.inside = False, True
        guest.charged.append((self.time(), guest.come.cost))
        self.fresh.append(guest)

    # ---- happenings ----------------------------------------------------------------------------

    def victims(self) -> list["asyncio.Task[None]"]:
        tasks = [guest.task for guest in self.guests if guest.task and not guest.gives_up]
        tasks += [closing for closing in self.closings if not closing.done()]
        # Sweeps that cancel all tasks of a loop meet the consumers as well.
        return tasks + [consumer for consumer in self.consumers if not consumer.done()]

    def scheduled(self, callback: object) -> None:
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task) and task.get_name() == "aiothrottle consumer":
            self.consumers += [task] if task not in self.consumers else []

    @property
    def everybody(self) -> list[Books]:
        return [*self.children, *([self.parent] if self.parent else [])]

    def books_of(self, where: int) -> Books:
        return self.children[where] if where >= 0 or not self.parent else self.parent

    def interrupt(self, which: int) -> None:
        where = which % 2
        changes: list[Happening] = [Pause(where, 0.125), Rate(where, 3), Slots(where, 1)]
        self.change([*changes, Slots(where, 2), Pause(-1, 0.125)][which // 2 % 5])

    def change(self, happening: Happening) -> None:
        self.note(str(happening))
        match happening:
            case Come() | Try():
                guest = Guest(happening, f"guest {len(self.guests)}")
                self.guests.append(guest)
                guest.task = self.create_task(self.visit(guest), name=guest.name)
            case Wait():
                pass
            case Cancel(which):
                if alive := [it.task for it in self.guests if it.task and not it.gives_up]:
                    alive[which % len(alive)].cancel()
            case Pause(where, seconds):
                books = self.books_of(where)
                books.limiter.pause(seconds)
                books.paused_until = max(books.paused_until, self.time() + seconds)
            case Rate(where, limit):
                child = self.children[where]
                child.limiter.update(rate_limit=limit)
                child.limit, child.lowest_limit = limit, min(limit, child.lowest_limit)
                for guest in self.of(where):
                    guest.hopeless |= guest.waits and guest.come.cost > limit
            case Slots(where, slots):
                self.children[where].limiter.update(concurrency_limit=slots)
                child = self.children[where]
                child.slots = math.inf if slots is None else slots
                inside = sum(guest.inside for guest in self.of(where))
                child.most_inside = max(child.slots, inside)
            case Close(where, drain):
                closing = self.close_books(self.books_of(where), drain=drain)
                self.closings.append(self.create_task(closing, name="closing"))

    async def close_books(self, books: Books, *, drain: bool) -> None:
        books.closed = True
        if not drain:
            for guest in self.guests:
                ours = books is self.parent or self.children[guest.come.where] is books
                guest.hopeless |= guest.waits and ours
        await books.limiter.aclose(drain=drain)
        if books is not self.parent:
            assert counts(books.limiter)[1] == 0, "closed, but some wait"

    async def rage(self, happenings: list[Happening]) -> None:
        for happening in happenings:
            self.change(happening)
            if isinstance(happening, Wait):
                await asyncio.sleep(happening.seconds)
        tasks = [guest.task for guest in self.guests if guest.task]
        async with asyncio.timeout(10_000):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for closing in await asyncio.gather(*self.closings, return_exceptions=True):
                if closing is not None and not isinstance(closing, asyncio.CancelledError):
                    raise closing
        for guest, outcome in zip(self.guests, outcomes, strict=True):
            child = self.children[guest.come.where]
            match outcome:
                case None | asyncio.CancelledError():
                    pass
                case CostTooHigh():
                    assert guest.come.cost > child.lowest_limit
                case LimiterClosed():
                    assert child.closed or (self.parent and self.parent.closed)
                case error:
                    raise error
        self.schedule = {}
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [counts(books.limiter) for books in self.everybody] == [(0, 0)] * len(self.everybody)
        if not self.is_keyed:  # else it checks now and then which keys may be forgotten
            assert [timer for timer in self._scheduled if not timer.cancelled()] == []
        if not any(books.closed for books in self.everybody):
            await self.find_all_as_new()

    async def find_all_as_new(self) -> None:
        pause = max(books.paused_until for books in self.everybody) - self.time()
        await asyncio.sleep(max(PERIOD, pause))
        for books in self.everybody:
            asked = min(books.limit, self.parent.limit if self.parent else math.inf)
            assert (await books.limiter.peek()).remaining == asked
            decision = await books.limiter.try_acquire(asked)
            assert decision.permit is not None
            decision.permit.release()
            await asyncio.sleep(PERIOD)


def rage(
    happenings: list[Happening], family: Family = "alone", schedule: Schedule | None = None
) -> Storm:
    storm = Storm(family, schedule)
    with asyncio.Runner(loop_factory=lambda: storm) as runner:
        try:
            runner.run(storm.rage(happenings))
        except BaseException as error:
            storm.over, storm.schedule = True, {}
            error.add_note("\n".join(storm.trace))
            raise
    return storm
