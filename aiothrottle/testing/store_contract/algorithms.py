"""The algorithms with which a store is checked."""

import math
import struct
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
    Unlimited,
    WaitUntil,
)

__all__ = ["ALGORITHMS", "TEN", "OneByOne"]


class OneByOne:
    """One token per second: an algorithm that no store knows."""

    @property
    def capacity(self) -> float:
        """One."""
        return 1.0

    def start(self) -> list[float]:
        """Return the timestamp from which on a token can be taken."""
        return [-math.inf]

    def delay(self, state: list[float], now: float, cost: float) -> float:
        """Seconds until that timestamp."""
        return 0.0 if not cost else math.inf if cost > 1 else max(0.0, state[0] - now)

    def take(self, state: list[float], now: float, cost: float) -> None:
        """Delay the next token by a second."""
        if cost:
            state[0] = max(state[0], now) + 1.0

    def remaining(self, state: list[float], now: float) -> float:
        """One, or none."""
        return float(state[0] <= now)

    def reset_after(self, state: list[float], now: float) -> float:
        """Seconds until that timestamp."""
        return max(0.0, state[0] - now)

    def refund(self, state: list[float], now: float, cost: float, at: float) -> None:  # noqa: ARG002
        """Give the token back, if it was the last one taken."""
        if at + 1.0 >= state[0]:
            state[0] = min(state[0], max(now, at))

    def dump(self, state: list[float]) -> bytes:
        """Return the timestamp as bytes."""
        return struct.pack("<d", state[0])

    def load(self, data: bytes) -> list[float]:
        """Return the timestamp that was dumped."""
        return list(struct.unpack("<d", data))


ALGORITHMS: list[Algorithm[Any]] = [
    SlidingWindowLog("3/s"),
    SlidingWindowLog("2.5/min"),
    SlidingWindowLog("100/s"),
    TokenBucket("3/s", burst=2),
    LeakyBucket("3/s"),
    FixedWindow("3/s"),
    SlidingWindowCounter("3/s", buckets=4),
    WaitUntil(1, 5, 10),
    Cooldown(3, 60),
    AllOf(SlidingWindowLog("3/s"), SlidingWindowLog("12/min")),
    AllOf(FixedWindow("3/700ms"), TokenBucket("5/s", burst=2), SlidingWindowCounter("20/min")),
    AllOf(SlidingWindowLog("5/s"), AllOf(Cooldown(4, 1), Unlimited())),
    PerResource(("tokens", FixedWindow("9/s")), ("requests", SlidingWindowLog("3/s"))),
    Unlimited(),
    OneByOne(),
]
"""One of each algorithm, and combinations of several."""

TEN = SlidingWindowLog("10/s")
"""For checks that do not depend on the algorithm."""
