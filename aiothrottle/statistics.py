"""What a limiter has done so far, in figures, and the histogram behind its percentiles."""

import math
from dataclasses import dataclass

__all__ = ["Statistics", "Waits"]

# From a microsecond to some thirty years, four classes of the same width to each doubling.
_LEAST_EXPONENT = -19  # 2 ** -20 s up to 2 ** -19 s
_PER_DOUBLING = 4
_CLASSES = 50 * _PER_DOUBLING


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a limiter has done since it was made, and how it stands. All times are seconds.

    The percentiles are read from classes of which four make a doubling: off by an eighth at most.
    """

    #: How many were let through.
    granted: int
    #: How many were refused: by `try_acquire`, a time-out, a full queue.
    refused: int
    #: How many wait now.
    waiting: int
    #: How many permits are out now.
    in_flight: int
    #: How long all who were let through have waited, together.
    waited_total: float
    #: Half of them, nine in ten, and 99 in a hundred have waited no longer than so.
    waited_p50: float
    waited_p90: float
    waited_p99: float
    #: The longest wait.
    waited_max: float
    #: How long a pause goes on.
    paused_for: float
    #: The part of the rate limit that is used up now, from 0 to 1.
    utilisation: float


class Waits:
    """How long was waited: a histogram of a fixed size."""

    __slots__ = ("_classes", "count", "longest", "total")

    def __init__(self) -> None:
        # Made when first needed: a limiter of many keys has as many of these.
        self._classes: list[int] = []
        self.count = 0
        self.total = 0.0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a wait."""
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        if not self._classes:
            self._classes = [0] * _CLASSES
        place = 0
        if seconds > 0.0:
            mantissa, exponent = math.frexp(seconds)  # from 0.5 up to 1, doubled so often
            within = int((mantissa - 0.5) * 2 * _PER_DOUBLING)
            place = _PER_DOUBLING * (exponent - _LEAST_EXPONENT) + within
        self._classes[min(max(0, place), _CLASSES - 1)] += 1

    def percentile(self, part: float, *, at_once: int) -> float:
        """Give the wait that `part` of all did not exceed, `at_once` others not having waited."""
        wanted = math.ceil(part * (at_once + self.count)) - at_once
        if wanted <= 0:
            return 0.0
        for place, count in enumerate(self._classes):
            wanted -= count
            if wanted <= 0:
                exponent, within = divmod(place, _PER_DOUBLING)
                middle = 0.5 + (within + 0.5) / (2 * _PER_DOUBLING)
                return min(self.longest, math.ldexp(middle, exponent + _LEAST_EXPONENT))
        raise AssertionError("the classes hold fewer waits than were counted")
