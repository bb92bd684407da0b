"""Which limiter a request waits for: the only one, or that of the request's key."""

from collections.abc import Hashable
from typing import Any, NamedTuple, TypeAlias

from aiothrottle._http.options import Key, Options
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
        origin: Returns the key of a request where the options have no `key`.

    Raises:
        TypeError: `limiter` is of a wrong type.
        ValueError: The options have a `key`, and the limiter has no keys.
    """

    def __init__(self, limiter: AnyLimiter, options: Options, origin: Key) -> None:
        if not isinstance(limiter, RateLimiter | KeyedRateLimiter):
            raise TypeError(
                f"limiter must be a RateLimiter or a KeyedRateLimiter, got {shown(limiter)}"
            )
        if options.key is not None and isinstance(limiter, RateLimiter):
            raise ValueError("key= needs a KeyedRateLimiter: a RateLimiter has one limit for all")
        expect_outcomes(limiter)
        self.limiter: AnyLimiter = limiter
        self._key = options.key or origin
        #: The target of all requests, if there is one limiter for all.
        self.only: Target | None = (
            Target(None, limiter) if isinstance(limiter, RateLimiter) else None
        )

    def target(self, method: str, url: Any) -> Target:  # noqa: ANN401 - as the client has it
        """Return the key and the limiter of a request. Raises what `key` raises."""
        if isinstance(self.limiter, RateLimiter):
            return Target(None, self.limiter)
        key = self._key(method, url)
        try:
            return Target(key, self.limiter[key])
        except TypeError as error:
            raise TypeError(
                f"a key has to be hashable, not {type(key).__name__}: {error}"
            ) from error


def origin(scheme: str, host: str, port: int | None) -> str:
    """Return the key of a server: the host as DNS has it, with any port but the default one.

    >>> origin("https", "Example.ORG.", 443), origin("http", "127.0.0.1", 8080)
    ('example.org', '127.0.0.1:8080')
    """
    host = host.lower().rstrip(".")
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
