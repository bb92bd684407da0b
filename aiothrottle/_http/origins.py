"""What is known of each origin: how it fails, by which status it throttles, its long waits.

`OriginThrottling` drops requests to a failing server, as many as it fails. A response below 500
counts as accepted, since the server was able to decide. A 5xx, a failed connection and a timeout of
the client do not. A request counts when it ends, so one in flight or cancelled is not counted.

`Suspicion` finds a status that the server seems to throttle by, although nobody counts it so.
Answers of a host are counted from its first such status on, for a minute; each host is suspected
once. `Unavailable` finds hosts of which most answers are a bare 503. `Backoff` makes the waits of a
server that names none, but needs long ones: requests throttled before a wait has ended share it.

Invariant: each of them is bounded; beyond a thousand origins the oldest is forgotten.
"""

import asyncio
import random
from collections import OrderedDict, deque

from aiothrottle.adaptive import AdaptiveThrottling
from aiothrottle.adaptive.throttling import ThrottlingState
from aiothrottle.errors import RequestDropped

# Beyond this number of origins, the one used longest ago starts anew.
_MOST = 1024
_LEAST_FAILURE = 500


class OriginThrottling:
    """Counts requests and accepted requests for each origin, and drops some by these counts."""

    __slots__ = ("_algorithm", "_states")

    def __init__(self, algorithm: AdaptiveThrottling) -> None:
        self._algorithm = algorithm
        self._states: OrderedDict[str, ThrottlingState] = OrderedDict()

    def check(self, origin: str) -> None:
        """Drop a request at random, with the probability that the algorithm returns.

        Raises:
            RequestDropped: It is dropped.
        """
        state, now = self._state(origin), asyncio.get_running_loop().time()
        share = self._algorithm.rejected_share(state, now)
        if share > 0.0 and random.random() < share:
            self._algorithm.request(state, now)  # a dropped request counts as demand
            raise RequestDropped(origin, share)

    def count(self, origin: str, status: int | None) -> None:
        """Count a request that has ended with that status; None: without a response."""
        state, now = self._state(origin), asyncio.get_running_loop().time()
        self._algorithm.request(state, now)
        if status is not None and status < _LEAST_FAILURE:
            self._algorithm.accepted(state, now)

    def _state(self, origin: str) -> ThrottlingState:
        state = self._states.get(origin)
        if state is None:
            state = self._states[origin] = self._algorithm.start()
            if len(self._states) > _MOST:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(origin)
        return state


# The statuses by which servers throttle although they have another meaning.
_SUSPECT = frozenset({403, 503})
# Seconds; answers; the part of them.
_MINUTE, _LEAST, _PART = 60.0, 20, 0.2


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


# More than this part of the last answers, of which at least so many must be known.
_BARE_PART, _RECENT, _LEAST_KNOWN = 2 / 3, 10, 4
# Seconds since the last bare 503 after which a host is forgotten, and what it did.
_MEMORY = 600.0


class _Host:
    __slots__ = ("last_at", "recent", "throttles")

    def __init__(self) -> None:
        self.recent = deque[bool](maxlen=_RECENT)
        self.last_at = 0.0
        self.throttles = False


class Unavailable:
    """Counts the answers of hosts that have sent a bare 503."""

    __slots__ = ("hosts",)

    def __init__(self) -> None:
        #: By name. While there is one, each answer has to be counted.
        self.hosts: OrderedDict[str, _Host] = OrderedDict()

    def answered(self, name: str) -> None:
        """Count an answer that is no bare 503."""
        if (host := self.hosts.get(name)) is not None:
            host.recent.append(False)

    def throttles(self, name: str, now: float) -> bool:
        """Count a bare 503.

        Args:
            name: The host that sent it.
            now: The time in seconds.

        Returns:
            Whether the host throttles by it: now, or not long ago, most of its answers were such.
        """
        while self.hosts and now - next(iter(self.hosts.values())).last_at > _MEMORY:
            self.hosts.popitem(last=False)
        host = self.hosts.setdefault(name, _Host())
        self.hosts.move_to_end(name)
        if len(self.hosts) > _MOST:
            self.hosts.popitem(last=False)
        host.last_at = now
        host.recent.append(True)
        known = len(host.recent)
        if known >= _LEAST_KNOWN and sum(host.recent) > _BARE_PART * known:
            host.throttles = True
        return host.throttles
