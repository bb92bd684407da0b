"""The window of a server that reports limit, remaining and reset, but not how long its windows are.

Invariant: the inferred window is never longer than the server's, if that is a whole number of
seconds; and it makes a rate only when no longer one is possible.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from aiothrottle.algorithms.server_quota import ReportedQuota
from aiothrottle.rate import Rate

# Seconds. In a longer window an error of a second in the reset does not matter, and the quota alone
# uses it all; a rate would not use what a calendar day adds at midnight.
_LONGEST = 60.0
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
    one request is sent when the shortest is over: if it is admitted after all was used up, that was
    right, and if it is throttled, the window is longer.

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
    # Whether all of the latest window was used.
    _is_used_up: bool = False
    # When the first request of the latest window was sent, and when its response arrived.
    _sent_at: float = -math.inf
    _began_at: float = math.inf
    _resets_at: float = math.inf

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
            self._raise(max(1.0, math.floor(reset_after - error) + 1.0))
        # The window began between its first request and the response to that.
        over = self._is_used_up and sent_at >= self._began_at + self.seconds
        if not throttled and (begins or over) and now - self._sent_at < self.seconds + 1.0:
            self._is_certain = True
        if begins:
            if reset_after + now - sent_at < self.seconds + 1.0:
                self._is_certain = True
            self._sent_at, self._began_at, self._resets_at = sent_at, now, now + reset_after
        self._is_used_up = not begins and (self._is_used_up or remaining == 0)
        same_window = abs(now + reset_after - self._resets_at) < _SAME_WINDOW
        if throttled and same_window and sent_at - self._began_at >= self.seconds > 0.0:
            self._raise(self.seconds + 1.0)
        if not 0.0 < self.seconds <= _LONGEST:
            return Inferred()
        if self._is_certain:
            return Inferred(Rate(limit, self.seconds))
        return Inferred(None, self._began_at + self.seconds)

    def _raise(self, seconds: float) -> None:
        if seconds > self.seconds:
            self.seconds, self._is_certain = seconds, False
