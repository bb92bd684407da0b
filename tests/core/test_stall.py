"""A queue that waits for slots alone triggers a garbage collection, which may free them."""

import asyncio
import gc
import itertools
import math
from collections.abc import AsyncIterator, Iterator

import pytest

from aiothrottle import KeyedRateLimiter, Permit, RateLimiter
from aiothrottle._core import stall
from aiothrottle._core.stall import Collector
from tests.sharing import Link, Shared, share
from tests.virtually import counts, now, turns, virtual, visit, visits

# A permit that is found is released with that warning; test_dropped.py counts them.
pytestmark = pytest.mark.filterwarnings("ignore:<Permit:ResourceWarning")


@pytest.fixture
def collections(
    no_automatic_collection: None,  # noqa: ARG001 - before this one
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[float]]:
    """The loop times at which all garbage was collected; Python itself never collects."""
    monkeypatch.setattr(stall, "_MOST", math.inf)  # the cost on a busy machine is another test
    instants: list[float] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            instants.append(now())

    gc.callbacks.append(note)
    yield instants
    gc.callbacks.remove(note)


class Stream:
    """A response as clients make them: part of a cycle, and it holds a slot until it is closed."""

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.chunks = self._chunks()

    @classmethod
    async def open(cls, limiter: RateLimiter) -> "Stream":
        return cls(await limiter.acquire())

    async def _chunks(self) -> AsyncIterator[int]:
        try:
            for chunk in range(10):
                await asyncio.sleep(0)
                yield chunk
        finally:
            self.permit.release()

    def __aiter__(self) -> AsyncIterator[int]:
        return self.chunks


async def leave_early(limiter: RateLimiter) -> None:
    async for _ in await Stream.open(limiter):
        break


@virtual
async def test_streams_left_early_do_not_block_the_limiter(
    collections: list[float],
) -> None:
    limiter = RateLimiter(concurrency_limit=5)
    for _ in range(5):
        await leave_early(limiter)
    await turns()
    assert counts(limiter) == (5, 0)
    await leave_early(limiter)
    assert collections == [0.5]
    assert now() == 0.5
    assert counts(limiter) == (1, 0)


@virtual
async def test_generator_left_early_does_not_block_the_limiter(
    collections: list[float],
) -> None:
    limiter = RateLimiter(concurrency_limit=1)

    async def chunks() -> AsyncIterator[int]:
        async with limiter.throttle():
            yield 1
            yield 2

    async def leave() -> None:
        generator = chunks()
        cycle: list[object] = [generator]
        cycle.append(cycle)
        async for _ in generator:
            break

    for _ in range(3):
        await leave()
    assert len(collections) == 2


@virtual
async def test_stream_left_while_others_wait_is_found(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)

    async def read_for(seconds: float) -> None:
        stream = await Stream.open(limiter)
        async for _ in stream:
            await asyncio.sleep(seconds)
            break

    reader = asyncio.create_task(read_for(20))
    await turns()
    (waiter,) = visits(limiter, 1)
    await waiter
    assert reader.done()
    assert 20 <= now() <= 60
    assert len(collections) <= 5


@virtual
async def test_a_slot_of_the_parent_is_found(collections: list[float]) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=2, parent=RateLimiter(concurrency_limit=1))
    await leave_early(limiter["a"])
    await leave_early(limiter["b"])
    assert collections == [0.5]


@virtual
async def test_a_leased_slot_is_found(collections: list[float]) -> None:
    limiter = share(Link(Shared()), 1)
    await leave_early(limiter)
    await leave_early(limiter)
    assert len(collections) == 1


@virtual
async def test_slots_coming_free_trigger_no_collection(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=2)
    await asyncio.gather(*visits(limiter, 500, stay=0.45))
    assert now() > 100
    assert collections == []


@pytest.mark.parametrize(
    "limiter",
    [
        RateLimiter("1/min"),
        RateLimiter("1/min", concurrency_limit=1),
        RateLimiter("1/min", concurrency_limit=2),
        RateLimiter(concurrency_limit=1, parent=RateLimiter("1/min")),
    ],
)
@virtual
async def test_waiters_for_the_rate_trigger_no_collection(
    limiter: RateLimiter, collections: list[float]
) -> None:
    await asyncio.gather(*visits(limiter, 10, stay=0.25))
    assert now() >= 540
    assert collections == []


@virtual
async def test_slot_is_not_missed_while_rate_blocks(
    collections: list[float],
) -> None:
    limiter = RateLimiter("2/min", concurrency_limit=1)
    await visit(limiter)
    holding = asyncio.create_task(visit(limiter, stay=1000))
    await turns()
    (waiter,) = visits(limiter, 1)
    await asyncio.sleep(59)
    limiter.pause(60)
    await asyncio.sleep(59)
    assert collections == []
    await asyncio.sleep(10)
    assert collections[0] == 119.5
    holding.cancel()
    await waiter


@virtual
async def test_idle_or_held_limiter_triggers_no_collection(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with limiter.throttle():
        await asyncio.sleep(3600)
    await asyncio.sleep(3600)
    assert collections == []


@virtual
async def test_long_stall_triggers_few_collections(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    waiting: list[asyncio.Task[float]] = []
    async with limiter.throttle():
        waiting += visits(limiter, 3)
        await asyncio.sleep(3600)
        assert 1 <= len(collections) <= 8
    await asyncio.gather(*waiting)


@virtual
async def test_limiters_that_stall_together_share_a_collection(collections: list[float]) -> None:
    limiters = [RateLimiter(concurrency_limit=1) for _ in range(50)]
    inside = [await limiter.acquire() for limiter in limiters]
    waiting = [task for limiter in limiters for task in visits(limiter, 1)]
    await asyncio.sleep(0.6)
    assert len(collections) == 1
    for permit in inside:
        permit.release()
    await asyncio.gather(*waiting)


@virtual
async def test_a_program_without_a_collector_keeps_its_garbage(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    gc.disable()
    try:
        await leave_early(limiter)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await visit(limiter)
    finally:
        gc.enable()
    assert collections == []


@virtual
async def test_process_collects_at_most_once_a_second(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    await leave_early(limiter)
    for _ in range(5):
        await leave_early(limiter)
    assert len(collections) == 5
    assert all(after - before >= 1 for before, after in itertools.pairwise(collections))


@virtual
async def test_slow_collections_are_run_seldom(
    collections: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    clock = itertools.count(step=0.3)  # seconds between two readings
    monkeypatch.setattr("aiothrottle._core.stall.time.monotonic", lambda: next(clock))
    collector, loop = Collector(), asyncio.get_running_loop()
    waits: list[float] = []
    for _ in range(10):
        waits.append(collector.collect(loop))
        await asyncio.sleep(2)
    assert waits[:4] == [0.0] * 4
    assert min(waits[4:]) > 1
    assert len(collections) == 4


@virtual
async def test_foreign_leases_trigger_no_collection(
    collections: list[float],
) -> None:
    shared = Shared()
    mine, other = share(Link(shared), 1), share(Link(shared), 1)
    held = await other.acquire()
    (waiter,) = visits(mine, 1)
    await asyncio.sleep(5)
    held.release()
    await waiter
    assert mine._engine.leased is not None
    assert collections == []
