"""What is known of each origin: how to read its responses, and how it throttles and fails.

A status may mean "throttled" although nobody counts it so: 403 and 503 are counted from the first
one of a host on, for a minute, and suspected once. A bare 503 throttles where most answers of a
host are such. A server that names no wait, but needs long ones, gets waits that double; requests
that are throttled before a wait has ended share it.

Adaptive throttling drops requests to a failing server, as many as it fails: a response below 500
counts as accepted, since the server was able to decide; a 5xx, a failed connection and a timeout do
not. A request counts when it ends, so one in flight or cancelled is not counted.

Invariant: of a thousand origins, the one that was used longest ago starts anew.
"""

import asyncio
import random
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from aiothrottle._statuses import (
    AMBIGUOUS,
    LEAST_ERROR,
    LEAST_FAILURE,
    MAY_THROTTLE,
    SERVICE_UNAVAILABLE,
)
from aiothrottle.adaptive import AdaptiveThrottling
from aiothrottle.adaptive.throttling import ThrottlingState
from aiothrottle.errors import RequestDropped
from aiothrottle.headers import Profile, ServerLimits
from aiothrottle.headers.values import Memo, ServerClock

_MOST = 1024
# Characters of the names of all headers of a response, beyond which they are not kept.
_LONGEST_NAMES = 1024
_JSON = re.compile(
    r"application/(?:json|x-amz-json-[0-9.]+|[\w.+-]+\+json)[ \t]*(?:;|$)", re.IGNORECASE
)
# Seconds; answers; the part of them.
_MINUTE, _LEAST, _PART = 60.0, 20, 0.2
# More than this part of the last answers, of which at least so many must be known.
_BARE_PART, _RECENT, _LEAST_KNOWN = 2 / 3, 10, 4
# Seconds since the last bare 503 after which it is forgotten, and what the host did.
_MEMORY = 600.0


class Suspicion(NamedTuple):
    """The statuses by which a host may throttle, and the part of its answers that has them."""

    statuses: frozenset[int]
    part: float


class Origin:
    """What is known of one origin.

    >>> origin = Origin(None)
    >>> [origin.backoff(now, least=60.0) for now in (0.0, 0.5, 61.0, 400.0)]
    [60.0, 60.0, 120.0, 60.0]
    """

    def __init__(self, profile: Profile | None) -> None:
        #: How to read its headers; None: as those of any server.
        self.profile: Profile | None = profile
        self.clock: ServerClock = ServerClock()
        #: Its requests, which adaptive throttling counts.
        self.demand: ThrottlingState = ThrottlingState()
        self._wait = self._wait_ends_at = 0.0
        # The answers since the first suspect one, and the statuses of the suspect ones.
        self._began_at = 0.0
        self._answers = 0
        self._suspects = Counter[int]()
        self._was_suspected = False
        # Which of the last answers were a bare 503, from the first one on.
        self._recent: tuple[bool, ...] = ()
        self._bare_at = 0.0
        self._throttles = False

    def backoff(self, now: float, least: float) -> float:
        """Return the seconds to wait after a request that was throttled at `now`.

        Args:
            now: The time of the event loop.
            least: Seconds of the first wait.
        """
        if now >= self._wait_ends_at or not self._wait:
            in_a_row = now < self._wait_ends_at + self._wait
            self._wait = 2.0 * self._wait if in_a_row else least
            self._wait_ends_at = now + self._wait
        return self._wait

    def reads_body(
        self, status: int, headers: Mapping[str, str], limits: ServerLimits
    ) -> bool | None:
        """Return whether to read the body: it may throttle, or name a time that no header does.

        Returns:
            None: no. False: if it is short. True: also if its length is unknown, since it is JSON
            about limits; a stream of events is no JSON.
        """
        may_throttle = status in MAY_THROTTLE
        profile = self.profile
        by_profile = (
            profile is not None
            and status in profile.body_statuses
            and (status >= LEAST_ERROR or profile.body_header in headers)
        )
        if limits.retry_after is not None or not (may_throttle or by_profile):
            return None
        knows_reset = limits.reset_after is not None
        if limits.throttled and (knows_reset or not may_throttle):
            return None
        # The secondary limit of GitHub, also of an own installation: a 403 whose headers report
        # the primary one.
        is_json = bool(_JSON.match(headers.get("Content-Type", "")))
        if is_json and (by_profile or knows_reset):
            return True
        return False if may_throttle else None

    def throttles_by_503(self, now: float) -> bool:
        """Count a bare 503, and return whether most answers are such, or were not long ago."""
        if now - self._bare_at > _MEMORY:
            self._recent, self._throttles = (), False
        self._bare_at = now
        self._recent = (*self._recent[1 - _RECENT :], True)
        known = len(self._recent)
        if known >= _LEAST_KNOWN and sum(self._recent) > _BARE_PART * known:
            self._throttles = True
        return self._throttles

    def count(self, status: int, now: float, *, suspect: bool) -> Suspicion | None:
        """Count an answer.

        Args:
            status: Its status.
            now: The time in seconds.
            suspect: Whether it may be a throttled one, and does not count so.

        Returns:
            What is suspected now, for the first time.
        """
        if self._recent and status != SERVICE_UNAVAILABLE:
            self._recent = (*self._recent[1 - _RECENT :], False)
        if now - self._began_at >= _MINUTE:
            self._answers = 0
        if not self._answers:
            if not suspect or self._was_suspected:
                return None
            self._began_at = now
            self._suspects.clear()
        self._answers += 1
        if suspect:
            self._suspects[status] += 1
        part = self._suspects.total() / self._answers
        if self._answers < _LEAST or part <= _PART:
            return None
        self._was_suspected = True
        self._answers = 0
        return Suspicion(frozenset(self._suspects), part)


class Origins:
    """All origins of an integration, by name.

    Args:
        profiles: Profiles of servers that the package does not know, or knows otherwise.
        adaptive: How requests to a failing origin are dropped; None: never.
    """

    def __init__(
        self, profiles: Iterable[Profile], adaptive: AdaptiveThrottling | None = None
    ) -> None:
        self._own = tuple(profiles)
        self._adaptive = adaptive
        self._table: OrderedDict[str, Origin] = OrderedDict()
        #: Each answer has to be counted until this instant; 0: none.
        self.watched_until: float = 0.0
        # A session needs the parser and the table of vendors at the first response, when requests
        # are in flight and the loop must not stand still for them.
        from aiothrottle.headers.parse import IS_LIMIT_HEADER, parse_response
        from aiothrottle.headers.vendors import PROFILES, profile_for

        self._parse = parse_response
        self._profile_for = profile_for
        effective = [it for it in (*PROFILES.values(), *self._own) if it.has_effect]
        tables = [IS_LIMIT_HEADER, *(it.is_limit_header for it in effective)]
        known = Memo[str, bool](lambda name: any(table[name] for table in tables)).__getitem__
        #: Returns whether one of these header names may be about limits, for any server. It is
        #: fast, as it is called for each response: a server sends the same names again and again.
        self.may_report = Memo[tuple[str, ...], bool](
            lambda names: any(map(known, names)), longest=_LONGEST_NAMES
        ).__getitem__

    def __getitem__(self, name: str) -> Origin:
        """Return an origin, which may be new."""
        origin = self._table.get(name)
        if origin is None:
            profile = self._profile_for(name, self._own)
            has_effect = profile is not None and profile.has_effect
            origin = self._table[name] = Origin(profile if has_effect else None)
            if len(self._table) > _MOST:
                self._table.popitem(last=False)
        else:
            self._table.move_to_end(name)
        return origin

    def read(
        self,
        name: str,
        status: int,
        headers: Mapping[str, str],
        body: str | bytes | None = None,
    ) -> tuple[ServerLimits, bool | None]:
        """Return what a response reports, and whether to read its body: see `Origin.reads_body`."""
        now, origin = datetime.now(UTC), self[name]
        profile = origin.profile
        # Not by the wall clock, which may be set.
        clock = partial(origin.clock.earliest, now=asyncio.get_running_loop().time())
        limits = self._parse(status, headers, now, body=body, profile=profile, server_time=clock)
        if profile is not None and profile.least_backoff is not None and limits.throttled:
            resets = limits.remaining == 0 and limits.reset_after is not None
            if limits.retry_after is None and not resets:
                wait = origin.backoff(asyncio.get_running_loop().time(), profile.least_backoff)
                limits = limits._replace(retry_after=wait)
        return limits, origin.reads_body(status, headers, limits)

    def count(self, name: str, status: int, *, throttled: bool) -> Suspicion | None:
        """Count an answer. Returns what is suspected of its origin now, for the first time."""
        now = asyncio.get_running_loop().time()
        suspect = status in AMBIGUOUS and not throttled
        origin = self._table.get(name)  # of a suspect answer the headers were read
        if suspect:
            self.watched_until = max(self.watched_until, now + _MINUTE)
        elif now >= self.watched_until:
            self.watched_until = 0.0
        return None if origin is None else origin.count(status, now, suspect=suspect)

    def throttles_by_503(self, name: str) -> bool:
        """Count a bare 503, and return whether the origin throttles by it."""
        now = asyncio.get_running_loop().time()
        self.watched_until = now + _MEMORY
        return self[name].throttles_by_503(now)

    def check(self, name: str) -> None:
        """Drop a request at random, with the probability that adaptive throttling returns.

        Raises:
            RequestDropped: It is dropped.
        """
        assert self._adaptive is not None
        state, now = self[name].demand, asyncio.get_running_loop().time()
        share = self._adaptive.rejected_share(state, now)
        if share > 0.0 and random.random() < share:
            self._adaptive.request(state, now)  # a dropped request counts as demand
            raise RequestDropped(name, share)

    def ended(self, name: str, status: int | None) -> None:
        """Count a request that has ended with that status; None: without a response."""
        assert self._adaptive is not None
        state, now = self[name].demand, asyncio.get_running_loop().time()
        self._adaptive.request(state, now)
        if status is not None and status < LEAST_FAILURE:
            self._adaptive.accepted(state, now)
