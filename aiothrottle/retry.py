"""When to try again, and how long to wait first: a value, without a clock and without I/O."""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["Retry"]

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class Retry:
    """Which failures are tried again, how often, and after how long.

    A refusal is tried again for any method, since the server says that it did nothing: a 429,
    or a 503 with Retry-After. Another status of `statuses`, and a connection that failed, only for
    `methods`.

    The wait is what the server says in Retry-After. Where it says nothing it is drawn between 0
    and ``backoff * 2 ** (attempt - 1)``, at most `max_backoff`: exponential back-off with full
    jitter (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

    Args:
        attempts: How often a request is sent at the most, 1 or more; 1 is never again.
        statuses: What is tried again.
        methods: Methods that may be sent twice although the first may have been carried out.
        backoff: Seconds, the greatest wait before the second attempt. Above 0.
        max_backoff: Seconds, the greatest wait that is our own choice.
        max_retry_after: Seconds. A server that asks for more gets no second attempt: the response
            is given back at once, and whoever asked decides.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range.

    >>> Retry(attempts=3).next_delay(1, "POST", status=429, retry_after=2.0)
    2.0
    >>> Retry(attempts=3).next_delay(3, "POST", status=429, retry_after=2.0) is None
    True
    """

    attempts: int = 5
    statuses: Collection[int] = frozenset({429, 502, 503, 504})
    methods: Collection[str] = _IDEMPOTENT
    backoff: float = 0.5
    max_backoff: float = 30.0
    max_retry_after: float = 120.0

    TOO_MANY_REQUESTS: ClassVar[int] = 429
    SERVICE_UNAVAILABLE: ClassVar[int] = 503

    def __post_init__(self) -> None:
        """Refuse what makes no sense, before the first request."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise TypeError(f"attempts is a whole number, 1 or more, not {self.attempts!r}")
        if self.attempts < 1:
            raise ValueError(f"attempts is 1 or more (1: never again), not {self.attempts!r}")
        for name in ("backoff", "max_backoff", "max_retry_after"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name} is a finite number of seconds above 0, not {seconds!r}")
        for name in ("statuses", "methods"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a collection, not {getattr(self, name)!r}")

    def is_refusal(self, status: int, retry_after: float | None) -> bool:
        """Tell whether the server said "not now": nothing was done, and others should wait too."""
        if status == self.SERVICE_UNAVAILABLE:
            return retry_after is not None
        return status == self.TOO_MANY_REQUESTS

    def next_delay(
        self,
        attempt: int,
        method: str,
        *,
        status: int | None,
        retry_after: float | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> float | None:
        """Give the seconds to wait before the next attempt, or None for: leave it.

        Args:
            attempt: How many were made.
            method: In capitals.
            status: Of the response; None if there was none, as the connection failed.
            retry_after: Seconds that the server asked for, if it did.
            uniform: Draws from [0, 1).
        """
        if attempt >= self.attempts:
            return None
        if status is not None and status not in self.statuses:
            return None
        not_done = status is not None and self.is_refusal(status, retry_after)
        if not not_done and method not in self.methods:
            return None
        if retry_after is not None and retry_after > self.max_retry_after:
            return None
        # A server that says 0 means "soon", and would get all attempts in a blink.
        return retry_after or self._draw(attempt, uniform)

    def _draw(self, attempt: int, uniform: Callable[[], float]) -> float:
        # Where max_backoff is reached the power may be beyond a float, so it is not taken.
        doublings = min(attempt - 1, math.ceil(math.log2(max(1, self.max_backoff / self.backoff))))
        return uniform() * min(self.max_backoff, self.backoff * 2.0**doublings)
