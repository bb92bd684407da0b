"""Time for tests: an event loop on which waiting takes no time, and a clock moved by hand."""

import asyncio
import math
import selectors
import threading
import time
from collections.abc import Callable
from contextvars import Context


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits for a timeout, but calls `jump` instead.

    `jump` answers False when there is no instant to jump to: the next timer is set for never.
    """

    def __init__(self, jump: Callable[[], bool]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and (timeout <= 0 or self._jump())):
            return events
        return self._wait_for_outside()

    def _wait_for_outside(self) -> list[tuple[selectors.SelectorKey, int]]:
        # No timer will fire, so only a socket or another thread can wake the loop, a thread through
        # the one file that every loop watches to be woken by. The threads are counted first: the
        # last words of one that ended before are found by the select() after it.
        if threading.active_count() > 1 or len(self.get_map()) > 1:
            return super().select(None)
        events = super().select(0)
        if not events:
            raise RuntimeError(
                "nothing can ever wake the event loop: every task waits, but no timer is set, "
                "no socket is watched and no other thread lives"
            )
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else is left to do.

    A test of an hour-long limit runs in milliseconds, and always in the same way. The clock is
    `loop.time`: a `RateLimiter` finds it by itself, to other things give it. It starts at `start`
    seconds and stands still while code runs. When a timer fires, the clock shows at least the
    timer's instant, to the last bit, so that code that looks at the clock again never finds
    itself early.

    Keep real I/O, threads and subprocesses out of it. As long as a timer is set they are never
    waited for: the timer fires at once, and a timeout of 5 s around a real request expires before
    the answer can come. Without a timer they are waited for in real time, as on any loop. From
    Python 3.12 on, closing an `asyncio.Runner` on which `asyncio.to_thread` was used sets such a
    timer, and may warn that the executor did not finish in time.

    Args:
        start: Seconds that the clock shows at first.

    Raises:
        RuntimeError: From the call that runs the loop, when nothing can ever wake it: every task
            waits, no timer is set, no socket is watched and no other thread lives. On another
            loop that program would hang.

    Example:
        >>> async def main() -> float:
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        ...     runner.run(main())
        3600.0

    """

    # Private to asyncio's BaseEventLoop. `_scheduled` is its heap of timers: what select() gets
    # is the difference to its head, and now + (when - now) need not be `when`. `_clock_resolution`
    # is how much earlier than its instant a timer may fire.
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(_JumpingSelector(self._jump))
        self._set_time(start)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call the callback in `delay` seconds; any delay above 0 moves the clock on.

        A clock that is derived from this one may be finer than it. Code that waits for the last bit
        of that clock would else be called at the same instant for ever.

        Args:
            delay: Seconds.
            callback: What is called.
            args: Its arguments.
            context: The context in which it is called; None: the present one.

        Returns:
            The timer, which can be cancelled.
        """
        least = math.nextafter(self._now, math.inf) if delay > 0.0 else self._now
        return self.call_at(max(self._now + delay, least), callback, *args, context=context)

    def clock_for(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Return the clock that replaces `clock` here: this loop's, for `time.monotonic`.

        A `RateLimiter` asks for it, so that code under test needs no `clock=` of its own.

        Args:
            clock: A function that returns seconds.
        """
        return self.time if clock is time.monotonic else clock

    def _set_time(self, now: float) -> None:
        self._now = now
        # asyncio fires the timers with `when < now + resolution`: this is `when <= now`.
        self._clock_resolution = math.ulp(now)

    def _jump(self) -> bool:
        # Before it calls select(), the base class drops cancelled timers from the head.
        when = self._scheduled[0].when()
        if when < math.inf:
            self._set_time(when)
        return when < math.inf


class ManualClock:
    """A clock that moves only by `advance`, forwards or back.

    Args:
        now: Seconds that it shows at first.

    >>> clock = ManualClock(100.0)
    >>> clock.advance(0.5)
    >>> clock()
    100.5
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock.

        Args:
            seconds: How far; below 0 sets the clock back.
        """
        self.now += seconds
