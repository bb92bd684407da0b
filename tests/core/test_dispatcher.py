"""The dispatcher alone: what it grants in one turn, and when it waits for which release."""

import asyncio
import math
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from aiothrottle import QueueFull, SlidingWindowLog, ThrottleTimeout, WaitUntil, events
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.dispatcher import Dispatcher
from aiothrottle._core.observers import Observers
from aiothrottle._core.pause import Pause
from aiothrottle._core.rejects import Rejects
from aiothrottle._core.semaphore import Semaphore
from aiothrottle._core.wait_queue import Waiter, WaitQueue
from aiothrottle.algorithms import Algorithm
from aiothrottle.testing import VirtualTimeLoop

if TYPE_CHECKING:
    from aiothrottle._core.shared import SharedTokens


class Parts:
    """The parts that an engine hands to its dispatcher, and the engine's decision, in short."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, algorithm: Algorithm[Any], slots: int | None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.bucket: LocalBucket = LocalBucket(algorithm, loop.time)
        self.semaphore: Semaphore = Semaphore(slots)
        self.queue: WaitQueue = WaitQueue()
        self.rejects: Rejects = Rejects(None)
        self.observers: Observers = Observers()
        self.pause: Pause = Pause()
        self.chained: bool = False
        self.epoch: int = 7
        self.watches: int = 0
        self.dispatcher: Dispatcher = Dispatcher()

    @property
    def in_flight(self) -> int:
        return self.semaphore.taken - self.dispatcher.resuming

    def now(self) -> float:
        return self.bucket.clock()

    def decide(self, now: float, cost: float, *, ahead: float = 0.0) -> float:
        return self.bucket.delay(now, cost, ahead)

    def estimate(self, now: float, waiter: Waiter, ahead: float | None = None) -> float:
        return self.bucket.delay(now, waiter.cost, ahead or 0.0)

    def watch(self) -> None:
        self.watches += 1

    def queue_up(self, *costs: float) -> list["asyncio.Future[None]"]:
        """Let a waiter join the queue for each cost. Returns their futures."""
        assert self.loop is not None
        futures: list[asyncio.Future[None]] = []
        for cost in costs:
            waiter = Waiter(cost)
            waiter.at = self.now()
            futures.append(self.loop.create_future())
            self.queue.add(waiter, futures[-1])
        return futures

    def serve(self) -> float | None:
        return self.dispatcher.serve(self)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = VirtualTimeLoop()
    yield loop
    loop.close()


def done(futures: list["asyncio.Future[None]"]) -> int:
    return sum(future.done() for future in futures)


def test_batch_is_as_large_as_bucket_and_slots_allow(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=10)
    futures = parts.queue_up(*[1.0] * 8)
    assert parts.serve() == 1.0  # seconds until the sixth
    assert done(futures) == 5
    assert parts.semaphore.taken == parts.dispatcher.resuming == 5
    assert parts.dispatcher.epoch == 7
    assert parts.bucket.granted == 0  # tokens are taken as the waiters resume


def test_nothing_is_granted_while_waiters_resume(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=None)
    futures = parts.queue_up(1.0, 1.0)
    parts.serve()
    futures += parts.queue_up(1.0)
    assert parts.serve() is None
    assert done(futures) == 2


def test_costs_are_added_up_within_a_batch(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=None)
    futures = parts.queue_up(3.0, 2.0, 1.0)
    assert parts.serve() == 1.0
    assert done(futures) == 2


def test_costly_head_is_not_overtaken(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=None)
    parts.bucket.take(0.0, 3.0)
    futures = parts.queue_up(4.0, 1.0)
    assert parts.serve() == 1.0
    assert done(futures) == 0


def test_one_turn_wakes_at_most_256_waiters(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("1000/s"), slots=None)
    futures = parts.queue_up(*[1.0] * 300)
    assert parts.serve() is None  # the last that resumes serves the queue again
    assert done(futures) == 256


def test_chained_engine_grants_one_at_a_time(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=None)
    parts.chained = True
    futures = parts.queue_up(1.0, 1.0)
    parts.serve()
    assert done(futures) == 1


def test_waiter_without_a_slot_starves_the_queue(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=1)
    futures = parts.queue_up(1.0, 1.0)
    parts.serve()
    parts.dispatcher.resuming = 0  # the first has started
    assert parts.serve() is None
    assert parts.dispatcher.starved
    assert done(futures) == 1
    parts.semaphore.taken = 0
    parts.serve()
    assert not parts.dispatcher.starved
    assert done(futures) == 2
    parts.dispatcher.end()


def test_pause_grants_nothing_and_returns_its_rest(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=None)
    parts.pause.extend(0.0, 3.0)
    futures = parts.queue_up(1.0)
    assert parts.serve() == 3.0
    assert done(futures) == 0


def test_cancelled_waiter_is_passed_over(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("1/s"), slots=None)
    futures = parts.queue_up(1.0, 1.0)
    futures[0].cancel()
    parts.serve()
    assert futures[1].done()
    assert parts.semaphore.taken == 1


def test_charged_reject_is_charged_behind_the_waiters_ahead(
    loop: asyncio.AbstractEventLoop,
) -> None:
    parts = Parts(loop, WaitUntil(1.0, limit=5, raise_after=2.0), slots=None)
    futures = parts.queue_up(1.0)
    rejected = Waiter(1.0)
    rejected.at = 0.0
    host = Rejecting(parts)
    with pytest.raises(ThrottleTimeout):
        parts.rejects.check(host, rejected, 0.0, estimating(3.0), as_head=False)
    assert host.reasons == ["timeout"]
    assert len(parts.rejects) == 1
    parts.serve()
    assert done(futures) == 1
    assert len(parts.rejects) == 1  # the waiter ahead has not resumed
    parts.queue.remove(parts.queue.head)
    parts.dispatcher.resuming = 0
    parts.bucket.take(0.0, 1.0)
    parts.serve()
    assert len(parts.rejects) == parts.queue.count == 0
    assert parts.bucket.delay(0.0, 1.0) == 2.0  # the grant and the rejected request


def estimating(seconds: float) -> Callable[[float, Waiter], float]:
    """Return an estimate that is the same for all requests."""

    def estimate(_: float, __: Waiter) -> float:
        return seconds

    return estimate


class Rejecting:
    """The engine, as `Rejects` sees it."""

    def __init__(self, parts: Parts) -> None:
        self.bucket: LocalBucket = parts.bucket
        self.queue: WaitQueue = parts.queue
        self.loop: asyncio.AbstractEventLoop | None = parts.loop
        self.key: Hashable = None
        self.shared: SharedTokens | None = None
        self.reasons: list[events.Rejection] = []

    @property
    def waiting(self) -> int:
        return self.queue.count

    def reject(self, reason: events.Rejection) -> None:
        self.reasons.append(reason)


def test_full_queue_rejects_with_the_estimate(loop: asyncio.AbstractEventLoop) -> None:
    parts = Parts(loop, SlidingWindowLog("5/s"), slots=None)
    parts.queue_up(1.0)
    host, rejects = Rejecting(parts), Rejects(1)
    with pytest.raises(QueueFull, match="1 waiting; retry after 250 ms"):
        rejects.check(host, Waiter(), 0.0, estimating(0.25), as_head=False)
    assert host.reasons == ["queue full"]
    rejects.check(host, Waiter(), 0.0, estimating(0.25), as_head=True)  # it has queued elsewhere


def test_patient_waiter_is_not_estimated(loop: asyncio.AbstractEventLoop) -> None:
    host = Rejecting(Parts(loop, SlidingWindowLog("5/s"), slots=None))
    asked: list[float] = []

    def estimate(now: float, _: Waiter) -> float:
        asked.append(now)
        return math.inf

    Rejects(None).check(host, Waiter(), 1.0, estimate, as_head=False)
    assert asked == []
