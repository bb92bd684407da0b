"""Arithmetic on timestamps that float rounding would make a little wrong."""

import math

__all__ = ["edge", "until"]


def until(timestamp: float, now: float) -> float:
    """Seconds from `now` to the timestamp, or 0.0 if it has passed.

    ``now + until(timestamp, now)`` is never before the timestamp. The plain difference can be too
    short: 0.3 + (1.1 - 0.3) is below 1.1, and a task that sleeps for that long wakes too early.
    """
    delay = timestamp - now
    if delay <= 0.0:
        return 0.0
    while now + delay < timestamp:
        delay += math.ulp(abs(now) + delay)
    return delay


def edge(index: float, width: float) -> float:
    """Return when period `index` begins: ``floor(timestamp / width) >= index`` from there on.

    The periods are aligned to the zero of the clock. Exact but for rounding.
    """
    timestamp = index * width
    while math.floor(timestamp / width) < index:
        timestamp = math.nextafter(timestamp, math.inf)
    return timestamp
