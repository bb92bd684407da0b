"""Cancellations, garbage collections, interrupts and forks, injected at each single step."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from aiothrottle import RateLimiter
from aiothrottle.testing import VirtualTimeLoop
from tests.failing import Client, Server
from tests.interleaving import InterleavingLoop
from tests.virtually import now, turns, virtual

pytestmark = pytest.mark.slow

Doing: TypeAlias = Callable[[RateLimiter], Awaitable[object]]


async def throttle(limiter: RateLimiter) -> None:
    async with limiter.throttle():
        await asyncio.sleep(0.25)


async def throttle_heavily(limiter: RateLimiter) -> None:
    async with limiter.throttle(2, timeout=10):
        await asyncio.sleep(0)


async def acquire(limiter: RateLimiter) -> None:
    permit = await limiter.acquire()
    try:
        await asyncio.sleep(0)
        permit.settle(2)
    finally:
        permit.release()


async def try_acquire(limiter: RateLimiter) -> None:
    decision = await limiter.try_acquire()
    if decision.permit is not None:
        decision.permit.release()


async def record(limiter: RateLimiter) -> None:
    await limiter.record(1)


DOINGS: list[Doing] = [throttle, throttle_heavily, acquire, try_acquire, record]


class Steps(InterleavingLoop):
    """A loop on which the victim is cancelled before its n-th callback."""

    victim: "asyncio.Task[object] | None" = None

    def __init__(self, at: int) -> None:
        super().__init__({})
        self.at = at

    def step(self) -> int:
        which = super().step()
        if self.victim is not None:
            self.at -= 1
            if self.at == 0:
                self.victim.cancel()
        return which


async def cancelled(loop: Steps, doing: Doing, *, shared: bool) -> bool:
    """Return whether the victim was really cancelled, with others before and behind it."""
    server = Server()
    server.latency = 0.125
    limiter = RateLimiter(
        2,
        concurrency_limit=1,
        store=Client(server) if shared else None,
        key="k" if shared else None,
    )
    others = [asyncio.create_task(throttle(limiter)) for _ in range(2)]
    await turns(1)
    victim = loop.victim = asyncio.ensure_future(doing(limiter))
    others.append(asyncio.create_task(throttle(limiter)))
    await asyncio.wait([victim, *others])
    loop.victim = None
    assert [other.exception() for other in others] == [None] * 3
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    await asyncio.sleep(5)
    assert (await limiter.peek()).remaining == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return victim.cancelled()


@pytest.mark.parametrize("shared", [False, True], ids=["memory", "store"])
@pytest.mark.parametrize("doing", DOINGS)
def test_task_cancelled_at_any_step_leaves_nothing(doing: Doing, shared: bool) -> None:
    at, often = 1, 0
    while True:
        loop = Steps(at)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:  # type: ignore[misc]
            often += runner.run(cancelled(loop, doing, shared=shared))
        if loop.at > 0:
            break  # it was done before
        at += 1
    assert often >= 1


@virtual
async def test_garbage_collected_at_each_step_loses_nothing() -> None:
    limiter, entered = RateLimiter(2, concurrency_limit=1), list[float]()

    async def guest() -> None:
        async with limiter.throttle():
            entered.append(now())
            await asyncio.sleep(0)

    tasks = {asyncio.create_task(guest()) for _ in range(6)}
    while pending := {task for task in tasks if not task.done()}:
        gc.collect()
        await asyncio.wait(pending, timeout=0.125)
    assert entered == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_keyboard_interrupt_inside_a_block_leaves_nothing() -> None:
    limiter = RateLimiter(2, concurrency_limit=1)

    async def press() -> None:
        async with limiter.throttle():
            await asyncio.sleep(0)
            raise KeyboardInterrupt

    async def both() -> None:
        waiting = asyncio.create_task(throttle(limiter))
        await asyncio.gather(press(), waiting)

    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(both())
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(throttle(limiter))  # on another loop, and at once


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_process_has_a_copy_of_its_own() -> None:
    limiter = RateLimiter("2/min", concurrency_limit=1)

    async def spend() -> bool:
        return bool(await limiter.try_acquire())

    with asyncio.Runner() as runner:
        first = runner.run(limiter.try_acquire())
    assert first.permit is not None
    first.permit.release()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            status = 0 if asyncio.run(spend()) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert limiter.statistics().granted == 1  # what the child has spent is the child's
