"""The statistics of an engine, read from its parts."""

import math
from typing import TYPE_CHECKING, Protocol

from aiothrottle.resource import Resource, resources_of
from aiothrottle.statistics import Statistics

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.feedback import Feedback
    from aiothrottle._core.observers import Observers
    from aiothrottle._core.pause import Pause
    from aiothrottle._core.semaphore import Semaphore

__all__ = ["statistics_of"]


class Host(Protocol):
    """The engine, as far as its statistics are concerned."""

    bucket: "LocalBucket"
    feedback: "Feedback | None"
    observers: "Observers"
    pause: "Pause"
    resources: tuple[str, ...]
    semaphore: "Semaphore"

    @property
    def in_flight(self) -> int: ...
    @property
    def store_up(self) -> bool | None: ...
    @property
    def waiting(self) -> int: ...
    def now(self) -> float: ...


def statistics_of(engine: Host) -> Statistics:
    """Return the counts so far, and the present state."""
    now = engine.now()
    bucket, observers, feedback = engine.bucket, engine.observers, engine.feedback
    waits = observers.waits
    if waits.recent:
        waits.count_recent()
    at_once = bucket.granted - waits.count
    limit, remaining = bucket.capacity, bucket.remaining(now)
    resources = resources_of(limit, remaining, engine.resources)
    of_each = [*resources.values()] or [Resource(limit, remaining)]
    rate = feedback and feedback.rate
    guard = feedback and feedback.guard
    return Statistics(
        granted=bucket.granted - observers.withdrawn,
        rejected=observers.rejected,
        waiting=engine.waiting,
        in_flight=engine.in_flight,
        waited_total=waits.total,
        waited_p50=waits.percentile(0.5, at_once=at_once),
        waited_p90=waits.percentile(0.9, at_once=at_once),
        waited_p99=waits.percentile(0.99, at_once=at_once),
        waited_max=waits.longest,
        paused_for=engine.pause.left(now),
        quota_remaining=bucket.quota_remaining(now),
        utilisation=max(each.utilisation for each in of_each),
        rate_limit=rate.state.rate if rate else None,
        concurrency_limit=engine.semaphore.limit,
        guard=guard.measured.seconds if guard else None,
        burst=guard.burst.size if guard and guard.burst.size < math.inf else None,
        store_up=engine.store_up,
        resources=resources,
    )
