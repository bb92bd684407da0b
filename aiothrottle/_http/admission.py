"""Which limiter a request waits for, and what a refusal does to all who share that limiter.

Shared by all HTTP clients that we put in front of a limiter; none is imported here.
"""

from collections.abc import Awaitable, Hashable
from typing import Any, NamedTuple, TypeAlias

from aiothrottle._http.announcements import Announcements
from aiothrottle._http.attempts import Attempts, Outcome, chain
from aiothrottle._http.options import Key, Options
from aiothrottle._http.overload import Overloads
from aiothrottle.budget import RetryQuota
from aiothrottle.errors import ThrottleError
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit, report_pause, report_retry
from aiothrottle.redact import shown

__all__ = ["Admission", "AnyLimiter", "Target", "origin"]

AnyLimiter: TypeAlias = RateLimiter | KeyedRateLimiter

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class Target(NamedTuple):
    """Where a request goes in: its key, and the limiter of that key."""

    key: Hashable
    limiter: RateLimiter


class Admission:
    """Finds the limiter of a request, waits for it, and pauses it when the server refuses.

    Args:
        limiter: One for all requests, or one for each key.
        options: Those of the integration.
        origin: Gives the key of a request where the options have none.

    Raises:
        TypeError: `limiter` is none.
        ValueError: There is a key, and a limiter that has none.
    """

    def __init__(self, limiter: AnyLimiter, options: Options, origin: Key) -> None:
        if not isinstance(limiter, RateLimiter | KeyedRateLimiter):
            raise TypeError(f"limiter is a RateLimiter or a KeyedRateLimiter, not {shown(limiter)}")
        if options.key is not None and isinstance(limiter, RateLimiter):
            raise ValueError("key= needs a KeyedRateLimiter: a RateLimiter has one limit for all")
        retry, overload = options.retry, options.overload
        self.limiter = limiter
        self.retry = retry
        self.queue_timeout: float | None = options.queue_timeout
        self.quota: RetryQuota | None = None if retry.budget is None else RetryQuota(retry.budget)
        self.announcements: Announcements = Announcements(
            options.heed, options.profiles, retry.max_retry_after
        )
        self.overloads: Overloads | None = None if overload is None else Overloads(overload)
        self._key = options.key or origin
        #: Where all requests go, if there is one limiter for all.
        self.only: Target | None = (
            Target(None, limiter) if isinstance(limiter, RateLimiter) else None
        )

    def target(self, method: str, url: Any) -> Target:  # noqa: ANN401 - as the client has it
        """Find the limiter of a request. Raises what `key` does."""
        if self.only is not None:
            return self.only
        assert isinstance(self.limiter, KeyedRateLimiter)
        key = self._key(method, url)
        try:
            return Target(key, self.limiter[key])
        except TypeError as error:
            raise TypeError(
                f"a key has to be hashable, not {type(key).__name__}: {error}"
            ) from error

    def enter(
        self, limiter: RateLimiter, server: str | None = None, before: Outcome[Any] | None = None
    ) -> Awaitable[Permit]:
        """Wait for a turn, and no longer than `queue_timeout`.

        Args:
            limiter: Whose turn.
            server: The origin that may be overloaded, where that counts.
            before: How the attempt before ended: it is the cause of what is raised here.

        Raises:
            Overloaded: The request is rejected here. Nothing was taken of the limiter.
        """
        if server is None and before is None:
            return limiter.throttle(timeout=self.queue_timeout).__aenter__()
        return self._enter(limiter, server, before)

    async def _enter(
        self, limiter: RateLimiter, server: str | None, before: Outcome[Any] | None
    ) -> Permit:
        try:
            if self.overloads is not None and server is not None:
                self.overloads.check(server)
            return await limiter.throttle(timeout=self.queue_timeout).__aenter__()
        except ThrottleError as error:
            chain(error, before)
            raise

    def answered(self, server: str | None, status: int) -> None:
        """Tell what is known of overloads that the server has answered."""
        if self.overloads is not None and server is not None:
            self.overloads.answered(server, status)

    def failed(self, server: str | None) -> None:
        """Tell what is known of overloads that the server has not answered."""
        if self.overloads is not None and server is not None:
            self.overloads.failed(server)

    def ended(self, permit: Permit, outcome: Outcome[Any], delay: float | None) -> bool:
        """Tell the limiter how the permit's request ended; a refusal pauses it.

        How long, and what else it does, is said at `Permit.report_throttled`. A failure without a
        response tells nothing.

        Args:
            permit: Of the request; it may have been released.
            outcome: How the request ended.
            delay: Seconds until it should be tried again, if it should.

        Returns:
            Whether the limiter is paused for as long as `delay` now.
        """
        if outcome.refused:
            return report_pause(
                permit,
                delay if delay is not None else outcome.retry_after or 0.0,
                told=bool(outcome.retry_after),
                jitter=self.retry.spread,
                longest=self.retry.max_retry_after,
            )
        if outcome.response is not None:
            permit.report_success()
        return False

    def again(
        self, attempts: Attempts, permit: Permit, outcome: Outcome[Any], delay: float
    ) -> bool:
        """Begin another attempt, if its cost can be paid; who observes the limiter is told."""
        if not attempts.again(outcome, delay):
            return False
        report_retry(permit, attempts.count, delay, status=outcome.status, error=outcome.error)
        return True


def origin(scheme: str, host: str, port: int | None) -> str:
    """Give the key of a server: the host as DNS has it, with the port unless it is the usual one.

    >>> origin("https", "Example.ORG.", 443), origin("http", "127.0.0.1", 8080)
    ('example.org', '127.0.0.1:8080')
    """
    host = host.lower().rstrip(".")
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
