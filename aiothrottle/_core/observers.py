"""The observers: the listeners that get each event, and the counters for `statistics()`.

Invariant: without listeners no event is made, so callers check `listeners` before they make one.
"""

from aiothrottle import events
from aiothrottle.statistics import Waits

__all__ = ["Observers"]

# Waits that are counted in the histogram together: the time depends on the buckets, not the waits.
_MANY_WAITS = 512


class Observers:
    """The listeners of a limiter, and its counters."""

    __slots__ = ("listeners", "rejected", "waits", "withdrawn")

    def __init__(self) -> None:
        self.listeners: tuple[events.Listener, ...] = ()
        #: Requests that the limiter has rejected.
        self.rejected: int = 0
        #: Requests that were granted, and cancelled before they could start.
        self.withdrawn: int = 0
        self.waits: Waits = Waits()

    def add(self, listener: events.Listener) -> None:
        """Add a listener."""
        self.listeners += (listener,)

    def remove(self, listener: events.Listener) -> None:
        """Remove a listener."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)

    def emit(self, event: events.Event) -> None:
        """Pass the event to all listeners."""
        for listener in self.listeners:
            listener.receive(event)

    def tidy(self) -> None:
        """Count the recent waits in the histogram, if there are many."""
        if len(self.waits.recent) >= _MANY_WAITS:
            self.waits.count_recent()
