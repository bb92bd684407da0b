"""The attempts of one request: the outcome of each, and the delay of the next one, if any.

There is one `Outcome` for each attempt; the `Retry` alone decides what follows from it. Nothing
here reads a clock, waits or sends.
"""

from collections.abc import Awaitable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from aiothrottle.errors import AttemptThrottled, ThrottleError
from aiothrottle.headers import ServerLimits
from aiothrottle.retry import Retry, RetryQuota

__all__ = ["Attempts", "Outcome", "chain", "failed", "judge"]

_Response = TypeVar("_Response")

_NOTHING = ServerLimits()
_PLAINLY_THROTTLED = frozenset({Retry.TOO_MANY_REQUESTS, Retry.SERVICE_UNAVAILABLE})


class Outcome(NamedTuple, Generic[_Response]):
    """How one attempt ended: with a response, or with an error, which may have a status too."""

    response: _Response | None
    error: Exception | None
    status: int | None
    #: Seconds that the server asked for.
    retry_after: float | None = None
    #: What `Retry.should_retry` returned.
    verdict: bool | None = None
    #: Whether the server throttled the request: it did nothing, and other requests wait too.
    throttled: bool = False
    #: Whether the server said so of all requests, not only of those with this limit.
    everywhere: bool = False

    def result(self) -> _Response:
        """Return the response, or raise the error."""
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response


def chain(error: ThrottleError, outcome: Outcome[Any] | None) -> None:
    """Make the outcome of an attempt the cause of an error that prevents the next one.

    Not its response, which would hold a slot: that is discarded before the next attempt.
    """
    if outcome is None or error.__cause__ is not None:
        return
    cause = outcome.error
    if cause is None and outcome.status is not None:
        cause = AttemptThrottled(outcome.status, outcome.retry_after)
    error.__cause__ = cause


async def judge(
    retry: Retry, response: _Response, status: int, limits: ServerLimits
) -> Outcome[_Response]:
    """Return the outcome of an attempt with a response. Raises what `Retry.should_retry` raises."""
    verdict: bool | None = None
    if retry.should_retry is not None:
        answer = retry.should_retry(response)
        verdict = await answer if isinstance(answer, Awaitable) else answer
    throttled = verdict
    if throttled is None:
        throttled = retry.is_throttled(status, reported=limits.throttled)
    return Outcome(response, None, status, limits.wait, verdict, throttled, limits.is_global)


def failed(
    retry: Retry, error: Exception, status: int | None = None, limits: ServerLimits = _NOTHING
) -> Outcome[Any]:
    """Return the outcome of an attempt that raised an error, which may stand for a response."""
    throttled = status is not None and retry.is_throttled(status, reported=limits.throttled)
    return Outcome(
        None, error, status, limits.wait, throttled=throttled, everywhere=limits.is_global
    )


class Attempts:
    """Counts the attempts of one request, and takes the cost of retries from the retry quota."""

    __slots__ = ("_key", "_method", "_paid", "_previous", "_quota", "_retry", "count")

    def __init__(
        self,
        retry: Retry,
        method: str,
        quota: RetryQuota | None,
        key: Hashable = None,
        made: int = 0,
    ) -> None:
        self.count: int = made + 1
        self._retry = retry
        self._method = method
        self._quota = quota
        self._key = key
        self._paid = 0.0
        self._previous = 0.0

    def delay(self, outcome: Outcome[Any]) -> float | None:
        """Return the seconds until the next attempt, or None if the `Retry` wants none."""
        throttled = outcome.verdict
        if throttled is None and outcome.throttled:
            # A 403 with a Retry-After, for example. The policy recognises the plain ones itself.
            throttled = outcome.status not in _PLAINLY_THROTTLED or None
        return self._retry.next_delay(
            self.count,
            self._method,
            status=outcome.status,
            retry_after=outcome.retry_after,
            throttled=throttled,
            previous=self._previous,
        )

    def start_next(self, outcome: Outcome[Any], delay: float) -> bool:
        """Count another attempt and return True, or return False if the quota is too low."""
        if self._quota is not None:
            paid = self._quota.pay(self._key, throttled=outcome.throttled)
            if paid is None:
                return False
            self._paid = paid
        self.count += 1
        self._previous = delay
        return True

    def finish(self, outcome: Outcome[Any]) -> None:
        """Refund the retry quota if the last attempt succeeded."""
        if self._quota is None or outcome.throttled or outcome.status is None:
            return
        if outcome.status not in self._retry.statuses:
            self._quota.refund(self._key, self._paid)
