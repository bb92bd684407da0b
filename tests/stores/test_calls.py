"""Calls to a store's server: what is under way, what queues, what a timeout counts, what fails.

In virtual time, with a server of two lines in place of a driver.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest

from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.calls import Calls, send_alone
from tests.virtually import now, turns, virtual


class Server:
    """Answers each batch after `latency` seconds with the calls themselves."""

    def __init__(self, *, limit: int = 2, batch: int = 10, timeout: float | None = 1.0) -> None:
        self.latency = 0.1
        self.batches: list[list[Any]] = []
        self.under_way = self.most_under_way = 0
        #: What a call is answered with instead; raised, if it is an error and `raises` it.
        self.replies: dict[Any, Any] = {}
        self.error: BaseException | None = None
        self.prepared = 0
        self.prepare_error: Exception | None = None
        self.calls = Calls[Any](
            "Server", self.send, limit=limit, batch=batch, timeout=timeout, prepare=self.prepare
        )

    async def prepare(self) -> None:
        self.prepared += 1
        await asyncio.sleep(self.latency)
        if self.prepare_error is not None:
            raise self.prepare_error

    async def send(self, calls: list[Any]) -> Sequence[Any]:
        self.batches.append(calls)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.under_way -= 1
        if self.error is not None:
            raise self.error
        return [self.replies.get(call, call) for call in calls]

    def ask(self, *calls: Any) -> list[asyncio.Task[Any]]:  # noqa: ANN401
        return [asyncio.create_task(self.calls.ask(call)) for call in calls]

    async def ready(self) -> Self:
        await self.calls.ask("ready")
        self.batches.clear()
        return self


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# ---- the queue -----------------------------------------------------------------------------------


@virtual
async def test_single_call_is_sent_without_a_task() -> None:
    server = await Server().ready()
    before = asyncio.all_tasks()
    asking = asyncio.create_task(server.calls.ask("a"))
    await turns(1)
    assert asyncio.all_tasks() - before == {asking}
    assert server.batches == [["a"]]
    assert await asking == "a"


@virtual
async def test_many_calls_share_few_round_trips() -> None:
    server = await Server(limit=3, batch=10).ready()
    begin = now()
    assert await asyncio.gather(*server.ask(*range(100))) == list(range(100))
    assert server.most_under_way == 3
    assert max(map(len, server.batches)) == 10
    assert len(server.batches) <= 12
    assert now() - begin <= 0.5
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "aiothrottle store"]


@virtual
async def test_no_more_dispatchers_than_one_batch_needs() -> None:
    server = await Server(limit=4, batch=10).ready()
    await asyncio.gather(*server.ask(*range(9)))
    assert server.batches == [[0], [1, 2, 3, 4, 5, 6, 7, 8]]


@virtual
async def test_priority_call_is_sent_before_queued_calls() -> None:
    server = await Server(limit=1, batch=1).ready()
    tasks = server.ask("a", "b", "c")
    await turns(1)
    await server.calls.ask("end of b", first=True)
    await asyncio.gather(*tasks)
    assert server.batches == [["a"], ["end of b"], ["b"], ["c"]]


@virtual
async def test_preparation_is_done_once_for_all() -> None:
    server = Server(limit=4, batch=1)
    assert await asyncio.gather(*server.ask(*range(50))) == list(range(50))
    assert server.prepared == 1
    assert server.most_under_way == 4


@virtual
async def test_failed_preparation_is_retried() -> None:
    server = Server()
    server.prepare_error = OSError("no")
    found = await outcomes(server.ask(1, 2, 3))
    assert [str(error) for error in found] == ["Server: no"] * 3
    server.prepare_error = None
    assert await server.calls.ask(4) == 4
    assert server.batches == [[4]]


@virtual
async def test_cancelled_preparation_is_done_by_the_next_call() -> None:
    server = Server(limit=4, batch=1)
    first, *others = server.ask(*range(20))
    await turns()
    first.cancel()
    assert await asyncio.gather(*others) == list(range(1, 20))
    assert first.cancelled()
    assert server.prepared == 2
    assert server.most_under_way == 4


# ---- timeouts ------------------------------------------------------------------------------------


@virtual
async def test_timeout_excludes_the_time_in_the_queue() -> None:
    server = await Server(limit=1, batch=1, timeout=1.0).ready()
    server.latency = 0.9
    begin = now()
    assert await asyncio.gather(*server.ask(*range(20))) == list(range(20))
    assert now() - begin == pytest.approx(18.0)


@virtual
async def test_silent_server_fails_all_queued_calls() -> None:
    server = await Server(limit=2, batch=1, timeout=1.0).ready()
    server.latency = 60.0
    begin = now()
    found = await outcomes(server.ask(*range(50)))
    assert now() - begin == pytest.approx(1.0, abs=0.01)
    assert {str(error) for error in found} == {"Server: no answer in time"}
    assert all(isinstance(error.__cause__, TimeoutError) for error in found)
    assert len({id(error) for error in found}) == 50
    server.latency = 0.1
    assert await server.calls.ask(1) == 1


@virtual
async def test_dead_connection_fails_no_queued_call() -> None:
    server = await Server(limit=2, batch=1, timeout=1.0).ready()
    server.latency = 60.0
    (dead,) = server.ask("dead")
    await turns(1)
    server.latency = 0.1
    assert await asyncio.gather(*server.ask(*range(30))) == list(range(30))
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await dead


@virtual
async def test_quick_failure_fails_only_its_batch() -> None:
    server = await Server(limit=1, batch=2, timeout=1.0).ready()
    server.error = ConnectionResetError("reset")
    tasks = server.ask(*range(5))
    await asyncio.sleep(0.15)
    server.error = None
    found = await outcomes(tasks)
    assert [str(error) for error in found[:1]] == ["Server: reset"]
    assert found[1:] == [1, 2, 3, 4]


@virtual
async def test_consecutive_slow_failures_fail_all_queued_calls() -> None:
    server = await Server(limit=1, batch=1, timeout=1.0).ready()
    server.latency, server.error = 0.6, ConnectionRefusedError("refused")
    begin = now()
    found = await outcomes(server.ask(*range(100)))
    assert {str(error) for error in found} == {"Server: refused"}
    assert now() - begin == pytest.approx(1.2)


@virtual
async def test_busy_loop_is_not_a_silent_server() -> None:
    async def send(calls: list[int]) -> list[int]:
        await asyncio.sleep(0.3)
        await asyncio.sleep(0.3)
        return calls

    calls = Calls[int]("Server", send, limit=1, timeout=1.0)
    asking = asyncio.create_task(calls.ask(1))
    await turns()
    loop: Any = asyncio.get_running_loop()
    loop._set_time(loop.time() + 5.0)  # a turn that takes so long
    assert await asking == 1
    assert loop.time() == pytest.approx(5.3)


@pytest.mark.parametrize("passed", [0.0, 0.5, 0.8, 0.99])
@virtual
async def test_loop_blocked_at_any_instant_is_not_a_silent_server(passed: float) -> None:
    reply = asyncio.get_running_loop().create_future()

    async def send(calls: list[int]) -> list[int]:
        await reply
        return calls

    calls = Calls[int]("Server", send, limit=1, timeout=1.0)
    asking = asyncio.create_task(calls.ask(1))
    await turns()
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(passed)
    loop._set_time(loop.time() + 1.2)
    # As asyncio does: the timer runs in the turn that reads the socket.
    loop.call_later(0.0, reply.set_result, None)
    assert await asking == 1
    assert now() == pytest.approx(passed + 1.2)


@virtual
async def test_silent_server_is_found_although_the_loop_is_always_late() -> None:
    server = await Server(timeout=1.0).ready()
    server.latency = 60.0
    begin = now()
    (asking,) = server.ask("a")
    loop: Any = asyncio.get_running_loop()
    while not asking.done():
        await asyncio.sleep(0.001)
        loop._set_time(loop.time() + 0.3)
    assert await outcomes([asking]) != ["a"]
    assert now() - begin < 16 * 0.302 + 0.3


@virtual
async def test_without_a_timeout_the_drivers_own_applies() -> None:
    server = await Server(limit=1, batch=1, timeout=None).ready()
    server.latency = 100.0
    assert await server.calls.ask(1) == 1
    server.latency, server.error = 5.0, TimeoutError()
    begin = now()
    found = await outcomes(server.ask(*range(10)))
    assert {str(error) for error in found} == {"Server: no answer in time"}
    assert now() - begin == 5.0


# ---- failures ------------------------------------------------------------------------------------


FOREIGN = [
    AttributeError("'NoneType' object has no attribute 'write'"),
    TypeError("an integer is required"),
    RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
    ValueError("x"),
    ConnectionResetError(104, "reset"),
    KeyError("x"),
    asyncio.IncompleteReadError(b"", 2),
    asyncio.InvalidStateError("invalid state"),
    AssertionError(),
]


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
@virtual
async def test_every_driver_error_is_an_outage(error: Exception) -> None:
    server = await Server().ready()
    server.error = error
    found = await outcomes(server.ask(*range(5)))
    assert {type(each) for each in found} == {StoreUnavailable}
    assert {each.__cause__ for each in found} == {error}
    assert {str(each) for each in found} == {f"Server: {str(error) or type(error).__name__}"}


@pytest.mark.parametrize("stop", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_program_exit_is_not_an_outage(stop: type[BaseException]) -> None:
    async def main() -> None:
        server = await Server().ready()
        server.error = stop()
        await server.calls.ask(1)

    with asyncio.Runner() as runner, pytest.raises(stop):
        runner.run(main())


@virtual
async def test_one_bad_reply_fails_its_call_alone() -> None:
    server = await Server().ready()
    bad = server.replies[3] = ValueError("bad")
    found = await outcomes(server.ask(*range(6)))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5]
    assert isinstance(found[3], StoreUnavailable)
    assert found[3].__cause__ is bad
    with pytest.raises(StoreUnavailable, match="Server: bad"):
        await server.calls.ask(3)


@virtual
async def test_too_few_replies_fail_all_of_the_batch() -> None:
    async def send(calls: list[int]) -> list[int]:
        await turns()
        return calls[:1]

    calls = Calls[int]("Server", send, limit=1, batch=10, timeout=1.0)
    found = await asyncio.gather(*map(calls.ask, range(4)), return_exceptions=True)
    assert found[0] == 0
    assert {str(error) for error in found[1:]} == {"Server: 1 replies to 3 calls, not one for each"}


@virtual
async def test_timeout_reports_the_drivers_reason() -> None:
    """A driver that retries by itself keeps the reason to itself."""

    async def send(_: list[int]) -> list[int]:
        try:
            raise ConnectionRefusedError(111, "refused")
        except OSError:
            await asyncio.sleep(60.0)
        return []

    calls = Calls[int]("Server", send, limit=1, timeout=1.0)
    try:
        raise KeyError("a secret of the caller's")  # noqa: TRY301 - what the caller handles meanwhile
    except KeyError:
        with pytest.raises(StoreUnavailable) as caught:
            await calls.ask(1)
    assert str(caught.value) == "Server: no answer in time: [Errno 111] refused"


@virtual
async def test_system_error_omitted_by_the_driver_is_added() -> None:
    server = await Server().ready()
    for text, reported in (
        ("Error 111 connecting to h:1.", "Error 111 connecting to h:1.: [Errno 111] refused"),
        ("h:1: refused", "h:1: refused"),
        ("", "RuntimeError: [Errno 111] refused"),
    ):
        server.error = RuntimeError(text)
        server.error.__cause__ = ConnectionRefusedError(111, "refused")
        with pytest.raises(StoreUnavailable) as caught:
            await server.calls.ask(1)
        assert str(caught.value) == f"Server: {reported}"


@virtual
async def test_handled_error_of_the_caller_is_no_reason() -> None:
    server = await Server().ready()
    server.error = TimeoutError()
    try:
        raise KeyError("a secret of the caller's")  # noqa: TRY301
    except KeyError:
        with pytest.raises(StoreUnavailable) as caught:
            await server.calls.ask(1)
    assert str(caught.value) == "Server: no answer in time"


@virtual
async def test_missing_answer_reports_the_hint() -> None:
    async def never() -> None:
        await asyncio.sleep(60.0)

    calls = Calls[Callable[[], Any]](
        "Server", send_alone, limit=1, timeout=1.0, hint=lambda: "refused"
    )
    with pytest.raises(StoreUnavailable) as caught:
        await calls.ask(never)
    assert str(caught.value) == "Server: no answer in time: refused"


# ---- cancellation --------------------------------------------------------------------------------


@virtual
async def test_cancelled_call_harms_none_of_its_batch() -> None:
    server = await Server(limit=1).ready()
    tasks = server.ask(*range(6))
    await asyncio.sleep(0.15)
    assert server.batches[-1] == [1, 2, 3, 4, 5]  # it is under way
    tasks[3].cancel()
    found = await outcomes(tasks)
    assert isinstance(found.pop(3), asyncio.CancelledError)
    assert found == [0, 1, 2, 4, 5]


@virtual
async def test_cancelled_call_that_queues_is_not_sent() -> None:
    server = await Server(limit=1).ready()
    tasks = server.ask(*range(6))
    await turns()
    tasks[0].cancel()  # it is under way, alone
    tasks[3].cancel()
    await outcomes(tasks)
    assert server.batches == [[0], [1, 2, 4, 5]]


@virtual
async def test_driver_error_on_cancellation_hides_no_cancellation() -> None:
    async def send(_: list[int]) -> list[int]:
        try:
            await asyncio.sleep(60.0)
        finally:
            raise AttributeError("'NoneType' object has no attribute 'close'")

    calls = Calls[int]("Server", send, limit=1, timeout=100.0)
    asking = asyncio.create_task(calls.ask(1))
    await turns()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    calls = Calls[int]("Server", send, limit=1, timeout=1.0)
    with pytest.raises(StoreUnavailable):  # our own timeout cancels it as well
        await calls.ask(1)


@pytest.mark.parametrize("step", [0, 1, 5])
@virtual
async def test_swept_dispatchers_leave_nobody_waiting(step: int) -> None:
    server = await Server(limit=2, batch=2).ready()
    tasks = server.ask(*range(20))
    await turns(1 + step)
    for task in asyncio.all_tasks():
        if task.get_name() == "aiothrottle store":
            task.cancel()
    async with asyncio.timeout(10.0):
        found = await outcomes(tasks)
    assert all(isinstance(each, int | StoreUnavailable) for each in found)
    assert any(isinstance(each, StoreUnavailable) for each in found)
    assert await asyncio.gather(*server.ask(*range(3))) == list(range(3))


def test_closed_loop_leaves_no_task_of_its_calls() -> None:
    async def main() -> None:
        server = await Server().ready()
        server.ask(*range(100))
        await turns()

    with asyncio.Runner() as runner:
        runner.run(main())


def test_second_loop_starts_empty() -> None:
    server = Server()

    async def abandon() -> None:
        server.ask(*range(10))
        await turns()

    async def second() -> list[Any]:
        return await asyncio.gather(*server.ask(*range(10)))

    for main in (abandon, second):
        with asyncio.Runner() as runner:
            found = runner.run(main())
    assert found == list(range(10))
