"""Derives the limiter for a server from its reported or observed limits. Pure."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aiothrottle._checks import number
from aiothrottle.headers import Policy, ServerLimits
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate

# Common periods in seconds.
_USUAL = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 10800, 86400, 604800, 2592000)
# Retry-After is in whole seconds, rounded up.
_ROUNDING = 1.0
# Seconds that the network may have added to a measured period.
_NETWORK = 0.1
# A whole limit that is smaller says too little.
_LEAST_LIMIT = 5
# Seconds by which a request may be late, where the next one must not be early.
_LATE = 0.01
_REQUESTS = frozenset({None, "requests", "request"})


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was observed of a server.

    Attributes:
        admitted: Requests before a throttled one.
        seconds: From the first request to the throttled one.
        retry_after: The wait of the throttled response in seconds.
        throttled: Whether a request was throttled.
        sent: Requests of the search, without the first one.
        status: The status of the throttled response, if nothing else in it says so.
    """

    admitted: int
    seconds: float
    retry_after: float | None
    throttled: bool
    sent: int = 0
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The arguments of a limiter: what is printed is what was tried.

    Attributes:
        rates: Its rates.
        burst: Its burst; None: the whole limit.
        spaced: Whether each of its intervals needs a guard, not only each of its periods.
    """

    rates: tuple[Rate, ...]
    burst: int | None = None
    spaced: bool = False

    @property
    def guard(self) -> float:
        """Its guard in seconds."""
        if self.spaced:
            return min(min(_LATE * rate.limit, 0.1 * rate.period) for rate in self.rates)
        return usual_guard(self.rates)

    @property
    def per_second(self) -> float:
        """Requests per second that it sends in the long run."""
        return min(rate.limit / (rate.period + self.guard) for rate in self.rates)

    def limiter(self, slots: int) -> RateLimiter:
        """Make the limiter, with so many slots."""
        return RateLimiter(
            list(self.rates), burst=self.burst, guard=self.guard, concurrency_limit=slots
        )

    @property
    def python(self) -> str:
        """The expression of the limiter.

        >>> Advice((Rate(10), Rate(500, 60))).python
        'RateLimiter(["10/s", "500/min"], guard=0.05)'
        >>> Advice((Rate(20),), burst=1).python
        'RateLimiter("20/s", burst=1, guard=0.05)'
        """
        words = [f'"{rate}"' for rate in dict.fromkeys(self.rates)]
        limits = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
        burst = "" if self.burst is None else f"burst={self.burst}, "
        return f"RateLimiter({limits}, {burst}guard={number(self.guard, 6)})"


def usual_guard(rates: Iterable[Rate]) -> float:
    """Return a guard in seconds, enough for most networks, at most 5 % of the shortest period."""
    return min([0.05, *(0.05 * rate.period for rate in rates)])


def policies_of(limits: ServerLimits) -> tuple[Policy, ...]:
    """Return the limits that a response lists, or else the one without a name."""
    binding = limits.binding
    return limits.policies or (() if binding is None else (binding,))


def reported(limits: ServerLimits, *, estimated: bool = True) -> Iterator[Rate]:
    """Yield the rates of requests that the server reports.

    Args:
        limits: The limits in its response.
        estimated: Whether a missing window is estimated by its end, or the rate left out.

    >>> list(reported(ServerLimits(limit=60, remaining=59, reset_after=3540.0)))
    [Rate(limit=60, period=3600.0)]
    """
    for policy in policies_of(limits):
        rate = _rate_of(policy)
        if rate is not None and (estimated or policy.window):
            yield rate


def seen(sighting: Sighting) -> Rate | None:
    """Return the apparent rate of a server; None without a throttled request and its wait.

    The admitted requests are taken for one window, which ends with the wait. A token bucket that
    was full refills more slowly.

    >>> seen(Sighting(20, 0.1, 1.0, throttled=True))
    Rate(limit=20, period=1.0)
    """
    if not sighting.throttled or sighting.retry_after is None or not sighting.admitted:
        return None
    longest = sighting.seconds + sighting.retry_after
    usual = [it for it in _USUAL if longest - _ROUNDING - _NETWORK < it <= longest + _NETWORK]
    return _rate(sighting.admitted, max(usual, default=longest))


def readable_rate(rate: float) -> Rate:
    """Return a rate of requests per second with a whole limit, if need be per minute or hour.

    >>> readable_rate(20.0), readable_rate(0.32), readable_rate(0.01)
    (Rate(limit=20, period=1.0), Rate(limit=19, period=60.0), Rate(limit=36, period=3600.0))
    """
    period = next((it for it in (1.0, 60.0) if rate * it >= _LEAST_LIMIT), 3600.0)
    return Rate(max(math.floor(rate * period + 1e-6), 1), period)


def about(rate: float) -> str:
    """Return a rate in requests per second with two digits, as a text that `Rate` reads.

    >>> about(19.63), about(0.333), about(1234.0), about(1 / 3600)
    ('20/s', '20/min', '1200/s', '1/h')
    """
    for seconds, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if (tokens := rate * seconds) >= 1.0 or unit == "h":
            break
    step = 10.0 ** (math.floor(math.log10(tokens)) - 1)
    return f"{round(tokens / step) * step:g}/{unit}"


def _rate_of(policy: Policy) -> Rate | None:
    counts_requests = policy.unit in _REQUESTS and "token" not in (policy.name or "").lower()
    if not counts_requests or not policy.quota:
        return None
    if policy.window:
        return _rate(policy.quota, policy.window)
    if policy.reset_after:
        # A window is at least as long as its rest.
        rest = policy.reset_after
        return _rate(policy.quota, next((it for it in _USUAL if it >= rest), rest))
    return None


def _rate(limit: float, seconds: float) -> Rate:
    """Return a rate whose period is as exact as it is written."""
    return Rate(limit, float(f"{seconds:.6g}"))
