"""Server quotas: parses what responses report about limits, and applies it to the limiter.

A quota only makes the limiter tighter, never looser than its own rate; a limiter without a rate of
its own takes the server's. What is not plausible, or not about requests, has no effect.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

from aiothrottle._http.options import ServerQuotaUse
from aiothrottle.headers import (
    PROFILES,
    Profile,
    ServerLimits,
    parse_rate_limit,
    profile_for,
)
from aiothrottle.headers.fields import IS_LIMIT_HEADER, Headers
from aiothrottle.headers.memo import Memo
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate

__all__ = ["ServerQuotas", "body_may_report"]

_LEAST_ERROR = 400
# A response of these statuses may be a throttled one, and say so or say more in its body.
_MAY_THROTTLE = frozenset({403, 420, 429, 503, 529})
# The units that a limiter counts.
_REQUESTS = frozenset({None, "request", "requests"})
# A larger quota limits no client, and a sliding window log would keep as many instants. No request
# waits longer than such a window, so a longer one has no effect.
_LARGEST_QUOTA, _LONGEST_WINDOW = 1_000_000, 31 * 86400.0


class ServerQuotas:
    """Parses responses, and applies the quotas that they report.

    Args:
        use: How a reported quota is used; see `ThrottleOptions.server_quota`.
        profiles: Profiles of servers that the package does not know, or knows otherwise.
        longest: Seconds; a reported quota is applied for no longer.
    """

    __slots__ = ("_longest", "_may_report", "_profiles", "_use")

    def __init__(self, use: ServerQuotaUse, profiles: Iterable[Profile], longest: float) -> None:
        own = tuple(profiles)
        self._use: ServerQuotaUse = use
        self._longest = longest
        reporting = [it for it in (*PROFILES.values(), *own) if it.has_effect]
        self._may_report = Memo(partial(_may_report, reporting)).__getitem__
        self._profiles = Memo[str, Profile | None](partial(profile_for, also=own))

    def parse(
        self, host: str, status: int, headers: Headers, body: str | bytes | None = None
    ) -> ServerLimits:
        """Return the limits that a response of that host reports."""
        return parse_rate_limit(status, headers, datetime.now(UTC), body, self._profiles[host])

    def has_none(self, status: int, headers: Iterable[str]) -> bool:
        """Return whether a response is no error and has no header about limits.

        It looks at the names only, and is fast, since most responses have none.
        """
        return status < _LEAST_ERROR and not any(map(self._may_report, headers))

    def apply(
        self, limiter: RateLimiter | None, permit: Permit | None, limits: ServerLimits
    ) -> None:
        """Apply what a response reports to the limiter and the permit of its request, if any."""
        if limiter is None or permit is None:
            return
        if limits.remaining is None and limits.limit is None and not limits.policies:
            return
        limiter.adopt(*_rates(limits))  # no effect but on an adaptive rate
        is_complete = limits.remaining is not None and limits.reset_after is not None
        if limiter.follows_server:
            rates = tuple(_rates(limits))
            if rates or is_complete:
                limiter.follow(*rates)
        # Where there is a Retry-After, the pause is made of that.
        if self._use is None or not is_complete or limits.retry_after is not None:
            return
        assert limits.remaining is not None
        assert limits.reset_after is not None
        if limits.unit in _REQUESTS:
            reset_after = min(limits.reset_after, self._longest)
            permit.update_quota(limits.remaining, reset_after, evenly=self._use == "evenly")


def _may_report(profiles: Iterable[Profile], name: str) -> bool:
    """Return whether a header of that name may be about limits, for any server."""
    return IS_LIMIT_HEADER[name] or any(profile.is_limit_header[name] for profile in profiles)


def body_may_report(status: int, limits: ServerLimits) -> bool:
    """Return whether to read the body too: the server may throttle, and names no time so far."""
    return status in _MAY_THROTTLE and limits.retry_after is None and limits.reset_after is None


def _rates(limits: ServerLimits) -> Iterator[Rate]:
    """Yield the reported rates, each a number of requests in a window."""
    reported = [(it.quota, it.window, it.unit) for it in limits.policies]
    for quota, window, unit in reported or [(limits.limit, limits.window, limits.unit)]:
        if not (quota and window and unit in _REQUESTS):
            continue
        if quota <= _LARGEST_QUOTA and window <= _LONGEST_WINDOW:
            yield Rate(quota, window)
