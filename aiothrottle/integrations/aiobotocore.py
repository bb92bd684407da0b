"""aiobotocore, throttled: its requests wait before they are signed.

Invariant: each attempt has a permit from its ``request-created`` event on, until the connection of
its response is released, or the attempt or the call ends in another way.

aiobotocore emits these events for each attempt, its own retries included, and none for a URL that
is only signed. It emits nothing when an attempt is cancelled or cannot be signed, so the methods of
a client are wrapped: the end of a call releases what the events have not.
"""

import inspect
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Protocol

from aiohttp import ClientResponse

from aiothrottle._checks import check_number
from aiothrottle._statuses import LEAST_FAILURE
from aiothrottle.aiohttp.adapter import hold
from aiothrottle.headers import parse_rate_limit
from aiothrottle.keyed import AnyLimiter, check_limiter, expect_outcomes
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit

__all__ = ["throttle_session"]

# Most services throttle with a status of 400, and one of these codes in the body.
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


class _Session(Protocol):
    """An `aiobotocore.session.AioSession`."""

    def register(self, event_name: str, handler: Callable[..., Any], /) -> None: ...


def throttle_session(
    session: _Session,
    service: str,
    limiter: AnyLimiter,
    *,
    queue_timeout: float | None = None,
    max_hold: float | None = None,
) -> None:
    """Throttle the requests of all clients of a service that a session makes from now on.

    A request waits before it is signed, and so does each retry of aiobotocore. It holds its slot
    until its response is read or closed; with the `HttpxSession` of aiobotocore, until the headers
    have arrived. A throttled response pauses the limiter: a status of 429, or an error code such as
    ``SlowDown`` or ``ThrottlingException``.

    Args:
        session: The `AioSession`, also one for s3fs or aioboto3.
        service: The service as in the names of events, such as ``"s3"`` or ``"bedrock-runtime"``,
            or ``"s3-control"`` for the client ``"s3control"``; or one of its operations,
            ``"dynamodb.Query"``. Any other name throttles nothing.
        limiter: The limiter, which may be shared. A `KeyedRateLimiter` limits each operation by
            itself, with its name as the key: ``"PutObject"``.
        queue_timeout: Seconds that an attempt may wait for the limiter. None: no limit.
        max_hold: Seconds that a streamed body may hold its slot, after which its connection is
            closed. None: no limit, which is for ever if a body is dropped half-read.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A duration is out of range.

    >>> from aiothrottle import RateLimiter
    >>> from aiothrottle.integrations.aiobotocore import throttle_session
    >>> async def main(session):
    ...     throttle_session(session, "s3", RateLimiter("100/s", concurrency_limit=10))
    ...     async with session.create_client("s3") as client:
    ...         print(await client.list_buckets())
    """
    check_limiter(limiter)
    check_number("queue_timeout", queue_timeout, "seconds", none="None")
    check_number("max_hold", max_hold, "seconds", above=0, none="None")
    expect_outcomes(limiter)
    events = _Events(limiter, queue_timeout, max_hold)
    session.register(f"creating-client-class.{service.partition('.')[0]}", _wrap_methods)
    # The client registers its signer later, for the same event.
    session.register(f"request-created.{service}", events.wait)
    session.register(f"response-received.{service}", events.end)


# The permits of a call: its present attempt has one of each limiter of its operation. Its parents
# are those of the call whose request is being signed, if that needs this call. None: no call.
_permits: ContextVar[ChainMap["_Events", Permit] | None] = ContextVar("_permits", default=None)


@dataclass(eq=False)
class _Events:
    """The handlers of one call of `throttle_session`."""

    limiter: AnyLimiter
    queue_timeout: float | None
    max_hold: float | None

    async def wait(self, operation_name: str, **_: object) -> None:
        """Wait for the limiter. Cancelled: the request has left the queue."""
        permits = _permits.get()
        # A request that needs another one for its signature would wait for itself.
        if permits is None or self in permits.parents:
            return
        limiter = self.limiter
        limiter = limiter if isinstance(limiter, RateLimiter) else limiter[operation_name]
        permits[self] = await limiter.acquire(timeout=self.queue_timeout)

    def end(
        self,
        response_dict: Mapping[str, Any] | None,
        parsed_response: Mapping[str, Any] | None,
        **_: object,
    ) -> None:
        """Report the outcome of an attempt, and release the permit with the connection."""
        permits = _permits.get()
        permit = None if permits is None else permits.pop(self, None)
        if permit is None:
            return
        if response_dict is None:  # no response: an exception
            permit.release()
            return
        try:
            # Before the release, which would grant the slot in spite of a pause.
            _report(permit, response_dict, parsed_response or {})
        finally:
            self._hold(permit, response_dict["body"])

    def _hold(self, permit: Permit, body: object) -> None:
        """Release a permit with the connection of a streamed body, or at once."""
        # A streamed body has aiohttp's response; an event stream is that response itself.
        response = getattr(body, "raw_stream", getattr(body, "__wrapped__", body))
        if isinstance(response, ClientResponse):
            hold(permit, response, self.max_hold)
        else:
            permit.release()


def _wrap_methods(class_attributes: MutableMapping[str, Any], **_: object) -> None:
    """Wrap the methods of a client that is being made, so that each call ends with its permits."""
    for name, value in class_attributes.items():
        if inspect.isfunction(value):
            class_attributes[name] = _wrapped(value)


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
        result = method(*args, **kwargs)
        return _finish(result) if inspect.isawaitable(result) else result

    return call


async def _finish(result: Awaitable[Any]) -> Any:  # noqa: ANN401 - of any method
    own: dict[_Events, Permit] = {}
    outer = _permits.get()
    token = _permits.set(ChainMap(own) if outer is None else outer.new_child(own))
    try:
        return await result
    finally:
        _permits.reset(token)
        for permit in own.values():
            permit.release()


def _report(permit: Permit, response: Mapping[str, Any], parsed: Mapping[str, Any]) -> None:
    status: int = response["status_code"]
    limits = parse_rate_limit(status, response["headers"], datetime.now(UTC))
    if limits.throttled or _is_throttled(parsed):
        permit.report_throttled(limits.retry_after)
    elif status >= LEAST_FAILURE:
        permit._report_failure(status)
    else:
        permit.report_success()


def _is_throttled(parsed: Mapping[str, Any]) -> bool:
    """Return whether the error code says so. In successes, some services have another "Error"."""
    match parsed:
        case {"Error": {"Code": str(code)}}:
            return code in _THROTTLED
        case _:
            return False
