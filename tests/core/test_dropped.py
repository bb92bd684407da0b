"""A dropped permit: it is released by itself, pins no key, and warns where a slot was held.

The warnings are counted here, so that none is one too many.
"""

import asyncio
import gc
import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import pytest

from aiothrottle import KeyedRateLimiter, Permit, RateLimiter, SharedConcurrency
from aiothrottle.stores import MemoryStore
from tests.core.common import ours
from tests.support.effort import EFFORT
from tests.support.interrupting import Interruption, codes_of
from tests.support.virtually import counts, now, on_virtual_loop, turns, virtual, visit, visits

How: TypeAlias = Literal["acquire", "try_acquire"]
HOWS: tuple[How, ...] = ("acquire", "try_acquire")


@contextmanager
def warned(category: type[Warning], times: int) -> Generator[list[warnings.WarningMessage]]:
    """Check that so many warnings are issued, all of that category."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    assert [each.category for each in caught] == [category] * times
    for each in caught:
        each.source = None


async def take(of: RateLimiter, how: How = "acquire") -> Permit:
    if how == "acquire":
        return await of.acquire()
    decision = await of.try_acquire()
    assert decision.permit is not None
    return decision.permit


# ---- keys ----------------------------------------------------------------------------------------


def on_leases() -> KeyedRateLimiter:
    store = MemoryStore(clock=now)
    return KeyedRateLimiter(concurrency_limit=SharedConcurrency(2, 3.0), store=store, key="k")


# With whether they have slots, and so warn.
KEYED: dict[str, tuple[Callable[[], KeyedRateLimiter], bool]] = {
    "rate": (lambda: KeyedRateLimiter("5/s"), False),
    "spent": (lambda: KeyedRateLimiter("1/min"), False),
    "slots": (lambda: KeyedRateLimiter("5/s", concurrency_limit=2), True),
    "parent": (lambda: KeyedRateLimiter("5/s", parent=RateLimiter(1e6)), False),
    "bounded parent": (
        lambda: KeyedRateLimiter("5/s", parent=RateLimiter(1e6, concurrency_limit=100_000)),
        True,
    ),
    "leases": (on_leases, True),
}


@pytest.mark.parametrize(
    ("kind", "how"), [*((it, "acquire") for it in KEYED), ("slots", "try_acquire")]
)
@virtual
async def test_keys_of_dropped_permits_are_forgotten(kind: str, how: How) -> None:
    make, bounded = KEYED[kind]
    of, keys = make(), 200
    with warned(ResourceWarning, keys if bounded else 0):
        for key in range(keys):
            await take(of[key], how)
        await turns()  # the last permit was granted by the consumer just now
        assert len(of) == keys
    before = ours()
    await asyncio.sleep(200)
    assert len(of) == 0
    gc.collect()
    assert ours() < before - 5 * keys


@virtual
async def test_kept_permit_without_slots_keeps_its_key() -> None:
    of = KeyedRateLimiter("10/s")
    held = await of.acquire("a")
    await asyncio.sleep(100)
    assert of.statistics("a").in_flight == 1
    held.settle(5)
    assert (await of.peek("a")).remaining == 6  # one token, which left the window, is charged again
    held.release()
    assert of.statistics("a").in_flight == 0
    del held
    await asyncio.sleep(100)
    assert "a" not in of


# ---- slots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("parent", [False, True])
@virtual
async def test_dropped_permit_passes_its_slot_on_and_warns(parent: bool, how: How) -> None:
    above = RateLimiter(concurrency_limit=1)
    of = RateLimiter(concurrency_limit=1, parent=above if parent else None)
    held = await take(of, how)
    (waiter,) = visits(of, 1, stay=1)
    await asyncio.sleep(5)
    with warned(ResourceWarning, 1) as caught:
        del held
        await turns()
    assert "<Permit of 1, held> was dropped" in str(caught[0].message)
    assert counts(of) == (1, 0)
    assert await waiter == 5
    assert counts(of) == counts(above) == (0, 0)


@virtual
async def test_exited_or_released_permit_does_not_warn() -> None:
    of = RateLimiter(concurrency_limit=1)
    with warned(ResourceWarning, 0):
        async with await of.acquire():
            pass
        async with of.throttle(2):
            assert not await of.try_acquire()
        await of.peek()
        held = await of.acquire()
        (waiter,) = visits(of, 1)
        cancelled = asyncio.create_task(of.acquire())
        await turns()
        cancelled.cancel()
        await turns()
        held.release()
        await waiter
        del cancelled
    assert counts(of) == (0, 0)


# ---- threads and loops ---------------------------------------------------------------------------


def test_permit_collected_in_another_thread_wakes_a_waiter() -> None:
    of = RateLimiter(concurrency_limit=1)

    async def main() -> None:
        asyncio.get_running_loop().set_debug(True)  # it detects calls from a wrong thread
        box = [await of.acquire()]
        waiter = asyncio.create_task(visit(of))
        await turns()
        thread = threading.Thread(target=box.clear)
        thread.start()
        await asyncio.wait_for(waiter, 30)
        thread.join()

    with warned(ResourceWarning, 1):
        asyncio.run(main())
    assert counts(of) == (0, 0)


@pytest.mark.parametrize("closed_first", [True, False])
def test_permit_dropped_as_its_loop_ends_keeps_no_slot(closed_first: bool) -> None:
    of = RateLimiter(concurrency_limit=1)
    loop = asyncio.new_event_loop()
    held = loop.run_until_complete(of.acquire())
    with warned(ResourceWarning, 1):
        if closed_first:
            loop.close()
        del held
        loop.close()  # before it can wake anything
    assert not closed_first or counts(of) == (0, 0)
    assert asyncio.run(of.try_acquire())


# ---- at each point of our own code ---------------------------------------------------------------


# The parts that every request passes, as far as they are imported.
PARTS = ("aiothrottle._core.", "aiothrottle.limiter", "aiothrottle.permit")
# Every point is tried in turn by `.ci/deep`, and some of them by default.
STRIDE = max(1, round(7 / EFFORT))


async def wait_and_pause(of: RateLimiter, point: Interruption, box: list[Permit]) -> None:
    """Wait for the slots of the permits in the box, and pause meanwhile."""
    box += [await of.acquire(), await of.acquire()]
    modules = [module for name, module in sys.modules.items() if name.startswith(PARTS)]
    with point.armed(codes_of(*modules)):
        waiting = [*visits(of, 3, stay=0.5), *visits(of, 1, 3.0, priority=1)]
        await asyncio.sleep(0.25)
        of.pause(0.25)
        of.statistics()
        if point.left > 0:
            box.clear()
        async with asyncio.timeout(60):
            await asyncio.gather(*waiting)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no sys.monitoring")
@pytest.mark.filterwarnings("ignore:<Permit:ResourceWarning")
@pytest.mark.parametrize("finalizer", [False, True], ids=["dropped", "released by a finalizer"])
@pytest.mark.parametrize("parent", [False, True])
def test_permit_collected_at_any_point_hangs_no_waiter(parent: bool, finalizer: bool) -> None:
    box: list[Permit] = []

    def collect() -> None:
        for each in box if finalizer else ():
            each.release()  # as aiohttp does where a connection is collected
        box.clear()

    for at in itertools.count(1, STRIDE):
        above = RateLimiter(concurrency_limit=2)
        of = RateLimiter("100/s", concurrency_limit=2, parent=above if parent else None)
        point = Interruption(at, collect)
        on_virtual_loop(wait_and_pause(of, point, box))
        assert counts(of) == counts(above) == (0, 0), point.where
        if point.left > 0:
            assert at > 100
            return


# ---- a permit that is never entered --------------------------------------------------------------


@virtual
async def test_permit_never_entered_warns_at_first() -> None:
    asyncio.get_running_loop().set_debug(False)
    for options in ({}, {"cost": 2}, {"priority": 1}, {"timeout": 1}):
        of = RateLimiter("10/s", concurrency_limit=1)
        with warned(RuntimeWarning, 1) as caught:
            of.throttle(**options)
        assert "was never entered, so nothing was limited" in str(caught[0].message)
        await visit(of)
        # No finalizer from then on: it would slow down the fast path.
        assert type(of.throttle()) is Permit


@virtual
async def test_debug_mode_warns_of_each_permit_never_entered() -> None:
    asyncio.get_running_loop().set_debug(True)
    of = RateLimiter("10/s", concurrency_limit=1)
    await visit(of)
    with warned(RuntimeWarning, 3):
        for _ in range(3):
            of.throttle()
    await visit(of)


@virtual
async def test_wrong_use_of_a_permit_names_the_correct_call() -> None:
    of: Any = RateLimiter("10/s", concurrency_limit=1)
    with warned(RuntimeWarning, 0):
        with pytest.raises(TypeError, match=r"async with limiter\.throttle\(\).*limiter\.acquire"):
            await of.throttle()
        with pytest.raises(TypeError, match=r"async with limiter\.throttle\(\)"), of.throttle():
            pass
        with pytest.raises(TypeError, match="async with"), of.throttle(2):
            pass
    assert counts(of) == (0, 0)


async def test_permits_found_while_another_is_dropped_are_released() -> None:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # the collections below look at few objects
    for young in range(40):  # the collection begins at one of many allocations
        limiter = RateLimiter(concurrency_limit=4)
        gc.collect()
        gc.disable()
        dropped, found = await limiter.acquire(), await limiter.acquire()
        cycle: list[object] = [found]
        cycle.append(cycle)
        del found, cycle
        gc.set_threshold(gc.get_count()[0] + young, 10, 10)
        gc.enable()
        del dropped
        gc.set_threshold(*thresholds)
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert counts(limiter) == (0, 0)
