"""The statistics of a limiter, and the histogram of waits behind their percentiles."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from aiothrottle.amounts import Resource

# Four buckets of the same width to each doubling, counted in ticks of a quarter of a microsecond,
# up to some thirty years.
_TICKS_PER_SECOND = 1 << 22
_PER_DOUBLING = 4
_CLASSES = 54 * _PER_DOUBLING
#: Waits that are counted together: the time depends on the buckets, not the waits.
MANY_WAITS = 512

BoundBy: TypeAlias = Literal[
    "store", "pause", "slots", "rate", "learned rate", "learned burst", "quota"
]
"""Why a limiter is slow."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since the limiter was made, and its state now. All durations are seconds.

    The percentiles come from a histogram with four buckets per doubling: they are off by an eighth
    at most. At a parent a request begins to wait when it is the first in its limiter's queue.
    """

    #: Requests that were granted.
    granted: int
    #: Requests that the limiter rejected: no room for `try_acquire`, a timeout, a full queue.
    rejected: int
    #: Requests that wait now.
    waiting: int
    #: Permits that are held now.
    in_flight: int
    #: The sum of the waits of all granted requests, in seconds.
    waited_total: float
    #: The median of the waits of granted requests, in seconds.
    waited_p50: float
    #: 90 % of granted requests waited at most so many seconds.
    waited_p90: float
    #: 99 % of granted requests waited at most so many seconds.
    waited_p99: float
    #: The longest wait.
    waited_max: float
    #: Seconds until the pause ends, or until the server resets a quota of which nothing remains;
    #: 0.0 without either.
    paused_for: float
    #: Tokens that the server has left, of resources the requests: its last report less those sent
    #: since. None: the server reported none, or has reset its quota since.
    quota_remaining: float | None
    #: The part of the rate limit that is in use now, from 0 to 1; of resources the greatest part.
    utilisation: float
    #: Tokens per second that the rates allow on average, without the guard: those that were given,
    #: or reported by the server, or adaptive; of resources, requests. None: no rate limit, or an
    #: algorithm that has other numbers, such as `Cooldown`.
    rate_limit: float | None = None
    #: The concurrency limit now; None: no limit.
    concurrency_limit: int | None = None
    #: The guard, measured or given, in seconds; None without a rate limit of its own.
    guard: float | None = None
    #: The most tokens that are taken at once: as learned from throttled requests, or as given; of
    #: resources, the most requests. None: as many as the rate limit has.
    burst: float | None = None
    #: Responses by which the server throttled a request.
    throttled: int = 0
    #: Attempts after the first, whatever their reason.
    retries: int = 0
    #: Pauses that began or became longer, those for a spent quota too.
    pauses: int = 0
    #: Whether the store answered the last call; None without a store.
    store_up: bool | None = None
    #: Why the first waiter, or without waiters a request with a cost of 1, would have to wait now;
    #: None: it could start. The first of these that holds: the store does not answer, a pause or
    #: the request that goes ahead after it, all slots are taken, the rate limit, a rate or a burst
    #: that was learned from throttled requests, the quota that the server reported. Of a limiter
    #: above, if its own limits allow it. With a store, None if no request waits.
    bound_by: BoundBy | None = None
    #: The limit of each resource, and what is free; empty for a limiter without resources.
    resources: Mapping[str, Resource] = field(default_factory=dict[str, Resource])


class Waits:
    """A histogram of waits, of a fixed size."""

    __slots__ = ("_classes", "count", "longest", "recent", "total")

    def __init__(self) -> None:
        #: Waits that `count_recent` has not counted yet; the owner calls that at `MANY_WAITS`.
        self.recent: list[float] = []
        # Made at the first wait: a `KeyedRateLimiter` has a histogram for each key.
        self._classes: list[int] | None = None
        self.count: int = 0
        self.total: float = 0.0
        self.longest: float = 0.0

    def add(self, other: "Waits") -> None:
        """Count the waits of another histogram here too."""
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)
        theirs = other._classes
        if theirs:
            mine = self._classes or [0] * _CLASSES
            self._classes = [*map(sum, zip(mine, theirs, strict=True))]

    def count_recent(self) -> None:
        """Count the recent waits: by bucket, as there are many more waits than buckets."""
        if not self.recent:
            return
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

    def fields(self, granted: int) -> dict[str, Any]:
        """Return the fields of `Statistics` about waits, of so many granted requests."""
        at_once = granted - self.count
        return {
            "waited_total": self.total,
            "waited_p50": self.percentile(0.5, at_once=at_once),
            "waited_p90": self.percentile(0.9, at_once=at_once),
            "waited_p99": self.percentile(0.99, at_once=at_once),
            "waited_max": self.longest,
        }

    def percentile(self, part: float, *, at_once: int) -> float:
        """Return the wait that `part` of all did not exceed; `at_once` more did not wait."""
        wanted = math.ceil(part * (at_once + self.count)) - at_once
        if wanted <= 0:
            return 0.0
        for place, count in enumerate(self._classes or ()):
            wanted -= count
            if wanted <= 0:
                doublings, within = divmod(place, _PER_DOUBLING)
                middle = math.ldexp(_PER_DOUBLING + within + 0.5, doublings)
                return min(self.longest, middle / _TICKS_PER_SECOND)
        raise AssertionError("the buckets hold fewer waits than were counted")
