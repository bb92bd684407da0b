"""Applies what a response reports of the server's limits to the limiter of its request.

A quota only makes the limiter tighter, never looser than its own rate; a limiter without a rate of
its own, or whose own is throttled again and again, takes the server's. Each quota is one of the
resource with the name of its unit, and has no effect where the limiter has none. What is not
plausible has no effect either. If a request is throttled because nothing remains, other clients
have used the quota, or it resets later than it says: see `ServerQuota.throttled`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from aiothrottle.algorithms.server_quota import ReportedQuota
from aiothrottle.amounts import REQUESTS
from aiothrottle.headers import Profile, ServerLimits
from aiothrottle.headers.limits import Headers, Policy
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate
from aiothrottle.retry import Retry

_DEFAULT = Retry()
# A larger quota limits no client, and a sliding window log would keep as many instants.
_LARGEST_QUOTA = 1_000_000
# More limits of one unit than any server has. Each of them is checked at every request.
_MOST_QUOTAS = 8
# The part of a steady refill that is counted on before the next report. Another program may use the
# rest; if none does, the next report has more remaining, and nothing is lost.
_REFILL = 0.25


def read_limits(
    status: int, headers: Headers, body: str | bytes | None, profile: Profile | str | None
) -> ServerLimits:
    """Return the limits that a response reports; `throttled` is what a session takes it for."""
    from datetime import UTC, datetime

    from aiothrottle.headers import parse_rate_limit

    limits = parse_rate_limit(status, headers, datetime.now(UTC), body, profile)
    throttled = _DEFAULT.is_throttled(status, reported=limits.throttled)
    return limits._replace(throttled=throttled)


def apply_limits(
    permit: Permit,
    limits: ServerLimits,
    use: Literal["at once", "evenly"] | None,
    longest: float,
) -> None:
    """Apply the limits that a response reports to the limiter of its request.

    Args:
        permit: The permit of the request.
        limits: What its response reports.
        use: How a reported quota is used; see `ThrottleOptions.server_quota`.
        longest: Seconds; a reported quota is applied for no longer, and a longer window counts as
            one of so many. What then remains of it is reported with each response.
    """
    if limits.remaining is None and limits.limit is None and not limits.policies:
        return
    engine = permit._engine
    rates = _rates(limits, longest)
    engine.adopt_rate(rates)  # no effect but on an adaptive rate
    quotas = [*_complete(limits, longest)]
    # Of a throttled response with a Retry-After, the pause is made of that.
    if use is not None and (not limits.throttled or limits.retry_after is None):
        resources = (REQUESTS, *engine.resources)
        if known := [quota for quota in quotas if quota.resource in resources]:
            permit._update_quotas(known, evenly=use == "evenly")
    if limits.throttled:
        engine.bucket.quotas_throttled(quotas, permit._sent_at)
    if engine.adaptation.heeds_reports:
        _follow(permit, rates, quotas)


def _follow(permit: Permit, rates: Sequence[Rate], quotas: Sequence[ReportedQuota]) -> None:
    """Have the limiter keep to the server's rates, as far as they are reported or follow."""
    engine = permit._engine
    requests = [
        quota
        for quota in quotas
        if quota.resource == REQUESTS and quota.limit < math.inf and not quota.refill
    ]
    if rates:
        engine.follow(rates)
    elif requests:
        engine.infer(permit._sent_at, requests)
    elif quotas and engine.limits.follows_server:
        engine.follow(())


def _rates(limits: ServerLimits, longest: float) -> list[Rate]:
    """Return the reported rates, each a number of requests in a window of bounded length."""
    reported = [policy for policy in limits.policies if policy.counts == REQUESTS]
    if not reported and REQUESTS in limits.by_unit:
        reported = [limits.by_unit[REQUESTS]]
    return [
        Rate(quota, min(window, longest))
        for _, quota, window, *_ in reported
        if quota and window and quota <= _LARGEST_QUOTA
    ]


def _complete(limits: ServerLimits, longest: float) -> Iterator[ReportedQuota]:
    """Yield the quotas of which a remainder and a reset are reported."""
    for policy in _separate(limits):
        remaining, reset_after = policy.remaining, policy.reset_after
        if remaining is None or reset_after is None:
            continue
        limit = math.inf if policy.quota is None else policy.quota
        refills = limits.refills and reset_after > 0.0 and remaining < limit < math.inf
        yield ReportedQuota(
            remaining,
            min(reset_after, longest),
            policy.counts.replace("-", "_"),
            limit,
            policy.reset_error,
            limits.throttled,
            _REFILL * (limit - remaining) / reset_after if refills else 0.0,
            policy.name or "",
        )


def _separate(limits: ServerLimits) -> Iterator[Policy]:
    """Yield all limits of each unit, or only the binding one, if the others do not make it up."""
    for unit, bound in limits.by_unit.items():
        policies = [policy for policy in limits.policies if policy.counts == unit][:_MOST_QUOTAS]
        numbers = {(it.quota, it.remaining, it.reset_after) for it in policies}
        is_listed = (bound.quota, bound.remaining, bound.reset_after) in numbers
        yield from policies if is_listed else [bound]
