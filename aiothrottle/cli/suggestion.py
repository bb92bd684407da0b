"""Derives the limiter for a server from its reported or observed limits. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aiothrottle.headers import Policy, ServerLimits
from aiothrottle.rate import Rate
from aiothrottle.texts import number

__all__ = ["Sighting", "limiter_line", "reported", "seen", "usual_guard"]

# Common periods in seconds.
_USUAL = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 10800, 86400, 604800, 2592000)
_NAMES = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}
# Retry-After is in whole seconds, rounded up.
_ROUNDING = 1.0
# Seconds that the network may have added to a measured period.
_NETWORK = 0.1
_REQUESTS = frozenset({None, "requests", "request"})


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was observed of a server.

    Attributes:
        admitted: Requests before a throttled one.
        seconds: From the first request to the throttled one.
        retry_after: The wait of the throttled response in seconds.
        refused: Whether a request was throttled.
    """

    admitted: int
    seconds: float
    retry_after: float | None
    refused: bool


def usual_guard(rates: Iterable[Rate]) -> float:
    """Return a guard in seconds, enough for most networks, at most 5 % of the shortest period."""
    return min([0.05, *(0.05 * rate.period for rate in rates)])


def reported(limits: ServerLimits) -> Iterator[Rate]:
    """Yield the rates of requests that the server reports; a missing window is estimated.

    >>> list(reported(ServerLimits(limit=60, remaining=59, reset_after=3540.0)))
    [Rate(limit=60, period=3600.0)]
    """
    policies = limits.policies or (
        Policy(
            None, limits.limit, limits.window, limits.remaining, limits.reset_after, limits.unit
        ),
    )
    for policy in policies:
        rate = _rate_of(policy)
        if rate is not None:
            yield rate


def seen(sighting: Sighting) -> Rate | None:
    """Return the apparent rate of a server; None without a throttled request and its wait.

    The admitted requests are taken for one window, which ends with the wait. A token bucket that
    was full refills more slowly.

    >>> seen(Sighting(20, 0.1, 1.0, refused=True))
    Rate(limit=20, period=1.0)
    """
    if not sighting.refused or sighting.retry_after is None or not sighting.admitted:
        return None
    longest = sighting.seconds + sighting.retry_after
    usual = [
        float(period)
        for period in _USUAL
        if longest - _ROUNDING - _NETWORK < period <= longest + _NETWORK
    ]
    return Rate(sighting.admitted, max(usual, default=longest))


def limiter_line(rates: Sequence[Rate]) -> str:
    """Return the Python expression of the limiter.

    >>> limiter_line([Rate(10), Rate(500, 60)])
    'RateLimiter(["10/s", "500/min"], guard=0.05)'
    """
    words = [f'"{_words(rate)}"' for rate in dict.fromkeys(rates)]
    limits = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    return f"RateLimiter({limits}, guard={number(usual_guard(rates), 6)})"


def _rate_of(policy: Policy) -> Rate | None:
    counts_requests = policy.unit in _REQUESTS and "token" not in (policy.name or "").lower()
    if not counts_requests or not policy.quota:
        return None
    if policy.window:
        return Rate(policy.quota, policy.window)
    if policy.reset_after:
        # A window is at least as long as its rest.
        return Rate(policy.quota, _usual_from(policy.reset_after))
    return None


def _usual_from(seconds: float) -> float:
    return float(next((period for period in _USUAL if period >= seconds), seconds))


def _words(rate: Rate) -> str:
    name = _NAMES.get(rate.period, f"{number(rate.period, 6)}s")
    return f"{number(rate.limit)}/{name}"
