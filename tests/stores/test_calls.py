"""Calls to a store's server: what is under way, what queues, what a timeout counts, what fails."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest

from aiothrottle import StoreUnavailable
from aiothrottle.stores.calls import Calls, send_alone
from tests.support.virtually import Coarse, now, turns
from tests.support.watching import own_tasks, stand_still, sweep


class Server:
    """Answers each batch after `latency` seconds with the calls themselves."""

    def __init__(self, *, limit: int = 2, batch: int = 10, timeout: float | None = 1.0) -> None:
        self.latency = 0.1
        self.batches: list[list[Any]] = []
        self.under_way = self.most_under_way = 0
        #: What a call is answered with instead.
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

    def ask(self, *calls: Any) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(self.calls.ask(call)) for call in calls]

    async def ready(self) -> Self:
        await self.calls.ask("ready")
        self.batches.clear()
        return self


def sending(send: Callable[[list[Any]], Any], **options: Any) -> Calls[Any]:
    given: dict[str, Any] = {"limit": 1, "timeout": 1.0} | options
    return Calls[Any]("Server", send, **given)


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# ---- the queue -----------------------------------------------------------------------------------


async def test_calls_share_round_trips_and_keep_their_order() -> None:
    server = await Server(limit=3, batch=10).ready()
    before, begin = asyncio.all_tasks(), now()
    (asking,) = server.ask("a")
    await turns(1)
    assert asyncio.all_tasks() - before == {asking}, "a single call needs no task"
    assert server.batches == [["a"]]
    assert await asking == "a"
    assert await asyncio.gather(*server.ask(*range(100))) == list(range(100))
    assert server.most_under_way == 3
    assert max(map(len, server.batches)) == 10
    assert len(server.batches) <= 13
    assert now() - begin <= 0.6
    assert not own_tasks()
    server.batches.clear()
    await asyncio.gather(*server.ask(*range(9)))
    assert server.batches == [[0], [1, 2, 3, 4, 5, 6, 7, 8]], "as few dispatchers as it needs"
    server = await Server(limit=3, batch=1).ready()
    tasks = server.ask("a", "b")
    await asyncio.sleep(0.05)
    tasks += server.ask("c")
    await turns()
    assert server.under_way == 3, "a later call has a dispatcher of its own"
    await asyncio.gather(*tasks)
    server = await Server(limit=1, batch=1).ready()
    tasks = server.ask("a", "b", "c")
    await turns(1)
    await server.calls.ask("end of b", first=True)
    await asyncio.gather(*tasks)
    assert server.batches == [["a"], ["end of b"], ["b"], ["c"]]


async def test_preparation_is_done_once_and_retried_if_it_failed() -> None:
    server = Server(limit=4, batch=1)
    server.prepare_error = OSError("no")
    assert [str(error) for error in await outcomes(server.ask(1, 2, 3))] == ["Server: no"] * 3
    server.prepare_error, server.prepared = None, 0
    first, *others = server.ask(*range(20))
    await turns()
    first.cancel()  # the next call prepares anew
    assert await asyncio.gather(*others) == list(range(1, 20))
    assert first.cancelled()
    assert await asyncio.gather(*server.ask(*range(50))) == list(range(50))
    assert server.prepared == 2
    assert server.most_under_way == 4


# ---- timeouts ------------------------------------------------------------------------------------


# At once where the server is silent; after two in a row where each takes long to fail.
@pytest.mark.parametrize(
    ("limit", "latency", "error", "reason", "seconds"),
    [
        (2, 60.0, None, "no answer in time", 1.0),
        (1, 0.6, ConnectionRefusedError("refused"), "refused", 1.2),
    ],
    ids=["silent", "slow to fail"],
)
async def test_bad_server_fails_all_queued_calls(
    limit: int, latency: float, error: Exception | None, reason: str, seconds: float
) -> None:
    server = await Server(limit=limit, batch=1).ready()
    server.latency, server.error = latency, error
    begin = now()
    found = await outcomes(server.ask(*range(50)))
    assert now() - begin == pytest.approx(seconds, abs=0.01)
    assert set(map(str, found)) == {f"Server: {reason}"}
    cause = type(error) if error else TimeoutError
    assert all(isinstance(each.__cause__, cause) for each in found)
    assert len(set(map(id, found))) == 50
    server.latency, server.error = 0.1, None
    assert await server.calls.ask(1) == 1


async def test_call_without_an_answer_fails_alone_if_others_get_theirs() -> None:
    server = await Server(batch=1).ready()
    server.latency = 60.0
    silent = server.ask("silent")
    await turns(1)
    server.latency = 0.3
    assert await outcomes(server.ask(*range(8))) == list(range(8))
    (error,) = await outcomes(silent)
    assert isinstance(error, StoreUnavailable)


def test_timeout_of_few_milliseconds_expires_on_any_loop() -> None:
    async def main() -> None:
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await sending(lambda _: asyncio.sleep(1.0), timeout=0.002).ask(1)
        assert 0.002 <= now() < 0.01

    with asyncio.Runner(loop_factory=Coarse) as runner:
        runner.run(main())


async def test_failures_with_answers_between_them_do_not_add_up() -> None:
    server = await Server(limit=1, batch=1).ready()
    server.latency, failure = 0.6, ConnectionResetError("reset")
    tasks = server.ask(*range(5))
    for error in (failure, None, failure, None):
        server.error = error
        await asyncio.sleep(0.6 if error is not None else 0.61)
    found = await outcomes(tasks)
    assert [isinstance(each, StoreUnavailable) for each in found] == [True, False] * 2 + [False]


async def test_failure_harms_its_own_calls_alone() -> None:
    server = await Server(limit=1, batch=2).ready()
    server.error = ConnectionResetError("reset")
    tasks = server.ask(*range(5))
    await asyncio.sleep(0.15)
    server.error = None
    first, *others = await outcomes(tasks)
    assert str(first) == "Server: reset"
    assert others == [1, 2, 3, 4]
    server = await Server().ready()
    server.replies[3] = ValueError("bad")
    found = await outcomes(server.ask(*range(6)))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5]
    with pytest.raises(StoreUnavailable, match="Server: bad"):
        await server.calls.ask(3)
    server.error = AssertionError()  # every error of a driver is an outage
    for each in await outcomes(server.ask(*range(5))):
        assert type(each) is StoreUnavailable
        assert each.__cause__ is server.error
        assert str(each) == "Server: AssertionError"

    async def too_few(calls: list[int]) -> list[int]:
        await turns()
        return calls[:1]

    calls = sending(too_few, batch=10)
    first, *others = await asyncio.gather(*map(calls.ask, range(4)), return_exceptions=True)
    assert first == 0
    assert set(map(str, others)) == {"Server: 1 replies to 3 calls, not one for each"}


@pytest.mark.parametrize(("passed", "later"), [(0.0, 0.5), (0.5, 0.0), (0.8, 0.0), (0.99, 0.0)])
async def test_blocked_loop_is_not_a_silent_server(passed: float, later: float) -> None:
    reply = asyncio.get_running_loop().create_future()

    async def send(calls: list[int]) -> list[int]:
        await reply
        await asyncio.sleep(later)  # another round trip
        return calls

    asking = asyncio.create_task(sending(send).ask(1))
    await turns()
    await asyncio.sleep(passed)
    stand_still(1.2)
    # As asyncio does: the timer runs in the turn that reads the socket.
    asyncio.get_running_loop().call_later(0.0, reply.set_result, None)
    assert await asking == 1
    assert now() == pytest.approx(passed + 1.2 + later)


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [asyncio.CancelledError, KeyboardInterrupt])
def test_program_exit_is_not_an_outage(stop: type[BaseException]) -> None:
    async def main() -> None:
        server = Server()
        server.latency, server.error = 0.0, stop()
        await server.calls.ask(1)

    with asyncio.Runner() as runner, pytest.raises(stop):
        runner.run(main())


async def test_timeout_reports_the_drivers_reason_and_not_the_callers() -> None:
    """A driver that retries by itself keeps the reason to itself."""

    async def retry(_: list[int]) -> list[int]:
        try:
            raise ConnectionRefusedError(111, "refused")
        except OSError:
            await asyncio.sleep(60.0)
        return []

    async def fail(_: list[int]) -> list[int]:
        raise TimeoutError

    async def never() -> None:
        await asyncio.sleep(60.0)

    for calls, call, reason in (
        (sending(retry), 1, "[Errno 111] refused; no answer in time"),
        (sending(fail), 1, "no answer in time"),
        (sending(send_alone, hint=lambda: "a hint"), never, "a hint; no answer in time"),
    ):
        try:
            raise KeyError("a secret of the caller's")  # noqa: TRY301 - which it handles meanwhile
        except KeyError:
            with pytest.raises(StoreUnavailable) as caught:
                await calls.ask(call)
        assert str(caught.value) == f"Server: {reason}"


# ---- cancellation, and other loops ---------------------------------------------------------------


async def test_cancellation_harms_no_other_and_is_not_hidden() -> None:
    server = await Server(limit=1).ready()
    tasks = server.ask(*range(6))
    await turns()
    tasks[0].cancel()  # it is under way, alone
    tasks[3].cancel()
    await turns()
    assert server.batches == [[0], [1, 2, 4, 5]]
    tasks[2].cancel()  # its batch is under way
    found = await outcomes(tasks)
    assert [each for each in found if isinstance(each, int)] == [1, 4, 5]
    assert sum(task.cancelled() for task in tasks) == 3

    async def send(_: list[int]) -> list[int]:
        try:
            await asyncio.sleep(60.0)
        finally:
            raise AttributeError("'NoneType' object has no attribute 'close'")

    async def swallow(calls: list[int]) -> list[int]:
        with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` of Python 3.11 may
            await asyncio.sleep(60.0)
        return calls

    for driver, timeout in ((send, 100.0), (swallow, 100.0), (swallow, None)):
        asking = asyncio.create_task(sending(driver, timeout=timeout).ask(1))
        await turns()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    with pytest.raises(StoreUnavailable):  # our own timeout cancels it as well
        await sending(send).ask(1)


@pytest.mark.parametrize("error", [None, OSError("no")])
async def test_cancelled_task_may_call_while_it_cleans_up(error: OSError | None) -> None:
    server = await Server().ready()
    server.error = error

    async def clean_up() -> Any:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            return await server.calls.ask("the last")

    task = asyncio.create_task(clean_up())
    await turns()
    task.cancel()
    (found,) = await outcomes([task])
    assert str(found) == ("Server: no" if error else "the last")


@pytest.mark.parametrize("step", [0, 1, 5])
async def test_swept_dispatchers_leave_nobody_waiting(step: int) -> None:
    server = await Server(batch=2).ready()
    tasks = server.ask(*range(20))
    await turns(1 + step)
    sweep()
    async with asyncio.timeout(10.0):
        found = await outcomes(tasks)
    assert {type(each) for each in found} == {int, StoreUnavailable}
    assert await asyncio.gather(*server.ask(*range(3))) == list(range(3))


# ---- timers of the driver itself -----------------------------------------------------------------


class PatientDriver:
    """Waits for a reply, for a second at the most by a timer of its own; `asking` is the call."""

    def __init__(self, more_seconds: float = 0.0) -> None:
        self.reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.more_seconds = more_seconds
        self.cancelled = False
        calls = sending(send_alone, timeout=None, patient=True)
        self.asking = asyncio.create_task(calls.ask(self.call))

    async def call(self) -> str:
        try:
            async with asyncio.timeout(1.0):
                reply = await self.reply
                await asyncio.sleep(self.more_seconds)
                return reply
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.parametrize("more_seconds", [0.0, 0.04])
async def test_reply_of_a_blocked_loop_is_read(more_seconds: float) -> None:
    driver = PatientDriver(more_seconds)
    await turns()
    stand_still(1.2)
    # As asyncio does: the timer runs in the turn that reads the socket.
    asyncio.get_running_loop().call_later(0.0, driver.reply.set_result, "reply")
    assert await driver.asking == "reply"
    assert now() == pytest.approx(1.2 + more_seconds)


@pytest.mark.parametrize("blocked", [0.0, 1.2])
async def test_dead_server_and_cancelled_caller_wait_little(blocked: float) -> None:
    driver = PatientDriver()
    await turns()
    stand_still(blocked)
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await driver.asking
    assert now() == pytest.approx(max(1.0, blocked) + 0.1)
    driver, begin = PatientDriver(), now()
    await turns()
    stand_still(blocked)
    await turns()  # the timer of the driver is postponed
    driver.asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driver.asking
    assert driver.cancelled  # a driver that takes it for its own timeout calls again
    assert now() - begin == pytest.approx(blocked)
    assert asyncio.all_tasks() == {asyncio.current_task()}
