"""Calls to the server of a store: a few under way, the others queued; and the errors they raise.

Strategy. A call made while none is under way is sent at once, in the caller's task: that costs no
task of its own. All others queue. Dispatchers, a few tasks, take them from the head of the queue,
as many as the driver can send in one round trip, and end when the queue is empty. So a store needs
a few connections, however many keys are busy. The driver connects, retries and pools
connections; it does not bound how long all of that takes, nor how many calls share a connection.

A call's timeout begins when the call is sent: a call in the queue is not late, the server is busy
with the others. Only when there were nothing but failures for so long do all calls in the queue
fail as well. Time for which the event loop is blocked does not count either: asyncio runs a timer
that is overdue in the same turn in which it reads the reply that came meanwhile, and the timer
wins. So our own timer counts steps, of which a blocked loop is late for one (`_Timer`), and a
driver's timer, which cancels the task of the call, is postponed (`_Postponing`).

Every exception of a driver, but for cancellation, becomes a `StoreUnavailable` with it as the
cause; that happens here and nowhere else.
"""

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableSequence, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from aiothrottle.errors import StoreUnavailable, reason_of

_Call = TypeVar("_Call")
_Result = TypeVar("_Result")
_Waiter: TypeAlias = asyncio.Future[Any]

# Seconds of nothing but failures after which the queue fails, if the timeout is the driver's.
_SILENCE = 1.0
# A timer may be early by the resolution of the loop's clock.
_NEARLY = 0.99
# Steps of a timeout. Those for which the loop is late by another one do not count, up to as many.
_STEPS = 8
# Seconds. Timers are no finer, and of a shorter one uvloop's handle does not say when it is due.
_SHORTEST_STEP = 0.001
# Seconds by which a driver's timer is postponed: of a loop that was blocked the reply may be there,
# but pass through several callbacks, or the call may need another round trip.
_GRACE = 0.1


@dataclass(slots=True, eq=False, repr=False)
class _Queue(Generic[_Call]):
    """The calls that wait, and how many are under way, on one event loop."""

    loop: asyncio.AbstractEventLoop
    #: When the server last answered, and the seconds of round trips that failed since then.
    answered_at: float
    failed_for: float = 0.0
    #: Whether a call is under way in its caller's own task.
    alone: bool = False
    waiting: deque[tuple[_Call, _Waiter]] = field(default_factory=deque[tuple[_Call, _Waiter]])
    dispatchers: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


@dataclass(slots=True, eq=False, repr=False)
class Calls(Generic[_Call]):
    """Sends calls, a bounded number of batches at a time."""

    #: The name with which the messages of errors begin.
    server: str
    #: Sends calls in one round trip and returns their replies, in order. A reply that is an
    #: exception fails its call alone; an exception that is raised fails all of them.
    send: Callable[[list[_Call]], Coroutine[Any, Any, Sequence[Any]]]
    _: KW_ONLY
    #: The most batches that are under way at a time.
    limit: int
    #: The most calls in one round trip.
    batch: int = 1
    #: Seconds for a round trip; None if the driver has a timeout of its own.
    timeout: float | None
    #: Whether the driver has timers that may end before the timeout.
    patient: bool = False
    #: Awaited before the first call, and the first after a loop was closed, once at a time, until
    #: it has succeeded.
    prepare: Callable[[], Coroutine[Any, Any, None]] | None = None
    #: Returns why the server cannot be reached, or "", for the message of a timeout.
    hint: Callable[[], str] = str
    _is_prepared: bool = field(init=False, default=False)
    _queue: _Queue[_Call] | None = field(init=False, default=None)

    async def ask(self, call: _Call, *, first: bool = False) -> Any:  # noqa: ANN401 - as the driver has it
        """Send the call, in its turn, and return the reply.

        A call that is cancelled in the queue is not sent; later the server may have done it. The
        other calls of its batch are not affected in either case.

        Args:
            call: An argument of `send`.
            first: Put the call at the head of the queue: it completes an earlier one.

        Raises:
            StoreUnavailable: The driver raised an exception, or the server did not answer in time.
        """
        loop = asyncio.get_running_loop()
        queue = self._queue
        if queue is None or queue.loop is not loop:  # calls queued on another loop are lost
            if queue is not None and queue.loop.is_closed():
                self._is_prepared = False  # the connections of the driver are dead
            queue = self._queue = _Queue(loop, loop.time())
        if queue.alone or queue.dispatchers:
            waiter: _Waiter = loop.create_future()
            put = queue.waiting.appendleft if first else queue.waiting.append
            put((call, waiter))
            self._dispatch(queue)
            return await waiter
        queue.alone = True
        try:
            (reply,) = await self._attempt(queue, [call])
        finally:
            queue.alone = False
            if queue.waiting:
                self._dispatch(queue)
        if isinstance(reply, Exception):
            raise self._error(reply) from reply
        return reply

    # ---- the queue -------------------------------------------------------------------------------

    def _dispatch(self, queue: _Queue[_Call]) -> None:
        """Start as many dispatchers as the calls in the queue need."""
        waiting = queue.waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        limit = self.limit if self._is_prepared or self.prepare is None else 1
        missing = -(-len(waiting) // self.batch)
        for _ in range(min(missing, limit - queue.alone - len(queue.dispatchers))):
            # As with the consumer of a limiter: a plain Task, in an empty context.
            task = asyncio.Task(
                self._serve(queue), loop=queue.loop, name="aiothrottle store", context=Context()
            )
            queue.dispatchers.add(task)
            task.add_done_callback(lambda task: self._ended(queue, task), context=Context())

    async def _serve(self, queue: _Queue[_Call]) -> None:
        """Send the queue, batch by batch, until it is empty."""
        while batch := self._take(queue):
            try:
                replies = await self._attempt(queue, [call for call, _ in batch])
            except StoreUnavailable as error:
                _fail(batch, error)
            except asyncio.CancelledError:
                queue.waiting.extendleft(reversed(batch))  # `_ended` fails them
                raise
            else:
                self._settle(batch, replies)
                self._dispatch(queue)  # more dispatchers may run once the first has prepared

    def _take(self, queue: _Queue[_Call]) -> list[tuple[_Call, _Waiter]]:
        """Take a batch from the head of the queue, without cancelled calls."""
        batch: list[tuple[_Call, _Waiter]] = []
        waiting = queue.waiting
        while waiting and len(batch) < self.batch:
            item = waiting.popleft()
            if not item[1].done():
                batch.append(item)
        return batch

    def _settle(self, batch: list[tuple[_Call, _Waiter]], replies: Sequence[Any]) -> None:
        for (_, waiter), reply in zip(batch, replies, strict=True):
            if waiter.done():
                continue
            if isinstance(reply, Exception):
                waiter.set_exception(self._error(reply))
            else:
                waiter.set_result(reply)

    def _ended(self, queue: _Queue[_Call], task: "asyncio.Task[None]") -> None:
        queue.dispatchers.discard(task)
        if task.cancelled():
            # Code that cancels all tasks is about to close the loop: a new task would be left over,
            # and so would calls that wait for one.
            _fail(queue.waiting, StoreUnavailable(f"{self.server}: the call was cancelled"))
        else:
            self._dispatch(queue)

    # ---- one round trip --------------------------------------------------------------------------

    async def _attempt(self, queue: _Queue[_Call], calls: list[_Call]) -> Sequence[Any]:
        clock = queue.loop.time
        begun = clock()
        try:
            if not self._is_prepared and self.prepare is not None:
                await self._guard(self.prepare())
                self._is_prepared = True
            replies = await self._guard(self.send(calls))
        except StoreUnavailable as error:
            queue.failed_for += clock() - max(begun, queue.answered_at)
            if queue.failed_for >= _NEARLY * (self.timeout or _SILENCE):
                _fail(queue.waiting, error)
            raise
        queue.answered_at, queue.failed_for = clock(), 0.0
        if len(replies) != len(calls):
            raise StoreUnavailable(
                f"{self.server}: {len(replies)} replies to {len(calls)} calls, not one for each"
            )
        return replies

    async def _guard(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for the driver, within the timeout; turn its errors into `StoreUnavailable`."""
        task, outer = _this_task(), sys.exception()
        cancelling = task.cancelling()
        try:
            if self.patient:
                call = _postponing(call)
            if self.timeout is None:
                result = await call
            else:
                async with asyncio.timeout(None) as timeout:
                    timer = _Timer(self.timeout, timeout)
                    try:
                        result = await call
                    finally:
                        timer.handle.cancel()
        except StoreUnavailable:
            raise
        except Exception as error:
            if task.cancelling() > cancelling:  # a driver that failed at being cancelled
                raise asyncio.CancelledError from error
            raise self._error(error, outer) from error
        if task.cancelling() > cancelling:  # or swallowed that
            raise asyncio.CancelledError
        return result

    def _error(self, error: Exception, outer: BaseException | None = None) -> StoreUnavailable:
        hint = self.hint() if isinstance(error, TimeoutError) else ""
        ours = StoreUnavailable(f"{self.server}: {reason_of(error, outer, hint)}")
        ours.__cause__ = error
        return ours


async def send_alone(calls: list[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Make calls one by one: the `send` for a driver without batches."""
    return [await call() for call in calls]


def _this_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def _fail(items: MutableSequence[tuple[Any, _Waiter]], error: StoreUnavailable) -> None:
    """Remove all, and give each an error of its own: one raised twice collects two tracebacks."""
    for _, waiter in items:
        if not waiter.done():
            own = StoreUnavailable(*error.args)
            own.__cause__ = error.__cause__
            waiter.set_exception(own)
    items.clear()


# ---- a loop that is blocked ----------------------------------------------------------------------


class _Timer:
    """The timer of a timeout, in steps: a loop that is blocked makes one step meanwhile, too late.

    So a reply that came meanwhile is read before the timeout expires, and a call that needs another
    round trip has the rest of its time. A loop that is blocked again and again makes it as many
    steps longer at the most.
    """

    def __init__(self, seconds: float, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._step = max(seconds / _STEPS, _SHORTEST_STEP)
        self._loop = asyncio.get_running_loop()
        # The steps that are left: those in time, and those too late.
        self._left = [_STEPS, _STEPS]
        self.handle = self._loop.call_later(self._step, self._end_step)

    def _end_step(self) -> None:
        now = self._loop.time()
        is_late = now > self.handle.when() + self._step
        self._left[is_late] -= 1
        if all(self._left):
            self.handle = self._loop.call_later(self._step, self._end_step)
        else:
            self._timeout.reschedule(now)


class _Postponing(asyncio.Task[Any]):
    """The task of a call: `cancel` is for the timers of the driver, which call `uncancel` later.

    If the call ends before the postponed cancellation, the driver takes its timeout back.
    """

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._postponed: asyncio.TimerHandle | None = None
        self._is_given_up = False
        loop = asyncio.get_running_loop()
        self._call_later = loop.call_later
        super().__init__(call, loop=loop, name="aiothrottle call")

    def cancel(self, msg: object = None) -> bool:
        """Cancel the call soon, unless the driver takes it back."""
        if self.done():
            return False
        if self._postponed is None:
            self._postponed = self._call_later(_GRACE, super().cancel, msg)
        return True

    def give_up(self) -> None:
        """Cancel the call now, for its caller."""
        self._is_given_up = True
        super().cancel()

    def uncancel(self) -> int:
        """Take a cancellation back, unless the caller gave up: the driver would try again."""
        self.stop_timer()
        return self.cancelling() if self._is_given_up else super().uncancel()

    def stop_timer(self) -> None:
        """Do not cancel the call any more."""
        if self._postponed is not None:
            self._postponed.cancel()
            self._postponed = None


async def _postponing(call: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what the call returns, with the driver's timers postponed; raise what it raises.

    Cancelling it cancels the call at once, and waits for its end.
    """
    task = _Postponing(call)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.give_up()
        # What the driver raises at being cancelled says nothing of the server.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
        raise
    finally:
        task.stop_timer()
    result: _Result = task.result()
    return result
