"""The stall: a queue whose head lacks nothing but a slot, while garbage may hold the slots.

A response or a stream that is left half-read is often part of a reference cycle. Python finds such
garbage when enough else is made, and while a program only waits for a slot nothing is made.
"""

import gc
import math
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Collector", "Stall"]

# Seconds in which no slot is released, before garbage is collected. While still none does, what was
# in use may have become garbage: then it is collected again, each time after so many times as long.
_SECONDS, _GROWTH = 0.5, 4.0
# Seconds between two collections in this process.
_BREAK = 1.0
# A collection stops the loop, and a big program has much to look through. So many seconds it may
# take, all together; they are had again as this part of all time.
_MOST, _SHARE = 1.0, 0.05


class Collector:
    """Collects garbage, for all limiters of the process, and not often."""

    __slots__ = ("_at", "_ended", "_loop", "_took")

    def __init__(self) -> None:
        # When it was last done: by the clock of that loop, or by the one that all others have.
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._at = -math.inf
        # How much time it has taken, as far as that still counts, and when it was last done.
        self._took = self._ended = 0.0

    def collect(self, loop: "asyncio.AbstractEventLoop") -> float:
        """Collect garbage: 0.0. Or give the seconds until that may be done again."""
        now, began = loop.time(), time.monotonic()
        # Where time jumps (`VirtualTimeLoop`), what has to be cheap is cheap in real time.
        jumping = weakref.ref(loop) if hasattr(loop, "clock_for") else None
        since = now - self._at
        if jumping == self._loop and 0.0 <= since < _BREAK:
            return _BREAK - since
        took = max(0.0, self._took - _SHARE * (began - self._ended))
        if took >= _MOST:
            return (took - _MOST) / _SHARE + _BREAK
        gc.collect()
        self._loop, self._at, self._ended = jumping, now, time.monotonic()
        self._took = took + self._ended - began
        return 0.0


_collector = Collector()


class Stall:
    """The timer of a queue whose head has no slot."""

    __slots__ = ("_flows", "_seconds", "_timer")

    def __init__(self) -> None:
        self._flows = False
        self._seconds = _SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def watch(
        self, loop: "asyncio.AbstractEventLoop", lacks_slot_in: "Callable[[], float | None]"
    ) -> None:
        """Look after the queue for as long as its head has no slot.

        Args:
            loop: The loop to set timers on.
            lacks_slot_in: Gives the seconds after which the head lacks nothing but a slot: 0.0 if
                that is so now, None if it lacks none.
        """
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look, loop, lacks_slot_in)

    def slot_released(self) -> None:
        """Begin anew: the queue moves."""
        self._flows = True

    def end(self) -> None:
        """Stop: nobody waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flows, self._seconds = False, _SECONDS

    def _look(
        self, loop: "asyncio.AbstractEventLoop", lacks_slot_in: "Callable[[], float | None]"
    ) -> None:
        self._timer = None
        wait = lacks_slot_in()
        if wait is None:
            return  # when the head lacks one again, `watch` is called
        if self._flows:
            self._flows, self._seconds = False, _SECONDS
        elif not wait and gc.isenabled():  # else the program sees to its garbage by itself
            wait = max(_collector.collect(loop), self._seconds)
            self._seconds *= _GROWTH
        self._timer = loop.call_later(max(wait, _SECONDS), self._look, loop, lacks_slot_in)
