"""A call of a driver with timers of its own: they do not count a loop that was blocked.

asyncio runs a timer that is overdue in the same turn in which it reads the reply that came
meanwhile, and the timer wins. So a driver's timer that cancels the call is postponed: by as long as
the loop needs to hand over a reply that is there; and by `_GRACE` after the loop was blocked, as
the call may need another round trip. If the call ends first, the driver takes its timeout back.

Invariant: only timers of the driver are postponed; a caller that is cancelled cancels it at once.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable
from typing import Any, TypeVar

__all__ = ["call_patiently"]

_Result = TypeVar("_Result")

# Seconds. A turn of the loop, and some: a driver may pass a reply on through several callbacks.
_TURN = 0.001
_GRACE = 0.1
# A loop that is late for a beat by another one was blocked.
_BEAT = 0.05


class _Patient(asyncio.Task[Any]):
    """The task of a call: `cancel` is for the timers of the driver, which call `uncancel` later."""

    def __init__(self, call: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._clock = loop.time
        self._call_later = loop.call_later
        self._postponed: asyncio.TimerHandle | None = None
        self._beat_at, self._unblocked_at = loop.time(), -math.inf
        self._beating = loop.call_later(_BEAT, self._beat)
        super().__init__(_coroutine(call), loop=loop, name="aiothrottle call")

    def cancel(self, msg: object = None) -> bool:
        """Cancel the call soon, unless the driver takes it back."""
        if self.done():
            return False
        if self._postponed is None:
            seconds = _GRACE if self._was_blocked() else _TURN
            self._postponed = self._call_later(seconds, self.cancel_now, msg)
        return True

    def cancel_now(self, msg: object = None) -> None:
        """Cancel the call."""
        super().cancel(msg)

    def uncancel(self) -> int:
        """Take a cancellation back."""
        self._stop_postponed()
        return super().uncancel()

    def stop_timers(self) -> None:
        """Stop the timers: the call has ended."""
        self._beating.cancel()
        self._stop_postponed()

    def _stop_postponed(self) -> None:
        if self._postponed is not None:
            self._postponed.cancel()
            self._postponed = None

    def _beat(self) -> None:
        now = self._clock()
        if now - self._beat_at > 2 * _BEAT:
            self._unblocked_at = now
        self._beat_at = now
        self._beating = self._call_later(_BEAT, self._beat)

    def _was_blocked(self) -> bool:
        """Return whether the loop has just been blocked; this beat may be due, or just over."""
        now = self._clock()
        return now - self._beat_at > 2 * _BEAT or now - self._unblocked_at < _BEAT


async def call_patiently(call: Awaitable[_Result]) -> _Result:
    """Return what the call returns. Raises what it raises, `TimeoutError` by the driver's timers.

    Cancelling it cancels the call at once, and waits for its end.
    """
    task = _Patient(call, asyncio.get_running_loop())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel_now()
        # What the driver raises at being cancelled says nothing of the server.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
        raise
    finally:
        task.stop_timers()
    result: _Result = task.result()
    return result


async def _coroutine(call: Awaitable[_Result]) -> _Result:
    return await call
