"""The pause: an instant before which nothing is granted.

Invariant: it is only ever extended, so no caller shortens the pause of another.
"""

import math

from aiothrottle.algorithms.timestamps import until

__all__ = ["Pause"]


class Pause:
    """The start and the end of the pause, by the bucket's clock."""

    __slots__ = ("began_at", "ends_at")

    def __init__(self) -> None:
        #: When `extend` was last called. A 429 of a request that started earlier makes no new
        #: pause.
        self.began_at: float = -math.inf
        self.ends_at: float = -math.inf

    def extend(self, now: float, seconds: float) -> None:
        """Extend the pause to so many seconds from now; never shorten it."""
        self.began_at = now
        self.ends_at = max(self.ends_at, now + seconds)

    def left(self, now: float) -> float:
        """Return the seconds until the pause ends; 0.0 without a pause."""
        return until(self.ends_at, now)

    def shift(self, seconds: float) -> None:
        """Move to another clock, which is ahead by so many seconds."""
        self.began_at += seconds
        self.ends_at += seconds
