"""The consumer: the one task that waits for time, on behalf of all waiters of a limiter.

Invariant: it runs only while somebody waits, so an idle limiter has no task; and it never polls: it
sleeps until something changes (`wake`), with a timer for the instant at which the head may start.

The host, the engine, is passed to each call and not kept: an idle consumer refers to nothing, so a
limiter is freed with the last reference to it.
"""

import asyncio
import functools
from contextlib import suppress
from contextvars import Context
from typing import Protocol

__all__ = ["Consumer"]

# Some loops cannot sleep longer; after an early wake-up the host says how long to sleep on.
_LONGEST_NAP = 86400.0


class Host(Protocol):
    """What the consumer serves."""

    def has_waiters(self) -> bool:
        """Tell whether anybody waits."""
        ...

    def serve(self) -> float | None:
        """Grant to as many as may start now. Gives the seconds until more may, if known."""
        ...

    def fail_all(self, error: Exception) -> None:
        """Have all waiters raise the error."""
        ...

    def consumer_ended(self, *, swept: bool) -> None:
        """Note that the task is gone; `swept`: it was cancelled, and the loop may be closing."""
        ...


class Consumer:
    """The background task of one limiter, and its timer."""

    __slots__ = ("_alarm", "_timer", "task")

    def __init__(self) -> None:
        #: The task, while there is one.
        self.task: asyncio.Task[None] | None = None
        self._alarm: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_timer(self) -> bool:
        """Whether it is known when the head may start."""
        return self._timer is not None

    def wake(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the queue again, since something changed; start the task if there is none."""
        if self._alarm is not None:
            # Not asked before: a garbage collection may release a slot, and wake this, in between.
            with suppress(asyncio.InvalidStateError):
                self._alarm.set_result(None)
        elif self.task is None and host.has_waiters():
            # A plain Task whatever the loop's task factory: an eager one would run it here and
            # now. In an empty context: it works for all waiters, not for the first of them.
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
        """Forget when the head may start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """Begin anew on another loop: the old one is closed, with the task."""
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
                # A sweep of all tasks, as asyncio.run does at its end, is meant for the waiters;
                # while they are there they need this task.
                if not host.has_waiters():
                    raise
            finally:
                # The task of a loop that is gone is collected late, and clears no other's alarm.
                if self._alarm is alarm:
                    self._alarm = None

    def _ended(
        self, host: Host, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]"
    ) -> None:
        if self.task is task:
            self.task = None
            self.stop_timer()
            if not loop.is_closed():
                self.wake(host, loop)  # it was cancelled before its first step, and is needed
            host.consumer_ended(swept=task.cancelling() > 0)
