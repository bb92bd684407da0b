"""A queue that waits for slots alone triggers a garbage collection, which may free them."""

import asyncio
import gc
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from aiothrottle import KeyedRateLimiter, Permit, RateLimiter
from aiothrottle._core import stall
from tests.support.sharing import Link, Shared, share
from tests.support.virtually import counts, now, turns, virtual, visit, visits

# A permit that is found is released with that warning; test_dropped.py counts them.
pytestmark = pytest.mark.filterwarnings("ignore:<Permit:ResourceWarning")


@pytest.fixture
def collections(
    no_automatic_collection: None,  # noqa: ARG001 - before
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[float]]:
    """The loop times at which all garbage was collected; Python itself never collects."""
    # Collections of earlier tests count in the budget of the process.
    monkeypatch.setattr(stall, "_collector", stall.Collector())
    # Nor does the real time that they take here, which is long on a busy machine.
    monkeypatch.setattr(stall, "_MOST", math.inf)
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

    async def _chunks(self) -> AsyncIterator[int]:
        try:
            for chunk in range(10):
                await asyncio.sleep(0)
                yield chunk
        finally:
            self.permit.release()


async def leave_early(limiter: RateLimiter, after: float = 0.0) -> None:
    stream = Stream(await limiter.acquire())
    async for _ in stream.chunks:
        await asyncio.sleep(after)
        break


# ---- what is found -------------------------------------------------------------------------------


@virtual
async def test_streams_left_early_do_not_block_the_limiter(collections: list[float]) -> None:
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
async def test_generator_left_early_does_not_block_the_limiter(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)

    async def chunks() -> AsyncIterator[int]:
        async with limiter.throttle():
            yield 1
            yield 2

    async def leave() -> None:
        cycle: list[object] = [generator := chunks()]
        cycle.append(cycle)
        async for _ in generator:
            break

    for _ in range(3):
        await leave()
    assert len(collections) == 2


@virtual
async def test_slots_of_a_parent_or_a_store_are_found(collections: list[float]) -> None:
    keyed = KeyedRateLimiter(concurrency_limit=2, parent=RateLimiter(concurrency_limit=1))
    await leave_early(keyed["a"])
    await leave_early(keyed["b"])
    assert collections == [0.5]
    leased = share(Link(Shared()), 1)
    await leave_early(leased)
    await leave_early(leased)
    assert len(collections) == 2


# ---- when there is a collection ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "many", "stay", "end"),
    [
        (lambda: RateLimiter(concurrency_limit=2), 500, 0.45, 100),  # slots come free
        (lambda: RateLimiter("1/min"), 10, 0.25, 540),  # the rate is missing, not a slot
        (lambda: RateLimiter("1/min", concurrency_limit=1), 10, 0.25, 540),
        (lambda: RateLimiter("1/min", concurrency_limit=2), 10, 0.25, 540),
        (lambda: RateLimiter(concurrency_limit=1, parent=RateLimiter("1/min")), 10, 0.25, 540),
        (lambda: RateLimiter(concurrency_limit=1), 1, 3600, 3600),  # nothing waits
    ],
)
@virtual
async def test_moving_queue_triggers_no_collection(
    make: Callable[[], RateLimiter], many: int, stay: float, end: float, collections: list[float]
) -> None:
    await asyncio.gather(*visits(make(), many, stay=stay))
    assert now() >= end
    assert collections == []


@virtual
async def test_foreign_leases_trigger_no_collection(collections: list[float]) -> None:
    shared = Shared()
    mine, other = share(Link(shared), 1), share(Link(shared), 1)
    held = await other.acquire()
    (waiter,) = visits(mine, 1)
    await asyncio.sleep(5)
    held.release()
    await waiter
    assert now() >= 5
    assert collections == []


@virtual
async def test_slot_is_missed_only_when_rate_and_pause_admit(collections: list[float]) -> None:
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
async def test_long_stall_triggers_few_collections(collections: list[float]) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with limiter.throttle():
        waiting = visits(limiter, 3)
        await asyncio.sleep(3600)
        assert collections[:4] == [0.5, 3.0, 11.0, 43.0]
        assert len(collections) <= 8
    await asyncio.gather(*waiting)
    async with limiter.throttle():  # the next stall is another one
        began, waiting = now(), visits(limiter, 1)
        await asyncio.sleep(1)
        assert collections[-1] == began + 0.5
    await asyncio.gather(*waiting)


@virtual
async def test_stall_without_end_is_looked_at_for_an_hour(collections: list[float]) -> None:
    """A loop in virtual time finds a deadlock by having no timer."""
    limiter = RateLimiter(concurrency_limit=1)
    async with limiter.throttle():
        waiting = visits(limiter, 2, stay=1)
        await asyncio.sleep(10_000)
        looks = len(collections)
        await asyncio.sleep(10_000_000)
        assert len(collections) == looks
    await asyncio.gather(*waiting)
    assert len(collections) == looks + 1  # while the second one waited for the first


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
async def test_a_program_without_a_collector_keeps_its_garbage(
    collections: list[float], caplog: pytest.LogCaptureFixture
) -> None:
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
    assert "no slot was released for 43 s" in caplog.text


@virtual
async def test_slow_collections_are_run_seldom(
    collections: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each collection takes 0.3 s; otherwise no time passes.
    monkeypatch.setattr(time, "monotonic", lambda: 0.3 * len(collections))
    monkeypatch.setattr(stall, "_MOST", 1.0)
    limiter = RateLimiter(concurrency_limit=1)

    async def leave_for_ever() -> None:
        while True:
            await leave_early(limiter)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leave_for_ever(), 1000)
    assert len(collections) == 4


@virtual
async def test_virtual_timers_do_not_depend_on_the_budget(
    collections: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "_MOST", 0.0)
    collector, loop = stall.Collector(), asyncio.get_running_loop()
    assert [collector.collect(loop) for _ in range(2)] == [0.0, stall._BREAK]
    assert collections == []
