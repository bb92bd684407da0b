"""The consumer: the one background task that serves the queue of a limiter.

Invariant: it runs only while the queue has waiters, so an idle limiter has no task; and it never
polls: it sleeps until something changes (`wake`), with a timer for the instant at which the head
may start.

The host, the engine, is passed to each call and not kept: an idle consumer has no references, so a
limiter is freed with the last reference to it.
"""

import asyncio
import functools
from contextlib import suppress
from contextvars import Context
from typing import Protocol

__all__ = ["Consumer"]

# Some loops cannot sleep longer; after an early wake-up the host returns the rest of the wait.
_LONGEST_NAP = 86400.0


class Host(Protocol):
    """The engine, as the consumer sees it."""

    def has_waiters(self) -> bool:
        """Return whether the queue has waiters."""
        ...

    def serve(self) -> float | None:
        """Grant to all waiters that may start now. Returns the seconds until the next, if known."""
        ...

    def fail_all(self, error: Exception) -> None:
        """Raise the error in all waiters."""
        ...

    def consumer_ended(self, *, swept: bool) -> None:
        """Handle the end of the task; `swept`: it was cancelled, and the loop may be closing."""
        ...


class Consumer:
    """The background task of one limiter, and its timer."""

    __slots__ = ("_alarm", "_timer", "task")

    def __init__(self) -> None:
        #: The task, while it runs.
        self.task: asyncio.Task[None] | None = None
        self._alarm: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_timer(self) -> bool:
        """Whether a timer is set for the start of the head."""
        return self._timer is not None

    def wake(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the task to serve the queue after a change; start it if there is none."""
        if self._alarm is not None:
            # Not checked with `done()`: a garbage collection may release a slot, and so set the
            # result, between the check and the call.
            with suppress(asyncio.InvalidStateError):
                self._alarm.set_result(None)
        elif self.task is None and host.has_waiters():
            # A plain Task, not by the loop's task factory: an eager task would run here and now.
            # In an empty context: it works for all waiters, not only for the first one.
            self.task = asyncio.Task(
                self._run(host, loop), loop=loop, name="aiothrottle consumer", context=Context()
            )
            ended = functools.partial(self._ended, host, loop)
            self.task.add_done_callback(ended, context=Context())

    def turn(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the queue once, and set the timer for the next time."""
        self.stop_timer()
        try:
            seconds = host.serve()
        except Exception as error:  # noqa: BLE001 - an algorithm that fails, fails the waiters
            host.fail_all(error)
        else:
            if not host.has_waiters():
                self.wake(host, loop)  # the task, to its end
            elif seconds is not None:
                seconds = min(seconds, _LONGEST_NAP)
                self._timer = loop.call_later(seconds, self.turn, host, loop)

    def stop_timer(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """Forget the task and the timer of a closed loop."""
        self.task = self._alarm = self._timer = None

    async def _run(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        while host.has_waiters():
            self.turn(host, loop)
            if not host.has_waiters():
                return
            alarm = self._alarm = loop.create_future()
            try:
                await alarm
            except asyncio.CancelledError:
                # asyncio.run cancels all tasks at its end. That is meant for the waiters, which
                # need this task until they have left.
                if not host.has_waiters():
                    raise
            finally:
                # The task of a closed loop is collected late; it must not clear a newer alarm.
                if self._alarm is alarm:
                    self._alarm = None

    def _ended(
        self, host: Host, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]"
    ) -> None:
        if self.task is task:
            self.task = None
            self.stop_timer()
            if not loop.is_closed():
                self.wake(host, loop)  # the task was cancelled before its first step
            host.consumer_ended(swept=task.cancelling() > 0)
