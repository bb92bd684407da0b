"""The window of a server that reports limit, remaining and reset, but not how long its windows are.

Invariant: the inferred window is never longer than the server's, if that is a whole number of
seconds. A rate that is too fast does no harm for long, since the reported quota holds beside it; a
rate that is too slow would never be found out.
"""

import math
from dataclasses import dataclass

from aiothrottle.rate import Rate

__all__ = ["ServerWindow"]

# Seconds. In a longer window an error of a second in the reset does not matter, and the quota alone
# uses it all; a rate would not use what a calendar day adds at midnight.
_LONGEST = 60.0
# Seconds. Resets that differ by less are of the same window.
_SAME_WINDOW = 1.0


@dataclass(slots=True)
class ServerWindow:
    """Infers the length of the windows from the reports of many responses.

    The first response of a window reports all but one request as remaining, and its reset is a
    whole window away. As a reset may be earlier than it says, the window is at least that long less
    the error. A request that is throttled although its window is older than that proves that it is
    longer.

    >>> window = ServerWindow()
    >>> window.observe(5.1, 5.0, limit=20, remaining=19, reset_after=1.0, error=1.0)
    Rate(limit=20, period=1.0)
    """

    #: The reported limit, in tokens.
    limit: float = 0.0
    #: Seconds; 0.0: not known.
    seconds: float = 0.0
    # When the response to the first request of the latest window arrived, and its reset.
    _began_at: float = math.inf
    _resets_at: float = math.inf

    def observe(
        self,
        now: float,
        sent_at: float,
        *,
        limit: float,
        remaining: float,
        reset_after: float,
        error: float,
        throttled: bool = False,
    ) -> Rate | None:
        """Record what a response reports.

        Args:
            now: When it arrived.
            sent_at: When its request was sent.
            limit: The reported limit.
            remaining: What remains of it.
            reset_after: Seconds until the reset.
            error: Seconds by which the reset may be earlier.
            throttled: Whether the server throttled the request.

        Returns:
            The rate that is known so far, or None.
        """
        if limit != self.limit:
            self.limit, self.seconds, self._began_at = limit, 0.0, math.inf
        if throttled:
            same_window = abs(now + reset_after - self._resets_at) < _SAME_WINDOW
            if self.seconds and same_window and sent_at - self._began_at >= self.seconds:
                self.seconds += 1.0
        elif remaining == limit - 1:
            self._began_at, self._resets_at = now, now + reset_after
            # The reset is later than this, by less than the error.
            self.seconds = max(1.0, self.seconds, math.floor(reset_after - error) + 1.0)
        return Rate(limit, self.seconds) if 0.0 < self.seconds <= _LONGEST else None
