"""The stall: a queue whose head lacks only a slot, while garbage may hold the slots.

A response or a stream that is left half-read is often part of a reference cycle. Python collects
such garbage after enough allocations, and a program that only waits for a slot makes none. If that
frees no slot, the program keeps the slots itself: after half a minute one warning says so.
"""

import gc
import math
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

# Seconds without a released slot before a collection. If still no slot is released, other objects
# may have become garbage: then the next collection follows after a wait longer by this factor, up
# to the longest. Not for ever: a loop in virtual time finds a deadlock by having no timer.
_SECONDS, _GROWTH, _LONGEST = 0.5, 4.0, 3600.0
# Seconds without a released slot before the warning.
_LONG = 30.0
# Seconds between two collections in this process.
_BREAK = 1.0
# A collection stops the loop, for long in a big program. So collections have a budget of seconds,
# which is refilled by this part of the elapsed time.
_MOST, _SHARE = 1.0, 0.05


class Collector:
    """Collects garbage for all limiters of the process, at a limited frequency."""

    __slots__ = ("_at", "_ended", "_loop", "_took")

    def __init__(self) -> None:
        # The time of the last collection, by the clock of this loop; None: by the real clock.
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._at = -math.inf
        # Seconds of the budget in use, and the real time of the last collection.
        self._took = self._ended = 0.0

    def collect(self, loop: "asyncio.AbstractEventLoop") -> float:
        """Collect garbage and return 0.0, or return the seconds until the next collection."""
        now, began = loop.time(), time.monotonic()
        # On a loop with virtual time (`VirtualTimeLoop`) the budget still counts real time.
        jumping = weakref.ref(loop) if hasattr(loop, "clock_for") else None
        since = now - self._at
        if jumping == self._loop and 0.0 <= since < _BREAK:
            return _BREAK - since
        took = max(0.0, self._took - _SHARE * (began - self._ended))
        if took < _MOST:
            gc.collect()
        elif jumping is None:  # in virtual time all runs must have the same timers
            return (took - _MOST) / _SHARE + _BREAK
        self._loop, self._at, self._ended = jumping, now, time.monotonic()
        self._took = took + self._ended - began
        return 0.0


_collector = Collector()


class Stall:
    """How long a queue has had no slot, and when it is looked at next. It sets no timer."""

    __slots__ = ("_seconds", "_since", "_warned", "flows", "timer")

    def __init__(self) -> None:
        #: Whether a slot was released since the last look: the queue moves.
        self.flows: bool = False
        #: The timer of the next look, which its owner sets.
        self.timer: asyncio.TimerHandle | None = None
        # Since when no slot was released.
        self._since = 0.0
        self._warned = False
        self._seconds = _SECONDS

    def begin(self, now: float) -> float:
        """Begin to watch the queue, and return the seconds until the first look."""
        if self.flows:
            self.flows, self._seconds = False, _SECONDS
        self._since = now
        return self._seconds

    def look(self, loop: "asyncio.AbstractEventLoop", wait: float) -> float | None:
        """Collect garbage if no slot was released for long.

        Args:
            loop: The loop.
            wait: Seconds until the head lacks only a slot: 0.0 is now.

        Returns:
            Seconds until the next look; None: there is none.
        """
        if self.flows:
            self.begin(loop.time())
        elif not wait:
            if self._seconds > _LONGEST:
                return None
            # A program that has disabled the collector collects its garbage itself.
            wait = max(_collector.collect(loop) if gc.isenabled() else 0.0, self._seconds)
            self._seconds *= _GROWTH
        return max(wait, _SECONDS)

    def overdue(self, now: float, wait: float) -> float:
        """Return the seconds without a slot, once, if that is worth a warning; else 0.0."""
        seconds = now - self._since
        if self.flows or wait or self._warned or seconds < _LONG:
            return 0.0
        self._warned = True
        return seconds

    def end(self) -> None:
        """Stop the timer: the queue is empty."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.flows, self._seconds = False, _SECONDS
