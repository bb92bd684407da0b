"""An idle limiter costs nothing: no task, no timer, no clean-up, no polling."""

import asyncio
import contextlib
import contextvars
import functools
import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ParamSpec

import pytest

import aiothrottle
from aiothrottle import LimiterClosed, RateLimiter
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import now, turns, visit, visits

P = ParamSpec("P")


class CountingLoop(VirtualTimeLoop):
    """Counts its turns."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set; one that was cancelled may stay in asyncio's heap for long."""
        return [timer for timer in self._scheduled if not timer.cancelled()]


def parts(limiter: RateLimiter) -> list["weakref.ref[Any]"]:
    """Weak references to everything that must be collected together with the limiter."""
    return [weakref.ref(limiter), weakref.ref(limiter._engine)]


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on a loop of its own, on which time jumps and turns are counted."""

    @functools.wraps(test)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return on_virtual_time


def running() -> CountingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    return loop


# --- Histories of a limiter ---


async def be_new(limiter: RateLimiter) -> None:
    assert "0 waiting" in repr(limiter)


async def be_used(limiter: RateLimiter) -> None:
    await visit(limiter)
    assert await limiter.try_acquire()


async def have_waiters(limiter: RateLimiter) -> None:
    await asyncio.gather(*visits(limiter, 7, stay=0.25))


async def lose_waiters(limiter: RateLimiter) -> None:
    tasks = visits(limiter, 7)
    await turns()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def timeout(limiter: RateLimiter) -> None:
    (await limiter.acquire(2)).release()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await limiter.acquire()


async def fail_inside(limiter: RateLimiter) -> None:
    with pytest.raises(ZeroDivisionError):
        async with limiter.throttle():
            raise ZeroDivisionError


async def be_paused(limiter: RateLimiter) -> None:
    limiter.pause(3600)


async def be_paused_with_waiters(limiter: RateLimiter) -> None:
    limiter.pause(3600)
    await asyncio.gather(*visits(limiter, 3))


async def be_closed(limiter: RateLimiter) -> None:
    tasks = visits(limiter, 5)
    await turns()
    await limiter.aclose()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, LimiterClosed) for outcome in outcomes] == [False] * 2 + [True] * 3


HISTORIES = [
    be_new,
    be_used,
    have_waiters,
    lose_waiters,
    timeout,
    fail_inside,
    be_paused,
    be_paused_with_waiters,
    be_closed,
]
after_anything = pytest.mark.parametrize("live", HISTORIES)


@after_anything
@virtual
async def test_idle_limiter_holds_no_task_and_no_timer(
    live: Callable[[RateLimiter], Coroutine[Any, Any, None]],
) -> None:
    limiter = RateLimiter(2, concurrency_limit=2, clock=now)
    await live(limiter)
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert running().timers() == []
    before = running().turns
    await asyncio.sleep(86400)
    assert running().turns - before <= 3


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@after_anything
@pytest.mark.usefixtures("no_collector")
@virtual
async def test_only_references_keep_a_limiter_alive(
    live: Callable[[RateLimiter], Coroutine[Any, Any, None]],
) -> None:
    limiter = RateLimiter(2, concurrency_limit=2, clock=now)
    await live(limiter)
    await turns()
    references = parts(limiter)
    assert all(reference() is not None for reference in references)
    del limiter
    assert [reference() for reference in references] == [None, None]


@pytest.mark.usefixtures("no_collector")
@virtual
async def test_waiters_keep_the_limiter_alive_until_granted() -> None:
    limiter = RateLimiter(1, clock=now)
    references = parts(limiter)
    tasks = visits(limiter, 3)
    del limiter
    await asyncio.gather(*tasks)
    assert now() == 2.0
    tasks.clear()
    await turns()
    assert [reference() for reference in references] == [None, None]


def test_consumer_ends_before_the_loop_stops() -> None:
    """A loop that is closed right then, without cancelling its tasks, reports no pending task."""
    limiter = RateLimiter(1)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        loop.run_until_complete(limiter.acquire())
        loop.run_until_complete(limiter.acquire())
        assert not asyncio.all_tasks(loop)


def test_loop_that_ended_with_waiters_pins_no_limiter() -> None:
    async def main(limiter: RateLimiter) -> None:
        visits(limiter, 3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    limiter = RateLimiter(1)
    asyncio.run(main(limiter))
    references = parts(limiter)
    del limiter
    gc.collect()  # asyncio.run leaves cycles of its own
    assert [reference() for reference in references] == [None, None]


@pytest.mark.usefixtures("no_collector")
@virtual
async def test_context_of_a_waiter_does_not_outlive_it() -> None:
    class Baggage:
        """Something big, or secret."""

    variable = contextvars.ContextVar[Baggage]("variable")
    limiter = RateLimiter("1/h", clock=now)
    await visit(limiter)

    async def come_with_baggage() -> "weakref.ref[Baggage]":
        baggage = Baggage()
        variable.set(baggage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await visit(limiter)
        return weakref.ref(baggage)

    first = asyncio.create_task(come_with_baggage())
    others = visits(limiter, 1)
    baggage = await first
    del first
    await turns()
    assert baggage() is None
    await asyncio.gather(*others)
    assert now() == 3600.0


# --- No polling ---


@virtual
async def test_day_of_waiting_takes_few_turns() -> None:
    limiter = RateLimiter("1/d", clock=now)
    await visit(limiter)
    tasks = visits(limiter, 100)
    await turns()
    before = running().turns
    await tasks[0]
    assert now() == 86400.0
    assert running().turns - before <= 6
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@virtual
async def test_hour_of_pause_takes_few_turns() -> None:
    limiter = RateLimiter(100, clock=now)
    limiter.pause(3600)
    before = running().turns
    await asyncio.gather(*visits(limiter, 50))
    assert now() == 3600.0
    assert running().turns - before <= 10


@virtual
async def test_hour_of_waiting_for_slots_takes_few_turns() -> None:
    limiter = RateLimiter(100, concurrency_limit=1, clock=now)
    before = running().turns
    await asyncio.gather(visit(limiter, stay=3600), *visits(limiter, 1))
    assert now() == 3600.0
    assert running().turns - before <= 10


@virtual
async def test_thousand_waiters_take_few_turns_per_batch() -> None:
    limiter = RateLimiter("100/min", clock=now)
    before = running().turns
    await asyncio.gather(*visits(limiter, 1000))
    assert now() == 9 * 60
    assert running().turns - before <= 9 * 5 + 5


@virtual
async def test_waiters_cancelled_behind_the_head_wake_nobody() -> None:
    limiter = RateLimiter("1/h", clock=now)
    await visit(limiter)
    head, *others = visits(limiter, 100)
    await turns()
    timers = running().timers()
    assert len(timers) == 1
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    assert running().timers() == timers
    await head
    assert now() == 3600.0


# --- Programs that leave it open ---

BEGINNING = """
    import asyncio
    import logging
    from aiothrottle import RateLimiter

    # A debug message about a slow callback on a busy machine is not the program's.
    logging.getLogger("asyncio").addFilter(lambda record: " took " not in record.msg)

    limiter = RateLimiter("1/h", concurrency_limit=2)

    async def visit():
        async with limiter.throttle():
            await asyncio.sleep(0)
"""

PROGRAMS = {
    "never used": "",
    "used without waiting": "asyncio.run(visit())",
    "used on one loop and then on another": """
        asyncio.run(visit())
        async def main():
            assert not await limiter.try_acquire()
        asyncio.run(main())
    """,
    "with waiters at the end of the loop, in each of its first turns": """
        async def main(turns):
            tasks = [asyncio.create_task(visit()) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
        for turns in range(8):
            asyncio.run(main(turns))
        assert "0 of 2 in flight, 0 waiting" in repr(limiter), limiter
    """,
    "with the main task waiting in a timeout": """
        async def main():
            await visit()
            try:
                async with asyncio.timeout(0.001):
                    await visit()
            except TimeoutError:
                print("timed out")
        asyncio.run(main())
    """,
    "with a permit that was never released": """
        async def main():
            global permit
            permit = await limiter.acquire()
            asyncio.create_task(visit())
            await asyncio.sleep(0.001)
        asyncio.run(main())
    """,
    "paused, with waiters": """
        async def main():
            limiter.pause(3600)
            asyncio.create_task(visit())
            await asyncio.sleep(0.001)
        asyncio.run(main())
    """,
    "after an error in a task group": """
        async def fail():
            await asyncio.sleep(0.001)
            raise KeyError
        async def main():
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(visit())
                group.create_task(fail())
        try:
            asyncio.run(main())
        except* KeyError:
            print("failed")
    """,
    "thrown away while others wait": """
        async def main():
            global limiter
            tasks = [asyncio.create_task(visit()) for _ in range(3)]
            await asyncio.sleep(0.001)
            del limiter
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_that_leaves_it_open_ends_silently(program: str) -> None:
    source = textwrap.dedent(BEGINNING) + textwrap.dedent(PROGRAMS[program])
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", source],
        cwd=Path(aiothrottle.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@virtual
async def test_limiter_in_new_state_may_be_dropped() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    engine = limiter._engine
    assert engine.is_forgettable()
    async with limiter.throttle():
        await asyncio.sleep(2.0)  # what it has spent counts no more
        assert not engine.is_forgettable()
    assert engine.is_forgettable()
    limiter.pause(1.0)
    assert not engine.is_forgettable()
    await asyncio.sleep(1.0)
    assert engine.is_forgettable()
    async with limiter.throttle():
        pass
    assert not engine.is_forgettable()
    await asyncio.sleep(1.0)
    assert engine.is_forgettable()
    limiter.update(rate_limit=5)
    assert not engine.is_forgettable()
