"""Limiters that share a store keep all promises, whatever the store does, in any order of events.

The store takes its time, fails in every way that `tests/failing.py` knows, and comes back. For
more of it than usual see `tests/core/test_exploration.py`.
"""

import asyncio
import os
import random
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import pytest

from aiothrottle import (
    LimiterClosed,
    RateLimiter,
    SlidingWindowLog,
    StoreUnavailable,
    ThrottleTimeout,
    WaitUntil,
)
from aiothrottle import Rate as Quota
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores.shared_bucket import SharedBucket
from aiothrottle.testing import greatest_count
from tests.failing import Client, Server
from tests.interleaving import InterleavingLoop, Schedule, made_up

pytestmark = pytest.mark.slow

SCHEDULES = int(os.environ.get("AIOTHROTTLE_SCHEDULES", "480"))
SHARES = 8
LIMIT, SLOTS, LATENCY = 3, 2, 0.125
# Seconds by which a request may come later than the store has counted it: half of the way to the
# store and back, and the tolerance of a reservation.
LATE = LATENCY / 2 + 0.021
Way: TypeAlias = Literal["raise", "closed"]
MODES = ["up", "refuses", "stalls", "drops", "reads"]


class Processes(InterleavingLoop):
    """Three limiters of one key, their clients, and a store that changes between `MODES`."""

    limit = LIMIT
    #: Another error that a client may get.
    rejection: type[Exception] = LimiterClosed

    def __init__(self, schedule: Schedule, chance: random.Random) -> None:
        super().__init__(schedule)
        self.chance = chance
        self.server = Server()
        self.limiters: list[RateLimiter] = []
        self.guests: list[asyncio.Task[None]] = []
        self.inside = [0, 0, 0]
        self.entered: list[float] = []
        self.granted_at: list[tuple[float, float]] = []

    def victims(self) -> list["asyncio.Task[None]"]:
        tasks = [guest for guest in self.guests if not guest.done()]
        for limiter in self.limiters:
            engine = limiter._engine
            assert isinstance(engine.shared, SharedBucket)
            newcomers = engine.shared._newcomers
            own = (
                engine.consumer.task,
                engine.shared._reserver.task,
                None if newcomers is None else newcomers._task,
            )
            tasks += [task for task in own if task is not None]
        return tasks

    def interrupt(self, which: int) -> None:
        self.server.mode = MODES[which % len(MODES)]
        self.note(f"the store: {self.server.mode}")

    async def visit(self, where: int, cost: float, stay: float, *, tries: bool) -> None:
        limiter = self.limiters[where]
        if tries:
            permit = (await limiter.try_acquire(cost)).permit
        else:
            permit = await limiter.acquire(cost)
        if permit is None:
            return
        try:
            self.inside[where] += 1
            assert self.inside[where] <= SLOTS
            self.entered += [self.time()] * int(cost)
            self.granted_at.append((self.time(), cost))
            await asyncio.sleep(stay)
        finally:
            self.inside[where] -= 1
            permit.release()

    def come(self) -> None:
        pick = self.chance.choice
        visit = self.visit(
            pick([0, 0, 1, 2]),
            pick([1.0, 1.0, 2.0, 0.0]),
            pick([0.0, 0.25, 1.0]),
            tries=pick([True, False, False]),
        )
        self.guests.append(self.create_task(visit, name=f"guest {len(self.guests)}"))

    def make(self, store: Client, how: Way) -> RateLimiter:
        return RateLimiter(
            self.limit, concurrency_limit=SLOTS, store=store, key="k", on_store_error=how
        )

    async def run_wild(self) -> None:
        pick = self.chance.choice
        ways: list[Way] = ["raise", "closed"]
        how = pick(ways)
        for _ in self.inside:
            store = Client(self.server)
            self.limiters.append(self.make(store, how))
        self.server.latency = pick([0.0, LATENCY])
        for _ in range(self.chance.randint(3, 20)):
            match pick(["come", "come", "come", "wait", "wait", "mood", "pause", "close"]):
                case "come":
                    self.come()
                case "wait":
                    await asyncio.sleep(pick([0.0, 0.125, 0.5, 1.5]))
                case "mood":
                    self.interrupt(pick([0, 0, 1, 2, 3, 4]))
                case "pause":
                    self.limiters[pick([0, 1, 2])].pause(0.25)
                case _ if self.chance.random() < 0.2:
                    closing = self.limiters[2].aclose(drain=self.chance.random() < 0.5)
                    self.guests.append(self.create_task(closing, name="closing"))
                case _:
                    pass
        self.schedule, self.server.mode = {}, "up"
        await self.end()

    async def end(self) -> None:
        """Nobody waits for ever, no task remains, and the record is as new."""
        async with asyncio.timeout(1000):
            outcomes = await asyncio.gather(*self.guests, return_exceptions=True)
        harmless = (asyncio.CancelledError, LimiterClosed, StoreUnavailable, self.rejection)
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, harmless):
                raise outcome
        self.check()
        for limiter in self.limiters:
            statistics = limiter.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            await limiter.aclose()
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(5)  # more than any reservation
        answer = await Client(self.server).peek("k", self.algorithm)
        assert answer.remaining == self.algorithm.capacity

    @property
    def algorithm(self) -> Algorithm[Any]:
        return SlidingWindowLog(Quota(self.limit))

    def check(self) -> None:
        assert greatest_count(self.entered or [0.0], 1.0 - LATE) <= self.limit


class Hurrying(Processes):
    """With a greater limit, and clients that return at once: for them more is prefetched."""

    limit = 200

    async def visit(self, where: int, cost: float, stay: float, *, tries: bool) -> None:
        for _ in range(self.chance.choice([1, 4, 40])):
            async with self.limiters[where].throttle(min(cost, 1.0)):
                self.entered += [self.time()] * int(min(cost, 1.0))
        await super().visit(where, cost, stay, tries=tries)


class Rejecting(Processes):
    """With `WaitUntil`, which counts rejected requests: one grant per interval for all three."""

    rejection = ThrottleTimeout

    def make(self, store: Client, how: Way) -> RateLimiter:
        return RateLimiter(
            concurrency_limit=SLOTS,
            algorithm=self.algorithm,
            store=store,
            key="k",
            on_store_error=how,
        )

    @property
    def algorithm(self) -> Algorithm[Any]:
        return WaitUntil(0.5, raise_after=1.5, limit=3)

    def check(self) -> None:
        granted_at = sorted((at, cost) for at, cost in self.granted_at if cost)
        for (first, cost), (later, _) in pairwise(granted_at):
            assert later - first >= 0.5 * cost - LATE, granted_at


class RejectingLocally(Rejecting):
    """During an outage each limiter uses its share, or no limit. Nobody waits for ever."""

    def make(self, store: Client, how: Way) -> RateLimiter:  # noqa: ARG002
        alone: list[Literal["local", "open"]] = ["local", "local", "open"]
        return RateLimiter(
            algorithm=self.algorithm,
            concurrency_limit=SLOTS,
            store=store,
            key="k",
            on_store_error=self.chance.choice(alone),
        )

    def check(self) -> None:
        pass


def run_story(number: int, kind: type[Processes] = Processes) -> None:
    chance = random.Random(number)
    random.seed(number)  # the pauses between two tries are random as well
    kinds = ("o", "oc", "c", "i", "oci")  # a busy machine may be late as long as it likes
    loop = kind(made_up(chance, 300, kinds), chance)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(loop.run_wild())
        except Exception as error:  # noqa: BLE001 - each is a promise that was broken
            loop.schedule = {}
            trace = "\n".join(loop.trace)
            pytest.fail(f"story {number}: {error!r}\n\n{trace}", pytrace=True)


@pytest.mark.parametrize("share", range(SHARES))
def test_all_promises_hold_whatever_the_store_does(share: int) -> None:
    for number in range(share, SCHEDULES, SHARES):
        run_story(number)


@pytest.mark.parametrize("share", range(SHARES))
def test_all_promises_hold_with_adaptive_prefetch(share: int) -> None:
    for number in range(share, SCHEDULES // 4, SHARES):
        run_story(number, Hurrying)


@pytest.mark.parametrize("share", range(SHARES))
def test_all_promises_hold_with_rejections(share: int) -> None:
    for number in range(share, SCHEDULES, SHARES):
        run_story(number, Rejecting)
    for number in range(share, SCHEDULES // 4, SHARES):
        run_story(number, RejectingLocally)


# A single waiter waited for ever: the store task first had something to refund, which a sweep of
# all tasks had prevented, and then found the limiter paused.
@pytest.mark.parametrize("number", [1089, 4420, 5558])
def test_fixed_stories_keep_all_promises(number: int) -> None:
    run_story(number)
