"""What a limiter has done so far, in figures, and the histogram behind its percentiles."""

import math
from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["Statistics", "Waits"]

# Four classes of the same width to each doubling, counted in ticks of a quarter of a microsecond,
# up to some thirty years.
_TICKS_PER_SECOND = 1 << 22
_PER_DOUBLING = 4
_CLASSES = 54 * _PER_DOUBLING


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a limiter has done since it was made, and how it stands. All times are seconds.

    The percentiles are read from classes of which four make a doubling: off by an eighth at most.
    """

    #: How many were let through.
    granted: int
    #: How many were rejected: by `try_acquire`, a time-out, a full queue.
    rejected: int
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
    #: How many tokens the server has said are left, without what was sent since. None: it has said
    #: nothing that still holds.
    quota_remaining: float | None
    #: The part of the rate limit that is used up now, from 0 to 1.
    utilisation: float
    #: Tokens per second that an `AdaptiveRate` allows now; None if the rate is no such one.
    rate_limit: float | None = None
    #: How many permits may be out now; None if there is no limit.
    concurrency_limit: int | None = None
    #: The guard in seconds, where it tunes itself; None where it was given, or there is none.
    guard: float | None = None
    #: Whether the store answered when it was last asked; None without a store.
    store_up: bool | None = None


class Waits:
    """How long was waited: a histogram of a fixed size."""

    __slots__ = ("_classes", "count", "longest", "recent", "total")

    def __init__(self) -> None:
        #: Waits that are not counted yet: whoever adds some has them counted now and then.
        self.recent: list[float] = []
        # Made when first needed: a limiter of many keys has as many of these.
        self._classes: list[int] = []
        self.count: int = 0
        self.total: float = 0.0
        self.longest: float = 0.0

    def count_recent(self) -> None:
        """Sort the recent waits in: class by class, as there are many more waits than classes."""
        waits, self.recent = sorted(self.recent), []
        self.count += len(waits)
        self.total += math.fsum(waits)
        self.longest = max(self.longest, waits[-1])
        self._classes = classes = self._classes or [0] * _CLASSES
        first = 0
        while first < len(waits):
            ticks = max(_PER_DOUBLING, int(waits[first] * _TICKS_PER_SECOND))
            doublings = ticks.bit_length() - 3
            step = ticks >> doublings
            place = _PER_DOUBLING * (doublings - 1) + step
            end = bisect_left(waits, math.ldexp(step + 1, doublings) / _TICKS_PER_SECOND, first)
            classes[place if place < _CLASSES else -1] += end - first
            first = end

    def percentile(self, part: float, *, at_once: int) -> float:
        """Give the wait that `part` of all did not exceed, `at_once` others not having waited."""
        wanted = math.ceil(part * (at_once + self.count)) - at_once
        if wanted <= 0:
            return 0.0
        for place, count in enumerate(self._classes):
            wanted -= count
            if wanted <= 0:
                doublings, within = divmod(place, _PER_DOUBLING)
                middle = math.ldexp(_PER_DOUBLING + within + 0.5, doublings)
                return min(self.longest, middle / _TICKS_PER_SECOND)
        raise AssertionError("the classes hold fewer waits than were counted")
