"""Which limiter a request waits for: the only one, or that of the request's key."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

from aiothrottle._http.options import Options
from aiothrottle.keyed import KeyedRateLimiter, expect_outcomes
from aiothrottle.limiter import RateLimiter
from aiothrottle.redact import shown

__all__ = ["Admission", "AnyLimiter", "Target", "origin"]

AnyLimiter: TypeAlias = RateLimiter | KeyedRateLimiter

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Target(NamedTuple):
    """The key of a request and the limiter of that key; either may be None."""

    key: Hashable
    limiter: RateLimiter | None


class Admission:
    """Finds the limiter of a request.

    Args:
        limiter: One for all requests, or one for each key.
        options: The options of the integration.
        origin: Returns the key of a request that has none by an option, from method and URL.

    Raises:
        TypeError: `limiter` is of a wrong type.
        ValueError: The options have a `key`, and the limiter has no keys.
    """

    def __init__(
        self, limiter: AnyLimiter, options: Options, origin: Callable[[str, Any], str]
    ) -> None:
        if not isinstance(limiter, RateLimiter | KeyedRateLimiter):
            got = shown(limiter)
            is_rate = isinstance(limiter, int | float | str)
            write = f"; write RateLimiter({got})" if is_rate else ""
            raise TypeError(
                f"limiter must be a RateLimiter or a KeyedRateLimiter, got {got}{write}"
            )
        if options.key is not None and isinstance(limiter, RateLimiter):
            raise ValueError(_needs_keys("key="))
        expect_outcomes(limiter)
        self.limiter: AnyLimiter = limiter
        self._origin = origin
        #: The target of all requests, if there is one limiter for all.
        self.only: Target | None = (
            Target(None, limiter) if isinstance(limiter, RateLimiter) else None
        )

    def target(self, method: str, url: Any) -> Target:  # noqa: ANN401 - as the client has it
        """Return the limiter of a request without a key of its own: its server is the key."""
        return self.only or self.target_of(self._origin(method, url))

    def target_of(self, key: Hashable) -> Target:
        """Return a key and its limiter.

        Raises:
            TypeError: The key is not hashable.
            ValueError: The limiter has no keys.
        """
        if isinstance(self.limiter, RateLimiter):
            raise ValueError(_needs_keys(f"key {shown(key)} of throttle"))
        try:
            return Target(key, self.limiter[key])
        except TypeError as error:
            raise TypeError(
                f"a key has to be hashable, not {type(key).__name__}: {error}"
            ) from error


def _needs_keys(subject: str) -> str:
    return f"{subject} needs a KeyedRateLimiter: a RateLimiter has one limit for all"


def origin(scheme: str, host: str, port: int | None) -> str:
    """Return the key of a server: the host as DNS has it, with any port but the default one.

    >>> origin("https", "Example.ORG.", 443), origin("http", "127.0.0.1", 8080)
    ('example.org', '127.0.0.1:8080')
    """
    host = host.lower().rstrip(".")
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
