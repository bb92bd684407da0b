"""The server of a simulation: an algorithm, and the response to a throttled request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from aiothrottle._checks import check_choice, check_number
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.testing.algorithms import AlgorithmName, ServerAlgorithm, make_algorithm

RetryAfter: TypeAlias = Literal["seconds", "exact", "none"]
"""The Retry-After of a 429: whole seconds (rounded up), exact seconds, or none."""

#: Seconds. Sums of durations are off by a few units in the last place.
ROUNDING = 1e-9
_SHORTEST_PERIOD = 1e-6
# A server that admits so many at one instant has no limit.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, init=False)
class Server:
    """A simulated server: what it admits, and its response to a throttled request.

    A throttled request does not count under the algorithm.

    Args:
        rate: Requests per period, of all clients together.
        algorithm: How the rate is enforced, as in `aiothrottle.testing.RateLimitedServer`:
            ``"sliding-window-log"``, ``"fixed-window"`` or ``"token-bucket"``. Or a function
            without arguments that makes your own algorithm, with the methods of
            `aiothrottle.testing.algorithms.ServerAlgorithm`; `rate` then only gives the period.
        burst: How many requests the token bucket holds; by default the limit of the rate.
        phase: How far into a fixed window the simulation begins, in seconds. A client cannot know
            it; by default the seed of the simulation decides.
        retry_after: The Retry-After: ``"seconds"``, the time until the next request is admitted,
            rounded up to a whole second, as in HTTP; ``"exact"``, not rounded, as in the headers
            and bodies of some APIs; ``"none"``, no header.

    Raises:
        TypeError: `rate` is of a kind that is not a rate.
        ValueError: An argument is out of range, or contradicts another one.

    >>> Server("100/min", algorithm="fixed-window").period
    60.0
    """

    rate: Rate
    algorithm: AlgorithmName | Callable[[], ServerAlgorithm]
    burst: float | None
    phase: float | None
    retry_after: RetryAfter

    def __init__(
        self,
        rate: RateLike,
        algorithm: AlgorithmName | Callable[[], ServerAlgorithm] = "sliding-window-log",
        *,
        burst: float | None = None,
        phase: float | None = None,
        retry_after: RetryAfter = "seconds",
    ) -> None:
        if not callable(algorithm):
            check_choice("algorithm", algorithm, get_args(AlgorithmName))
        check_choice("retry_after", retry_after, get_args(RetryAfter))
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", as_rate(rate))
        set_field(self, "algorithm", algorithm)
        set_field(self, "burst", burst)
        set_field(self, "phase", phase)
        set_field(self, "retry_after", retry_after)
        if not callable(algorithm):
            make_algorithm(self.rate, algorithm, burst, phase)  # which checks the arguments
        elif burst is not None or phase is not None:
            raise ValueError("burst and phase belong to an algorithm that is named")
        check_number("the period of a server", self.period, "seconds", least=_SHORTEST_PERIOD)

    @property
    def period(self) -> float:
        """Seconds of a window; a rate below one request per period is one in a longer period."""
        return self.rate.in_whole_tokens.period

    def make_algorithm(self, phase: float = 0.0) -> ServerAlgorithm:
        """Return a fresh algorithm.

        Args:
            phase: Seconds since a fixed window began.
        """
        if callable(self.algorithm):
            return self.algorithm()
        begun = phase if self.algorithm == "fixed-window" else None
        return make_algorithm(self.rate, self.algorithm, self.burst, begun)


def most_admitted(algorithm: ServerAlgorithm, seconds: float) -> int:
    """Return the most requests that an algorithm can admit in that time."""
    count, now = 0, 0.0
    at_once = 0
    while at_once < _NO_LIMIT:
        ready_at = algorithm.ready_at()
        at_once = 0 if ready_at > now else at_once + 1
        now = max(now, ready_at)
        if now >= seconds - ROUNDING:
            return count
        algorithm.count(now)
        count += 1
    raise ValueError(f"a server that admits {_NO_LIMIT} requests at one instant limits nothing")
