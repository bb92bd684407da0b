"""Specifies what a limiter does on several event loops, in threads, and when loops end."""

import asyncio
import pickle
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aiothrottle import (
    LimiterClosed,
    PerLoop,
    Permit,
    Rate,
    RateLimiter,
    SharedConcurrency,
    ThrottleTimeout,
    WaitUntil,
)
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.limiter.common import Unchecked, order_of, queued, remaining, throttle_one, together
from tests.support.virtually import counts, now, turns, visit, visits


@pytest.mark.parametrize("child", [False, True])
def test_second_live_loop_raises_and_the_first_continues(child: bool) -> None:
    parent = RateLimiter(1, concurrency_limit=1)
    limiter = RateLimiter(9, parent=parent) if child else parent

    async def call(name: str, *arguments: Unchecked, **options: Unchecked) -> None:
        returned = getattr(limiter, name)(*arguments, **options)
        if returned is not None:
            await returned

    names = ("acquire", "try_acquire", "peek", "record", "reset", "aclose")
    for name in names:  # on trio, for example
        with pytest.raises(RuntimeError, match="no running event loop of asyncio"):
            call(name).send(None)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as first:
        first.run(visit(parent))
        waiting = first.run(queued(limiter, 2))
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as second:
            calls = [call("update", rate_limit=5), call("pause", 5), *map(call, names)]
            for each in calls:
                with pytest.raises(RuntimeError, match=r"still open.*one limiter for each loop"):
                    second.run(each)
        assert first.run(together(*waiting)) == [1, 2]
        assert counts(limiter) == counts(parent) == (0, 0)


async def take_and_let_wait(
    limiter: RateLimiter, count: int, turns_after_release: int | None = None
) -> tuple[Permit, list[asyncio.Task[Permit]]]:
    """Acquire one permit, and leave tasks that wait for others; or release it before that."""
    permit = await limiter.acquire()
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(count)]
    await turns()
    if turns_after_release is not None:
        permit.release()
        await turns(turns_after_release)
    let_die()
    return permit, waiting


def let_die() -> None:
    """Have no task of the loop complain that the loop ends before it."""
    for task in asyncio.all_tasks():
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["no", "release", "pause", "close", *range(6)])
def test_limiter_survives_the_death_of_its_loop(how: str | int) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    loop = asyncio.new_event_loop()
    released_for, count = (how, 1) if isinstance(how, int) else (None, 2)
    permit, waiting = loop.run_until_complete(take_and_let_wait(limiter, count, released_for))
    loop.close()
    if how == "close":
        asyncio.run(limiter.aclose())
        with pytest.raises(LimiterClosed):
            asyncio.run(limiter.try_acquire())
        return
    if how == "pause":
        limiter.pause(0)
    if how != "no":
        permit.release()
    decision = asyncio.run(limiter.try_acquire())
    free = how != "no" and not waiting[0].done()  # else a waiter has got the slot at the end
    assert (decision.allowed, counts(limiter)) == (free, (1, 0))


def plain_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **_: object
) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop)  # without a context


FACTORIES: list[Any] = [plain_task]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.mark.parametrize("factory", FACTORIES)
async def test_limiter_works_with_any_task_factory(factory: Unchecked) -> None:
    asyncio.get_running_loop().set_task_factory(factory)
    guests = "".join(map(chr, range(50)))
    limiter = RateLimiter("10/s", concurrency_limit=3)
    assert await order_of(guests, dict.fromkeys(guests, limiter)) == guests
    assert (counts(limiter), now()) == ((0, 0), 4.0)


async def test_sweep_at_every_instant_delays_no_waiter() -> None:
    limiter = RateLimiter(2, concurrency_limit=1)
    waiting = visits(limiter, 7, stay=0.25)
    while not all(waiter.done() for waiter in waiting):
        # Cancel all other tasks, as some programs do: the limiter's own among them.
        for task in asyncio.all_tasks() - {*waiting, asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.125)
    assert await together(*waiting) == [0, 0.25, 1, 1.25, 2, 2.25, 3]
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---- PerLoop: one limiter for each loop ---------------------------------------------------------


def in_threads(count: int, main: Callable[[], Awaitable[None]]) -> None:
    barrier = threading.Barrier(count)

    async def begin_together() -> None:
        barrier.wait()
        await main()

    with ThreadPoolExecutor(count) as threads:
        runs = [threads.submit(asyncio.run, begin_together()) for _ in range(count)]
    for run in runs:
        run.result()


def test_new_loop_takes_over_the_limiter_of_a_closed_one() -> None:
    limiters = PerLoop(lambda: RateLimiter("3/h"))

    async def main() -> float:
        await visit(limiters.get())
        return await remaining(limiters.get())

    assert [asyncio.run(main()) for _ in range(3)] == [2, 1, 0]
    assert repr(limiters) == "<PerLoop of 1 limiters>"


def test_next_loop_forgets_the_trial_the_quota_and_the_rejected_of_a_dead_one() -> None:
    paused, spent, kept = RateLimiter(100), RateLimiter(100), list[Permit]()
    rejecting = RateLimiter(algorithm=WaitUntil(60, raise_after=90, limit=600))

    async def leave() -> None:
        await throttle_one(paused, 1.0)
        await asyncio.sleep(2)
        kept.append(await paused.acquire())  # goes ahead of the others, and never ends
        async with spent.throttle() as permit:
            permit.update_quota(0, reset_after=600)
        await visit(rejecting)
        await queued(rejecting)
        with pytest.raises(ThrottleTimeout):
            await visit(rejecting)
        let_die()

    loop = VirtualTimeLoop()
    loop.run_until_complete(leave())
    loop.close()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(visit(paused)) == runner.run(visit(spent)) == 0.0
        runner.run(rejecting.peek())
        assert rejecting.statistics().waiting == 0


def test_loops_with_one_store_share_the_limit_and_the_slots() -> None:
    store, lock, inside, most, sent = MemoryStore(), threading.Lock(), 0, 0, list[float]()
    limiters_of = set[RateLimiter]()
    options: Unchecked = {"store": store, "concurrency_limit": SharedConcurrency(3), "key": "api"}
    limiters = PerLoop(lambda: RateLimiter(Rate(40, 0.2), **options))

    async def send() -> None:
        nonlocal inside, most
        async with limiters.get().throttle():
            limiters_of.add(limiters.get())
            with lock:
                sent.append(time.monotonic())
                inside += 1
                most = max(most, inside)
            await asyncio.sleep(0.002)
            with lock:
                inside -= 1

    async def main() -> None:
        await asyncio.gather(*(send() for _ in range(40)))

    in_threads(4, main)
    assert (inside, most, len(sent)) == (0, 3, 160)
    assert max(sent) - min(sent) >= 0.5  # 40 in each 0.2 s, of all loops together
    assert len(limiters_of) == 4


def test_wrong_use_of_per_loop_is_an_error_and_is_forgotten() -> None:
    wrong: list[Unchecked] = [7, RateLimiter("1/s"), None, "10/s"]
    for make in wrong:
        text = r"make must be a function .*lambda: RateLimiter\('10/s'\)"
        with pytest.raises(TypeError, match=text):
            PerLoop(make)
    answers: Unchecked = iter(["10/s", RateLimiter("1/s")])
    limiters = PerLoop(answers.__next__)
    with pytest.raises(TypeError, match="a PerLoop cannot be pickled or copied"):
        pickle.dumps(limiters)
    with pytest.raises(RuntimeError, match="no running event loop"):
        limiters.get()

    async def main() -> None:
        with pytest.raises(TypeError, match="make must return a limiter, got '10/s'"):
            limiters.get()
        await visit(limiters.get())

    asyncio.run(main())
