"""How much a counter grew within the last seconds. Time is an argument here.

Invariant: memory is bounded, however often and for however long it is marked.
"""

from collections import deque

# The most values that are kept of a window, which may last a day.
_KEPT = 500


class Growth:
    """The growth of a counter within the last `length` seconds.

    Args:
        length: Seconds.

    >>> growth = Growth(5.0)
    >>> for at, count in [(0, 0), (1, 9), (2, 20), (3, 33), (8, 83)]:
    ...     growth.mark(at, count)
    >>> growth.amount, growth.seconds
    (50, 5)
    """

    __slots__ = ("_length", "_marks", "amount", "seconds")

    def __init__(self, length: float) -> None:
        self._length = length
        self._marks = deque[tuple[float, float]]()
        #: By how much it grew, and in how many seconds: `length` at the most.
        self.amount: float = 0.0
        self.seconds: float = 0.0

    def mark(self, now: float, value: float) -> None:
        """Record the value of the counter.

        Args:
            now: Seconds, not before those of the last mark.
            value: The value.
        """
        marks = self._marks
        while marks and marks[0][0] < now - self._length:
            marks.popleft()
        if not marks or marks[-1][0] <= now - self._length / _KEPT:
            marks.append((now, value))
        self.seconds = now - marks[0][0]
        self.amount = value - marks[0][1]
