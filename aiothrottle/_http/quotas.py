"""Server quotas: parses what responses report about limits, and applies it to the limiter.

A quota only makes the limiter tighter, never looser than its own rate; a limiter without a rate of
its own takes the server's. Each quota is one of the resource with the name of its unit, and has no
effect where the limiter has none. What is not plausible has no effect either.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from aiothrottle._http.backoff import Backoff
from aiothrottle._http.options import ServerQuotaUse
from aiothrottle._http.reports import infer_rate, keep_to_quotas
from aiothrottle.amounts import REQUESTS
from aiothrottle.headers import (
    PROFILES,
    Profile,
    ServerLimits,
    profile_for,
)
from aiothrottle.headers.fields import IS_LIMIT_HEADER, Headers
from aiothrottle.headers.memo import Memo
from aiothrottle.headers.parse import parse_response
from aiothrottle.headers.server_clock import ServerClock
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate
from aiothrottle.reported_quota import ReportedQuota

__all__ = ["ServerQuotas"]

_LEAST_ERROR = 400
# A response of these statuses may be a throttled one, and say so or say more in its body.
_MAY_THROTTLE = frozenset({403, 420, 429, 503, 529})
_JSON = re.compile(
    r"application/(?:json|x-amz-json-[0-9.]+|[\w.+-]+\+json)[ \t]*(?:;|$)", re.IGNORECASE
)
# A larger quota limits no client, and a sliding window log would keep as many instants. No request
# waits longer than such a window, so a longer one has no effect.
_LARGEST_QUOTA, _LONGEST_WINDOW = 1_000_000, 31 * 86400.0
# The part of a steady refill that is counted on before the next report. Another program may use the
# rest; if none does, the next report has more remaining, and nothing is lost.
_REFILL = 0.25


class ServerQuotas:
    """Parses responses, and applies the quotas that they report.

    Args:
        use: How a reported quota is used; see `ThrottleOptions.server_quota`.
        profiles: Profiles of servers that the package does not know, or knows otherwise.
        longest: Seconds; a reported quota is applied for no longer.
    """

    __slots__ = ("_backoffs", "_clocks", "_longest", "_may_report", "_profiles", "_use")

    def __init__(self, use: ServerQuotaUse, profiles: Iterable[Profile], longest: float) -> None:
        own = tuple(profiles)
        self._use: ServerQuotaUse = use
        self._longest = longest
        reporting = [it for it in (*PROFILES.values(), *own) if it.has_effect]
        self._may_report = Memo(partial(_may_report, reporting)).__getitem__
        self._profiles = Memo[str, Profile | None](partial(_profile, own))
        self._backoffs = Memo[str, Backoff](lambda _: Backoff())
        self._clocks = Memo[str, ServerClock](lambda _: ServerClock())

    def parse(
        self, host: str, status: int, headers: Headers, body: str | bytes | None = None
    ) -> ServerLimits:
        """Return the limits that a response of that host reports."""
        now, profile, server = datetime.now(UTC), self._profiles[host], self._clocks[host]
        limits = parse_response(status, headers, now, body=body, profile=profile, server=server)
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
        if status in _MAY_THROTTLE and limits.reset_after is None:
            return True
        return not limits.throttled and self.reads_json(host, status, headers)

    def reads_json(self, host: str, status: int, headers: Mapping[str, str]) -> bool:
        """Return whether the profile says that only the body may report, and the body is JSON.

        Then it is read also if its length is unknown. A stream of events is no JSON.
        """
        profile = self._profiles[host]
        if profile is None or status not in profile.body_statuses:
            return False
        return bool(_JSON.match(headers.get("Content-Type", "")))

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
        rates = _rates(limits)
        limiter.adopt(*rates)  # no effect but on an adaptive rate
        quotas = _complete(limits)
        # Of a throttled response with a Retry-After, the pause is made of that.
        if self._use is not None and (not limits.throttled or limits.retry_after is None):
            short = (it._replace(reset_after=min(it.reset_after, self._longest)) for it in quotas)
            keep_to_quotas(permit, short, evenly=self._use == "evenly")
        if limiter.follows_server:
            _follow(limiter, permit, rates, quotas)


def _follow(
    limiter: RateLimiter, permit: Permit, rates: Sequence[Rate], quotas: Sequence[ReportedQuota]
) -> None:
    """Have the limiter keep to the server's rates, as far as they are reported or follow."""
    requests = next((quota for quota in quotas if quota.resource == REQUESTS), None)
    if rates:
        limiter.follow(*rates)
    elif requests is not None and requests.limit < math.inf and not requests.refill:
        infer_rate(permit, requests)
    elif quotas:
        limiter.follow()


def _profile(own: Iterable[Profile], host: str) -> Profile | None:
    """Return the profile of a host, if there is one and it has an effect."""
    found = profile_for(host, own)
    return found if found is not None and found.has_effect else None


def _may_report(profiles: Iterable[Profile], name: str) -> bool:
    """Return whether a header of that name may be about limits, for any server."""
    return IS_LIMIT_HEADER[name] or any(profile.is_limit_header[name] for profile in profiles)


def _rates(limits: ServerLimits) -> list[Rate]:
    """Return the reported rates, each a number of requests in a window."""
    reported = [policy for policy in limits.policies if policy.counts == REQUESTS]
    if not reported and REQUESTS in limits.by_unit:
        reported = [limits.by_unit[REQUESTS]]
    return [
        Rate(quota, window)
        for _, quota, window, *_ in reported
        if quota and window and quota <= _LARGEST_QUOTA and window <= _LONGEST_WINDOW
    ]


def _complete(limits: ServerLimits) -> list[ReportedQuota]:
    """Return the quotas of which a remainder and a reset are reported, one of each resource."""
    quotas: list[ReportedQuota] = []
    for unit, each in limits.by_unit.items():
        remaining, reset_after = each.remaining, each.reset_after
        if remaining is None or reset_after is None:
            continue
        limit = math.inf if each.quota is None else each.quota
        refills = limits.refills and reset_after > 0.0 and remaining < limit < math.inf
        quotas.append(
            ReportedQuota(
                remaining,
                reset_after,
                unit.replace("-", "_"),
                limit,
                each.reset_error,
                limits.throttled,
                _REFILL * (limit - remaining) / reset_after if refills else 0.0,
            )
        )
    return quotas
