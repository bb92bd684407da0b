"""Middlewares that throttle and retry, for a genuine `aiohttp.ClientSession`.

They run once for each hop of a chain of redirects, inside aiohttp's timeouts.
"""

import weakref
from collections.abc import Awaitable
from dataclasses import replace
from typing import Unpack

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, Payload

from aiothrottle._checks import check_names, shown
from aiothrottle._http.loop import RetryLoop
from aiothrottle._http.options import (
    MiddlewareOptions,
    Options,
    RetryOptions,
    SessionOptions,
    names_of,
    read_options,
)
from aiothrottle._http.terms import LimiterLike, Terms
from aiothrottle.aiohttp.adapter import AiohttpAdapter, content_of, origin_of, without_resending
from aiothrottle.aiohttp.body import check_open, is_replayable, prepare_again, read_into_memory
from aiothrottle.aiohttp.session import SessionArguments, read_arguments
from aiothrottle.hooks import Request
from aiothrottle.keyed import AnyLimiter
from aiothrottle.permit import Permit
from aiothrottle.retry import Retry


class ThrottleMiddleware:
    """Throttles the requests of an `aiohttp.ClientSession`: each waits, and holds its slot.

    A throttled response (420, 429, 529, mostly 503) pauses the limiter for all requests that
    share it.

    Args:
        limiter: The limiter, which may be shared. A `KeyedRateLimiter` limits each host by itself,
            or each result of `key`. A rate, such as ``"10/s"``: a limiter is made of it.
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

    def __init__(self, limiter: LimiterLike, **options: Unpack[MiddlewareOptions]) -> None:
        checked = read_options(type(self).__name__, MiddlewareOptions, options)
        self._begin(limiter, replace(checked, retry=replace(checked.retry, attempts=1)))

    def _begin(self, limiter: LimiterLike, options: Options) -> None:
        self._permits = weakref.WeakKeyDictionary[ClientRequest, Permit]()
        self._loop = RetryLoop(
            _MiddlewareAdapter(options),
            options,
            limiter,
            on_grant=self._granted,
            # A `RetryMiddleware` around this one sends the same request for each attempt.
            known_terms=weakref.WeakKeyDictionary[ClientRequest, Terms](),
        )

    def _granted(self, request: ClientRequest, permit: Permit) -> None:
        self._permits[request] = permit
        if permit.waited:
            check_open(request)

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter of all requests, or of each key."""
        return self._loop.admission.limiter

    def __call__(
        self, request: ClientRequest, handler: ClientHandlerType
    ) -> Awaitable[ClientResponse]:
        """Wait, send, and hold the slot until the response ends."""
        # A middleware around this one, for digest authentication for example, may send a request
        # again and keep the first response: with one slot, it would wait for itself for ever.
        if (before := self._permits.get(request)) is not None:
            before.release()
        return self._loop.run(request, handler)

    def permit_of(self, request: ClientRequest) -> Permit | None:
        """Return the latest permit that a request got here; None: none.

        Args:
            request: The request of aiohttp that a middleware gets.
        """
        return self._permits.get(request)

    def __repr__(self) -> str:
        return f"<ThrottleMiddleware {self._loop.admission.given!r}>"


class RetryMiddleware:
    """Retries the requests of an `aiohttp.ClientSession`, by the rules of a `Retry`.

    `throttled_middlewares` makes it together with a `ThrottleMiddleware`, around which it is put:
    then each attempt takes a token, and no slot is held in between. Make one by itself where no
    limiter is needed. Aiohttp's `total` timeout includes the delays.

    Args:
        retry: When to retry.
        throttle: The `ThrottleMiddleware` further in, whose limiter emits `Retried`. None: there is
            no such event.
        options: See `RetryOptions`.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
    """

    def __init__(
        self,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        *,
        throttle: ThrottleMiddleware | None = None,
        **options: Unpack[RetryOptions],
    ) -> None:
        check_names(type(self).__name__, names_of(RetryOptions), options)
        if throttle is not None and not isinstance(throttle, ThrottleMiddleware):
            raise TypeError(f"throttle must be a ThrottleMiddleware, got {shown(throttle)}")
        checked = Options(retry=retry, **options)
        self._loop = RetryLoop(
            _MiddlewareAdapter(checked),
            checked,
            inner_permit=None if throttle is None else throttle.permit_of,
        )

    def __call__(
        self, request: ClientRequest, handler: ClientHandlerType
    ) -> Awaitable[ClientResponse]:
        """Send until an attempt succeeds or must not be retried."""
        return self._loop.run(request, handler)

    def __repr__(self) -> str:
        return f"<RetryMiddleware {self._loop.options.retry!r}>"


class _MiddlewareAdapter(AiohttpAdapter[ClientRequest]):
    """Translates for the middlewares."""

    def origin(self, request: ClientRequest, /) -> str:
        return origin_of(request.url)

    def is_replayable(self, request: ClientRequest, _: object = None, /) -> bool:
        return is_replayable(request.body)

    async def buffer(self, request: ClientRequest, /) -> None:
        body: object = request.body
        if isinstance(body, Payload):
            # It stays chunked, or keeps its length, and keeps its headers.
            length = request.headers.get("Content-Length")
            await request.update_body(await read_into_memory(body))
            if length is not None:
                request.headers["Content-Length"] = length

    def view(self, request: ClientRequest, /) -> Request:
        content = content_of(request.body) or None
        return Request(request.method, request.url, request.headers, content)

    async def prepare_again(self, request: ClientRequest, /) -> None:
        await prepare_again(request)


class _SessionMiddleware(ThrottleMiddleware):
    """Does what both middlewares do, in one loop: a request walks a third less."""

    def __init__(self, limiter: LimiterLike, options: Options) -> None:
        self._begin(limiter, options)


def throttled_middlewares(
    limiter: LimiterLike, **options: Unpack[SessionOptions]
) -> tuple[RetryMiddleware, ThrottleMiddleware]:
    """Make the middlewares that throttle and retry, for a client that makes its own session.

    They belong together in this order: ``ClientSession(middlewares=throttled_middlewares(...))``.
    A middleware that has to run for each attempt, such as one that signs, is put after both.

    Args:
        limiter: As for `ThrottleMiddleware`.
        options: See `SessionOptions`.

    Returns:
        The middlewares, in that order.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
        ValueError: An argument is out of range; or `key` is given, and the limiter has no keys.

    >>> from aiothrottle import RateLimiter, Retry
    >>> async def main():
    ...     middlewares = throttled_middlewares(RateLimiter("20/s"), retry=Retry(attempts=3))
    ...     async with ClientSession(middlewares=middlewares) as session:
    ...         async with session.get("https://example.org/") as response:
    ...             print(response.status, await response.text())
    """
    checked = read_options(throttled_middlewares.__name__, SessionOptions, options)
    throttling = ThrottleMiddleware(limiter, **checked.of_kind(MiddlewareOptions))
    retrying = RetryMiddleware(checked.retry, throttle=throttling, **checked.of_kind(RetryOptions))
    return retrying, throttling


def throttled_session(limiter: LimiterLike, **arguments: Unpack[SessionArguments]) -> ClientSession:
    """Make a genuine `aiohttp.ClientSession` that throttles and retries.

    `ThrottledSession` does more: it waits outside of aiohttp's timeouts.

    Args:
        limiter: As for `ThrottleMiddleware`.
        arguments: The options of `SessionOptions`, and those of `aiohttp.ClientSession`, whose
            `middlewares` are put around its own.

    Returns:
        The session, to be entered with ``async with``.

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
    around = for_client_session.pop("middlewares", None) or ()
    middlewares = (*around, _SessionMiddleware(limiter, options))
    return without_resending(ClientSession(middlewares=middlewares, **for_client_session))
