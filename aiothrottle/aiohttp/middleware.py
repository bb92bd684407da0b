"""Middlewares that throttle and retry, for a genuine `aiohttp.ClientSession`.

They run once for each hop of a chain of redirects, inside aiohttp's timeouts.
"""

import weakref
from collections.abc import Awaitable, Mapping
from typing import Unpack

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession

from aiothrottle._http.admission import Admission, AnyLimiter
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import (
    MiddlewareOptions,
    Options,
    RetryOptions,
    check_names,
    names_of,
    read_options,
)
from aiothrottle.aiohttp.adapter import AiohttpAdapter, origin_of
from aiothrottle.aiohttp.arguments import SessionArguments, read_arguments
from aiothrottle.aiohttp.body import buffer_request, is_replayable, prepare_again
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.permit import Permit
from aiothrottle.retry import Retry

__all__ = ["RetryMiddleware", "ThrottleMiddleware", "throttled_session"]


class ThrottleMiddleware:
    """Throttles the requests of an `aiohttp.ClientSession`: each waits, and holds its slot.

    A throttled response (429, or 503 with Retry-After) pauses the limiter for all requests that
    share it.

    Args:
        limiter: The limiter, which may be shared. A `KeyedRateLimiter` limits each host by itself,
            or each result of `key`.
        options: See `MiddlewareOptions`. `key`: each hop of a chain of redirects has its own.
            `retry`: decides what counts as throttled, and how long a pause may be; a
            `RetryMiddleware` retries.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
        ValueError: An argument is out of range; or `key` is given, and the limiter has no keys.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     throttle = ThrottleMiddleware(RateLimiter(20, concurrency_limit=10))
    ...     async with ClientSession(middlewares=[throttle]) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """

    def __init__(self, limiter: AnyLimiter, **options: Unpack[MiddlewareOptions]) -> None:
        checked = read_options(type(self).__name__, MiddlewareOptions, options)
        self._admission = Admission(limiter, checked, origin_of)
        self._adapter = _ThrottlingAdapter(checked)
        self._loop = RetryLoop(self._adapter, checked, origin_of, self._admission)

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter of all requests, or of each key."""
        return self._admission.limiter

    def __call__(
        self, request: ClientRequest, handler: ClientHandlerType
    ) -> Awaitable[ClientResponse]:
        """Wait, send, and hold the slot until the response ends."""
        self._adapter.release_before(request)
        return self._loop.run(request, handler)

    def __repr__(self) -> str:
        return f"<ThrottleMiddleware {self.limiter!r}>"


class _ThrottlingAdapter(AiohttpAdapter[ClientRequest]):
    """What the retry loop needs of a `ThrottleMiddleware`."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        # Made for the first permit that is held: looking into an empty one would take time, too.
        self._permits: weakref.WeakKeyDictionary[ClientRequest, Permit] | None = None

    def release_before(self, request: ClientRequest) -> None:
        """Release the permit of a request that a middleware around this one sends again.

        One for digest authentication, for example, need not release the first response before: with
        one slot, the second request would wait for the first for ever.
        """
        if self._permits is not None and (before := self._permits.get(request)) is not None:
            before.release()

    def is_replayable(self, _: ClientRequest) -> bool:
        return False  # this middleware does not retry

    def receive(
        self, request: ClientRequest, response: ClientResponse, permit: Permit | None
    ) -> tuple[int, Mapping[str, str]]:
        if permit is not None and response.connection is not None:
            if self._permits is None:
                self._permits = weakref.WeakKeyDictionary()
            self._permits[request] = permit
        return super().receive(request, response, permit)


class RetryMiddleware:
    """Retries the requests of an `aiohttp.ClientSession`, by the rules of a `Retry`.

    Put it before, that is around, a `ThrottleMiddleware`: then each attempt takes a token, and no
    slot is held in between. Aiohttp's `total` timeout includes the delays.

    Args:
        retry: When to retry.
        options: See `RetryOptions`.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
    """

    def __init__(
        self,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        **options: Unpack[RetryOptions],
    ) -> None:
        check_names(type(self).__name__, names_of(RetryOptions), options)
        checked = Options(retry=retry, **options)
        self._retry = retry
        self._buffer_body = checked.buffer_body
        self._loop = RetryLoop(_RetryingAdapter(checked), checked, origin_of)

    def __call__(
        self, request: ClientRequest, handler: ClientHandlerType
    ) -> Awaitable[ClientResponse]:
        """Send until an attempt succeeds or must not be retried."""
        if self._buffer_body and not is_replayable(request.body):
            return self._buffered(request, handler)
        return self._loop.run(request, handler)

    async def _buffered(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        await buffer_request(request)
        return await self._loop.run(request, handler)

    def __repr__(self) -> str:
        return f"<RetryMiddleware {self._retry!r}>"


class _RetryingAdapter(AiohttpAdapter[ClientRequest]):
    """What the retry loop needs of a `RetryMiddleware`."""

    def is_replayable(self, request: ClientRequest) -> bool:
        return is_replayable(request.body)

    async def prepare_again(self, request: ClientRequest, /) -> None:
        await prepare_again(request)


def throttled_session(limiter: AnyLimiter, **arguments: Unpack[SessionArguments]) -> ClientSession:
    """Make a genuine `aiohttp.ClientSession` that throttles and retries.

    `ThrottledSession` does more: it waits outside of aiohttp's timeouts.

    Args:
        limiter: As for `ThrottleMiddleware`.
        arguments: The options of `SessionOptions`, and those of `aiohttp.ClientSession`, whose
            `middlewares` are put around these.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
        ValueError: An argument is out of range; or `key` is given, and the limiter has no keys.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     async with throttled_session(RateLimiter(20, concurrency_limit=10)) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """
    options, for_client_session = read_arguments(throttled_session, arguments)
    retrying = RetryMiddleware(options.retry, **options.of_kind(RetryOptions))
    throttling = ThrottleMiddleware(limiter, **options.of_kind(MiddlewareOptions))
    retrying._loop.observed = throttling._admission  # noqa: SLF001 - both are of this module
    around = for_client_session.pop("middlewares", None) or ()
    middlewares = (*around, retrying, throttling)
    return without_resending(ClientSession(middlewares=middlewares, **for_client_session))
