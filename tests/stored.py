"""The algorithms of which stores keep records, one of each kind: three tokens at the most."""

from typing import Any

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)

__all__ = ["STORED"]

# In this order: the corpus of `fuzz_stores.py` names them by their place.
STORED: list[Algorithm[Any]] = [
    SlidingWindowLog("3/s"),
    TokenBucket("3/s", burst=3),
    LeakyBucket("3/s"),
    FixedWindow("3/s"),
    SlidingWindowCounter("3/s", buckets=4),
    WaitUntil(1, 5, 10),
    Cooldown(3, 1),
    AllOf(SlidingWindowLog("3/s"), FixedWindow("20/min")),
    PerResource(("requests", SlidingWindowLog("3/s")), ("tokens", TokenBucket("20/min"))),
    PerResource(("tokens", SlidingWindowLog("3/s")), ("requests", FixedWindow("3/s"))),
]
