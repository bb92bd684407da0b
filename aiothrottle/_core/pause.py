"""The pause: an instant before which nothing is granted.

Invariant: it is only ever extended, so nobody shortens what somebody else asked for.
"""

import math

from aiothrottle.algorithms.timestamps import until

__all__ = ["Pause"]


class Pause:
    """Since when, and until when, nothing is granted, in seconds of the bucket's clock."""

    __slots__ = ("began_at", "ends_at")

    def __init__(self) -> None:
        #: When `extend` was last called. A request that started before that is a reason for no
        #: further pause.
        self.began_at: float = -math.inf
        self.ends_at: float = -math.inf

    def extend(self, now: float, seconds: float) -> None:
        """Pause until so many seconds from now, or for longer if that was asked for before."""
        self.began_at = now
        self.ends_at = max(self.ends_at, now + seconds)

    def left(self, now: float) -> float:
        """Seconds until it ends; 0.0 if there is none."""
        return until(self.ends_at, now)

    def shift(self, seconds: float) -> None:
        """Go on by another clock, which is ahead by so many seconds."""
        self.began_at += seconds
        self.ends_at += seconds
