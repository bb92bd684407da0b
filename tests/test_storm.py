"""A storm of everything together: whatever happens, what a limiter promises holds.

Times and costs are binary fractions, so the sums here are exact.
"""

import asyncio
import itertools
import math
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiothrottle import CostTooHigh, Permit, RateLimiter, ThrottleTimeout
from aiothrottle.testing import VirtualTimeLoop

PERIOD, PARENTS_LIMIT, PARENTS_SLOTS = 1.0, 4.0, 3


@dataclass(frozen=True)
class Come:
    where: int
    cost: float
    priority: int
    timeout: float | None
    stay: float
    settle: float | None


@dataclass(frozen=True)
class Cancel:
    which: int


@dataclass(frozen=True)
class Pause:
    where: int  # -1: the parent
    seconds: float


@dataclass(frozen=True)
class Rate:
    where: int
    limit: int


@dataclass(frozen=True)
class Slots:
    where: int
    slots: int


@dataclass(frozen=True)
class Wait:
    seconds: float


Happening: TypeAlias = Come | Cancel | Pause | Rate | Slots | Wait
SECONDS = st.sampled_from([0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75])
COSTS = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 3.0])
WHERE = st.integers(0, 1)
COMES = st.builds(
    Come,
    WHERE,
    COSTS,
    st.sampled_from([0, 0, 0, 1, 3]),
    st.sampled_from([None, None, None, 0.0, 0.5, 2.0]),
    SECONDS,
    st.sampled_from([None, None, 0.0, 0.5, 4.0]),
)
WAITS = st.builds(Wait, SECONDS)
HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    COMES,
    COMES,
    COMES,
    WAITS,
    WAITS,
    st.builds(Cancel, st.integers(0, 7)),
    st.builds(Pause, st.integers(-1, 1), SECONDS),
    st.builds(Rate, WHERE, st.sampled_from([2, 3, 5])),
    st.builds(Slots, WHERE, st.sampled_from([1, 2, 4])),
)


@dataclass(eq=False)
class Books:
    """What one limiter was given to do, counted by brute force."""

    limiter: RateLimiter
    limit: float
    slots: int
    paused_until: float = 0.0
    lowest_limit: float = math.inf
    most_inside: int = 0

    def __post_init__(self) -> None:
        self.lowest_limit, self.most_inside = self.limit, self.slots

    def counts(self) -> tuple[int, int]:
        figures = self.limiter.statistics()
        return figures.in_flight, figures.waiting


@dataclass(eq=False)
class Guest:
    """One that comes to the limiter in the storm."""

    come: Come
    charged: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    arrived: float = math.nan
    task: "asyncio.Task[None] | None" = None
    waits: bool = False
    inside: bool = False
    hopeless: bool = False

    @property
    def gives_up(self) -> bool:
        done = self.task is not None and (self.task.done() or self.task.cancelling() > 0)
        return done or self.hopeless

    def used(self, now: float) -> float:
        return math.fsum(cost for at, cost in self.charged if at + PERIOD > now)


class Storm(VirtualTimeLoop):
    """A loop on which guests come and go, and that looks at the limiters after each turn."""

    def __init__(self, *, with_parent: bool) -> None:
        super().__init__()
        self.parent: Books | None = None
        if with_parent:
            above = RateLimiter(PARENTS_LIMIT, PARENTS_SLOTS, clock=self.time)
            self.parent = Books(above, PARENTS_LIMIT, PARENTS_SLOTS)
        parent = self.parent.limiter if self.parent else None
        self.children = [
            Books(RateLimiter(3, 2, parent=parent, clock=self.time), 3, 2) for _ in range(2)
        ]
        self.guests: list[Guest] = []
        self.neglected: list[Guest] = []

    def _run_once(self) -> None:
        before = self.time()
        super()._run_once()  # type: ignore[misc]
        # Time moves when nothing is left to do. Then nobody may wait who could have gone.
        if self.time() > before:
            assert not self.neglected
        self.look()

    def of(self, where: int) -> list[Guest]:
        return [guest for guest in self.guests if guest.come.where == where]

    def look(self) -> None:
        heads: list[Guest] = []
        for where, child in enumerate(self.children):
            inside = sum(guest.inside for guest in self.of(where))
            waiting = sum(guest.waits for guest in self.of(where))
            assert child.counts() == (inside, waiting)
            # Whoever was inside when the limit was lowered stays; nobody comes to them.
            child.most_inside = max(child.slots, min(child.most_inside, inside))
            assert inside <= child.most_inside
            queue = [guest for guest in self.of(where) if guest.waits and not guest.gives_up]
            if queue:
                head = min(queue, key=self.place)
                if self.fits(child, self.of(where), head):
                    heads.append(head)
        # A head that the parent has no room for may stand there before another one.
        blocked = self.parent and not all(
            self.fits(self.parent, self.guests, head) for head in heads
        )
        self.neglected = [] if blocked else heads
        if self.parent:
            in_flight, waiting = self.parent.counts()
            assert in_flight == sum(guest.inside for guest in self.guests) <= self.parent.slots
            assert waiting <= len(self.children)  # no more than one of each

    def place(self, guest: Guest) -> tuple[float, int]:
        return guest.arrived - 10 * guest.come.priority, -guest.come.priority

    def fits(self, books: Books, guests: list[Guest], newcomer: Guest) -> bool:
        used = math.fsum(guest.used(self.time()) for guest in guests)
        inside = sum(guest.inside for guest in guests)
        return (
            self.time() >= books.paused_until
            and inside < books.slots
            # What costs nothing does not ask whether there is a debt.
            and (newcomer.come.cost == 0 or used + newcomer.come.cost <= books.limit)
        )

    async def visit(self, guest: Guest) -> None:
        come, child = guest.come, self.children[guest.come.where]
        throttle = child.limiter.throttle(come.cost, priority=come.priority, timeout=come.timeout)
        guest.arrived, guest.waits = self.time(), True
        try:
            async with throttle as permit:
                self.enter(guest)
                await asyncio.sleep(come.stay)
                if come.settle is not None:
                    self.settle(guest, permit, come.settle)
                    await asyncio.sleep(0)
        except ThrottleTimeout:
            assert come.timeout is not None
            assert self.time() <= guest.arrived + come.timeout + 0.01
        finally:
            guest.waits = guest.inside = False

    def enter(self, guest: Guest) -> None:
        own = self.of(guest.come.where)
        ahead = [other for other in own[: own.index(guest)] if other.waits and not other.gives_up]
        assert all(other.come.priority != guest.come.priority for other in ahead)
        assert self.fits(self.children[guest.come.where], own, guest)
        assert not self.parent or self.fits(self.parent, self.guests, guest)
        guest.waits, guest.inside = False, True
        guest.charged.append((self.time(), guest.come.cost))

    def settle(self, guest: Guest, permit: Permit, cost: float) -> None:
        permit.settle(cost)
        less = guest.come.cost - cost
        if less < 0:
            guest.charged.append((self.time(), -less))
        else:
            guest.charged[0] = (guest.charged[0][0], cost)

    async def happen(self, happening: Happening) -> None:
        match happening:
            case Come():
                guest = Guest(happening)
                self.guests.append(guest)
                guest.task = self.create_task(self.visit(guest))
            case Cancel(which):
                alive = [guest.task for guest in self.guests if guest.task and not guest.gives_up]
                if alive:
                    alive[which % len(alive)].cancel()
            case Pause(where, seconds):
                books = self.children[where] if where >= 0 or not self.parent else self.parent
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
                self.children[where].slots = slots
                inside = sum(guest.inside for guest in self.of(where))
                self.children[where].most_inside = max(slots, inside)
            case Wait(seconds):
                await asyncio.sleep(seconds)

    async def rage(self, happenings: list[Happening]) -> None:
        for happening in happenings:
            await self.happen(happening)
        tasks = [guest.task for guest in self.guests if guest.task]
        async with asyncio.timeout(10_000):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for guest, outcome in zip(self.guests, outcomes, strict=True):
            match outcome:
                case None | asyncio.CancelledError():
                    pass
                case CostTooHigh():
                    assert guest.come.cost > self.children[guest.come.where].lowest_limit
                case error:
                    raise error
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await self.find_all_as_new()

    async def find_all_as_new(self) -> None:
        everybody = [*self.children, *([self.parent] if self.parent else [])]
        assert [books.counts() for books in everybody] == [(0, 0)] * len(everybody)
        pause = max(books.paused_until for books in everybody) - self.time()
        await asyncio.sleep(max(PERIOD, pause))
        for books in everybody:
            asked = min(books.limit, self.parent.limit if self.parent else math.inf)
            assert (await books.limiter.peek()).remaining == asked
            decision = await books.limiter.try_acquire(asked)
            assert decision.permit is not None
            decision.permit.release()
            await asyncio.sleep(PERIOD)


def rage(happenings: list[Happening], *, with_parent: bool) -> Storm:
    storm = Storm(with_parent=with_parent)
    with asyncio.Runner(loop_factory=lambda: storm) as runner:
        runner.run(storm.rage(happenings))
    return storm


@settings(max_examples=300)
@given(st.lists(HAPPENINGS, min_size=20, max_size=60))
def test_in_a_storm_of_everything_all_invariants_hold(happenings: list[Happening]) -> None:
    rage(happenings, with_parent=False)


# Slots are taken away in the very turn in which somebody was granted one.
LOWERED: list[Happening] = [
    Come(0, 1.0, 0, None, 0.0, None),
    Come(0, 1.0, 0, None, 0.125, None),
    Come(0, 1.0, 0, None, 1.0, None),
    Come(0, 1.0, 0, None, 0.0, None),
    Come(0, 1.0, 0, None, 0.0, None),
    Slots(0, 4),
    Come(0, 2.0, 0, None, 0.0, None),
    Wait(0.5),
    Come(0, 1.0, 0, 0.0, 0.0, None),
    Wait(0.5),
    Slots(0, 1),
]


@settings(max_examples=300)
@example(LOWERED)
@given(st.lists(HAPPENINGS, min_size=20, max_size=60))
def test_in_a_storm_of_everything_with_a_parent_all_invariants_hold(
    happenings: list[Happening],
) -> None:
    rage(happenings, with_parent=True)


def test_the_storm_does_let_guests_in() -> None:
    """Else it could not fail."""
    comes = [
        Come(where, 1.0, 0, None, 0.0, None) for where, _ in itertools.product((0, 1), range(9))
    ]
    for with_parent, end in ((False, 2.0), (True, 4.0)):
        storm = rage([*comes], with_parent=with_parent)
        assert [len(guest.charged) for guest in storm.guests] == [1] * 18
        assert max(at for guest in storm.guests for at, _ in guest.charged) == end
