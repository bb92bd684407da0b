"""When to retry, and after what delay: a value, without a clock and without I/O."""

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from aiothrottle._checks import check_choice, check_number, check_whole, explains_arguments, shown
from aiothrottle._statuses import SERVICE_UNAVAILABLE, THROTTLED, TOO_MANY_REQUESTS

__all__ = ["Retry", "RetryBudget"]

Jitter: TypeAlias = Literal["full", "decorrelated"]
Verdict: TypeAlias = bool | None

# `Retry.statuses` has them, so a user may leave them out.
PLAINLY_THROTTLED = frozenset({TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE})
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
# Keys without a success never refill their quota. Beyond this number of keys, the one that failed
# longest ago starts with a full quota again.
_MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many retries a server gets, for all requests together: a value.

    The quota is full at first. Each retry takes its cost; where too little remains there is no
    retry, without any wait. Each success refunds `refund`, or the cost of its own last attempt if
    that is more. (It is the quota of the AWS SDKs' standard retry mode, with its costs of 2026.)

    Args:
        capacity: The size of a full quota.
        cost: The cost of a retry after a failure: of the connection, or a 5xx.
        throttled_cost: The cost of a retry after a throttled response, such as a 429. It is lower,
            as the server says when to retry.
        refund: The refund of a success at the first attempt.

    Raises:
        TypeError: An argument is no number.
        ValueError: An argument is out of range.

    >>> quota = RetryQuota(RetryBudget(capacity=20, cost=14))
    >>> quota.pay("example.org", throttled=False), quota.pay("example.org", throttled=False)
    (14, None)
    >>> quota.pay("example.net", throttled=False)
    14
    """

    capacity: float = 500.0
    cost: float = 14.0
    throttled_cost: float = 5.0
    refund: float = 1.0

    def __post_init__(self) -> None:
        """Validate the arguments."""
        for name in ("capacity", "cost", "throttled_cost", "refund"):
            check_number(f"{name} of a retry budget", getattr(self, name))


@explains_arguments
@dataclass(frozen=True, slots=True)
class Retry:
    """Which failures are retried, how often, and after what delay.

    A throttled request is retried with any method, since the server did nothing, except after a 503
    without Retry-After: there the server may have begun. Another status of `statuses`, and an
    exception, is retried only with `methods`.

    The delay is the Retry-After of the response. Without one it is drawn, with "full" jitter
    between 0 and ``backoff * 2 ** (attempt - 1)``, with "decorrelated" jitter between `backoff` and
    three times the delay before; at most `max_backoff` (Marc Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015). A Retry-After shorter than `backoff` is not enough: then
    the drawn delay counts if it is longer, so no attempts are used up within milliseconds. A
    request whose response has paused a limiter waits for the end of that pause instead, and never
    less than the Retry-After.

    Args:
        attempts: How often a request is sent at most, 1 or more; 1: no retry.
        statuses: The statuses that are retried. So are throttled requests with a status other than
            429 and 503.
        throttled_statuses: The statuses by which the server throttles: they pause the limiter, and
            adaptive limits learn from them. A response whose headers or body report it (a 403 with
            nothing remaining) is throttled with other statuses too. A 503 is one of them with
            Retry-After, or where most answers of the server are 503: otherwise it delays its own
            request alone. With 503 in the set each 503 is throttled.
        methods: The methods that may be sent twice although the server may have executed the first.
        exceptions: The exceptions that are retried. None, the default: those that the client raises
            for a failed connection, but not for a wrong certificate.
        backoff: Seconds, the longest delay before the second attempt ("decorrelated": the shortest
            delay), and the first pause of the limiter, which doubles with each throttled request in
            a row. (With a learned rate that pause is shorter, if the server was open again after
            the last one.) Above 0.
        max_backoff: Seconds, the longest delay and the longest pause without a Retry-After.
        jitter: How the delay is drawn: "full" or "decorrelated".
        max_retry_after: Seconds. A longer Retry-After is not retried: the response is returned at
            once. The limiter is paused for as long as the server asked all the same.
        max_pause: Seconds, the longest pause of the limiter, and the longest that a reported quota
            or window holds: a server that asks for more is broken, or hostile. An hour by default.
        pause_jitter: After a throttled response, the pause of the limiter is longer by up to this
            share of it, and by a second at most, drawn anew for each pause: many clients do not
            return at the same instant.
        budget: The cost of retries, for all requests together, per limiter key (or host). None: as
            many as `attempts` allows.
        should_retry: Called with each response, before all other rules. It returns True for a
            throttled response of any status, False for one that is not retried, None to leave it
            to the rules. It may be async, and read the body or a part of it: the caller can still
            read the whole body.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: An argument is out of range.

    >>> Retry(attempts=3).next_delay(1, "POST", status=429, retry_after=2.0)
    2.0
    >>> Retry(attempts=3).next_delay(3, "POST", status=429, retry_after=2.0) is None
    True
    """

    attempts: int = 5
    statuses: Collection[int] = frozenset({429, 502, 503, 504})
    throttled_statuses: Collection[int] = frozenset({420, 429, 529})
    methods: Collection[str] = _IDEMPOTENT
    exceptions: tuple[type[Exception], ...] | None = None
    backoff: float = 0.5
    max_backoff: float = 30.0
    jitter: Jitter = "full"
    max_retry_after: float = 120.0
    max_pause: float = 3600.0
    pause_jitter: float = 0.1
    budget: RetryBudget | None = None
    should_retry: Callable[[Any], Verdict | Awaitable[Verdict]] | None = None

    def __post_init__(self) -> None:
        """Validate the arguments, before the first request."""
        check_whole("attempts, the first one included,", self.attempts)
        for name in ("backoff", "max_backoff", "max_retry_after", "max_pause"):
            check_number(name, getattr(self, name), "seconds", above=0)
        check_number("pause_jitter", self.pause_jitter)
        for name in ("statuses", "throttled_statuses", "methods"):
            values = getattr(self, name)
            kind = str if name == "methods" else int
            if isinstance(values, str) or not isinstance(values, Collection):
                raise TypeError(f"{name} must be a collection, such as a set, got {shown(values)}")
            for value in cast("Collection[object]", values):
                if isinstance(value, bool) or not isinstance(value, kind):
                    raise TypeError(
                        f"each of {name} must be of type {kind.__name__}, got {shown(value)}"
                    )
        # As a set, so that a retry can be hashed, and a list that changes later changes nothing.
        for name in ("statuses", "throttled_statuses"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        object.__setattr__(self, "methods", frozenset(map(str.upper, self.methods)))
        check_choice("jitter", self.jitter, get_args(Jitter))
        if self.budget is not None and not isinstance(self.budget, RetryBudget):
            raise TypeError(f"budget must be a RetryBudget, got {shown(self.budget)}")
        if self.should_retry is not None and not callable(self.should_retry):
            raise TypeError(
                f"should_retry must be a function of a response, got {shown(self.should_retry)}"
            )
        if not isinstance(self.exceptions, tuple | None):
            raise TypeError(f"exceptions must be a tuple of classes, got {shown(self.exceptions)}")
        for each in self.exceptions or ():
            # Any other is CancelledError or the like, which must not be swallowed.
            if not (isinstance(each, type) and issubclass(each, Exception)):
                raise TypeError(
                    f"each of exceptions must be a class of Exception, got {shown(each)}"
                )

    def is_throttled(self, status: int, *, reported: bool = False) -> bool:
        """Return whether the server throttled the request, so that other requests wait too.

        Args:
            status: The status of the response.
            reported: Whether its headers or body report a throttled request, as
                `ServerLimits.throttled` does.
        """
        # By a status of `THROTTLED` the headers are read as throttled because of that alone.
        return status in self.throttled_statuses or (reported and status not in THROTTLED)

    def next_delay(
        self,
        attempt: int,
        method: str,
        *,
        status: int | None,
        retry_after: float | None = None,
        throttled: Verdict = None,
        previous: float = 0.0,
        uniform: Callable[[], float] = random.random,
    ) -> float | None:
        """Return the seconds to wait before the next attempt, or None for no retry.

        Args:
            attempt: The number of attempts so far.
            method: The method, in capitals.
            status: The status of the response; None if there was an exception to retry instead.
            retry_after: Seconds that the server asked for, or None.
            throttled: The result of `should_retry`.
            previous: Seconds of delay before the last attempt.
            uniform: Draws from [0, 1).
        """
        if attempt >= self.attempts or throttled is False:
            return None
        if throttled is None and status is not None:
            if status == SERVICE_UNAVAILABLE:
                throttled = retry_after is not None  # else the server may have begun
            else:
                throttled = status in self.throttled_statuses
            if status not in self.statuses and (status in PLAINLY_THROTTLED or not throttled):
                return None
        if not throttled and method not in self.methods:
            return None
        if retry_after is not None and retry_after > self.max_retry_after:
            return None
        wait = retry_after or 0.0
        # A Retry-After of 0 means "soon": without a delay all attempts would be made at once.
        return wait if wait >= self.backoff else max(wait, self._draw(attempt, previous, uniform))

    def _draw(self, attempt: int, previous: float, uniform: Callable[[], float]) -> float:
        if self.jitter == "decorrelated":
            most = 3.0 * max(self.backoff, previous)
            return min(self.max_backoff, self.backoff + uniform() * (most - self.backoff))
        doublings = min(attempt - 1, 1023)  # a power that a float has
        return uniform() * min(self.max_backoff, self.backoff * 2.0**doublings)


class RetryQuota:
    """The remaining quota of each key. A key whose quota is full takes no memory."""

    __slots__ = ("_spent", "budget")

    def __init__(self, budget: RetryBudget) -> None:
        self.budget: RetryBudget = budget
        self._spent: OrderedDict[Hashable, float] = OrderedDict()

    def pay(self, key: Hashable, *, throttled: bool) -> float | None:
        """Take the cost of a retry and return it, or return None if too little remains."""
        cost = self.budget.throttled_cost if throttled else self.budget.cost
        spent = self._spent.get(key, 0.0) + cost
        enough = spent <= self.budget.capacity
        if enough and spent:
            self._spent[key] = spent
        if key in self._spent:
            self._spent.move_to_end(key)
            if len(self._spent) > _MOST_KEYS:
                self._spent.popitem(last=False)
        return cost if enough else None

    def refund(self, key: Hashable, paid: float) -> None:
        """Refund after a success whose last attempt cost `paid`, 0 for a first attempt."""
        spent = self._spent.get(key, 0.0) - max(self.budget.refund, paid)
        if spent > 0.0:
            self._spent[key] = spent
        else:
            self._spent.pop(key, None)
