"""The algorithms by which a server decides whether to throttle a request.

They are independent of the client's algorithms, on purpose, and must not import them: a test that
compares a thing with itself cannot fail. For the same reason they are as short as their
definitions. Time is an argument, in seconds; it is zero when the server starts and never decreases.
Only admitted requests are counted, so a throttled one costs nothing.
"""

import math
import sys
from collections import deque
from typing import Literal, Protocol, TypeAlias

from aiothrottle._checks import check_number, duration
from aiothrottle.rate import Rate

AlgorithmName: TypeAlias = Literal["sliding-window-log", "fixed-window", "token-bucket"]


class ServerAlgorithm(Protocol):
    """What a server needs of an algorithm: when it admits the next request, and to count it."""

    def ready_at(self) -> float:
        """Return when the next request is admitted, in seconds; -inf if at any time."""
        ...

    def count(self, now: float) -> None:
        """Count a request that is admitted at `now`."""
        ...


class SlidingWindowLog:
    """At most `limit` requests in any half-open window of `period` seconds."""

    def __init__(self, limit: int, period: float) -> None:
        self._period = period
        self._counted = deque[float](maxlen=min(limit, sys.maxsize))

    def ready_at(self) -> float:
        """Return when the oldest of the last `limit` requests leaves the window."""
        if len(self._counted) < (self._counted.maxlen or 0):
            return -math.inf
        return self._counted[0] + self._period

    def count(self, now: float) -> None:
        """Count a request that is admitted at `now`."""
        self._counted.append(now)


class FixedWindow:
    """At most `limit` requests in each of the consecutive windows of `period` seconds.

    The server starts `phase` seconds into the first window: window n begins at n * period - phase.
    """

    def __init__(self, limit: int, period: float, phase: float = 0.0) -> None:
        self._limit = limit
        self._period = period
        self._phase = phase
        self._window: int = 0
        self._counted = 0

    def _begin(self, window: int) -> float:
        return window * self._period - self._phase

    def ready_at(self) -> float:
        """Return when the window of the last request ends, if it is full; else -inf."""
        return -math.inf if self._counted < self._limit else self._begin(self._window + 1)

    def count(self, now: float) -> None:
        """Count a request that is admitted at `now`."""
        # The quotient is rounded, but the boundaries must not depend on that: a request exactly at
        # a boundary belongs to the window that begins there.
        window = math.floor((now + self._phase) / self._period) - 1
        while self._begin(window + 1) <= now:
            window += 1
        if window != self._window:
            self._window, self._counted = window, 0
        self._counted += 1


class TokenBucket:
    """At most `burst` requests at once and `limit` per `period` seconds in the long run.

    The bucket starts full, with `burst` tokens. A request takes one.
    """

    def __init__(self, limit: float, period: float, burst: float) -> None:
        self._rate = limit / period
        self._burst = burst
        self._tokens = burst
        self._counted_at = 0.0

    def ready_at(self) -> float:
        """Return when there is, or was, one whole token."""
        return self._counted_at + (1.0 - self._tokens) / self._rate

    def count(self, now: float) -> None:
        """Count a request that is admitted at `now`."""
        filled = self._tokens + (now - self._counted_at) * self._rate
        self._tokens = min(self._burst, filled) - 1.0
        self._counted_at = now


def make_algorithm(
    rate: Rate, name: AlgorithmName, burst: float | None = None, phase: float | None = None
) -> ServerAlgorithm:
    """Return the algorithm with this name.

    Args:
        rate: Its rate.
        name: The name.
        burst: How many requests a token bucket holds; None: the limit of the rate, rounded up.
        phase: Seconds since a fixed window began; None: it begins.

    Raises:
        ValueError: An argument is out of range, or belongs to another algorithm.
    """
    if burst is not None and name != "token-bucket":
        raise ValueError("burst belongs to algorithm='token-bucket'")
    if phase is not None and name != "fixed-window":
        raise ValueError("phase belongs to algorithm='fixed-window'")
    # A window counts whole requests.
    limit, period = rate.in_whole_tokens.limit, rate.in_whole_tokens.period
    if name == "sliding-window-log":
        return SlidingWindowLog(int(limit), period)
    if name == "token-bucket":
        burst = limit if burst is None else burst
        check_number("burst", burst, "requests", least=1)
        return TokenBucket(rate.limit, rate.period, burst)
    phase = phase or 0.0
    check_number("phase", phase, "seconds")
    if phase >= period:
        raise ValueError(f"phase is below the period of {duration(period)}, not {phase!r}")
    return FixedWindow(int(limit), period, phase)
