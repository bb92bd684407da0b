"""The terms of a request: its limiter, key, cost and priority, and at the end its final cost.

The limiter is the only one, or that of the request's key. Hooks and overrides decide the rest.

Invariant: each hook is called once for a request, before the request joins a queue, and only if the
request does not override it; `settle` is called once for an attempt. What a hook raises is the
caller's, and takes nothing. A body reader gets each decoded chunk once, in order, and `end` once,
however the body ends; nothing is called after that, nor after the reader has raised. What a reader
raises goes to the exception handler of the loop, never to the caller who reads the body: the cost
stays.
"""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from types import EllipsisType
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast

from aiothrottle._checks import check_names, check_number, shown
from aiothrottle._core.limits import RateLimit
from aiothrottle._http.options import HOOKS, Options, names_of
from aiothrottle.adaptive import AdaptiveRate
from aiothrottle.amounts import Cost
from aiothrottle.hooks import BodyReader, Request, Response, SettleHook, Throttle
from aiothrottle.keyed import AnyLimiter, KeyedRateLimiter, expect_outcomes
from aiothrottle.limiter import RateLimiter
from aiothrottle.per_loop import PerLoop
from aiothrottle.permit import ONE, Permit
from aiothrottle.rate import Rate

_Result = TypeVar("_Result")

_NAMES = names_of(Throttle)

#: A limiter, or one for each loop, or the rate limit to make one of.
LimiterLike: TypeAlias = (
    AnyLimiter | PerLoop[RateLimiter] | PerLoop[KeyedRateLimiter] | RateLimit | Literal["server"]
)

# What a rate limit may be, so that no other argument is taken for one.
_RATES = (int, float, str, Rate, AdaptiveRate, list, Mapping)
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


@dataclass(slots=True, eq=False)
class Terms:
    """On which terms a request waits for its limiter."""

    #: None: an integration further in waits, if any.
    limiter: AnyLimiter | None
    #: The key of the request in the limiter; None: it has no keys.
    key: Hashable = None
    cost: Cost = ONE
    priority: float = 0.0
    #: Seconds that an attempt may wait; None: no limit.
    timeout: float | None = None
    #: What the hooks see of the request; None: there is no hook.
    request: Request | None = None
    #: The hook that returns the final cost of an attempt.
    settle: SettleHook | None = None
    #: How often the request was throttled.
    throttled: int = 0

    def after_throttled(self) -> "Terms":
        """Return the terms of the next attempt of a request that was throttled.

        It is ahead of the others for two attempts: at the end of the queue it would be throttled
        again, with all that start at once. If the server is still closed then, it is the turn of
        others to find that out, so that none of them uses up its attempts.
        """
        step = {0: 1, 2: -1}.get(self.throttled, 0)
        return replace(self, priority=self.priority + step, throttled=self.throttled + 1)

    def settle_head(
        self, status: int, headers: Mapping[str, str], permit: Permit
    ) -> "Settlement | None":
        """Call `settle`, and settle the permit if it returns a cost.

        Args:
            status: The status of the response.
            headers: The headers of the response.
            permit: The permit of the attempt; it may be released already.

        Returns:
            The settlement that needs the body, if `settle` returned a reader.

        Raises:
            TypeError: It returned what is neither a cost nor a reader.
            ValueError: It returned a cost that is out of range.
            Exception: What it raised.
        """
        assert self.settle is not None
        assert self.request is not None
        response = Response(self.request, status, headers)
        result: Any = result_of("settle", self.settle, response)
        if result is None:
            return None
        if _is_cost(result):
            permit.settle(result)
            return None
        methods = (getattr(result, name, None) for name in ("feed", "end"))
        if isinstance(result, type) or not all(map(callable, methods)):
            raise TypeError(
                "settle= must return the final cost, an object with the methods feed and end, or "
                f"None, got {shown(result)}"
            )
        return Settlement(cast("BodyReader", result), permit)


class Admission:
    """Finds the limiter of a request, and calls the hooks of an integration.

    Args:
        limiter: One for all requests, or one for each key; or a `PerLoop` of these; or the rate
            limit of one to make. Ellipsis: an integration further in waits, if any.
        options: The options of the integration.
        origin: Returns the key of a request that has none by an option.
        view: Returns what a hook sees of a request.

    Raises:
        TypeError: `limiter` is of a wrong type.
        ValueError: It is no rate limit; or the options have a `key`, and the limiter has no keys.
    """

    def __init__(
        self,
        limiter: LimiterLike | EllipsisType,
        options: Options,
        origin: Callable[[Any], str],
        view: Callable[[Any], Request],
    ) -> None:
        if not isinstance(limiter, AnyLimiter | PerLoop | EllipsisType):
            if not isinstance(limiter, _RATES):
                raise TypeError(
                    "limiter must be a RateLimiter, a KeyedRateLimiter, a PerLoop, or a rate such "
                    f"as '10/s', got {shown(limiter)}"
                )
            limiter = RateLimiter(limiter)
        if options.key is not None and isinstance(limiter, RateLimiter):
            raise ValueError(_needs_keys("key="))
        given = None if limiter is ... else limiter
        #: What was given, or made of it.
        self.given: AnyLimiter | PerLoop[RateLimiter] | PerLoop[KeyedRateLimiter] | None = given
        self._origin = origin
        self._view = view
        self._options = options
        self._has_hooks = any(getattr(options, name) is not None for name in HOOKS)
        if isinstance(given, AnyLimiter):
            expect_outcomes(given)
        # Without a limiter, a budget of retries is for each server.
        by_server = given is None and options.retry.budget is not None
        #: The terms of all requests without an override, if they are the same for all.
        self.usual: Terms | None = None
        if isinstance(given, RateLimiter | None) and not (self._has_hooks or by_server):
            self.usual = Terms(given, timeout=options.queue_timeout)

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter, if there is one; of a `PerLoop` that of the running loop."""
        assert self.given is not None
        if not isinstance(self.given, PerLoop):
            return self.given
        limiter = self.given.get()
        expect_outcomes(limiter)
        return limiter

    def terms(self, request: Any, override: object) -> Terms:  # noqa: ANN401 - the client's own
        """Return the terms of a request.

        Args:
            request: The request.
            override: A `Throttle` of this request; None: it overrides nothing.

        Raises:
            TypeError: A hook returned, or the override has, a value of a wrong type.
            ValueError: The same with a value out of range.
            Exception: What a hook raised.
        """
        own = _checked(override)
        seen = self._view(request) if self._has_hooks else None
        cost = self._value("cost", own, seen, ONE)
        if not _is_cost(cost):
            raise TypeError(
                "a cost must be tokens, a mapping of resources to tokens, or None for the default, "
                f"got {shown(cost)}"
            )
        priority = self._value("priority", own, seen, 0.0)
        check_number("priority", priority, least=-math.inf)
        timeout = own.get("timeout", self._options.queue_timeout)
        key = self._value("key", own, seen, None)
        limiter = None if self.given is None else self.limiter
        if isinstance(limiter, RateLimiter):
            if key is not None:
                raise ValueError(_needs_keys(f"key {shown(key)} of throttle"))
        elif key is None:
            key = self._origin(request)
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(
                f"a key has to be hashable, not {type(key).__name__}: {error}"
            ) from error
        return Terms(limiter, key, cost, priority, timeout, seen, self._options.settle)

    def _value(
        self, name: str, own: Mapping[str, Any], seen: Request | None, default: object
    ) -> Any:  # noqa: ANN401 - checked by the caller
        """Return what the request overrides, else what the hook returns; the default for None."""
        if name in own:
            value = own[name]
        else:
            hook = getattr(self._options, name)
            value = None if hook is None else result_of(name, hook, seen)
        return default if value is None else value


def _needs_keys(subject: str) -> str:
    return f"{subject} needs a KeyedRateLimiter: a RateLimiter has one limit for all"


def origin(scheme: str, host: str, port: int | None) -> str:
    """Return the key of a server: the host as DNS has it, with any port but the default one.

    >>> origin("https", "Example.ORG.", 443), origin("http", "127.0.0.1", 8080)
    ('example.org', '127.0.0.1:8080')
    """
    host = host.lower().rstrip(".")
    if ":" in host:
        with suppress(ValueError):  # a client that accepts it knows better
            host = str(IPv6Address(host))  # the shortest text, as yarl has it and httpx has not
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ---- hooks and overrides -------------------------------------------------------------------------


def result_of(name: str, hook: Callable[[Any], _Result], argument: object) -> _Result:
    """Return the result of a hook.

    Raises:
        TypeError: The hook is asynchronous.
        Exception: What the hook raised.
    """
    result = hook(argument)
    if isinstance(result, Awaitable):
        if isinstance(result, Coroutine):
            cast("Coroutine[Any, Any, Any]", result).close()  # no warning besides the error
        raise TypeError(f"{name}= must be a plain function, got the asynchronous {shown(hook)}")
    return result


def _is_cost(value: object) -> TypeGuard[Cost]:
    """Return whether a value has the type of a cost; a limiter checks it further."""
    return isinstance(value, Mapping | int | float) and not isinstance(value, bool)


def _checked(override: object) -> Mapping[str, Any]:
    """Check the names of an override, and its timeout; a limiter checks the rest."""
    if override is None:
        return {}
    if not isinstance(override, Mapping):
        raise TypeError(f'throttle must be a mapping, such as {{"cost": 3}}, got {shown(override)}')
    own = cast("Mapping[str, Any]", override)
    check_names("throttle", _NAMES, own)
    check_number("timeout of throttle", own.get("timeout"), "seconds", none="None")
    return own


# ---- the final cost ------------------------------------------------------------------------------


class Settlement:
    """A body reader, until it ends, and the permit that it settles.

    Args:
        reader: The reader.
        permit: The permit; it may be released before the body ends.
    """

    __slots__ = ("_loop", "_permit", "_reader")

    def __init__(self, reader: BodyReader, permit: Permit) -> None:
        self._loop = asyncio.get_running_loop()
        self._permit = permit
        self._reader: BodyReader | None = reader

    def feed(self, chunk: bytes, /) -> None:
        """Give a decoded chunk to the reader."""
        if self._reader is not None:
            try:
                self._reader.feed(chunk)
            except Exception as error:  # noqa: BLE001 - reported; the caller's reading goes on
                self._reader = None
                self._report(error)

    def end(self, *, complete: bool) -> None:
        """End the reader, and settle the permit with the cost that it returns."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            cost = reader.end(complete=complete)
            if cost is not None:
                self._permit.settle(cost)
        except Exception as error:  # noqa: BLE001 - reported, as in `feed`
            self._report(error)

    def abandon(self, *, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the reader of a body that is garbage, in a turn of its loop. Thread-safe."""
        if self._reader is None or is_finalizing():
            return
        try:
            self._loop.call_soon_threadsafe(lambda: self.end(complete=False))
        except RuntimeError:  # the loop is closed, and its limiter has ended with it
            self.end(complete=False)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {
                "message": "the body reader of settle= failed; the cost stays as it was charged",
                "exception": error,
            }
        )
