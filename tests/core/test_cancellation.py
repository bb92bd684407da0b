"""A request that is cancelled leaves the limiter as if it had never come, whenever that happens.

Also at each step of the event loop, by Ctrl-C, and where the loop cancels the limiter's own task.
"""

import asyncio
import gc
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import pytest

from aiothrottle import LimiterClosed, RateLimiter
from tests.limiter.common import remaining
from tests.support.failing import Client, Server
from tests.support.interleaving import InterleavingLoop
from tests.support.virtually import counts, now, on_virtual_loop, turns, virtual, visit, visits


def alone() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.filterwarnings("ignore:coroutine .*_consume:RuntimeWarning")
@virtual
async def test_error_on_the_way_into_the_queue_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be no room left on the stack to start the consumer."""
    limiter = RateLimiter(concurrency_limit=1)
    permit = await limiter.acquire()

    def overflow(*_: object, **__: object) -> None:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_soon", overflow)
        with pytest.raises(RecursionError):
            await limiter.acquire()
    assert limiter.statistics().waiting == 0
    permit.release()
    (await limiter.acquire()).release()


# ---- between the grant and the start -------------------------------------------------------------


@virtual
async def test_token_counts_from_its_start_on_a_blocked_loop() -> None:
    blocked = 0.0
    limiter, began = RateLimiter(2, clock=lambda: now() + blocked), list[float]()

    async def start() -> None:
        nonlocal blocked
        async with limiter.throttle():
            began.append(now() + blocked)
            if len(began) == 3:
                blocked += 0.5  # holds up the next one, which is granted already

    await asyncio.gather(*(start() for _ in range(6)))
    assert began == [0.0, 0.0, 1.0, 1.5, pytest.approx(2.5), pytest.approx(2.5)]


@virtual
async def test_token_counts_from_its_start_if_the_next_granted_waiter_is_cancelled() -> None:
    limiter = RateLimiter(2, clock=now)
    await visit(limiter, 2)

    async def start() -> None:
        async with limiter.throttle():
            cancelled.cancel()

    starting, cancelled = asyncio.create_task(start()), asyncio.create_task(visit(limiter))
    await starting
    await asyncio.sleep(1.0)
    assert (now(), cancelled.cancelled(), await remaining(limiter)) == (2.0, True, 2.0)


@pytest.mark.parametrize("after_turns", range(6))
@virtual
async def test_waiter_with_revoked_grant_is_not_overtaken(after_turns: int) -> None:
    limiter = RateLimiter(concurrency_limit=2, clock=now)
    held = [await limiter.acquire() for _ in range(2)]
    tasks = visits(limiter, 2, stay=1.0)
    await turns(5)
    for permit in held:
        permit.release()
    await turns(after_turns)
    limiter.update(concurrency_limit=1)
    began = await asyncio.gather(*tasks)
    assert began in ([0.0, 1.0], [0.0, 0.0])  # or both had started before


# ---- while it closes -----------------------------------------------------------------------------


@virtual
async def test_cancelled_aclose_still_closes_the_limiter() -> None:
    limiter = RateLimiter(1, clock=now)
    await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await turns(3)
    closing = asyncio.create_task(limiter.aclose())
    await turns(1)
    closing.cancel()
    await asyncio.wait([closing, waiter])
    assert isinstance(waiter.exception(), LimiterClosed)
    await limiter.aclose()
    assert alone()


@pytest.mark.parametrize("drain", [False, True])
@virtual
async def test_aclose_waits_for_last_waiter_of_cancelled_consumer(drain: bool) -> None:
    limiter = RateLimiter(1, clock=now)
    await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await turns(1)
    [consumer] = [it for it in asyncio.all_tasks() if it.get_name() == "aiothrottle consumer"]
    consumer.cancel()  # before its first step
    await limiter.aclose(drain=drain)
    await turns(1)
    assert waiter.done()
    assert (now(), waiter.exception() is None) == ((1.0, True) if drain else (0.0, False))


# ---- at each step of the loop --------------------------------------------------------------------


async def throttle(limiter: RateLimiter) -> None:
    async with limiter.throttle():
        await asyncio.sleep(0.25)


async def throttle_heavily(limiter: RateLimiter) -> None:
    async with limiter.throttle(2, timeout=10):
        await asyncio.sleep(0)


async def acquire(limiter: RateLimiter) -> None:
    async with await limiter.acquire() as permit:
        await asyncio.sleep(0)
        permit.settle(2)


async def try_acquire(limiter: RateLimiter) -> None:
    decision = await limiter.try_acquire()
    if decision.permit is not None:
        decision.permit.release()


async def record(limiter: RateLimiter) -> None:
    await limiter.record(1)


class Steps(InterleavingLoop):
    """A loop on which the victim is cancelled before its n-th callback."""

    victim: "asyncio.Future[object] | None" = None

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


Doing: TypeAlias = Callable[[RateLimiter], Awaitable[object]]
KINDS = ["memory", "paused", "store"]


async def play(loop: Steps, doing: Doing | None, kind: str) -> tuple[bool, list[float]]:
    """Return whether the victim was cancelled before it entered, and when the others entered."""
    server = Server()
    server.latency = 0.125
    store, key = (Client(server), "k") if kind == "store" else (None, None)
    limiter = RateLimiter(2, concurrency_limit=1, store=store, key=key)
    if kind == "paused":
        loop.call_later(0.125, limiter.pause, 1.0)
    others = visits(limiter, 1, stay=0.25)
    await turns(1)
    victim = loop.victim = asyncio.ensure_future(doing(limiter)) if doing else None
    others += visits(limiter, 2, stay=0.25)
    await asyncio.wait([*others, *([victim] if victim else [])])
    loop.victim = None
    entered = await asyncio.gather(*others)
    assert counts(limiter) == (0, 0)
    await asyncio.sleep(5)
    assert await remaining(limiter) == 2
    assert alone()
    left = victim is not None and victim.cancelled()
    return left and limiter.statistics().granted == len(others), entered


def played(at: int, doing: Doing | None, kind: str) -> tuple[Steps, bool, list[float]]:
    loop = Steps(at)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return loop, *runner.run(play(loop, doing, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("doing", [throttle, throttle_heavily, acquire, try_acquire, record])
def test_task_cancelled_at_any_step_leaves_nothing(doing: Doing, kind: str) -> None:
    often = 0
    _, _, undisturbed = played(0, None, kind)
    for at in itertools.count(1):
        loop, before_it_entered, entered = played(at, doing, kind)
        if loop.at > 0:
            break  # it was done before
        often += 1
        # The others start as if it had never come; but a store may have answered for it already,
        # and a heavy request delays others while it waits as the head.
        if before_it_entered and kind != "store" and doing is not throttle_heavily:
            assert entered == undisturbed, at
    assert often >= 1


@virtual
async def test_garbage_collected_at_each_step_loses_nothing() -> None:
    limiter = RateLimiter(2, concurrency_limit=1)
    tasks = visits(limiter, 6)
    while not all(task.done() for task in tasks):
        gc.collect()
        await asyncio.wait(tasks, timeout=0.125)
    assert [task.result() for task in tasks] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


# ---- Ctrl-C, and a fork --------------------------------------------------------------------------


@pytest.fixture
def sigint_as_in_a_shell() -> Iterator[None]:
    """Handle SIGINT as Python does; a shell has background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_as_in_a_shell")
@pytest.mark.parametrize("after_turns", range(6))
@pytest.mark.parametrize("with_parent", [False, True], ids=["alone", "parent"])
def test_ctrl_c_leaves_no_trace(after_turns: int, *, with_parent: bool) -> None:
    parent = RateLimiter("3/s", concurrency_limit=2)
    limiter = RateLimiter("2/s", concurrency_limit=2, parent=parent if with_parent else None)

    async def press() -> None:
        workers = visits(limiter, 7, stay=0.25)
        await turns(after_turns)
        signal.raise_signal(signal.SIGINT)  # `asyncio.Runner` turns it into a cancellation
        await asyncio.gather(*workers)

    async def fail() -> None:
        async with limiter.throttle():
            visits(limiter, 1)
            await asyncio.sleep(0)
            raise KeyboardInterrupt  # in a block, as by a handler of the program

    for main in (press, fail):
        with pytest.raises(KeyboardInterrupt):
            on_virtual_loop(main())
        assert counts(limiter) == counts(parent) == (0, 0)

    async def serve_all() -> None:
        await asyncio.gather(*visits(limiter, 4, stay=0.25))

    on_virtual_loop(serve_all())
    assert counts(limiter) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_process_has_a_copy_of_its_own() -> None:
    limiter = RateLimiter("2/min", concurrency_limit=1)
    asyncio.run(visit(limiter))
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            status = 0 if asyncio.run(limiter.try_acquire()) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert limiter.statistics().granted == 1  # what the child has spent is the child's
