"""The caller: the one task that calls a store for a part of an engine, one call after the other.

Strategy. A part (`SharedBucket`, `SharedSemaphore`) decides what to send and when, and takes in the
answers; it has no task and no timer. While calls are due, one task makes them, then it ends: an
idle limiter has none. A timer starts it when the part has a call for later.

Invariant: of one part one call is under way at a time. Nothing here holds the engine, so a limiter
is freed with the last reference to it; what it has to return to the store is sent all the same.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from aiothrottle.stores.outage import Outage

_Answer = TypeVar("_Answer")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: Seconds. A call at the very instant that a store named can be too early by a rounding.
SHORTEST_BREAK = 0.001
# Seconds after which a call that is not answered is a reason for a timeout.
_LATE = 0.1
# Seconds until a call is made where the loop may be closing; and after a cancellation, as by
# `asyncio.run` at its end. It then runs on until the threads of its executor have ended.
_LATER, _CANCELLED = 0.01, 0.1


class Order(NamedTuple):
    """A call that is due, and what takes its outcome: nothing does if the task is cancelled."""

    #: The call of the store, to be awaited at once.
    call: Awaitable[Any]
    #: Takes the answer, before the queue is served.
    fill: Callable[[Any], object]
    #: Takes the error of either. Returns the error that the waiters raise; None: they wait on.
    fail: Callable[[Exception], Exception | None]


class _Part(Protocol):
    """What an engine shares through a store: its tokens, or its slots."""

    #: Whether the store fails.
    outage: "Outage"

    # Returns whether nothing is held, due or to be remembered.
    def is_idle(self, now: float) -> bool: ...

    # Gives up what cannot be used, before the queue is served.
    def tidy(self, now: float) -> None: ...

    # Returns the seconds until a call is due: 0.0 is now, infinity: it is not known.
    def due_in(self, now: float) -> float: ...

    # Returns the call that is due now, or the seconds until one is.
    def order(self, now: float) -> Order | float: ...

    # Begins anew on another loop.
    def restart(self, loop: asyncio.AbstractEventLoop) -> None: ...

    # Gives up all that is not in use: the engine is closed.
    def stop(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Caller:
    """The task and the timer of one part."""

    #: What is shared.
    part: _Part
    #: What the task is for.
    name: str
    #: Returns the time; for tokens, all started requests are charged by then.
    now: Callable[[], float]
    #: Serves the queue, and raises an error in the waiters if it is given one. It does not keep the
    #: engine alive.
    serve: Callable[[Exception | None], None]
    _loop: asyncio.AbstractEventLoop | None = field(init=False, default=None)
    _task: asyncio.Task[None] | None = field(init=False, default=None)
    # When the call under way began; infinity: there is none.
    _since: float = field(init=False, default=math.inf)
    _timer: asyncio.Handle | None = field(init=False, default=None)
    # When the timer is due: uvloop's handle does not say it if that is at once.
    _timer_at: float = field(init=False, default=math.inf)
    # The calls of `ask`.
    _calls: set[asyncio.Task[Any]] = field(init=False, default_factory=set[asyncio.Task[Any]])

    def trouble(self, wait: float, *, has_slot: bool) -> str:
        """Return why a request waits for the store, and not for the limit; "" if it does not.

        Args:
            wait: Seconds that it waits for the limit, as far as is known.
            has_slot: Whether a slot is free, so that it waits for nothing else.
        """
        loop = self._loop
        is_late = loop is not None and loop.time() - self._since > _LATE
        is_calling = self._task is not None and not wait and (has_slot or is_late)
        return self.part.outage.trouble(is_calling=is_calling)

    def is_idle(self, now: float) -> bool:
        """Return whether no call is under way, and none may follow."""
        return self._task is None and not self._calls and self.part.is_idle(now)

    def start(self, now: float | None = None, *, after: "asyncio.Task[None] | None" = None) -> None:
        """Make the calls that are due, and have a timer for one that is due later.

        Args:
            now: The time, if it was just read.
            after: A task that has ended. Then the first is left to the timer as well, as the loop
                may be closing: a new task would be left over, a timer is not missed. So it is if
                the task that runs this is cancelled.
        """
        loop = self._loop
        if self._task is not None or loop is None or loop.is_closed():
            return
        wait = self.part.due_in(self.now() if now is None else now)
        if wait <= 0.0:
            task = after or asyncio.current_task(loop)
            is_cancelled = task is not None and task.cancelling() > 0
            if not (after or is_cancelled):
                self._begin(loop)
                return
            wait = _CANCELLED if is_cancelled else _LATER
        self._set_timer(loop, wait)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        # As with the consumer of the engine: a plain Task, in an empty context.
        self._task = asyncio.Task(self._run(loop), loop=loop, name=self.name, context=Context())
        self._task.add_done_callback(self._ended, context=Context())

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        part = self.part
        while isinstance(order := part.order(self.now()), Order):
            call, fill, fail = order
            self._since = loop.time()
            try:
                fill(await call)
            except Exception as error:  # noqa: BLE001 - the part knows who gets it
                if loop.is_closed():
                    return  # the driver failed as its call was collected
                raised = fail(error)
                self.serve(raised)
                del raised  # its traceback has this frame
                order = SHORTEST_BREAK  # the waiters that raise it have not left yet
                break
            finally:
                self._since = math.inf
            self.serve(None)
        self._task = None  # now: a waiter that joins in this turn starts another one
        self._set_timer(loop, order)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is not task:
            return
        self._task = None  # it was cancelled, and its call is still due
        self.serve(None)  # waiters that are still there need it now
        self.start(after=task)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Ask the part again after so many seconds; a timer that is earlier does as well."""
        timer, at = self._timer, loop.time() + seconds
        if timer is not None and self._timer_at <= at < math.inf:
            return
        if timer is not None:
            timer.cancel()
            self._timer = None
        if seconds < math.inf:
            self._timer_at = at
            self._timer = loop.call_later(seconds, self._on_time, context=Context())

    def _on_time(self) -> None:
        self._timer = None
        self.start()

    async def ask(
        self, call: Coroutine[Any, Any, _Answer], unused: Callable[[_Answer], None]
    ) -> _Answer:
        """Make a call for a request that does not wait in the queue, and return the answer.

        Args:
            call: The call.
            unused: Takes the answer if the request is cancelled meanwhile.
        """
        task = asyncio.create_task(call, name="aiothrottle store")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(functools.partial(self._take_unused, unused))
            raise
        finally:
            del task  # the traceback of its error has this frame

    def _take_unused(
        self, unused: Callable[[_Answer], None], task: "asyncio.Task[_Answer]"
    ) -> None:
        if not task.cancelled() and task.exception() is None:
            unused(task.result())
            self.start()

    # ---- the end, and loops ----------------------------------------------------------------------

    def restart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew on another loop: the old one is closed, with its tasks and the timer."""
        self._loop, self._task, self._timer = loop, None, None
        self._since = math.inf
        self._calls.clear()
        self.part.restart(loop)

    async def close(self) -> None:
        """Send what is to be returned, and leave no task."""
        loop = self._loop
        assert loop is not None
        self.part.stop()
        while (wait := self.part.due_in(self.now())) <= 0.0 or self._task or self._calls:
            if self._task is None and wait <= 0.0:
                self._begin(loop)
            await asyncio.wait([*self._calls, *([self._task] if self._task else [])])
        self._set_timer(loop, wait)
        await self.part.outage.close()


def weakly(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result | None]:
    """Return a function that calls the method while its object lives, and does not keep it.

    Made for each key: it is smaller than a `WeakMethod`, or a function with cells.
    """
    bound: Any = method
    return functools.partial(_call_if_alive, ref(bound.__self__), bound.__func__)


def _call_if_alive(
    reference: Callable[[], Any], function: Callable[..., _Result], *args: object
) -> _Result | None:
    owner = reference()
    return None if owner is None else function(owner, *args)
