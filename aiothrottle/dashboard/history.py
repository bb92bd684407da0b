"""The rate at which a counter grows: now, and over the last minutes. Time is an argument here.

Invariant: memory is bounded, however often and for however long it is marked.
"""

from collections import deque

__all__ = ["AVERAGED", "SHOWN", "History", "Speed"]

#: Seconds over which a rate is averaged, and seconds of the past that are kept.
AVERAGED, SHOWN = 5.0, 120.0
#: Points that are kept: more than the server marks in that time.
_MOST = 500


class Speed:
    """The average rate of a counter over the last seconds.

    >>> speed = Speed()
    >>> [speed.mark(at, count) for at, count in [(0, 0), (1, 9), (2, 20), (3, 33), (8, 83)]]
    [None, None, None, 11.0, 10.0]
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = deque[tuple[float, float]](maxlen=_MOST)

    def mark(self, at: float, count: float) -> float | None:
        """Return the rate per second; None while it is too early for an average."""
        marks = self._marks
        marks.append((at, count))
        while len(marks) > 2 and marks[1][0] <= at - AVERAGED:
            marks.popleft()
        since, before = marks[0]
        # The average over a shorter time would be a peak.
        return None if at - since < AVERAGED / 2 else (count - before) / (at - since)


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
