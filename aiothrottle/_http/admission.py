"""Which limiter a request waits for: the only one, or that of the request's key."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import WeakSet

from aiothrottle._checks import shown
from aiothrottle._core.limits import RateLimit
from aiothrottle._http.options import Options
from aiothrottle.adaptive import AdaptiveRate
from aiothrottle.keyed import KeyedRateLimiter, expect_outcomes
from aiothrottle.limiter import RateLimiter
from aiothrottle.per_loop import PerLoop
from aiothrottle.rate import Rate

__all__ = ["Admission", "AnyLimiter", "LimiterLike", "Target", "origin"]

AnyLimiter: TypeAlias = RateLimiter | KeyedRateLimiter
#: A limiter, or one for each loop, or the rate limit to make one of.
LimiterLike: TypeAlias = (
    AnyLimiter | PerLoop[RateLimiter] | PerLoop[KeyedRateLimiter] | RateLimit | Literal["server"]
)

# What a rate limit may be, so that no other argument is taken for one.
_RATES = (int, float, str, Rate, AdaptiveRate, list, Mapping)
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Target(NamedTuple):
    """The key of a request and the limiter of that key; either may be None."""

    key: Hashable
    limiter: RateLimiter | None


class Admission:
    """Finds the limiter of a request.

    Args:
        limiter: One for all requests, or one for each key; or a `PerLoop` of these; or the rate
            limit of one to make.
        options: The options of the integration.
        origin: Returns the key of a request that has none by an option, from method and URL.

    Raises:
        TypeError: `limiter` is of a wrong type.
        ValueError: It is no rate limit; or the options have a `key`, and the limiter has no keys.
    """

    def __init__(
        self, limiter: LimiterLike, options: Options, origin: Callable[[str, Any], str]
    ) -> None:
        if not isinstance(limiter, RateLimiter | KeyedRateLimiter | PerLoop):
            if not isinstance(limiter, _RATES):
                raise TypeError(
                    "limiter must be a RateLimiter, a KeyedRateLimiter, a PerLoop, or a rate such "
                    f"as '10/s', got {shown(limiter)}"
                )
            limiter = RateLimiter(limiter)
        if options.key is not None and isinstance(limiter, RateLimiter):
            raise ValueError(_needs_keys("key="))
        # Those of a `PerLoop` that know that their outcomes are reported.
        self._expecting = WeakSet[AnyLimiter]()
        #: What was given, or made of it.
        self.given: AnyLimiter | PerLoop[RateLimiter] | PerLoop[KeyedRateLimiter] = limiter
        self._origin = origin
        if not isinstance(limiter, PerLoop):
            expect_outcomes(limiter)
        #: The target of all requests, if there is one limiter for all.
        self.only: Target | None = (
            Target(None, limiter) if isinstance(limiter, RateLimiter) else None
        )

    @property
    def limiter(self) -> AnyLimiter:
        """The limiter; of a `PerLoop` that of the running loop."""
        if not isinstance(self.given, PerLoop):
            return self.given
        limiter = self.given.get()
        if limiter not in self._expecting:
            self._expecting.add(limiter)
            expect_outcomes(limiter)
        return limiter

    def target(self, method: str, url: Any) -> Target:  # noqa: ANN401 - as the client has it
        """Return the limiter of a request without a key of its own: its server is the key."""
        if self.only is not None:
            return self.only
        limiter = self.limiter
        if isinstance(limiter, RateLimiter):
            return Target(None, limiter)
        return self.target_of(self._origin(method, url))

    def target_of(self, key: Hashable) -> Target:
        """Return a key and its limiter.

        Raises:
            TypeError: The key is not hashable.
            ValueError: The limiter has no keys.
        """
        limiter = self.limiter
        if isinstance(limiter, RateLimiter):
            raise ValueError(_needs_keys(f"key {shown(key)} of throttle"))
        try:
            return Target(key, limiter[key])
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
