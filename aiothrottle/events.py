"""Events: the decisions of limiters, as values for observers.

An observer is a function of one argument. ``limiter.observe(print)`` prints each event, and
``match`` distinguishes their types::

    def observe(event):
        match event:
            case Paused(key=host, seconds=seconds):
                print(f"{host} is paused for {seconds:.0f} s")

The limiter calls it at once, in its own thread; for an event of one request, in the task of that
request. So an observer has to be quick, and is no coroutine function. It may ask the limiter for
its statistics. If it raises, the exception is logged, once for each observer, and the limiter
continues; a `SystemExit` or another exception that is no `Exception` reaches the event loop, not
the request. A limiter without observers makes no events.

`key` is the key in a `KeyedRateLimiter`, and None with a `RateLimiter`; `name` is the name of the
limiter.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from aiothrottle.amounts import REQUESTS
from aiothrottle.rate import Rate

__all__ = [
    "Adapted",
    "Event",
    "Granted",
    "Observer",
    "Paused",
    "QuotaMissing",
    "QuotaUpdated",
    "Rejected",
    "Retried",
    "StoreDown",
    "StoreUp",
    "Throttled",
    "ThrottlingSuspected",
]

Rejection: TypeAlias = Literal["no room", "timeout", "queue full"]
Reason: TypeAlias = Literal["retry-after", "throttled", "failures", "quota", "requested"]

# The reasons in words, for the log and the live page.
REASONS: dict[Reason, str] = {
    "retry-after": "the server throttled a request and asked for a pause",
    "throttled": "the server throttled a request",
    "failures": "requests fail in a row, as if the server throttled without saying so",
    "quota": "the server reported that its quota is spent",
    "requested": "the program called pause()",
}

# They are not frozen, which would make them four times as expensive: treat them as values.


@dataclass(slots=True)
class _Named:
    #: The name of the limiter, `RateLimiter.name`; of no account for equality.
    name: str = field(default="", kw_only=True, compare=False)
    #: The key in a `KeyedRateLimiter`.
    key: Hashable


@dataclass(slots=True)
class Granted(_Named):
    """The limiter granted a request."""

    #: Tokens; of a limiter with resources, those of ``requests``.
    cost: float
    #: Seconds that the request waited; 0.0 if it was granted at once.
    waited: float
    #: Tokens of each resource; empty for a limiter without resources.
    costs: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(slots=True)
class Rejected(_Named):
    """The limiter rejected a request: no room for `try_acquire`, a timeout, a full queue."""

    #: "no room": for `try_acquire`. "timeout": the wait is too long. "queue full": see `max_queue`.
    reason: Rejection


@dataclass(slots=True)
class Throttled(_Named):
    """The server throttled a request (429): see `Permit.report_throttled`."""

    #: Seconds that the server asked to wait; None: it sent no duration.
    retry_after: float | None


@dataclass(slots=True)
class ThrottlingSuspected(_Named):
    """A server answers many requests by 403 or 503, which do not count as throttled.

    Once for each host of a session or transport. If the server throttles so, add the statuses to
    `Retry.throttled_statuses`.
    """

    #: The host of the URL.
    host: str
    #: Which of the two statuses.
    statuses: frozenset[int]
    #: Their part of the answers within a minute, above 0.2.
    part: float


@dataclass(slots=True)
class Paused(_Named):
    """A pause began, or became longer by a second or more."""

    #: Seconds from now until the pause ends.
    seconds: float
    #: "retry-after": the server throttled a request and sent a duration. "throttled": it throttled
    #: a request and sent none. "failures": requests fail in a row, which succeeded before.
    #: "quota": it reported that nothing remains, for ten seconds or more. "requested": the program
    #: called `RateLimiter.pause`.
    reason: Reason


@dataclass(slots=True)
class Retried(_Named):
    """A session or transport is going to retry a request."""

    #: The number of the next attempt: 2 is the first retry.
    attempt: int
    #: Seconds until the next attempt.
    delay: float
    #: Status of the response; None: there was no response.
    status: int | None
    #: Why there was no response; None: there was a response.
    error: Exception | None


@dataclass(slots=True)
class Adapted(_Named):
    """A controller (`AdaptiveRate`, `AdaptiveConcurrency`, guard, burst) changed its value."""

    #: "rate": tokens per second; infinity: none is learned. "slots": the concurrency limit;
    #: infinity: the limiter's own. "guard": seconds. "burst": tokens.
    what: Literal["rate", "slots", "guard", "burst"]
    #: The new value.
    value: float
    #: The value until now, in the same unit.
    before: float


@dataclass(slots=True)
class QuotaUpdated(_Named):
    """The server reported its quota or its rates, and the limiter keeps to them."""

    #: Tokens that the server has left; None: not reported.
    remaining: float | None
    #: Seconds until the server resets the quota; None: not reported.
    reset_after: float | None
    #: The rates that the limiter keeps from now on, if it follows the server.
    rates: tuple[Rate, ...] = ()
    #: The resource of the quota.
    resource: str = REQUESTS


@dataclass(slots=True)
class QuotaMissing(_Named):
    """The server has reported no limit, so ``rate_limit="server"`` has nothing to follow."""

    #: The number of answers without a report.
    answers: int


@dataclass(slots=True)
class StoreDown(_Named):
    """The store of a shared limit does not answer."""

    #: Usually a `StoreUnavailable`, whose cause is the error of the driver.
    error: Exception
    #: The number of the outage in this process, the same for all limiters that share the store.
    outage: int = 0


@dataclass(slots=True)
class StoreUp(_Named):
    """The store answers again."""

    #: Seconds that the outage lasted.
    after: float


Event: TypeAlias = (
    Granted
    | Rejected
    | Throttled
    | ThrottlingSuspected
    | Paused
    | Retried
    | Adapted
    | QuotaUpdated
    | QuotaMissing
    | StoreDown
    | StoreUp
)
"""The argument of an observer."""

Observer: TypeAlias = Callable[[Event], None]
"""The argument of `RateLimiter.observe`."""
