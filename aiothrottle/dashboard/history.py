"""The rate at which a counter grew, over the last minutes. Time is an argument here.

Invariant: memory is bounded, however often and for however long it is marked.
"""

from collections import deque

#: Seconds of the past that are kept.
SHOWN = 120.0
#: Points that are kept: more than the server marks in that time.
_MOST = 500


class History:
    """The rate and its limit over the last minutes, oldest first."""

    __slots__ = ("points",)

    def __init__(self) -> None:
        #: When, the rate, and the limit per second at that time; None: there was none.
        self.points: deque[tuple[float, float, float | None]] = deque(maxlen=_MOST)

    def add(self, at: float, rate: float, limit: float | None) -> None:
        """Add a point, and drop what is too old."""
        self.points.append((at, rate, limit))
        while self.points[0][0] < at - SHOWN:
            self.points.popleft()
