"""The burst that a server accepts, learned from throttled requests.

Invariant: the burst never exceeds that of the limit; it shrinks only at throttled requests, and
grows only where it was in use for a while without any.

A request that is throttled although the limit was kept means that the server accepts a smaller
burst than the limit (a small bucket) or none at all (even spacing, a sliding counter). At each such
event the burst is halved, down to one token: requests are then evenly spaced. If even that is
throttled, the spacing is too short for the jitter of the network, and is widened by steps. After a
long pause there is no time for halves: the burst is one token at once.
"""

import math
from dataclasses import dataclass

__all__ = ["LearnedBurst"]

# Steps by which the spacing can be widened.
_MOST_STEPS = 2
# Seconds for which a burst is in use before it doubles: at first, and after throttled requests.
# Each time that a larger burst fails, the wait for the next one doubles, up to an hour.
_OPENING, _WAIT, _LONGEST_WAIT = 0.25, 60.0, 3600.0
# The longest pause, in periods of the limit, that costs no more than a smaller burst does.
_LONG_PAUSE = 3.0
# Seconds of a token, above which even spacing costs more than throttled requests do.
_SLOW = 2.0


@dataclass(slots=True)
class LearnedBurst:
    """Multiplicative decrease, and doubling after a while.

    Args:
        most: The burst of the limit, in tokens.
        interval: Seconds of a token at the rate of the limit.

    >>> burst = LearnedBurst(most=20.0, interval=0.05)
    >>> burst.throttled(now=1.1, sent_at=1.0)
    True
    >>> burst.throttled(now=1.2, sent_at=1.0)  # sent before the change: the same event
    False
    >>> burst.size
    10.0
    """

    most: float
    interval: float
    #: The burst now, in tokens.
    size: float = math.inf
    #: Steps by which the spacing is widened.
    steps: int = 0
    #: Seconds without throttled requests after which it grows.
    wait: float = _OPENING
    # When it was changed last, and when it was first in use since. Requests sent up to the last cut
    # belong to an event that counted.
    _changed_at: float = -math.inf
    _used_at: float = math.inf
    _cut_at: float = -math.inf
    # Requests that were admitted since it was changed, while it was in use.
    _admitted: int = 0
    # Whether it has grown since the last cut.
    _grew: bool = False

    def __post_init__(self) -> None:
        self.size = min(self.size, self.most)

    @property
    def is_bounded(self) -> bool:
        """Whether the burst is smaller than that of the limit."""
        return self.size < self.most

    @property
    def may_grow(self) -> bool:
        """Whether the burst is smaller than that of the limit, or the spacing widened."""
        return self.is_bounded or self.steps > 0

    @property
    def is_even(self) -> bool:
        """Whether requests are evenly spaced."""
        return self.size <= 1.0

    @property
    def was_throttled(self) -> bool:
        """Whether a request was throttled."""
        return self.wait > _OPENING

    def begin_small(self) -> None:
        """Begin with one token, where that costs a part of a second."""
        if self.interval <= _OPENING:
            self.size = 1.0

    def with_limit(self, most: float, interval: float) -> "LearnedBurst":
        """Return what was learned, for another limit."""
        size = math.inf if self.size >= self.most else self.size
        return LearnedBurst(most, interval, size, self.steps, self.wait)

    def restart(self) -> None:
        """Forget all timestamps: there is another clock."""
        self._changed_at = self._cut_at = -math.inf
        self._used_at = math.inf

    def succeeded(self, now: float, sent_at: float) -> bool:
        """Record a request that was not throttled, while the whole burst was in use.

        Args:
            now: When its response arrived.
            sent_at: When it was sent.

        Returns:
            Whether the burst grew, or the spacing shrank.
        """
        if not self.may_grow or sent_at < self._changed_at:
            return False
        self._used_at = min(self._used_at, now)
        self._admitted += 1
        # It grew by half of its size: those tokens may have been used at once.
        is_proved = self.steps > 0 or 2 * self._admitted >= self.size
        if not is_proved or now - self._used_at < self.wait:
            return False
        if self.steps:
            self.steps -= 1
        else:
            self.size = min(2.0 * self.size, self.most)
        self._changed(now)
        self._grew = True
        return True

    def throttled(
        self, now: float, sent_at: float, used: float = math.inf, pause: float = 0.0
    ) -> bool:
        """Record a throttled request.

        Args:
            now: When its response arrived.
            sent_at: When it was sent.
            used: Tokens that count under the limit, with those of this request.
            pause: Seconds in which nothing will be sent.

        Returns:
            Whether the burst shrank, or the spacing grew.
        """
        if sent_at <= self._cut_at:
            return False
        can_shrink = not self.is_even and self.interval <= _SLOW
        if can_shrink and not self.is_bounded:
            if used <= 1.0:
                return False  # a single request is no burst
            self.size = min(self.size, used)
        self._cut_at = now
        self._changed(now)
        self.wait = min(max(_WAIT, 2.0 * self.wait if self._grew else self.wait), _LONGEST_WAIT)
        self._grew = False
        if can_shrink:
            is_long = pause > _LONG_PAUSE * self.most * self.interval
            self.size = 1.0 if is_long else max(1.0, self.size // 2.0)
        elif self.steps < _MOST_STEPS:
            self.steps += 1
        else:
            return False
        return True

    def _changed(self, now: float) -> None:
        self._changed_at, self._used_at, self._admitted = now, math.inf, 0
