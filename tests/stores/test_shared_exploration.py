"""Limiters that share a store keep all promises, whatever the store does, in any order of events.

The store takes its time, fails in every way that `tests/support/failing.py` knows, and comes back.
"""

import asyncio
import random
from itertools import pairwise
from typing import Any, cast

import pytest

from aiothrottle import Rate, RateLimiter
from aiothrottle.algorithms import Algorithm, SlidingWindowLog, WaitUntil
from aiothrottle.errors import LimiterClosed, StoreUnavailable, ThrottleTimeout
from aiothrottle.stores import Answer
from aiothrottle.testing import greatest_count
from tests.support.effort import seeds
from tests.support.failing import Client, Server
from tests.support.interleaving import InterleavingLoop, made_up
from tests.support.sharing import Link, Shared, share

SLOTS, LATENCY = 2, 0.125
LEASE = 1000.0
# Seconds by which a request may come later than the store has counted it: half of the way to the
# store and back, and the tolerance of a reservation.
LATE = LATENCY / 2 + 0.021
MODES = ["up", "refuses", "stalls", "drops", "reads"]


class Processes(InterleavingLoop):
    """Three limiters of one key, their clients, and a store that changes between `MODES`."""

    limit = 3
    ways: tuple[str, ...] = ("raise", "closed")
    #: Another error that a client may get.
    rejection: type[Exception] = LimiterClosed

    def __init__(self, chance: random.Random) -> None:
        # A busy machine may be late as long as it likes.
        super().__init__(made_up(chance, 300, ("o", "oc", "c", "i", "oci")))
        self.chance = chance
        self.server = Server()
        self.limiters: list[RateLimiter] = []
        self.guests: list[asyncio.Task[None]] = []
        self.background: list[asyncio.Task[None]] = []
        self.inside = [0, 0, 0]
        self.entered: list[float] = []
        self.granted_at: list[tuple[float, float]] = []

    def scheduled(self, callback: object) -> None:
        task: Any = getattr(callback, "__self__", None)
        if not isinstance(task, asyncio.Task) or task in self.background:
            return
        if task.get_name().startswith("aiothrottle"):
            self.background.append(cast("asyncio.Task[None]", task))

    def victims(self) -> list["asyncio.Task[None]"]:
        return [task for task in (*self.guests, *self.background) if not task.done()]

    def interrupt(self, which: int) -> None:
        self.server.mode = MODES[which % len(MODES)]
        self.note(f"the store: {self.server.mode}")

    async def visit(self, where: int, cost: float, stay: float, *, tries: bool) -> None:
        limiter = self.limiters[where]
        permit = (await limiter.try_acquire(cost)).permit if tries else await limiter.acquire(cost)
        if permit is None:
            return
        try:
            self.inside[where] += 1
            assert self.most_inside() <= SLOTS
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

    def make(self, **options: Any) -> RateLimiter:
        options |= {"store": Client(self.server), "key": "k", "concurrency_limit": SLOTS}
        given: dict[str, Any] = {"rate_limit": self.limit} | options
        return RateLimiter(**given)

    async def run_wild(self) -> None:
        pick = self.chance.choice
        way = pick(self.ways)
        self.server.latency = pick([0.0, LATENCY])
        self.limiters = [self.make(on_store_error=way) for _ in self.inside]
        for _ in range(self.chance.randint(3, 20)):
            event = pick(["come"] * 15 + ["wait"] * 10 + ["mood"] * 5 + ["pause"] * 5 + ["close"])
            if event == "come":
                self.come()
            elif event == "wait":
                await asyncio.sleep(pick([0.0, 0.125, 0.5, 1.5]))
            elif event == "mood":
                self.interrupt(pick([0, 0, 1, 2, 3, 4]))
            elif event == "pause":
                self.limiters[pick([0, 1, 2])].pause(0.25)
            else:
                closing = self.limiters[2].aclose(drain=self.chance.random() < 0.5)
                self.guests.append(self.create_task(closing, name="closing"))
        self.schedule = {}
        self.interrupt(0)
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
        assert await self.is_as_new()

    async def is_as_new(self) -> bool:
        answer: Answer = await Client(self.server).peek("k", self.algorithm)
        return answer.remaining == self.algorithm.capacity

    def most_inside(self) -> int:
        return max(self.inside)

    @property
    def algorithm(self) -> Algorithm[Any]:
        return SlidingWindowLog(Rate(self.limit))

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

    def make(self, **options: Any) -> RateLimiter:
        return super().make(rate_limit=None, algorithm=self.algorithm, **options)

    @property
    def algorithm(self) -> Algorithm[Any]:
        return WaitUntil(0.5, raise_after=1.5, limit=3)

    def check(self) -> None:
        granted_at = sorted((at, cost) for at, cost in self.granted_at if cost)
        for (first, cost), (later, _) in pairwise(granted_at):
            assert later - first >= 0.5 * cost - LATE, granted_at


class RejectingLocally(Rejecting):
    """During an outage each limiter uses its share, or no limit. Nobody waits for ever."""

    ways = ("local", "local", "open")

    def check(self) -> None:
        pass


class Sharing(Processes):
    """With slots that all share, and a store that wakes the waiters, or does not."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.shared, self.wakes = Shared(), chance.random() < 0.5
        self.links: list[Link] = []

    def make(self, **_: Any) -> RateLimiter:
        self.links.append(link := Link(self.shared, wakes=self.wakes))
        link.latency = self.server.latency
        return share(link, SLOTS, lease=LEASE)  # no process dies

    def interrupt(self, which: int) -> None:
        error = StoreUnavailable("no") if which % len(MODES) else None
        for link in self.links:
            link.error = error
        self.note(f"the store: {error or 'up'}")

    def most_inside(self) -> int:
        return sum(self.inside)

    async def is_as_new(self) -> bool:
        # A limiter that was closed while the store failed leaves its slots to the lease.
        await asyncio.sleep(LEASE)
        limiter, began = self.make(), self.time()
        for permit in [await limiter.acquire() for _ in range(SLOTS)]:
            permit.release()
        await limiter.aclose()
        return self.time() - began < 1.0 and self.shared.is_empty

    def check(self) -> None:
        pass


def run_story(number: int, kind: type[Processes]) -> None:
    chance = random.Random(number)
    random.seed(number)  # the pauses between two tries are random as well
    loop = kind(chance)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(loop.run_wild())
        except Exception as error:  # noqa: BLE001 - each is a promise that was broken
            loop.schedule = {}
            trace = "\n".join(loop.trace)
            pytest.fail(f"{kind.__name__}, story {number}: {error!r}\n\n{trace}", pytrace=True)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (Processes, 120),
        (Hurrying, 40),
        (Rejecting, 120),
        (RejectingLocally, 40),
        (Sharing, 120),
    ],
)
def test_all_promises_hold_whatever_the_store_does(kind: type[Processes], count: int) -> None:
    for number in seeds(count):
        run_story(number, kind)
