"""A dropped permit: it is released by itself, pins no key, and warns where a slot was held.

The warnings are counted here, so that none is one too many.
"""

import asyncio
import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Literal, TypeAlias

import pytest

import aiothrottle
from aiothrottle import (
    KeyedRateLimiter,
    LimiterClosed,
    Permit,
    RateLimiter,
    SharedConcurrency,
    limiter,
    permit,
)
from aiothrottle._core import bucket, chain, consumer, engine, semaphore, wait_queue
from aiothrottle.algorithms import sliding_window_log
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.interrupting import Interrupt, codes_of
from tests.virtually import counts, now, turns, virtual, visit, visits

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


def keyed(kind: str) -> KeyedRateLimiter:
    match kind:
        case "rate":
            return KeyedRateLimiter("5/s")
        case "spent":
            return KeyedRateLimiter("1/min")
        case "slots":
            return KeyedRateLimiter("5/s", concurrency_limit=2)
        case "parent":
            return KeyedRateLimiter("5/s", parent=RateLimiter(1e6))
        case "bounded parent":
            return KeyedRateLimiter("5/s", parent=RateLimiter(1e6, concurrency_limit=100_000))
        case _:
            store = MemoryStore(clock=now)
            return KeyedRateLimiter(
                concurrency_limit=SharedConcurrency(2, 3.0), store=store, key="k"
            )


BOUNDED = ("slots", "bounded parent", "leases")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("rate", 20_000),
        ("spent", 2000),
        ("slots", 2000),
        ("parent", 2000),
        ("bounded parent", 2000),
        ("leases", 200),
    ],
)
@virtual
async def test_keys_of_dropped_permits_are_forgotten(kind: str, keys: int, how: How) -> None:
    of = keyed(kind)
    with warned(ResourceWarning, keys if kind in BOUNDED else 0):
        for key in range(keys):
            await take(of[key], how)
        await turns()  # the last permit was granted by the consumer just now
        assert len(of) == keys
    alive = [weakref.ref(of[key]._engine) for key in range(0, keys, 100)]
    await asyncio.sleep(200)
    assert len(of) == 0
    gc.collect()
    assert not any(ref() for ref in alive)


@virtual
async def test_kept_permit_without_slots_pins_no_key() -> None:
    of = KeyedRateLimiter("10/s")
    held = await of.acquire("a")
    await asyncio.sleep(100)
    assert "a" not in of
    assert of.statistics("a").in_flight == 1  # the key still has the same limiter
    held.settle(5)
    assert (await of.peek("a")).remaining == 6  # one token, which left the window, is charged again
    held.release()
    assert of.statistics("a").in_flight == 0


@virtual
async def test_permit_settled_higher_is_forgotten_too() -> None:
    of = KeyedRateLimiter("10/s", parent=RateLimiter("100/s"))
    held = await of.acquire("a")
    held.settle(3)
    del held
    await turns()
    assert counts(of["a"]) == (0, 0)
    await asyncio.sleep(100)
    assert len(of) == 0


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
async def test_dropped_permit_without_slots_leaves_in_flight() -> None:
    of = RateLimiter("100/s")
    child_of_it = RateLimiter("100/s", parent=of)
    with warned(ResourceWarning, 0):
        for each in (of, child_of_it):
            for how in HOWS:
                await take(each, how)
        await turns()
    assert counts(of) == counts(child_of_it) == (0, 0)
    assert of.statistics().granted == 4


@virtual
async def test_permit_in_garbage_cycle_is_released_when_collected() -> None:
    of = RateLimiter(concurrency_limit=1, parent=RateLimiter(concurrency_limit=1))
    cycle: list[Any] = [await of.acquire()]
    cycle.append(cycle)
    del cycle
    (waiter,) = visits(of, 1)
    await turns()
    assert not waiter.done()
    with warned(ResourceWarning, 1):
        gc.collect()
        await turns()
    assert await waiter == 0


@virtual
async def test_exited_or_released_permit_does_not_warn() -> None:
    of = RateLimiter(concurrency_limit=1)
    with warned(ResourceWarning, 0):
        async with await of.acquire():
            pass
        async with of.throttle(2):
            assert not await of.try_acquire()
        (await of.acquire()).release()
        await of.peek()
    with warned(ResourceWarning, 0):
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


def test_permit_that_outlives_its_loop_is_released() -> None:
    of = RateLimiter(concurrency_limit=1)
    held = asyncio.run(of.acquire())
    with warned(ResourceWarning, 1):
        del held
    assert counts(of) == (0, 0)


def test_loop_closed_before_the_wakeup_keeps_no_slot() -> None:
    of = RateLimiter(concurrency_limit=1)
    loop = asyncio.new_event_loop()
    held = loop.run_until_complete(of.acquire())
    with warned(ResourceWarning, 1):
        del held
    loop.close()
    assert asyncio.run(of.try_acquire())


@pytest.mark.parametrize("slots", [None, 1])
def test_program_ending_with_a_permit_prints_nothing(slots: int | None) -> None:
    source = f"""
        import asyncio
        from aiothrottle import RateLimiter
        limiter = RateLimiter("1/h", concurrency_limit={slots})
        async def main():
            return await limiter.try_acquire()
        decision = asyncio.run(main())
        cycle = [decision]
        cycle.append(cycle)
    """
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(source)],
        cwd=Path(aiothrottle.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


class Collection(Interrupt):
    """Calls a function at the n-th point of our own code, as a garbage collection would."""

    def __init__(self, at: int, do: Callable[[], None]) -> None:
        super().__init__(at)
        self._do = do

    def _come_by(self, code: CodeType, offset: int, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = f"{code.co_qualname}, {offset}"
            self._do()


CODES = codes_of(
    *(bucket, chain, consumer, engine, limiter, permit, semaphore, wait_queue, sliding_window_log)
)


async def wait_and_update(of: RateLimiter, point: Collection, box: list[Permit]) -> None:
    """Wait for the slots of the permits in the box, and change the limits meanwhile."""
    box += [await of.acquire(), await of.acquire()]
    with point.armed(CODES):
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

    for at in itertools.count(1):
        above = RateLimiter(concurrency_limit=2)
        of = RateLimiter("100/s", concurrency_limit=2, parent=above if parent else None)
        point = Collection(at, collect)
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(wait_and_update(of, point, box))
        assert counts(of) == counts(above) == (0, 0), point.where
        if point.left > 0:
            assert at > 100
            return


# ---- a permit that is never entered --------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"cost": 2}, {"priority": 1}, {"timeout": 1}])
def test_first_permit_never_entered_warns(options: dict[str, float]) -> None:
    of = RateLimiter("10/s", concurrency_limit=1)
    with warned(RuntimeWarning, 1) as caught:
        of.throttle(**options)
    assert "was never entered, so nothing was limited" in str(caught[0].message)


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
async def test_permits_after_the_first_entry_are_not_watched() -> None:
    asyncio.get_running_loop().set_debug(False)
    of = RateLimiter("10/s", concurrency_limit=1)
    await visit(of)
    assert type(of.throttle()) is Permit  # no finalizer: it would slow down the fast path


@pytest.mark.parametrize("debug", [False, True])
@virtual
async def test_entered_permit_never_warns(debug: bool) -> None:
    asyncio.get_running_loop().set_debug(debug)
    of = RateLimiter("1/h", concurrency_limit=1)
    with warned(RuntimeWarning, 0):
        of.throttled(1)
        await visit(of)
        with pytest.raises(TimeoutError):
            await visit(of, timeout=1)
        (cancelled,) = visits(of, 1)
        await turns()
        cancelled.cancel()
        await turns()
        unstarted = asyncio.create_task(of.throttle().__aenter__())
        unstarted.cancel()
        await turns()
        await of.aclose()
        with pytest.raises(LimiterClosed):
            await visit(of)
        with pytest.raises(LimiterClosed):
            await of.try_acquire()
        del cancelled, unstarted


@virtual
async def test_awaiting_a_permit_names_the_correct_call() -> None:
    of: Any = RateLimiter("10/s", concurrency_limit=1)
    with warned(RuntimeWarning, 0):
        with pytest.raises(TypeError, match=r"async with limiter\.throttle\(\).*limiter\.acquire"):
            await of.throttle()
        with pytest.raises(TypeError, match=r"async with limiter\.throttle\(\)"), of.throttle():
            pass
        with pytest.raises(TypeError, match="async with"), of.throttle(2):
            pass
    assert counts(of) == (0, 0)
