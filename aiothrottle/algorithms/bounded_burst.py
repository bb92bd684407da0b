"""The bounded burst: a leaky bucket that may be ahead of the even schedule by some tokens."""

import math
from dataclasses import dataclass
from typing import Any

from aiothrottle.algorithms.capabilities import used
from aiothrottle.algorithms.leaky_bucket import LeakyBucket
from aiothrottle.algorithms.level import Level
from aiothrottle.algorithms.protocol import Algorithm
from aiothrottle.rate import RateLike

__all__ = ["BoundedBurst"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class BoundedBurst(LeakyBucket):
    """At most ``burst + rate * t`` tokens in any time t, and the last cost.

    With a burst of 1 requests are evenly spaced, to the last bit: unlike `LeakyBucket` it has no
    tolerance, so a late timer delays the requests behind it. It stands beside an algorithm of the
    user, which says how great a cost may be: a heavy cost delays the requests behind it.

    Args:
        rate: Tokens per second, a string or a `Rate`.
        burst: Tokens that can be taken back to back, 1 or more.

    >>> bucket = BoundedBurst("10/s", burst=2)
    >>> state = bucket.start()
    >>> bucket.take(state, now=0.0, cost=2)
    >>> round(bucket.delay(state, now=0.0, cost=1), 3)
    0.1
    """

    burst: float

    def __init__(self, rate: RateLike, burst: float) -> None:
        LeakyBucket.__init__(self, rate)
        object.__setattr__(self, "burst", burst)  # frozen
        object.__setattr__(self, "_brim", burst - 1.0)

    def __repr__(self) -> str:
        return f"BoundedBurst(rate={self.rate!r}, burst={self.burst!r})"

    @property
    def capacity(self) -> float:
        """Infinite: any cost can be taken when the token before it is due."""
        return math.inf

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> Level:
        """Continue with the level of `old`; beyond the burst, with the same delay as there.

        From another algorithm, with no more than a full burst: that server accepted the rest.
        """
        level = used(old, state, now)
        beyond = max(0.0, level - old.burst) if isinstance(old, BoundedBurst) else 0.0
        fresh = self.start()
        fresh.put_in(now, min(level, self.burst + beyond), self._limit, self._period)
        return fresh
