"""The least and the greatest of the last values, in constant memory."""

import math
from dataclasses import dataclass

__all__ = ["Extremes"]


@dataclass(slots=True)
class Extremes:
    """The least and the greatest of at least the last `size` values, at most twice as many.

    Two generations: when the new one is full, it replaces the old one.

    >>> times = Extremes(100)
    >>> for value in (3.0, 1.0, 2.0):
    ...     _ = times.add(value)
    >>> times.least, times.greatest, times.spread
    (1.0, 3.0, 2.0)
    """

    size: int
    count: int = 0
    _least: float = math.inf
    _greatest: float = -math.inf
    _old_least: float = math.inf
    _old_greatest: float = -math.inf

    def add(self, value: float) -> bool:
        """Add a value; return whether the least or the greatest may have changed."""
        count = self.count
        self.count = count + 1
        if self._least <= value <= self._greatest and count % self.size:
            return False
        if count and count % self.size == 0:
            self._old_least, self._old_greatest = self._least, self._greatest
            self._least, self._greatest = math.inf, -math.inf
        self._least = min(self._least, value)
        self._greatest = max(self._greatest, value)
        return True

    @property
    def least(self) -> float:
        """The least value; infinite if there was none."""
        return min(self._least, self._old_least)

    @property
    def greatest(self) -> float:
        """The greatest value; minus infinity if there was none."""
        return max(self._greatest, self._old_greatest)

    @property
    def spread(self) -> float:
        """The greatest less the least; 0.0 if there was none."""
        return max(0.0, self.greatest - self.least)
