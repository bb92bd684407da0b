"""The promises of algorithms, and by how much a list of instants exceeds them.

A promise is compared with an outside observer's instants, never with the limiter's own statistics.
"""

import math
from dataclasses import dataclass

__all__ = ["Bucket", "Promise", "Window"]


@dataclass(frozen=True)
class Window:
    """Never more than `limit` in any half-open window of that length."""

    limit: int
    period: float = 1.0

    def most(self, seconds: float) -> float:
        """Return the most requests that can start in so many seconds."""
        return self.limit * math.ceil(seconds / self.period)

    def excess(self, instants: list[float]) -> float:
        """Return the number of requests too many, in the worst window."""
        first = greatest = 0
        for last, instant in enumerate(instants):
            while instant - instants[first] >= self.period:
                first += 1
            greatest = max(greatest, last - first + 1)
        return max(0.0, greatest - self.limit)


@dataclass(frozen=True)
class Bucket:
    """Never more than `burst + rate * t` in any time t. Paced evenly is a burst of 1."""

    rate: float
    burst: float = 1.0

    def most(self, seconds: float) -> float:
        """Return the most requests that can start in so many seconds."""
        return self.burst + self.rate * seconds - 1

    def excess(self, instants: list[float]) -> float:
        """Return the number of requests too many, in the worst stretch of time."""
        if not instants:
            return 0.0
        begun, ahead, greatest = instants[0], -math.inf, 0.0
        for number, instant in enumerate(instants):
            due = self.rate * (instant - begun) - number
            ahead = max(ahead, due)
            greatest = max(greatest, ahead - due + 1 - self.burst)
        # Sums of fractions are off by some units in the last place: that is no request.
        return greatest if greatest > 1e-6 else 0.0


Promise = Window | Bucket
