"""A cancelled waiter leaves the limiter as if it had never come, whenever it is cancelled."""

import asyncio
import itertools
import math
import random
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiothrottle import LimiterClosed, RateLimiter
from aiothrottle.testing import VirtualTimeLoop, greatest_count
from tests.virtually import counts, now, turns, virtual


def consumers(loop: asyncio.AbstractEventLoop) -> int:
    """Return how many consumer tasks are alive, counted by their name."""
    return sum(task.get_name() == "aiothrottle consumer" for task in asyncio.all_tasks(loop))


async def remaining(limiter: RateLimiter) -> float:
    decision = await limiter.try_acquire(0)
    if decision.permit:
        decision.permit.release()
    return decision.remaining


# --- One waiter is cancelled, at every place in the queue and every turn around every instant ---


@dataclass
class Story:
    """What happened to everybody but the victim, and the state at the end."""

    victim: str = "absent"
    entered: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    in_flight_and_waiting: tuple[int, int] = (-1, -1)
    remaining_soon: float = math.nan
    remaining_later: float = math.nan


async def play(place: int | None, cancel_at: float, after_turns: int, pause: float) -> Story:
    """Eight come to a limiter of 2/s and two slots; the victim in between is cancelled."""
    limiter = RateLimiter(2, concurrency_limit=2, clock=now)
    story = Story()

    async def guest(name: int) -> None:
        async with limiter.throttle():
            story.entered.append((name, now()))
            await asyncio.sleep(0.25)

    async def victim() -> None:
        async with limiter.throttle():
            story.victim = "entered"

    everybody = [guest(name) for name in range(8)]
    if place is not None:
        everybody.insert(place, victim())
    tasks = [asyncio.create_task(one) for one in everybody]
    if pause:
        asyncio.get_running_loop().call_later(0.25, limiter.pause, pause)
    # A timer that was set before the timers of the limiter fires before them.
    if cancel_at:
        await asyncio.sleep(cancel_at)
    await turns(after_turns)
    if place is not None and tasks[place].cancel():
        story.victim = "entered" if story.victim == "entered" else "cancelled"
    await asyncio.wait(tasks)
    story.in_flight_and_waiting = counts(limiter)
    story.remaining_soon = await remaining(limiter)
    await asyncio.sleep(1)
    story.remaining_later = await remaining(limiter)
    return story


def story_of(place: int | None, cancel_at: float, after_turns: int, pause: float) -> Story:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(play(place, cancel_at, after_turns, pause))


INSTANTS = [(time, turn) for time in (0.0, 0.25, 0.5, 1.0, 1.25, 2.0) for turn in range(5)]


@pytest.mark.parametrize("pause", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 8])
def test_cancelled_waiter_leaves_no_trace(place: int, pause: float) -> None:
    cancelled = 0
    for time, turn in INSTANTS:
        story = story_of(place, time, turn, pause)
        if story.victim == "cancelled":
            cancelled += 1
            story.victim = "absent"
            assert story == story_of(None, time, turn, pause), (time, turn)
        else:
            assert story.victim == "entered"
            assert story.in_flight_and_waiting == (0, 0)
            assert story.remaining_later == 2
    # The first two start in their first turn; the others wait for a second or more.
    assert cancelled >= (1 if place < 2 else 15)


@pytest.mark.parametrize("victims", list(itertools.combinations(range(1, 5), 2)))
@virtual
async def test_waiters_cancelled_after_grant_pass_places_on(
    victims: tuple[int, ...],
) -> None:
    limiter = RateLimiter(5, concurrency_limit=5, clock=now)
    (await limiter.acquire(5)).release()
    entered: list[tuple[int, float]] = []

    async def guest(name: int) -> None:
        async with limiter.throttle():
            entered.append((name, now()))
            if name == 0:
                # All five have been granted in this turn, and only this one has resumed.
                assert counts(limiter)[0] == 1
                for victim in victims:
                    assert tasks[victim].cancel()

    tasks = [asyncio.create_task(guest(name)) for name in range(8)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, BaseException) for outcome in outcomes] == [
        name in victims for name in range(8)
    ]
    survivors = [name for name in range(8) if name not in victims]
    assert entered == [(name, 1.0 if place < 5 else 2.0) for place, name in enumerate(survivors)]
    assert counts(limiter) == (0, 0)


@virtual
async def test_cancelled_block_frees_slot_but_spends_token() -> None:
    limiter = RateLimiter(2, concurrency_limit=1, clock=now)

    async def stay() -> None:
        async with limiter.throttle():
            await asyncio.sleep(100)

    inside, waiter = asyncio.create_task(stay()), asyncio.create_task(stay())
    await asyncio.sleep(0.25)
    assert counts(limiter) == (1, 1)
    inside.cancel()
    await asyncio.wait([inside])
    await turns(5)
    assert counts(limiter) == (1, 0)
    assert await remaining(limiter) == 0
    waiter.cancel()
    await asyncio.wait([waiter])
    assert counts(limiter) == (0, 0)
    await asyncio.sleep(1)
    assert await remaining(limiter) == 2


@virtual
async def test_token_counts_from_start_despite_cancelled_grant() -> None:
    limiter = RateLimiter(2, clock=now)
    (await limiter.acquire(2)).release()

    async def guest() -> None:
        async with limiter.throttle():
            if not other.done():
                other.cancel()

    one, other = (asyncio.create_task(guest()) for _ in range(2))
    await asyncio.wait([one, other])
    assert (now(), other.cancelled()) == (1.0, True)
    await asyncio.sleep(1)
    assert await remaining(limiter) == 2


@virtual
async def test_token_counts_once_if_later_grants_cannot_start() -> None:
    limiter, entered = RateLimiter(3, clock=now), list[tuple[int, float]]()
    (await limiter.acquire(3)).release()

    async def guest(name: int) -> None:
        async with limiter.throttle():
            entered.append((name, now()))
            if name == 0:
                limiter.pause(0.25)

    await asyncio.gather(*map(guest, range(3)))
    assert entered == [(0, 1.0), (1, 1.25), (2, 1.25)]


@pytest.mark.parametrize("after_turns", range(6))
@virtual
async def test_waiter_with_revoked_grant_is_not_overtaken(
    after_turns: int,
) -> None:
    limiter, entered = RateLimiter(concurrency_limit=2, clock=now), list[int]()
    held = [await limiter.acquire() for _ in range(2)]

    async def guest(name: int) -> None:
        async with limiter.throttle():
            entered.append(name)
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(guest(name)) for name in range(2)]
    await turns(5)
    for permit in held:
        permit.release()
    await turns(after_turns)
    limiter.update(concurrency_limit=1)
    await asyncio.wait(tasks)
    assert entered == [0, 1]


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
@virtual
async def test_waiter_cancelled_during_close_leaves_nothing(before: int, after: int) -> None:
    limiter = RateLimiter(1, concurrency_limit=3, clock=now)

    async def guest() -> None:
        async with limiter.throttle():
            pass

    tasks = [asyncio.create_task(guest()) for _ in range(4)]
    await turns(before)
    closing = asyncio.create_task(limiter.aclose())
    await turns(after)
    for task in tasks[1:3]:
        task.cancel()
    await asyncio.wait([closing, *tasks])
    assert counts(limiter) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for task in tasks:
        assert task.cancelled() or isinstance(task.exception(), LimiterClosed | None)
    assert now() == 0.0


@virtual
async def test_cancelled_aclose_still_closes_the_limiter() -> None:
    limiter = RateLimiter(1, clock=now)
    await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await turns(3)
    closing = asyncio.create_task(limiter.aclose())
    await turns(1)
    closing.cancel()
    await asyncio.wait([closing, waiter])
    assert isinstance(waiter.exception(), LimiterClosed)
    await limiter.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("drain", [False, True])
@virtual
async def test_aclose_waits_for_last_waiter_of_swept_consumer(drain: bool) -> None:
    limiter = RateLimiter(1, clock=now)
    await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await turns(1)
    (consumer,) = (
        task for task in asyncio.all_tasks() if task.get_name() == "aiothrottle consumer"
    )
    consumer.cancel()  # before its first step
    await limiter.aclose(drain=drain)
    await turns(1)
    assert waiter.done()
    assert (now(), waiter.exception() is None) == ((1.0, True) if drain else (0.0, False))


@virtual
async def test_timeout_around_the_wait_leaves_no_trace() -> None:
    limiter = RateLimiter(1, concurrency_limit=1, clock=now)
    (await limiter.acquire()).release()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25), limiter.throttle():
                pass
    assert counts(limiter) == (0, 0)
    async with limiter.throttle() as permit:
        assert (now(), permit.waited) == (1.0, 0.25)


@virtual
async def test_timeout_at_the_instant_of_grant_loses_nothing() -> None:
    limiter = RateLimiter(1, concurrency_limit=1, clock=now)
    for _ in range(5):
        (await limiter.acquire()).release()
        began = now()
        try:
            async with asyncio.timeout(1), limiter.throttle():
                granted = 1
        except TimeoutError:
            granted = 0
        assert now() == began + 1
        assert counts(limiter) == (0, 0)
        assert await remaining(limiter) == 1 - granted
        await asyncio.sleep(1)


# --- Many are cancelled ---


@virtual
async def test_half_of_ten_thousand_cancelled_loses_nothing() -> None:
    limiter = RateLimiter(100, concurrency_limit=60, clock=now)
    chance = random.Random(20)
    entered: list[int] = []
    instants: list[float] = []

    async def guest(name: int) -> None:
        async with limiter.throttle():
            entered.append(name)
            instants.append(now())
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(guest(name)) for name in range(10_000)]
    for name in chance.sample(range(10_000), 5_000):
        delay = chance.choice([0, 1, 60]) * chance.random()
        asyncio.get_running_loop().call_later(delay, tasks[name].cancel)
    await asyncio.wait(tasks)
    lost = {name for name, task in enumerate(tasks) if task.cancelled()} - set(entered)
    assert 3_000 < len(lost) <= 5_000
    assert entered == [name for name in range(10_000) if name not in lost]
    # In no second fewer requests were granted than possible.
    assert instants == [float(place // 100) for place in range(len(entered))]
    assert counts(limiter) == (0, 0)
    await asyncio.sleep(1)
    assert await remaining(limiter) == 100
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- A storm ---

LIMIT, PERIOD = 3.0, 1.0


@dataclass(frozen=True)
class Come:
    cost: float
    stay: float


@dataclass(frozen=True)
class Cancel:
    which: int


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Close:
    pass


Happening: TypeAlias = Come | Cancel | Pause | Wait | Close
SECONDS = st.sampled_from([0.0, 0.0, 0.1, 0.25, 0.5, 1.0, 1.7])
COSTS = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.1, 0.5, 2.0, 3.0])
COMES = st.builds(Come, COSTS, SECONDS)
HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    COMES,
    COMES,
    st.builds(Wait, SECONDS),
    st.builds(Wait, st.just(0.0)),
    st.builds(Cancel, st.integers(0, 7)),
    st.builds(Pause, SECONDS),
)


@dataclass(eq=False)
class Guest:
    """A task that visits the limiter in the storm."""

    cost: float
    task: "asyncio.Task[None] | None" = None
    waits: bool = False
    inside: bool = False

    @property
    def gives_up(self) -> bool:
        return self.task is not None and (self.task.done() or self.task.cancelling() > 0)


class Storm(VirtualTimeLoop):
    """An event loop that checks the limiter after each turn while guests arrive and leave."""

    def __init__(self, slots: int | None) -> None:
        super().__init__()
        self.limiter = RateLimiter(LIMIT, concurrency_limit=slots, clock=self.time)
        self.slots = math.inf if slots is None else slots
        self.guests: list[Guest] = []
        self.grants: list[tuple[float, float]] = []
        self.paused_until = 0.0
        self.closed = False
        self.neglected: Guest | None = None
        self.unserved = 0

    def _run_once(self) -> None:
        before = self.time()
        super()._run_once()  # type: ignore[misc]
        # Time moves when nothing is left to do. Then no waiter may be left that fits.
        if self.time() > before:
            assert self.neglected is None
        self.check()

    def check(self) -> None:
        in_flight, waiting = counts(self.limiter)
        inside = sum(guest.inside for guest in self.guests)
        assert inside <= in_flight <= self.slots
        assert waiting == sum(guest.waits for guest in self.guests)
        alive = consumers(self)
        assert alive <= 1
        # A consumer that ended as a waiter came is followed by another one in the next turn.
        self.unserved = self.unserved + 1 if waiting and not alive else 0
        assert self.unserved <= 1
        head = next((guest for guest in self.guests if guest.waits and not guest.gives_up), None)
        self.neglected = head if head and inside < self.slots and self.room_for(head) else None

    def room_for(self, guest: Guest) -> bool:
        if self.closed:
            return True
        used = math.fsum(cost for instant, cost in self.grants if instant + PERIOD > self.time())
        return self.time() >= self.paused_until and used + guest.cost <= LIMIT + 1e-9

    async def visit(self, guest: Guest, stay: float) -> None:
        guest.waits = True
        try:
            async with self.limiter.throttle(guest.cost):
                guest.waits, guest.inside = False, True
                self.enter(guest)
                await asyncio.sleep(stay)
        finally:
            guest.waits = guest.inside = False

    def enter(self, guest: Guest) -> None:
        assert not self.closed
        assert self.time() >= self.paused_until
        ahead = self.guests[: self.guests.index(guest)]
        assert all(other.gives_up or not other.waits for other in ahead)
        assert sum(other.inside for other in self.guests) <= self.slots
        self.grants.append((self.time(), guest.cost))
        last = [cost for instant, cost in self.grants if instant + PERIOD > self.time()]
        assert math.fsum(last) <= LIMIT + 1e-9

    async def happen(self, happening: Happening) -> None:
        match happening:
            case Come(cost, stay):
                guest = Guest(cost)
                self.guests.append(guest)
                guest.task = self.create_task(self.visit(guest, stay))
            case Cancel(which):
                alive = [guest.task for guest in self.guests if guest.task and not guest.gives_up]
                if alive:
                    alive[which % len(alive)].cancel()
            case Pause(seconds):
                self.limiter.pause(seconds)
                self.paused_until = max(self.paused_until, self.time() + seconds)
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Close():
                self.closed = True
                await self.limiter.aclose()
                assert counts(self.limiter)[1] == 0

    async def rage(self, happenings: list[Happening]) -> None:
        for happening in happenings:
            await self.happen(happening)
        tasks = [guest.task for guest in self.guests if guest.task]
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            match outcome:
                case None | asyncio.CancelledError():
                    pass
                case LimiterClosed():
                    assert self.closed
                case error:
                    raise error
        await turns(3)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert counts(self.limiter) == (0, 0)
        if not self.closed:
            await asyncio.sleep(max(PERIOD, self.paused_until - self.time()))
            assert await remaining(self.limiter) == LIMIT


@settings(max_examples=250)
@given(
    slots=st.sampled_from([None, 1, 2]),
    happenings=st.lists(HAPPENINGS, max_size=40),
    end=st.lists(st.one_of(st.builds(Close), COMES), max_size=3),
)
def test_invariants_hold_in_a_storm_of_changes(
    slots: int | None, happenings: list[Happening], end: list[Happening]
) -> None:
    storm = Storm(slots)
    with asyncio.Runner(loop_factory=lambda: storm) as runner:
        runner.run(storm.rage([*happenings, *end]))
    instants = [instant for instant, cost in storm.grants if cost >= 1]
    assert greatest_count(instants, PERIOD) <= LIMIT
