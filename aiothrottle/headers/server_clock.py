"""The clock of one server, as precisely as the Dates of many responses show it.

Invariant: the server's clock is never behind `earliest`. A Date is the time of the server cut to
the second, some servers renew it only once a second, and it arrives late: so the server's clock is
then at the Date or after it. Soon a response arrives just after its second has begun, after which
the clock is known to within the latency.
"""

__all__ = ["ServerClock"]

# Clocks drift apart by less than that, in seconds per second.
_DRIFT = 1e-4
# Seconds. No Date is that much behind the others, unless a clock was set back or it is of another
# server: two seconds are from the cut and the renewal, the rest is latency.
_SET_BACK = 3.0


class ServerClock:
    """How far a server's clock is ahead of the local one, at least.

    >>> clock = ServerClock()
    >>> dates = {5.7: 1000.0, 5.9: 1000.0, 6.0: 1001.0, 6.5: 1001.0}
    >>> [round(clock.earliest(date, now), 2) for now, date in dates.items()]
    [1000.0, 1000.2, 1001.0, 1001.5]
    """

    __slots__ = ("_ahead", "_seen_at")

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._seen_at = 0.0

    def earliest(self, date: float, now: float) -> float:
        """Return the earliest time that the server's clock can show now.

        Args:
            date: The Date of a response that has just arrived, in seconds since 1970.
            now: The local time, likewise.
        """
        ahead = date - now
        if self._ahead is not None:
            known = self._ahead - abs(now - self._seen_at) * _DRIFT
            if known - ahead < _SET_BACK:
                ahead = max(ahead, known)
        self._ahead, self._seen_at = ahead, now
        return now + ahead
