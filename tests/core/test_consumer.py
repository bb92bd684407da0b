"""The consumer: one task while there are waiters, asleep until a timer or a change."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from aiothrottle._core.consumer import Consumer
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import now, turns, virtual

DAY = 86400.0


class Host:
    """Has a number of waiters, and returns one answer for each turn it serves; then None."""

    def __init__(self, *answers: float | Exception | None, waiters: int = 1) -> None:
        self.waiters = waiters
        self.served_at = list[float]()
        self.errors = list[Exception]()
        self.ends = list[bool]()
        self._answers = list(answers)

    def has_waiters(self) -> bool:
        return self.waiters > 0

    def serve(self) -> float | None:
        self.served_at.append(now())
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def leave(self) -> None:
        self.waiters = 0

    def fail_all(self, error: Exception) -> None:
        self.errors.append(error)

    def consumer_ended(self, *, swept: bool) -> None:
        self.ends.append(swept)


def wake(consumer: Consumer, host: Host) -> None:
    consumer.wake(host, asyncio.get_running_loop())


@asynccontextmanager
async def woken(
    *answers: float | Exception | None, waiters: int = 1
) -> AsyncGenerator[tuple[Consumer, Host]]:
    """Wake a new consumer; at the end the last waiter leaves."""
    consumer, host = Consumer(), Host(*answers, waiters=waiters)
    wake(consumer, host)
    try:
        yield consumer, host
    finally:
        host.waiters = 0
        wake(consumer, host)
        await turns()


def others() -> set["asyncio.Task[object]"]:
    """All tasks but this one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def timers() -> list[asyncio.TimerHandle]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return [timer for timer in loop._scheduled if not timer.cancelled()]


# ---- only while there are waiters ----------------------------------------------------------------


@virtual
async def test_without_waiters_no_task_starts() -> None:
    async with woken(waiters=0) as (consumer, host):
        await turns()
        assert (consumer.task, others(), host.served_at) == (None, set(), [])


@virtual
async def test_many_wakes_start_one_task() -> None:
    async with woken(waiters=3) as (consumer, host):
        wake(consumer, host)
        assert others() == {consumer.task}
        await turns()
        wake(consumer, host)
        wake(consumer, host)
        assert others() == {consumer.task}


@virtual
async def test_task_ends_with_the_last_waiter() -> None:
    async with woken(5.0) as (consumer, host):
        await turns()
    assert (consumer.task, others(), timers()) == (None, set(), [])
    assert host.ends == [False]


@virtual
async def test_timer_that_serves_the_last_ends_the_task() -> None:
    async with woken(5.0) as (consumer, host):
        asyncio.get_running_loop().call_at(4.0, host.leave)  # and nobody wakes it
        await asyncio.sleep(5.0)
        await turns()
        assert (host.served_at, consumer.task, others()) == ([0.0, 5.0], None, set())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@virtual
async def test_idle_consumer_refers_to_no_host() -> None:
    async with woken(5.0, 5.0) as (consumer, host):
        await asyncio.sleep(6.0)
    reference = weakref.ref(host)
    del host
    assert reference() is None
    assert consumer.task is None


# ---- asleep until a timer or a change ------------------------------------------------------------


@virtual
async def test_unknown_wait_sleeps_until_woken() -> None:
    async with woken(None, None) as (consumer, host):
        await asyncio.sleep(DAY)
        assert (host.served_at, consumer.has_timer, timers()) == ([0.0], False, [])
        wake(consumer, host)
        await turns()
        assert host.served_at == [0.0, DAY]


@virtual
async def test_known_wait_takes_one_timer() -> None:
    async with woken(5.0, 2.5) as (consumer, host):
        await turns()
        assert consumer.has_timer
        assert len(timers()) == 1
        await asyncio.sleep(100.0)
        assert host.served_at == [0.0, 5.0, 7.5]
        assert not consumer.has_timer


@virtual
async def test_wake_replaces_the_timer() -> None:
    async with woken(100.0, 2.0) as (consumer, host):
        await asyncio.sleep(1.0)
        wake(consumer, host)
        await asyncio.sleep(200.0)
        assert host.served_at == [0.0, 1.0, 3.0]


@virtual
async def test_turn_out_of_order_replaces_the_timer() -> None:
    async with woken(100.0, 2.0) as (consumer, host):
        await asyncio.sleep(1.0)
        consumer.turn(host, asyncio.get_running_loop())
        assert (host.served_at, len(timers())) == ([0.0, 1.0], 1)
        await asyncio.sleep(200.0)
        assert host.served_at == [0.0, 1.0, 3.0]


@virtual
async def test_longest_nap_is_a_day() -> None:
    async with woken(1e12) as (_, host):
        await asyncio.sleep(DAY + 1.0)
        assert host.served_at == [0.0, DAY]


# ---- failures, sweeps, loops ---------------------------------------------------------------------


@virtual
async def test_failing_host_fails_its_waiters_alone() -> None:
    error = ZeroDivisionError()
    async with woken(error, 5.0) as (consumer, host):
        await turns()
        assert (host.errors, others()) == ([error], {consumer.task})
        wake(consumer, host)
        await asyncio.sleep(5.0)
        assert host.served_at == [0.0, 0.0, 5.0]


@virtual
async def test_swept_consumer_serves_on_while_somebody_waits() -> None:
    async with woken(5.0, 4.0) as (consumer, host):
        await asyncio.sleep(1.0)
        task = consumer.task
        assert task is not None
        task.cancel()
        await asyncio.sleep(10.0)
        assert consumer.task is task
        assert host.served_at == [0.0, 1.0, 5.0]
    assert others() == set()


@virtual
async def test_swept_consumer_ends_when_nobody_waits() -> None:
    async with woken(5.0) as (consumer, host):
        await turns()
        task = consumer.task
        assert task is not None
        host.waiters = 0
        task.cancel()
        await turns()
        assert task.cancelled()
        assert (consumer.task, timers(), host.ends) == (None, [], [True])


@virtual
async def test_consumer_cancelled_before_its_first_step_is_replaced() -> None:
    async with woken(None) as (consumer, host):
        first = consumer.task
        assert first is not None
        first.cancel()
        await turns()
        assert first.cancelled()
        assert others() == {consumer.task} != {first}
        assert (host.served_at, host.ends) == ([0.0], [True])


@virtual
async def test_cancelled_consumer_nobody_needs_is_not_replaced() -> None:
    async with woken(None) as (consumer, host):
        task = consumer.task
        assert task is not None
        task.cancel()
        host.waiters = 0
        await turns()
        assert (consumer.task, others(), host.ends) == (None, set(), [True])


def ignore(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    pass


def test_forgotten_consumer_starts_anew_on_another_loop() -> None:
    consumer, host = Consumer(), Host(None, 5.0)
    closed = VirtualTimeLoop()
    closed.set_exception_handler(ignore)  # of the task that is destroyed at the end
    consumer.wake(host, closed)
    closed.run_until_complete(turns())
    stranded = consumer.task
    closed.close()
    consumer.forget()

    async def start() -> None:
        try:
            wake(consumer, host)
            await asyncio.sleep(5.0)
        finally:
            host.waiters = 0
            wake(consumer, host)
        await turns()
        assert (host.served_at, consumer.task) == ([0.0, 0.0, 5.0], None)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(start())
    assert stranded is not None
    assert not stranded.done()
