"""A limiter with a store on a second loop: what is left of the first one changes nothing there.

Tasks of a closed loop stay suspended, and their `finally` runs whenever they are collected.
"""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores import Claim, MemoryStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import VirtualTimeLoop
from tests.support.serving import until
from tests.support.sharing import Link, Shared, share
from tests.support.virtually import now, turns, visit

pytestmark = pytest.mark.usefixtures("no_automatic_collection")


class Slow(MemoryStore):
    """Fails in all methods; or, once it is up, hangs in one until it is released."""

    __slots__ = ("calls", "hanging", "hangs_in", "is_down")

    def __init__(self, hangs_in: str = "") -> None:
        super().__init__()
        self.hangs_in = hangs_in
        self.is_down = False
        self.hanging: list[asyncio.Future[None]] = []
        self.calls: list[tuple[str, float]] = []

    async def _execute(self, key: Any, algorithm: Any, step: Any) -> Any:
        if self.is_down:
            raise StoreUnavailable("no server")
        self.calls.append((step.method, sum(step.costs)))
        if step.method == self.hangs_in:
            self.hanging.append(asyncio.get_running_loop().create_future())
            await self.hanging[-1]
        return await super()._execute(key, algorithm, step)


class Failing(Slow):
    """Fails when its call is collected, as a driver that awaits something to clean up."""

    async def _execute(self, key: Any, algorithm: Any, step: Any) -> Any:
        try:
            return await super()._execute(key, algorithm, step)
        except GeneratorExit:
            raise OSError("collected") from None


def on_loops(
    *mains: Callable[[], Coroutine[Any, Any, object]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = VirtualTimeLoop,
) -> None:
    """Run each to its end on a loop of its own, which closes with all tasks that are left."""
    for main in mains:
        loop = new_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect only where a test says so; what closed loops log of their tasks is no concern."""
    caplog.set_level(logging.CRITICAL, "asyncio")
    caplog.set_level(logging.INFO, "aiothrottle")  # which is the handler's, too
    yield
    gc.collect()


def test_dead_try_takes_no_slot_of_waiters() -> None:
    store = Slow("reserve")
    limiter = RateLimiter(
        "100/s", concurrency_limit=SharedConcurrency(5), store=store, key="k", guard=0
    )

    async def first() -> None:
        trying = asyncio.create_task(limiter.try_acquire())
        await asyncio.sleep(1)
        assert not trying.done()

    async def second() -> None:
        store.hangs_in = ""
        store.hanging.clear()
        async with limiter.throttle():
            gc.collect()
        async with asyncio.timeout(1), limiter.throttle():
            pass
        async with asyncio.timeout(1):
            await limiter.aclose()

    on_loops(first, second)


def test_waiter_on_a_second_loop_is_woken_there() -> None:
    shared, kept = Shared(), list[Any]()
    limiter = share(Link(shared), 1, lease=30.0)

    async def first() -> None:
        await shared.claim("x", Claim("ann", 1, 0, 1, 30.0, 1))
        kept.append(asyncio.create_task(limiter.acquire()))
        await asyncio.sleep(0.5)

    async def second() -> None:
        shared.wakes.clear()  # the connection of the first loop is dead
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.5)
        await shared.claim("x", Claim("ann", 1, 0, 0, 30.0, 2))
        async with asyncio.timeout(1):
            (await waiting).release()
        await limiter.aclose()

    on_loops(first, second)


def test_forked_child_owns_slots_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = share(link := Link(Shared()))
    on_loops(limiter.acquire)
    monkeypatch.setattr("os.getpid", lambda: 0)
    on_loops(limiter.acquire)
    assert len({claim.owner for claim in link.claims}) == 2


def test_debt_is_recorded_once() -> None:
    store = Slow("record")
    limiter = RateLimiter("1000/s", store=store, key="k", guard=0)

    async def first() -> None:
        async with limiter.throttle() as permit:
            permit.settle(50)
        await turns(20)
        assert len(store.hanging) == 1

    async def second() -> None:
        store.calls.clear()
        store.hanging.clear()
        waiting = asyncio.create_task(limiter.acquire())
        await turns(20)
        assert len(store.hanging) == 1
        gc.collect()
        store.hanging[0].set_result(None)
        await turns(20)
        await waiting

    # On one clock: the debt is of the first loop.
    on_loops(first, second, new_loop=asyncio.new_event_loop)
    assert [call for call in store.calls if call[0] == "record"] == [("record", 49.0)]


def test_store_keeps_no_closed_loop_but_the_last() -> None:
    store, loops = MemoryStore(), list["weakref.ref[VirtualTimeLoop]"]()

    def new_loop() -> VirtualTimeLoop:
        loop = VirtualTimeLoop()
        loops.append(weakref.ref(loop))
        return loop

    for _ in range(3):
        on_loops(RateLimiter("9/s", store=store, key="k").acquire, new_loop=new_loop)
    gc.collect()
    assert [loop() is None for loop in loops[:-1]] == [True, True]


def test_dead_call_fails_no_waiter() -> None:
    store = Failing("reserve")
    limiter = RateLimiter("9/s", store=store, key="k")

    async def first() -> None:
        task = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(1)
        assert not task.done()

    async def second() -> None:
        store.hanging.clear()
        waiting = asyncio.create_task(limiter.acquire())
        await turns(20)
        gc.collect()
        await turns(20)
        store.hanging[0].set_result(None)
        (await waiting).release()

    on_loops(first, second)


def test_loops_at_the_same_time_have_an_outage_each(caplog: pytest.LogCaptureFixture) -> None:
    store = Slow()
    store.is_down = True

    async def begin() -> asyncio.Task[Any]:
        limiter = RateLimiter("9/s", store=store, key="k", on_store_error="closed")
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(1.0)
        return waiting

    async def end(waiting: asyncio.Task[Any]) -> None:
        async with asyncio.timeout(2.0):
            await waiting

    loops = [VirtualTimeLoop() for _ in range(2)]
    begun = [loop.run_until_complete(begin()) for loop in loops]
    store.is_down = False
    for loop, waiting in zip(loops, begun, strict=True):
        loop.run_until_complete(end(waiting))
        loop.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2 + ["INFO"] * 2


@pytest.mark.parametrize("end", [3.0 + step / 80 for step in range(8)])
def test_clock_of_the_turns_is_the_new_one(end: float) -> None:
    store = MemoryStore()
    limiters = [RateLimiter("10/s", store=store, key="k", guard=0) for _ in range(6)]

    async def use(limiter: RateLimiter) -> None:
        while True:
            await visit(limiter)

    async def first() -> None:
        await asyncio.sleep(3600)
        tasks = [asyncio.create_task(use(limiter)) for limiter in limiters]
        await asyncio.sleep(end)
        assert not any(task.done() for task in tasks)

    async def second() -> None:
        begun = now()
        for limiter in limiters:
            await visit(limiter)
        assert now() - begun < 10.0

    on_loops(first, second)


def test_outage_by_another_clock_is_over() -> None:
    store = Slow()
    limiter = RateLimiter("9/s", store=store, key="k", on_store_error="local")

    async def ask(*, is_down: bool) -> None:
        store.is_down = is_down
        await limiter.acquire()
        assert limiter.statistics().store_up is not is_down

    on_loops(partial(ask, is_down=True), partial(ask, is_down=False))


def test_dead_return_of_a_store_ends_no_other_return() -> None:
    store, waiting = Slow("record"), list[asyncio.Task[Any]]()
    store.is_down = True
    limiter = RateLimiter(
        "1000/s", store=store, key="k", guard=0, on_store_error="local", local_share=0.5
    )

    async def hanging() -> asyncio.Future[None]:
        async with asyncio.timeout(5):
            await until(lambda: bool(store.hanging))
        return store.hanging.pop()

    async def first() -> None:
        for _ in range(2):  # the second one has the store tried again
            await visit(limiter)
        store.is_down = False
        await hanging()
        for method in (limiter.try_acquire, limiter.peek):
            waiting.append(asyncio.create_task(method()))
        await turns()
        assert not any(task.done() for task in waiting)

    async def second() -> None:
        begun = asyncio.create_task(limiter.acquire())
        recording = await hanging()
        waiting.clear()
        gc.collect()
        asked = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.05)
        assert not asked.done()
        recording.set_result(None)
        await asyncio.gather(begun, asked)

    # On one clock: the outage goes on.
    on_loops(first, second, new_loop=asyncio.new_event_loop)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("server", ["valkey", "cluster"])
def test_connections_of_a_closed_loop_fail_no_request(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, server: str
) -> None:
    running = request.getfixturevalue(server)
    make: Any = Redis if server == "valkey" else RedisCluster
    client = make(host="127.0.0.1", port=getattr(running, "nodes", [running])[0].port)
    store = RedisStore(client, "another loop", timeout=5)
    limiter = RateLimiter("1000/s", store=store, key="k")
    slots = RateLimiter(concurrency_limit=SharedConcurrency(2), store=store, key="slots")

    async def use(limiter: RateLimiter) -> None:
        async with limiter.throttle():
            await asyncio.sleep(0.001)

    async def run() -> None:
        keys = [store.peek(str(key), SlidingWindowLog("1/s")) for key in range(20)]
        await asyncio.gather(*keys, *(use(each) for each in (limiter, slots) * 10))

    async def last() -> None:
        async with limiter, slots:
            await run()
        with suppress(RuntimeError):  # of connections of the first loops
            await client.aclose()

    for main in (run, run, last):
        asyncio.run(main())
    assert not caplog.records
