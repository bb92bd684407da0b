"""The observers: who is called with each event, and what is counted for `statistics()`.

Invariant: while nobody listens no event is made, so whoever makes one looks at `listeners` first.
"""

from aiothrottle import events
from aiothrottle.statistics import Waits

__all__ = ["Observers"]

# So many waits are sorted into the histogram together: each class costs, not each wait.
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
        """Call one more with each event."""
        self.listeners += (listener,)

    def remove(self, listener: events.Listener) -> None:
        """Call one fewer."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)

    def emit(self, event: events.Event) -> None:
        """Call all listeners with the event."""
        for listener in self.listeners:
            listener.receive(event)

    def tidy(self) -> None:
        """Sort the recent waits into the histogram, if there are many."""
        if len(self.waits.recent) >= _MANY_WAITS:
            self.waits.count_recent()
