"""The attempts of one request: how each ended, and whether and when there is another one.

Shared by all HTTP clients that we put in front of a limiter; none is imported here.
"""

from collections.abc import Awaitable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from aiothrottle.budget import RetryQuota
from aiothrottle.errors import AttemptThrottled, ThrottleError
from aiothrottle.headers import ServerLimits
from aiothrottle.retry import Retry

__all__ = ["Attempts", "Outcome", "chain", "failed", "judge"]

_Response = TypeVar("_Response")

_NOTHING = ServerLimits()
_PLAINLY_THROTTLED = frozenset({Retry.TOO_MANY_REQUESTS, Retry.SERVICE_UNAVAILABLE})


class Outcome(NamedTuple, Generic[_Response]):
    """How one attempt ended: with a response, or an error that may have a status too."""

    response: _Response | None
    error: Exception | None
    status: int | None
    #: Seconds that the server asked for.
    retry_after: float | None = None
    #: What `Retry.should_retry` said.
    verdict: bool | None = None
    #: The server said "not now": nothing was done, and others should wait too.
    throttled: bool = False

    def result(self) -> _Response:
        """Give the response, or raise the error."""
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response


def chain(error: ThrottleError, outcome: Outcome[Any] | None) -> None:
    """Make the outcome of the attempt before the cause of what keeps the next one from being made.

    Its response is gone: it must not hold a slot meanwhile.
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
    """Tell how an attempt ended that got a response. Raises what `Retry.should_retry` does."""
    verdict: bool | None = None
    if retry.should_retry is not None:
        answer = retry.should_retry(response)
        verdict = await answer if isinstance(answer, Awaitable) else answer
    throttled = limits.throttled if verdict is None else verdict
    return Outcome(response, None, status, _wait_of(limits), verdict, throttled)


def failed(
    error: Exception, status: int | None = None, limits: ServerLimits = _NOTHING
) -> Outcome[Any]:
    """Tell how an attempt ended that raised an error, which may stand for a response."""
    return Outcome(None, error, status, _wait_of(limits), throttled=limits.throttled)


def _wait_of(limits: ServerLimits) -> float | None:
    """Seconds that the server asks for: in so many words, or until there is something left."""
    if limits.retry_after is not None or not limits.throttled or limits.remaining:
        return limits.retry_after
    return limits.reset_after


class Attempts:
    """Counts the attempts of one request, and pays for further ones."""

    __slots__ = ("_key", "_method", "_paid", "_previous", "_quota", "_retry", "count")

    def __init__(
        self, retry: Retry, method: str, quota: RetryQuota | None, key: Hashable = None
    ) -> None:
        self.count: int = 1
        self._retry = retry
        self._method = method
        self._quota = quota
        self._key = key
        self._paid = 0.0
        self._previous = 0.0

    def delay(self, outcome: Outcome[Any]) -> float | None:
        """Give the seconds until another attempt, if the policy is for one."""
        throttled = outcome.verdict
        if throttled is None and outcome.throttled:
            # A 403, say, that is recognised by its headers; of others the policy knows itself.
            throttled = outcome.status not in _PLAINLY_THROTTLED or None
        return self._retry.next_delay(
            self.count,
            self._method,
            status=outcome.status,
            retry_after=outcome.retry_after,
            throttled=throttled,
            previous=self._previous,
        )

    def again(self, outcome: Outcome[Any], delay: float) -> bool:
        """Begin another attempt, if its cost can be paid."""
        if self._quota is not None:
            paid = self._quota.pay(self._key, throttled=outcome.throttled)
            if paid is None:
                return False
            self._paid = paid
        self.count += 1
        self._previous = delay
        return True

    def ended(self, outcome: Outcome[Any]) -> None:
        """Fill up the quota if it ended well."""
        if self._quota is None or outcome.throttled or outcome.status is None:
            return
        if outcome.status not in self._retry.statuses:
            self._quota.give_back(self._key, self._paid)
