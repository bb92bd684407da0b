"""Rejects unknown names, and says which stand here for the ones of other libraries.

It is called where objects are made, never for a request.
"""

import functools
import inspect
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from aiothrottle.texts import number

__all__ = ["check_names", "explains_arguments", "no_attribute"]

_Class = TypeVar("_Class", bound=type[Any])

# The arguments of other limiters that are the rate, or its period.
_LIMITS = ("rate_limit", "max_rate", "max_calls", "calls", "limit", "rate", "rate_per_duration")
_PERIODS = ("period", "time_period", "per_seconds", "interval", "per", "duration", "time_window")
_SLOTS = "write concurrency_limit="
_STORE = "write store=, such as store=RedisStore(client), and key="
_ATTEMPTS = "write attempts=, which counts the first attempt too"
_RETRY = "write retry=Retry(attempts=3)"
_IN_LIMITER = "write it into the limiter, such as RateLimiter('10/s', concurrency_limit=5)"
# What to write in place of an argument of another library, for each kind of class here, which is
# known by one of its arguments, or by its name.
_INSTEAD = {
    "rate_limit": {
        "backend": _STORE,
        "buffer_ms": "write guard=, in seconds",
        "callbacks": "write limiter.observe()",
        "capacity": "write burst=",
        "concurrency": _SLOTS,
        "max_at_once": _SLOTS,
        "max_burst": "write burst=",
        "max_concurrency": _SLOTS,
        "max_concurrent": _SLOTS,
        "quotas": "write rate_limit={'requests': '60/min', 'tokens': '90000/min'}",
        "retry_interval": "leave it out: no waiter polls",
        "storage": _STORE,
        "strategy": "write algorithm=, such as algorithm=FixedWindow",
        "timeout": "write limiter.throttle(timeout=)",
    },
    "backoff": {
        "allowed_methods": "write methods=",
        "backoff_factor": "write backoff=, in seconds",
        "backoff_max": "write max_backoff=, in seconds",
        "before_sleep": "write limiter.observe()",
        "evaluate_response_callback": "write should_retry=",
        "factor": "leave it out: each longest delay is twice the one before",
        "max_attempts": "write attempts=",
        "max_retries": _ATTEMPTS,
        "max_timeout": "write max_backoff=, in seconds",
        "min_timeout": "write backoff=, in seconds",
        "random_func": "leave it out",
        "reraise": "leave it out: the caller gets the last response or exception",
        "retries": _ATTEMPTS,
        "retry": "write statuses=, exceptions= or should_retry=",
        "retry_all_server_errors": "write statuses={429, 500, 502, 503, 504}",
        "start_timeout": "write backoff=, in seconds",
        "status_forcelist": "write statuses=",
        "stop": _ATTEMPTS,
        "total": _ATTEMPTS,
        "wait": "write backoff= and max_backoff=, in seconds",
    },
    "retry": {
        "attempts": _RETRY,
        "client_session": "write session=",
        "concurrency_limit": _IN_LIMITER,
        "max_retries": _RETRY,
        "rate": _IN_LIMITER,
        "rate_limit": _IN_LIMITER,
        "retries": _RETRY,
        "retry_options": _RETRY,
    },
    # The arguments of httpx.AsyncClient that a client with a transport ignores, and its timeout.
    "ThrottledTransport": {
        "http2": "write transport=AsyncHTTPTransport(http2=True)",
        "limits": "write transport=AsyncHTTPTransport(limits=...)",
        "proxy": "write transport=AsyncHTTPTransport(proxy=...)",
        "timeout": "write AsyncClient(timeout=...)",
        "verify": "write transport=AsyncHTTPTransport(verify=...)",
    },
}
# What to write in place of an attribute that a limiter has in another library. A transport of httpx
# is called by the last one.
_ATTRIBUTES = {
    "close": "await limiter.aclose()",
    "has_capacity": "await limiter.peek(cost)",
    "locked": "await limiter.peek()",
    "release": "permit.release(), of the permit that `await limiter.acquire()` returns",
    "try_acquire_async": "await limiter.acquire(), or limiter.try_acquire(), which does not wait",
    "wait": "async with limiter.throttle():",
    "handle_async_request": "transport=ThrottledTransport(limiter)",
}


def check_names(
    owner: str, known: Collection[str], given: Mapping[str, object], *, elsewhere: str = ""
) -> None:
    """Raise a TypeError if a given argument is not known; `elsewhere` follows it in the message.

    >>> check_names("ThrottleMiddleware", {"max_hold", "retry"}, {"max_holds": 1})
    Traceback (most recent call last):
    TypeError: ThrottleMiddleware has no argument 'max_holds'; did you mean 'max_hold'?
    >>> check_names("RateLimiter", {"rate_limit"}, {"rate_limit": 10, "period": 60})
    Traceback (most recent call last):
    TypeError: RateLimiter has no argument 'period'; write RateLimiter('10/60s')
    """
    for name in given:
        if name not in known:
            advice = _advice(owner, known, given, name)
            raise TypeError(f"{owner} has no argument {name!r}{elsewhere}{advice}")


def explains_arguments(kind: _Class) -> _Class:
    """Decorate a class: an unknown argument raises the error of `check_names`."""
    init: Any = kind.__init__
    parameters = list(inspect.signature(kind).parameters.values())
    known = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
    names = frozenset(known)

    @functools.wraps(init)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        if not names.issuperset(kwargs):
            check_names(kind.__name__, names, {**dict(zip(known, args, strict=False)), **kwargs})
        init(self, *args, **kwargs)

    type.__setattr__(kind, "__init__", checked)
    return kind


def no_attribute(owner: object, name: str) -> AttributeError:
    """Make the error of a limiter without an attribute of that name.

    It has the owner too, from which a traceback suggests a similar name.
    """
    kind = type(owner).__name__
    advice = f"; write {_ATTRIBUTES[name]}" if name in _ATTRIBUTES else ""
    return AttributeError(
        f"{kind!r} object has no attribute {name!r}{advice}", name=name, obj=owner
    )


def _advice(owner: str, known: Collection[str], given: Mapping[str, object], name: str) -> str:
    if "rate_limit" in known and name in {*_LIMITS, *_PERIODS}:
        return f"; write {_rate(owner, given)}"
    for mark, instead in _INSTEAD.items():
        if (mark in known or mark == owner) and name in instead:
            return f"; {instead[name]}"
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _rate(owner: str, given: Mapping[str, object]) -> str:
    """Return the call with the rate that the arguments of another library mean."""
    limit, period = (_first(given, names) for names in (_LIMITS, _PERIODS))
    if limit is None:
        return f"the period into the rate, such as {owner}('10/60s')"
    if period is None:
        return f"{owner}({limit}) for {limit} per second, or {owner}('{limit}/min')"
    return f"{owner}('{limit}/{period}s')"


def _first(given: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    """Return the first given number of these arguments, as text."""
    values = (given.get(name) for name in names)
    return next((number(it) for it in values if type(it) is int or type(it) is float), None)
