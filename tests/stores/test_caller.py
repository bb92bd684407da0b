"""The caller: one call at a time for one part, a task only while calls are due, else a timer."""

import asyncio
import gc
import math

import pytest

from aiothrottle.stores import MemoryStore
from aiothrottle.stores.caller import Caller, Order, weakly
from aiothrottle.stores.health import Outage
from tests.support.virtually import now, turns, virtual
from tests.support.watching import cancel, others


class Orders:
    """A part with calls that are due at given times; each takes a second."""

    def __init__(self, *due_at: float) -> None:
        self.outage = Outage(
            *(MemoryStore(), "key", "raise"), report=lambda _: None, server_returned=lambda: None
        )
        self.due_at: list[float] = list(due_at)
        self.made: list[float] = []
        self.filled: list[str] = []
        self.stopped = 0
        self.error: Exception | None = None

    def is_idle(self, now: float) -> bool:
        return now >= 0.0 and not self.due_at

    def tidy(self, now: float) -> None:  # noqa: ARG002
        raise AssertionError("the engine does it")

    def due_in(self, now: float) -> float:
        return max(0.0, self.due_at[0] - now) if self.due_at else math.inf

    def order(self, now: float) -> Order | float:
        if wait := self.due_in(now):
            return wait
        return Order(self.call(self.due_at.pop(0)), self.fill, self.fail, self.stop_call)

    async def call(self, due_at: float) -> str:
        self.made.append(now())
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        return f"{due_at:g}"

    def fill(self, answer: str) -> bool:
        self.filled.append(answer)
        return True

    def fail(self, error: Exception) -> Exception:
        return error

    def stop_call(self) -> None:
        self.stopped += 1
        self.due_at.insert(0, now())

    def restart(self, loop: asyncio.AbstractEventLoop) -> None:
        assert loop is asyncio.get_running_loop()

    def stop(self) -> None:
        self.due_at = [0.0]  # what is to be returned


class Served:
    """What an engine does with answers."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def serve(self, error: Exception | None) -> None:
        self.errors.append(error)


def begin(part: Orders) -> tuple[Caller, Served]:
    served = Served()
    caller = Caller(part, "aiothrottle test", now, served.serve)
    caller.restart(asyncio.get_running_loop())
    return caller, served


@virtual
async def test_calls_are_made_one_by_one_and_later_ones_by_a_timer() -> None:
    part = Orders(0, 0, 5, 7)
    caller, served = begin(part)
    caller.start()
    caller.start()
    await asyncio.sleep(2.5)
    assert part.made == [0, 1]
    assert not others(), "no task while nothing is due"
    assert not caller.is_idle(now())
    part.due_at = [4, 7]
    caller.start()  # the timer is too late now
    await asyncio.sleep(10)
    assert part.made == [0, 1, 4, 7]
    assert part.filled == ["0", "0", "4", "7"]
    assert served.errors == [None] * 4
    assert caller.is_idle(now())


@virtual
async def test_cancelled_call_is_made_again_by_a_timer() -> None:
    part = Orders(0)
    caller, served = begin(part)
    caller.start()
    await asyncio.sleep(0.5)
    (task,) = [it for it in asyncio.all_tasks() if it.get_name() == "aiothrottle test"]
    await cancel(task)
    await turns()
    assert (part.stopped, served.errors, others()) == (1, [None], set())
    await asyncio.sleep(2)
    assert part.made == pytest.approx([0, 0.51])


@virtual
async def test_late_call_is_a_reason_to_wait() -> None:
    caller, _ = begin(Orders(0))
    caller.start()
    await asyncio.sleep(0.05)
    assert not caller.trouble(0.0)
    await asyncio.sleep(0.1)
    assert caller.trouble(0.0) == "MemoryStore has not answered yet, key 'key'"
    assert not caller.trouble(1.0), "it waits for the limit anyway"
    caller.restart(asyncio.get_running_loop())
    assert not caller.trouble(0.0)
    await asyncio.sleep(2.0)


@virtual
async def test_cancelled_task_starts_no_other_one() -> None:
    part = Orders(0)
    caller, _ = begin(part)

    async def be_cancelled() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            caller.start()
            assert not others()

    task = asyncio.create_task(be_cancelled())
    await turns()
    await cancel(task)
    await asyncio.sleep(2)
    assert part.made == pytest.approx([0.01])


@virtual
async def test_error_is_served_and_what_is_still_due_follows() -> None:
    part = Orders(0, 0)
    part.error = ValueError("no")
    caller, served = begin(part)
    caller.start(now())
    await asyncio.sleep(1.0005)
    part.error = None
    assert [type(it) for it in served.errors] == [ValueError]
    assert not others(), "the waiters have not left yet"
    await asyncio.sleep(2)
    assert part.made == pytest.approx([0, 1.001])
    assert part.filled == ["0"]


@virtual
async def test_dropped_engine_is_not_kept_and_its_calls_are_made() -> None:
    part = Orders(0, 5)
    caller, served = begin(part)
    errors = served.errors
    caller.start()
    await asyncio.sleep(3)
    del served
    gc.collect()
    await asyncio.sleep(5)
    assert (part.filled, errors) == (["0", "5"], [None])


@virtual
async def test_close_makes_the_last_calls_and_takes_unused_answers() -> None:
    part = Orders()
    caller, _ = begin(part)
    unused: list[str] = []
    asking = asyncio.create_task(caller.ask(part.call(3), unused.append))
    await turns()
    assert not caller.is_idle(now())
    await cancel(asking)
    await caller.close()
    assert (part.filled, unused, others()) == (["0"], ["3"], set())


@virtual
async def test_answer_that_cannot_be_taken_is_an_error_of_the_call() -> None:
    part = Orders(0.0, 0.0)
    served: list[Exception | None] = []

    class Queue:
        def serve(self, error: Exception | None) -> None:
            served.append(error)

    queue = Queue()
    caller = Caller(part, "calls", now, queue.serve)
    caller.restart(asyncio.get_running_loop())
    wrong = ValueError("malformed")

    def refuse(answer: str) -> bool:
        raise wrong if answer else AssertionError

    part.fill = refuse  # type: ignore[method-assign]
    caller.start()
    await asyncio.sleep(1)
    await turns(3)
    assert served == [wrong]
    await asyncio.sleep(5)
    assert len(part.made) == 2


def test_weak_method_is_called_while_its_object_lives() -> None:
    served = Served()
    errors, serve = served.errors, weakly(served.serve)
    serve(None)
    del served
    gc.collect()
    serve(None)
    assert errors == [None]
