"""Suspicion: a server that may throttle by a status which nobody counts as throttled.

Strategy. Answers of a host are counted from its first such status on, for a minute; so as long as
there is none, nothing is counted.

Invariant: each host is suspected once.
"""

from collections import OrderedDict

__all__ = ["Suspicion"]

# The statuses by which servers throttle although they have another meaning.
_SUSPECT = frozenset({403, 503})
# Seconds; answers; the part of them.
_MINUTE, _LEAST, _PART = 60.0, 20, 0.2
# Beyond this number of hosts the oldest is forgotten.
_MOST = 1024


class _Tally:
    """The answers of one host."""

    __slots__ = ("answers", "began_at", "statuses", "suspect")

    def __init__(self, now: float) -> None:
        self.began_at = now
        self.answers = self.suspect = 0
        self.statuses: set[int] = set()


class Suspicion:
    """Counts the answers of hosts that may throttle."""

    __slots__ = ("_suspected", "tallies")

    def __init__(self) -> None:
        #: By host. While there is one, each answer has to be counted.
        self.tallies: OrderedDict[str, _Tally] = OrderedDict()
        self._suspected: OrderedDict[str, None] = OrderedDict()

    def count(
        self, host: str, status: int, now: float, *, throttled: bool
    ) -> tuple[set[int], float] | None:
        """Count an answer.

        Args:
            host: The server.
            status: The status of its answer.
            now: The time in seconds.
            throttled: Whether the answer counts as throttled.

        Returns:
            The statuses by which the host may throttle, and the part of its answers that has
            them, when that is too much for the first time; else None.
        """
        self._forget(now)
        suspect = status in _SUSPECT and not throttled
        tally = self.tallies.get(host)
        if tally is None:
            if not suspect or host in self._suspected:
                return None
            tally = self.tallies[host] = _Tally(now)
        tally.answers += 1
        if suspect:
            tally.suspect += 1
            tally.statuses.add(status)
        if tally.answers < _LEAST or tally.suspect <= _PART * tally.answers:
            return None
        del self.tallies[host]
        self._suspected[host] = None
        if len(self._suspected) > _MOST:
            self._suspected.popitem(last=False)
        return tally.statuses, tally.suspect / tally.answers

    def _forget(self, now: float) -> None:
        """Forget the tallies that are older than a minute, or too many."""
        while self.tallies:
            oldest = next(iter(self.tallies.values()))
            if now - oldest.began_at < _MINUTE and len(self.tallies) <= _MOST:
                return
            self.tallies.popitem(last=False)
