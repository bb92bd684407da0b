"""Middlewares that throttle and retry, for a genuine `aiohttp.ClientSession`.

They run once for each hop of a chain of redirects, inside aiohttp's timeouts.
"""

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Unpack

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, ClientTimeout

from aiothrottle._http.admission import Admission, AnyLimiter, Target
from aiothrottle._http.announcements import Announcements
from aiothrottle._http.attempts import Attempts, Outcome, chain, failed
from aiothrottle._http.options import (
    MiddlewareOptions,
    Options,
    RetryOptions,
    check_names,
    names_of,
    read_options,
)
from aiothrottle.aiohttp.arguments import SessionArguments, read_arguments
from aiothrottle.aiohttp.body import buffer_request, is_replayable, prepare_again
from aiothrottle.aiohttp.lease import Leases
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.aiohttp.response import (
    FAILURES,
    SWITCHING_PROTOCOLS,
    discard,
    hear,
    is_certain,
    is_failure,
    is_plain,
    judged,
    origin_of,
    read_limits,
    trusts_successes,
)
from aiothrottle.budget import RetryQuota
from aiothrottle.errors import ThrottleError
from aiothrottle.permit import Permit, report_answer, report_retry
from aiothrottle.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from yarl import URL

__all__ = ["RetryMiddleware", "ThrottleMiddleware", "throttled_session"]


class ThrottleMiddleware:
    """Has each request of an `aiohttp.ClientSession` wait its turn and hold its slot.

    A refusal (429, or 503 with Retry-After) pauses the limiter, and so all who share it.

    Args:
        limiter: Whose limits; may be shared. A `KeyedRateLimiter` has limits for each host, or
            whatever `key` says.
        options: See `MiddlewareOptions`. `key`: each hop of a chain of redirects has its own.
            `retry`: what is a refusal, and how long a pause may be; nothing is sent again here,
            see `RetryMiddleware`.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range, or a key is given with a limiter that has none.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     throttle = ThrottleMiddleware(RateLimiter(20, concurrency_limit=10))
    ...     async with ClientSession(middlewares=[throttle]) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """

    def __init__(
        self,
        limiter: AnyLimiter,
        **options: Unpack[MiddlewareOptions],
    ) -> None:
        checked = read_options(type(self).__name__, MiddlewareOptions, options)
        self._admission = Admission(limiter, checked, origin_of)
        self._retry = checked.retry
        self._trusting = trusts_successes(checked.retry)
        self._max_hold = checked.max_hold
        self._hold_websockets = checked.hold_websockets
        self._leases = Leases()
        # Made when the first one is held: an empty one costs each request a look.
        self._permits: weakref.WeakKeyDictionary[ClientRequest, Permit] | None = None

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter that is waited for."""
        return self._admission.limiter

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Wait, send, and hold the slot until the response ends."""
        _, limiter = self._admission.target(request.method, request.url)
        if self._permits is not None and (before := self._permits.get(request)) is not None:
            # A middleware around this one sends the request again, for digest authentication, say,
            # and need not have released the first response: at one slot it would wait for itself.
            before.release()
        server = None
        if self._admission.overloads is not None:
            server = origin_of(request.method, request.url)
        permit = await self._admission.enter(limiter, server)
        try:
            response = await handler(request)
        except BaseException as error:
            permit.release()
            if isinstance(error, Exception) and is_failure(error):
                self._admission.failed(server)
            raise
        if server is not None:
            self._admission.answered(server, response.status)
        self._hold(permit, request, response)
        announcements = self._admission.announcements
        if self._trusting and announcements.has_none(response.status, response.headers):
            report_answer(permit)
            return response
        limits = hear(announcements, limiter, permit, response)
        if not is_plain(self._retry, response.status, limits):
            outcome = await judged(self._retry, announcements, response, limits)
            delay = Attempts(self._retry, request.method, None).delay(outcome)
            self._admission.ended(permit, outcome, delay)
        else:
            report_answer(permit)
        return response

    def _hold(self, permit: Permit, request: ClientRequest, response: ClientResponse) -> None:
        """Release the permit when the response ends, whichever way it ends."""
        switched = response.status == SWITCHING_PROTOCOLS
        if response.connection is None or (switched and not self._hold_websockets):
            permit.release()
        else:
            if self._permits is None:
                self._permits = weakref.WeakKeyDictionary()
            self._permits[request] = permit
            self._leases.hold(permit, response, self._longest_hold(request, response))

    def _longest_hold(self, request: ClientRequest, response: ClientResponse) -> float | None:
        if self._max_hold is not None or response.status == SWITCHING_PROTOCOLS:
            return self._max_hold
        timeout = getattr(request, "timeout", None)  # since aiohttp 3.15
        return timeout.total if isinstance(timeout, ClientTimeout) else None

    def __repr__(self) -> str:
        return f"<ThrottleMiddleware {self.limiter!r}>"


class RetryMiddleware:
    """Sends a request of an `aiohttp.ClientSession` again, as a `Retry` says.

    Put it before, that is around, a `ThrottleMiddleware`: each attempt then pays its token, and
    nothing is held in between. The waits are inside of aiohttp's `total` timeout.

    Args:
        retry: When to try again.
        options: See `RetryOptions`.

    Raises:
        TypeError: An argument is of a wrong kind, or unknown.
    """

    def __init__(
        self,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        **options: Unpack[RetryOptions],
    ) -> None:
        check_names(type(self).__name__, names_of(RetryOptions), options)
        checked = Options(retry=retry, **options)
        self._announcements = Announcements(None, checked.profiles, retry.max_retry_after)
        self._retry = retry
        self._trusting = trusts_successes(retry)
        self._failures = FAILURES if retry.exceptions is None else retry.exceptions
        self._quota = None if retry.budget is None else RetryQuota(retry.budget)
        self._buffer_body = checked.buffer_body
        # Finds who is told that a request is sent again: a limiter that may be observed.
        self._target: Callable[[str, URL], Target] | None = None

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send until it ends well, or is not to be sent again."""
        attempts: Attempts | None = None
        outcome: Outcome[ClientResponse] | None = None
        if self._buffer_body and not is_replayable(request.body):
            await buffer_request(request)
        while True:
            # Some bodies show only afterwards that they are spent, and others only before.
            replayable = is_replayable(request.body)
            try:
                response = await handler(request)
            except ThrottleError as error:
                chain(error, outcome)
                raise
            except self._failures as error:
                if is_certain(self._retry, error):
                    raise
                outcome = failed(error)
            else:
                announcements = self._announcements
                if self._trusting and announcements.has_none(response.status, response.headers):
                    return response
                limits = read_limits(announcements, response)
                if is_plain(self._retry, response.status, limits):
                    return response
                outcome = await judged(self._retry, announcements, response, limits)
            attempts = attempts or self._begin(request)
            delay = attempts.delay(outcome)
            replayable = replayable and is_replayable(request.body)
            if delay is None or not replayable or not attempts.again(outcome, delay):
                attempts.ended(outcome)
                return outcome.result()
            self._tell(request, attempts.count, delay, outcome)
            if outcome.response is not None:
                await discard(outcome.response)
            await asyncio.sleep(delay)
            await prepare_again(request)

    def _tell(
        self, request: ClientRequest, attempt: int, delay: float, outcome: Outcome[Any]
    ) -> None:
        """Tell who observes the limiter, if this knows it, that the request is sent again."""
        if self._target is not None:
            permit = self._target(request.method, request.url).limiter.throttle()
            report_retry(permit, attempt, delay, status=outcome.status, error=outcome.error)

    def _begin(self, request: ClientRequest) -> Attempts:
        host = origin_of(request.method, request.url)
        return Attempts(self._retry, request.method, self._quota, host)

    def __repr__(self) -> str:
        return f"<RetryMiddleware {self._retry!r}>"


def throttled_session(
    limiter: AnyLimiter,
    **arguments: Unpack[SessionArguments],
) -> ClientSession:
    """Make an `aiohttp.ClientSession` that throttles and retries, for who demands a genuine one.

    `ThrottledSession` does more: it waits outside of aiohttp's timeouts.

    Args:
        limiter: As for `ThrottleMiddleware`.
        arguments: The options of `SessionOptions`; all others are for the
            `aiohttp.ClientSession`. Its own `middlewares` are put around these.

    Raises:
        TypeError: An argument is of a wrong kind, or unknown.
        ValueError: An argument is out of range, or a key is given with a limiter that has none.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     async with throttled_session(RateLimiter(20, concurrency_limit=10)) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """
    options, for_client_session = read_arguments(throttled_session, arguments)
    retrying = RetryMiddleware(options.retry, **options.of_kind(RetryOptions))
    throttling = ThrottleMiddleware(limiter, **options.of_kind(MiddlewareOptions))
    retrying._target = throttling._admission.target  # noqa: SLF001 - both are of this module
    around = for_client_session.pop("middlewares", None) or ()
    middlewares = (*around, retrying, throttling)
    return without_resending(ClientSession(middlewares=middlewares, **for_client_session))
