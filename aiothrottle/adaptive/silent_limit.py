"""The silent limit: a server that drops connections, or answers 403 or 500, where others send 429.

It looks like an outage, or like pages that are forbidden. But it comes after many successes, it
concerns all requests, and it ends when nothing is sent for a while. So a run of failures is taken
for an event, and handled as a 429: the limiter pauses, and one request goes ahead. If that fails
too, the next pause is twice as long. If it succeeds, the server has a silent limit, and shorter
runs are enough from then on. If none succeeds in a minute it is an outage, and not the limiter's
business: it takes a run that is much longer to be taken for an event again.

Failures that successes interrupt are no event, however many they are: a server that is merely
broken, or some pages that are forbidden, slow nobody down.

Invariant: by the time of sending, no success lies within a run; and many precede the first event.
"""

import math
from collections import deque
from dataclasses import dataclass, field

# Failures of a run that is an event: at first, after an event, and after two within a minute. Each
# run that successes have interrupted makes it longer by one.
_NEEDED, _SOON = (8, 2, 1), 60.0
# Successes before such a run, at the least, for each of its failures.
_MANY = 2
# Seconds of the first pause, and of all pauses of an event, after which it is an outage. A run that
# is an event has to be so many times longer after that.
_FIRST, _OUTAGE, _LONGER = 1.0, 60.0, 10
# Successes of which it is known when they were sent.
_LAST = 100
# Seconds without failures after which all of this is forgotten.
_MEMORY = 300.0


@dataclass(slots=True)
class SilentLimit:
    """The failures of a server since the first one.

    Args:
        successes: Requests that succeeded before the first failure.

    >>> limit = SilentLimit(successes=100)
    >>> [limit.failed(now=10.0, sent_at=9.9) for _ in range(9)][6:]
    [None, 1.0, 1.0]
    >>> limit.failed(now=11.1, sent_at=11.05)  # the request that went ahead
    2.0
    >>> limit.succeeded(sent_at=13.2)
    >>> limit.events
    1
    """

    successes: int
    #: Events, two at the most, after which requests have succeeded again.
    events: int = 0
    # The present run, when its first and its last request were sent, and when those that succeeded
    # last: a failure may be noticed late, when others have succeeded that were sent after it.
    _run: int = 0
    _first_at: float = math.inf
    _last_at: float = -math.inf
    _successes: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))
    # Runs that successes have ended, and when the last failure was noticed.
    _interrupted: int = 0
    _failed_at: float = -math.inf
    # The factor by which a run has to be longer, since there was an outage.
    _factor: int = 1
    # When the present event began; when the last pause did, and that pause; when the event before
    # ended, and its last pause.
    _began_at: float = math.inf
    _ended_at: float = -math.inf
    _paused_at: float = -math.inf
    _pause: float = 0.0
    _enough: float = _FIRST

    @property
    def needed(self) -> int:
        """Failures of a run that is an event."""
        return self._factor * _NEEDED[self.events] + self._interrupted

    def is_over(self, now: float) -> bool:
        """Return whether the last failure was so long ago that it has no consequence."""
        return now - self._failed_at > _MEMORY

    def failed(self, now: float, sent_at: float) -> float | None:
        """Record a failure.

        Args:
            now: When it was noticed.
            sent_at: When the request was sent.

        Returns:
            Seconds of the pause, where it belongs to an event; else None.
        """
        self._failed_at = now
        if sent_at <= self._paused_at:
            return self._pause
        if self._began_at < math.inf:
            if now - self._began_at < _OUTAGE:
                self._paused_at, self._pause = now, 2.0 * self._pause
                return self._pause
            self._factor *= _LONGER
            self._end(0)
            return None
        if any(self._last_at < at < sent_at for at in self._successes):
            self._interrupt()
        if not self._run:
            self._first_at = sent_at
        self._run += 1
        self._last_at = max(self._last_at, sent_at)
        proved = self.events > 0 or self.successes >= _MANY * self.needed
        if self._run < self.needed or not proved:
            return None
        self._began_at = self._paused_at = now
        # One event alone may have been an outage, whose length says nothing.
        self._pause = self._enough if self.events == len(_NEEDED) - 1 else _FIRST
        return self._pause

    def succeeded(self, sent_at: float) -> None:
        """Record a success.

        Args:
            sent_at: When the request was sent.
        """
        if sent_at <= self._paused_at:
            return
        if self._began_at < math.inf:
            self._enough = self._pause
            self._interrupted //= 2
            is_soon = self._began_at - self._ended_at <= _SOON
            self._ended_at = self._paused_at
            self._end(2 if is_soon else 1)
        self.successes += 1
        self._successes.append(sent_at)
        if self._first_at < sent_at < self._last_at:
            self._interrupt()

    def _interrupt(self) -> None:
        if self._run:
            self._run = 0
            self._interrupted += 1

    def _end(self, events: int) -> None:
        self.events, self.successes, self._run = events, 0, 0
        self._began_at = math.inf
