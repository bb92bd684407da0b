"""The window of a server that reports limit, remaining and reset, but not how long its windows are.

Invariant: the inferred window is never longer than the server's, if that is one of the usual ones;
and it makes a rate only when no longer one is possible.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from aiothrottle.algorithms.server_quota import ReportedQuota
from aiothrottle.rate import Rate

# Seconds. In a longer window an error of a second in the reset does not matter, and the quota alone
# uses it all; a rate would not use what a calendar day adds at midnight.
_LONGEST = 60.0
# Windows in a row that may turn out to be longer.
_MOST_FAILURES = 1
# A smaller part of a window is not worth a 429.
_SMALL_PART = 0.1
# Seconds of the windows that most servers have.
_USUAL = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
# Seconds by which the first request may come after its window began, as of a minute of the clock.
_LATE = 0.5
# Seconds. Windows shorter than the first of these are whole numbers of this step.
_STEP = 0.05
# A quota of which less than this part is left was not reset since the request before.
_SPENT = 0.5
# Seconds. Resets that differ by less are of the same window.
_SAME_WINDOW = 1.0


class Inferred(NamedTuple):
    """What is known of the windows so far."""

    #: The server's rate; None: not known, or of long windows.
    rate: Rate | None = None
    #: When one request may find out whether the present window is over; None: there is no doubt.
    probe_at: float | None = None


@dataclass(slots=True)
class ServerWindow:
    """Infers the length of the windows from the reports of many responses.

    The first response of a window reports all but one request as remaining, and its reset is a
    whole window away. As a reset may be earlier than it says, several lengths are possible. Then
    one request is sent when the shortest usual one is over: if it is admitted after all was used
    up, that was right. If it is throttled, the window is longer; after two of them in a row nothing
    is inferred any more. The same if the quota is half spent after a time without requests that is
    as long as the window.

    >>> window = ServerWindow()
    >>> window.observe(5.1, 5.0, ReportedQuota(19, 1.0, limit=20, error=1.0))
    Inferred(rate=Rate(limit=20, period=1.0), probe_at=None)
    """

    #: The reported limit, in tokens.
    limit: float = 0.0
    #: Seconds, the shortest possible window; 0.0: not known.
    seconds: float = 0.0
    # Whether no longer one is possible.
    _is_certain: bool = False
    # How often the server has throttled when a window should have been over.
    _failures: int = 0
    # Whether all of the latest window was used.
    _is_used_up: bool = False
    # When the first request of the latest window was sent, and when its response arrived.
    _sent_at: float = -math.inf
    _began_at: float = math.inf
    _resets_at: float = math.inf
    # When the last response arrived.
    _seen_at: float = math.inf

    @property
    def is_refuted(self) -> bool:
        """Whether the server throttles although the window is over, again and again."""
        return self._failures > _MOST_FAILURES

    def observe(self, now: float, sent_at: float, quota: ReportedQuota) -> Inferred:
        """Record what a response reports, and return what is known.

        Args:
            now: When it arrived.
            sent_at: When its request was sent.
            quota: The reported quota, with its limit.
        """
        remaining, reset_after, _, limit, error, throttled, *_ = quota
        if limit != self.limit:
            self.limit, self.seconds, self._is_certain = limit, 0.0, False
            self._is_used_up = False
            self._sent_at, self._began_at = -math.inf, math.inf
        begins = not throttled and remaining == limit - 1
        if begins or self.seconds:
            # No reset is further away than a window is long.
            self._raise(_shortest(reset_after, error))
        # The window began between its first request and the response to that.
        over = self._is_used_up and sent_at >= self._began_at + self.seconds
        if not throttled and (begins or over) and now - self._sent_at < self.seconds + 1.0:
            self._is_certain, self._failures = True, 0
        if begins:
            if reset_after + now - sent_at < self.seconds + 1.0:
                self._is_certain = True
            self._sent_at, self._began_at, self._resets_at = sent_at, now, now + reset_after
        self._is_used_up = not begins and (self._is_used_up or remaining == 0)
        same_window = abs(now + reset_after - self._resets_at) < _SAME_WINDOW
        if throttled and same_window and sent_at - self._began_at >= self.seconds > 0.0:
            self._raise(self.seconds + 1.0)
            self._failures += 1
        if sent_at - self._seen_at >= self.seconds > 0.0 and remaining < _SPENT * limit:
            self._failures += 1
        self._seen_at = now
        if not 0.0 < self.seconds <= _LONGEST:
            return Inferred()
        if self._is_certain:
            return Inferred(Rate(limit, self.seconds))
        matters = error > _SMALL_PART * self.seconds
        return Inferred(None, self._began_at + self.seconds if matters else None)

    def _raise(self, seconds: float) -> None:
        if seconds > self.seconds:
            self.seconds, self._is_certain = seconds, False


def _shortest(reset_after: float, error: float) -> float:
    """Return the seconds of the shortest window with such a reset; a usual one, if there is one.

    A reset in parts of a second is exact, and then the window may be shorter than a second.
    """
    if not error and reset_after < _USUAL[0]:
        return math.ceil(reset_after / _STEP) * _STEP
    least = max(1.0, math.floor(reset_after - error) + 1.0)
    return next((usual for usual in _USUAL if least <= usual <= reset_after + _LATE), least)
