"""Server quotas: parses what responses report about limits, and applies it to the limiter.

A quota only makes the limiter tighter, never looser than its own rate; a limiter without a rate of
its own takes the server's. Each quota is one of the resource with the name of its unit, and has no
effect where the limiter has none. What is not plausible has no effect either.
"""

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache, partial

from aiothrottle._http.options import ServerQuotaUse
from aiothrottle._http.origins import Backoff
from aiothrottle.headers import Profile, ServerLimits
from aiothrottle.headers.limits import Headers
from aiothrottle.headers.values import Memo, ServerClock
from aiothrottle.permit import Permit
from aiothrottle.server_limits import apply_limits

__all__ = ["ServerQuotas"]

_LEAST_ERROR = 400
# A response of these statuses may be a throttled one, and say so or say more in its body.
_MAY_THROTTLE = frozenset({403, 420, 429, 503, 529})
_JSON = re.compile(
    r"application/(?:json|x-amz-json-[0-9.]+|[\w.+-]+\+json)[ \t]*(?:;|$)", re.IGNORECASE
)


class ServerQuotas:
    """Parses responses, and applies the quotas that they report.

    Args:
        use: How a reported quota is used; see `ThrottleOptions.server_quota`.
        profiles: Profiles of servers that the package does not know, or knows otherwise.
        longest: Seconds; a reported quota is applied for no longer, and a longer window counts as
            one of so many. What then remains of it is reported with each response.
    """

    __slots__ = ("_backoffs", "_clocks", "_longest", "_may_report", "_parse", "_profiles", "_use")

    def __init__(self, use: ServerQuotaUse, profiles: Iterable[Profile], longest: float) -> None:
        own = tuple(profiles)
        self._use: ServerQuotaUse = use
        self._longest = longest
        self._may_report = Memo(partial(_may_report, own)).__getitem__
        self._profiles = Memo[str, Profile | None](partial(_profile, own))
        self._backoffs = Memo[str, Backoff](lambda _: Backoff())
        self._clocks = Memo[str, ServerClock](lambda _: ServerClock())
        # A session needs the parser and the table of vendors at the first response, when requests
        # are in flight and the loop must not stand still for them.
        from aiothrottle.headers.parse import parse_response

        self._parse = parse_response
        _vendors()

    def parse(
        self, host: str, status: int, headers: Headers, body: str | bytes | None = None
    ) -> ServerLimits:
        """Return the limits that a response of that host reports."""
        now, profile, server = datetime.now(UTC), self._profiles[host], self._clocks[host]
        limits = self._parse(status, headers, now, body=body, profile=profile, server=server)
        if profile is None or profile.least_backoff is None or not limits.throttled:
            return limits
        resets = limits.remaining == 0 and limits.reset_after is not None
        if limits.retry_after is not None or resets:
            return limits
        wait = self._backoffs[host].wait(time.monotonic(), profile.least_backoff)
        return limits._replace(retry_after=wait)

    def body_may_report(
        self, host: str, status: int, headers: Mapping[str, str], limits: ServerLimits
    ) -> bool:
        """Return whether to read the body: it may throttle, or name a time that no header does."""
        if limits.retry_after is not None:
            return False
        if status in _MAY_THROTTLE and (limits.reset_after is None or not limits.throttled):
            return True
        return not limits.throttled and self.reads_json(host, status, headers, limits)

    def reads_json(
        self, host: str, status: int, headers: Mapping[str, str], limits: ServerLimits
    ) -> bool:
        """Return whether the body is JSON, and may report what the headers do not.

        Then it is read also if its length is unknown. A stream of events is no JSON.
        """
        profile = self._profiles[host]
        by_profile = profile is not None and status in profile.body_statuses
        # The secondary limit of GitHub, also of an own installation: a 403 whose headers report
        # the primary one.
        beside_headers = status in _MAY_THROTTLE and limits.reset_after is not None
        return (by_profile or beside_headers) and bool(_JSON.match(headers.get("Content-Type", "")))

    def has_none(self, status: int, headers: Iterable[str]) -> bool:
        """Return whether a response is no error and has no header about limits.

        It looks at the names only, and is fast, since most responses have none.
        """
        return status < _LEAST_ERROR and not any(map(self._may_report, headers))

    def apply(self, permit: Permit | None, limits: ServerLimits) -> None:
        """Apply what a response reports to the limiter of its request, if it has one."""
        if permit is not None:
            apply_limits(permit, limits, self._use, self._longest)


def _profile(own: Iterable[Profile], host: str) -> Profile | None:
    """Return the profile of a host, if there is one and it has an effect."""
    from aiothrottle.headers.vendors import profile_for

    found = profile_for(host, own)
    return found if found is not None and found.has_effect else None


@cache
def _vendors() -> tuple[Profile, ...]:
    from aiothrottle.headers.vendors import PROFILES

    return tuple(profile for profile in PROFILES.values() if profile.has_effect)


def _may_report(own: Iterable[Profile], name: str) -> bool:
    """Return whether a header of that name may be about limits, for any server."""
    from aiothrottle.headers.fields import is_limit_header

    return is_limit_header(name) or any(it.is_limit_header[name] for it in (*_vendors(), *own))
