"""An idle limiter costs nothing, and a queue costs few turns of the loop: no polling, one timer."""

import asyncio
import contextlib
import contextvars
import functools
import gc
import sys
import textwrap
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    KeyedRateLimiter,
    LimiterClosed,
    Permit,
    RateLimiter,
    ThrottleTimeout,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.testing import VirtualTimeLoop
from tests.core.common import ours
from tests.support import virtually
from tests.support.background import STRICT, run_program
from tests.support.virtually import cancel, now, on_virtual_loop, turns, visit, visits

Live: TypeAlias = Callable[[RateLimiter], Coroutine[Any, Any, None]]
DAY = 86400.0
REJECTING = WaitUntil(1.0, limit=9.0, raise_after=1.5)


class CountingLoop(VirtualTimeLoop):
    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set; one that was cancelled may stay in asyncio's heap for long."""
        return [timer for timer in self._scheduled if not timer.cancelled()]


virtual = functools.partial(virtually.virtual, loop_factory=CountingLoop)
# What is kept for each class stays from now on.
RateLimiter(algorithm=REJECTING)


def running() -> CountingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    return loop


# ---- after any history ---------------------------------------------------------------------------


async def have_waiters(limiter: RateLimiter) -> None:
    await asyncio.gather(*visits(limiter, 7, stay=0.25))


async def lose_waiters(limiter: RateLimiter) -> None:
    tasks = visits(limiter, 7)
    await turns()
    await cancel(*tasks)


async def time_out(limiter: RateLimiter) -> None:
    await visit(limiter, 2)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await limiter.acquire()
    assert now() == 0.5


async def be_paused(limiter: RateLimiter) -> None:
    limiter.pause(3600)


async def be_paused_with_waiters(limiter: RateLimiter) -> None:
    limiter.pause(3600)
    await asyncio.gather(*visits(limiter, 3))


async def be_rejected(limiter: RateLimiter) -> None:
    of = RateLimiter(algorithm=REJECTING)
    outcomes = await asyncio.gather(*visits(of, 4), return_exceptions=True)
    assert [isinstance(each, ThrottleTimeout) for each in outcomes] == [False] * 2 + [True] * 2
    assert now() == 1.0
    assert "0 waiting" in repr(limiter)


async def be_closed(limiter: RateLimiter) -> None:
    tasks = visits(limiter, 5)
    await turns()
    await limiter.aclose()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, LimiterClosed) for outcome in outcomes] == [False] * 2 + [True] * 3


LIVES = [
    have_waiters, lose_waiters, time_out, be_paused, be_paused_with_waiters, be_rejected, be_closed,
]  # fmt: skip


@pytest.mark.parametrize("live", LIVES)
@pytest.mark.usefixtures("no_automatic_collection")
@virtual
async def test_idle_limiter_holds_no_task_and_no_timer(live: Live) -> None:
    before = ours()
    limiter = RateLimiter(2, concurrency_limit=2, clock=now)
    await live(limiter)
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert running().timers() == []
    began = running().turns
    await asyncio.sleep(DAY)
    assert running().turns - began <= 3
    assert ours() > before
    del limiter
    assert ours() == before  # only references keep it alive


@pytest.mark.usefixtures("no_automatic_collection")
@virtual
async def test_waiters_keep_the_limiter_alive_until_granted() -> None:
    before = ours()
    tasks = visits(RateLimiter(1, clock=now), 3)
    assert await asyncio.gather(*tasks) == [0.0, 1.0, 2.0]
    await turns()
    assert ours() == before


def test_consumer_ends_before_the_loop_stops() -> None:
    """A loop that is closed right then, without cancelling its tasks, reports no pending task."""
    limiter = RateLimiter(1)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        for _ in range(2):
            loop.run_until_complete(limiter.acquire())
        assert not asyncio.all_tasks(loop)


def test_loop_that_ended_with_waiters_pins_no_limiter() -> None:
    async def main() -> None:
        visits(RateLimiter(1), 3)
        await turns(2)

    gc.collect()
    before = ours()
    asyncio.run(main())
    gc.collect()  # asyncio.run leaves cycles of its own
    assert ours() == before


def test_collected_consumer_of_a_closed_loop_harms_nothing() -> None:
    limiter, closed = RateLimiter(concurrency_limit=1), VirtualTimeLoop()
    closed.set_exception_handler(lambda _loop, _context: None)  # of tasks that are destroyed
    left: list[asyncio.Task[float]] = []

    async def leave_waiters() -> Permit:
        permit = await limiter.acquire()
        left.extend(visits(limiter, 3))
        await turns()
        return permit

    permit = closed.run_until_complete(leave_waiters())
    closed.close()

    async def serve() -> list[float]:
        tasks = visits(limiter, 3, stay=1.0)
        await turns()
        left.clear()
        gc.collect()  # while the consumer of this loop sleeps
        permit.release()
        return await asyncio.gather(*tasks)

    assert on_virtual_loop(serve()) == [0.0, 1.0, 2.0]
    assert "0 of 1 in flight, 0 waiting" in repr(limiter)


@pytest.mark.parametrize("timeout", [1, 4000], ids=["cancelled", "granted"])
@pytest.mark.usefixtures("no_automatic_collection")
@virtual
async def test_context_of_a_waiter_does_not_outlive_it(timeout: float) -> None:
    class Baggage:
        """Something big, or secret."""

    variable = contextvars.ContextVar[Baggage]("variable")
    parent = RateLimiter("9/s", clock=now)  # so each grant is a turn of its own
    limiter = RateLimiter("1/h", clock=now, parent=parent)
    await visit(limiter)

    async def come_with_baggage() -> "weakref.ref[Baggage]":
        baggage = Baggage()
        variable.set(baggage)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await visit(limiter)
        return weakref.ref(baggage)

    first = asyncio.create_task(come_with_baggage())
    others = visits(limiter, 1)
    baggage = await first
    del first
    await turns()
    assert baggage() is None
    await asyncio.gather(*others)
    assert now() == (3600.0 if timeout == 1 else 7200.0)


# ---- no polling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limiter", "many", "stay", "end", "most"),
    [
        (RateLimiter("1/d"), 2, 0.0, DAY, 9),
        (RateLimiter("1/d"), 32, 0.0, 31 * DAY, 31 * 4 + 9),
        (RateLimiter(100, concurrency_limit=1), 2, 3600.0, 3600.0, 30),
        (RateLimiter("100/min"), 1000, 0.0, 540.0, 9 * 5 + 9),
        # A fast rate is served in batches.
        (RateLimiter(algorithm=TokenBucket("50000/s", burst=100)), 1000, 0.0, 0.018, 200),
    ],
)
@virtual
async def test_waiting_takes_few_turns(
    limiter: RateLimiter, many: int, stay: float, end: float, most: int
) -> None:
    limiter.pause(3600)
    before = running().turns
    began = await asyncio.gather(*visits(limiter, many, stay=stay))
    assert max(began) - 3600 == pytest.approx(end, rel=0.05)
    assert running().turns - before <= most


@virtual
async def test_one_timer_waits_for_the_head_for_a_day_at_most() -> None:
    limiter = RateLimiter("1/h")
    await visit(limiter)
    head, *others = visits(limiter, 100)
    await turns()
    [timer] = running().timers()
    assert timer.when() == 3600.0
    await cancel(*others)
    assert running().timers() == [timer]  # they wake nothing
    limiter.update(rate_limit="1/s")
    limiter.pause(100 * DAY)
    await turns()
    [timer] = running().timers()
    assert timer.when() == DAY  # some loops cannot sleep longer
    assert await head == 100 * DAY


@virtual
async def test_one_turn_starts_at_most_256_waiters() -> None:
    limiter = RateLimiter(1000)
    limiter.pause(1.0)
    started: Counter[int] = Counter()

    async def start() -> None:
        async with limiter.throttle():
            started[running().turns] += 1

    await asyncio.gather(*(start() for _ in range(600)))
    assert now() == 1.0
    assert list(started.values()) == [256, 256, 88]


@virtual
async def test_updated_key_has_no_timer() -> None:
    limiter = KeyedRateLimiter("10/s", concurrency_limit=1)
    async with limiter.throttle("a"):
        pass
    limiter.update("a", rate_limit="20/s")  # which keeps the key
    await asyncio.sleep(DAY)
    assert ("a" in limiter, running().timers()) == (True, [])


# ---- programs that leave it open -----------------------------------------------------------------

PROGRAM = """
    import asyncio
    import logging
    from aiothrottle import RateLimiter

    # A debug message about a slow callback on a busy machine is not the program's.
    logging.getLogger("asyncio").addFilter(lambda record: " took " not in record.msg)

    kept = [RateLimiter(1)]  # never used

    async def visit(limiter):
        async with limiter.throttle():
            await asyncio.sleep(0)

    async def come(limiter, turns):
        tasks = [asyncio.create_task(visit(limiter)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)

    async def keep_a_permit(limiter):
        cycle = [await limiter.acquire()]
        kept.append(cycle)
        cycle.append(cycle)
        await come(limiter, 5)

    async def be_paused(limiter):
        limiter.pause(3600)
        await come(limiter, 5)

    def run(main, *arguments):
        limiter = RateLimiter("1/h", concurrency_limit=2)
        kept.append(limiter)
        asyncio.run(main(limiter, *arguments))
        asyncio.run(limiter.try_acquire())  # another loop
        assert main is keep_a_permit or "0 of 2 in flight, 0 waiting" in repr(limiter), limiter

    for main in (keep_a_permit, be_paused):
        run(main)
    for turns in range(8):
        run(come, turns)
"""


def test_program_that_leaves_limiters_open_ends_silently() -> None:
    left = run_program(sys.executable, *STRICT, "-c", textwrap.dedent(PROGRAM))
    assert (left.stderr, left.returncode) == ("", 0)
