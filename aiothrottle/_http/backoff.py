"""The waits after throttled requests of a server that names none, but needs long ones.

Invariant: requests that are throttled before a wait has ended share it; the next wait is twice as
long if it begins before as much time again has passed.
"""

__all__ = ["Backoff"]


class Backoff:
    """The latest wait of one server.

    >>> backoff = Backoff()
    >>> [backoff.wait(now, least=60.0) for now in (0.0, 0.5, 61.0, 400.0)]
    [60.0, 60.0, 120.0, 60.0]
    """

    __slots__ = ("_ends_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._ends_at = 0.0

    def wait(self, now: float, least: float) -> float:
        """Return the seconds to wait after a request that was throttled at `now`.

        Args:
            now: The time, by a clock that is not set.
            least: Seconds of the first wait.
        """
        if now >= self._ends_at or not self._seconds:
            in_a_row = now < self._ends_at + self._seconds
            self._seconds = 2.0 * self._seconds if in_a_row else least
            self._ends_at = now + self._seconds
        return self._seconds
