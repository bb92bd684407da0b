"""What responses say about limits, read, and passed on to the limiter that sent the requests.

Shared by all HTTP clients that we put in front of a limiter; none is imported here.
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
from aiothrottle.headers.fields import TELLING, Headers
from aiothrottle.headers.memo import Memo
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate

__all__ = ["Announcements", "may_say_more"]

_LEAST_ERROR = 400
# A response of these statuses may be a refusal, and say so or say more in its body.
_MAY_REFUSE = frozenset({403, 420, 429, 503, 529})
# What a limiter counts.
_REQUESTS = frozenset({None, "request", "requests"})
# A quota above is none for one client; a rolling window would keep as many instants. And nobody
# waits for so long, so a server that says so says nothing.
_GREATEST_QUOTA, _LONGEST_WINDOW = 1_000_000, 31 * 86400.0


class Announcements:
    """Reads responses, and tells the limiter what they say.

    Args:
        server_quota: How the quota that a server reports is used; see `ThrottleOptions`.
        profiles: Of servers that the package does not know, or knows otherwise.
        longest: Seconds that the word of a server counts for, at the most.
    """

    __slots__ = ("_longest", "_profiles", "_tells", "_use")

    def __init__(
        self, server_quota: ServerQuotaUse, profiles: Iterable[Profile], longest: float
    ) -> None:
        own = tuple(profiles)
        self._use: ServerQuotaUse = server_quota
        self._longest = longest
        concerned = [it for it in (*PROFILES.values(), *own) if it.says_something]
        self._tells = Memo(partial(_tells, concerned)).__getitem__
        self._profiles = Memo[str, Profile | None](partial(profile_for, also=own))

    def read(
        self, host: str, status: int, headers: Headers, body: str | bytes | None = None
    ) -> ServerLimits:
        """Read what a response of that host says."""
        return parse_rate_limit(status, headers, datetime.now(UTC), body, self._profiles[host])

    def has_none(self, status: int, headers: Iterable[str]) -> bool:
        """Tell, by the names of its headers, that a success says nothing about limits.

        It is quick, since that is what most responses are.
        """
        return status < _LEAST_ERROR and not any(map(self._tells, headers))

    def pass_on(
        self, limiter: RateLimiter | None, permit: Permit | None, limits: ServerLimits
    ) -> None:
        """Tell the limiter, if there is one, what the answer to the permit's request said."""
        if limiter is None or permit is None:
            return
        if limits.remaining is None and limits.limit is None and not limits.policies:
            return
        known = limits.remaining is not None and limits.reset_after is not None
        if limiter.follows_server:
            rates = tuple(_rates(limits))
            if rates or known:
                limiter.follow(*rates)
        # Of a refusal that says when to come back, that counts.
        if self._use is None or not known or limits.retry_after is not None:
            return
        assert limits.remaining is not None
        assert limits.reset_after is not None
        if limits.unit in _REQUESTS:
            reset_after = min(limits.reset_after, self._longest)
            permit.update_quota(limits.remaining, reset_after, evenly=self._use == "evenly")


def _tells(profiles: Iterable[Profile], name: str) -> bool:
    """Tell whether a header of that name may be about limits, whoever the server is."""
    return TELLING[name] or any(profile.telling[name] for profile in profiles)


def may_say_more(status: int, limits: ServerLimits) -> bool:
    """Tell whether it is worth reading the body of a response: a refusal that names no time."""
    return status in _MAY_REFUSE and limits.retry_after is None and limits.reset_after is None


def _rates(limits: ServerLimits) -> Iterator[Rate]:
    """Give the rates that were announced: so many requests in so long a window."""
    told = [(it.quota, it.window, it.unit) for it in limits.policies]
    for quota, window, unit in told or [(limits.limit, limits.window, limits.unit)]:
        if not (quota and window and unit in _REQUESTS):
            continue
        if quota <= _GREATEST_QUOTA and window <= _LONGEST_WINDOW:
            yield Rate(quota, window)
