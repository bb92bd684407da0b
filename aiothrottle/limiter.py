"""The limiter: what people hold in their hands."""

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from aiothrottle.algorithms import Algorithm, RollingWindow, TokenBucket, Unlimited
from aiothrottle.decision import Decision
from aiothrottle.errors import CostTooHigh
from aiothrottle.line import Line
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate, RateLike, as_rate

__all__ = ["RateLimiter"]


class RateLimiter:
    """Keeps what you do under so many per period, and so many at once.

    Use ``async with limiter.throttle():`` around each request. It waits its turn, first come first
    served, and holds one slot until the block is left. A limiter needs no set-up and no clean-up:
    make it anywhere, before a loop runs too. ``async with`` around it closes it at the end.

    It belongs to the event loop that it is first used on. When that loop is closed, the next one
    may use it, and finds the budget as it was.

    Args:
        rate_limit: Tokens per second, a string such as ``"100/min"``, or a `Rate`. None: no limit.
        concurrency_limit: How many may be inside ``throttle()`` at once. None: no limit.
        algorithm: How the rate is meant: a class, which is given the rate, or an instance. By
            default `RollingWindow`: never more than the limit in any period.
        guard: Seconds by which the period is stretched, for the jitter of the network between
            here and the server: a request that is delayed more than the one a period later
            arrives in the same window as that one.
        clock: Gives the time in seconds; must not go back. On an event loop with a time of its
            own (`aiothrottle.testing.VirtualTimeLoop`) the default follows that time.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range, or two of them contradict each other.

    >>> limiter = RateLimiter(rate_limit=20, concurrency_limit=10)
    """

    __slots__ = ("__weakref__", "_line")

    def __init__(
        self,
        rate_limit: RateLike | None = None,
        concurrency_limit: int | None = None,
        *,
        algorithm: "type[Algorithm[Any]] | Algorithm[Any] | None" = None,
        guard: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if concurrency_limit is not None:
            _check_concurrency(concurrency_limit)
        self._line = Line(_build(rate_limit, algorithm, guard), concurrency_limit, clock)

    def throttle(self, cost: float = 1.0) -> Permit:
        """Give what to enter, ``async with``, around a request: waits for its turn.

        Args:
            cost: Tokens that it costs, 0 or more.

        Raises:
            CostTooHigh: The limit can never admit as much.
            TypeError: The cost is no number.
            ValueError: The cost is below zero, or not a number.
            LimiterClosed: On entering: the limiter is closed, or is closed meanwhile.
            RuntimeError: On entering: the limiter belongs to another event loop that is open.

        >>> async def fetch(limiter):
        ...     async with limiter.throttle() as permit:
        ...         print(f"waited {permit.waited} s")
        """
        if cost != 1.0 or cost is True:
            self._check_cost(cost)
        permit = Permit()
        permit._line = self._line
        permit.cost = cost
        permit._held = None
        return permit

    async def acquire(self, cost: float = 1.0) -> Permit:
        """Wait for a turn and give the permit. Release it when done; raises what `throttle` does.

        For where no ``async with`` fits: the slot is yours until `Permit.release`.
        """
        return await self.throttle(cost).__aenter__()

    async def try_acquire(self, cost: float = 1.0) -> Decision:
        """Spend `cost` if it may go now and nobody waits; never waits.

        The decision carries the permit if it was spent. Raises what `throttle` does.
        """
        permit, line = self.throttle(cost), self._line
        line.bind()
        now = line.now()
        if line.try_now(permit, now):
            return self._decision(now, 0.0, permit)
        return self._decision(now, line.delay(now, cost), None)

    def pause(self, seconds: float) -> None:
        """Let nothing start for so long from now: present waiters, newcomers, everybody.

        What runs goes on. A pause under way is never shortened.

        Raises:
            TypeError: `seconds` is no number.
            ValueError: `seconds` is below zero or not finite.
        """
        _check_seconds("a pause", seconds)
        self._line.pause(seconds)

    async def aclose(self) -> None:
        """Close for good: whoever waits or comes later gets `LimiterClosed`. What runs goes on."""
        await self._line.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        line = self._line
        limit = "" if line.concurrency_limit is None else f" of {line.concurrency_limit}"
        state = "closed, " if line.closed else ""
        if (left := line.paused_until - line.clock()) > 0:
            state += f"paused for {left:.3g} s, "
        return (
            f"<RateLimiter {line.algorithm!r}, {state}"
            f"{line.in_flight}{limit} in flight, {line.waiting} waiting>"
        )

    def _check_cost(self, cost: float) -> None:
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            raise TypeError(f"a cost is a number of tokens, not {cost!r}")
        if not cost >= 0:
            raise ValueError(f"a cost is a number of tokens, 0 or more, not {cost!r}")
        capacity = self._line.algorithm.capacity
        if cost > capacity:
            raise CostTooHigh(cost, capacity)

    def _decision(self, now: float, wait: float, permit: Permit | None) -> Decision:
        algorithm, state = self._line.algorithm, self._line.state
        return Decision(
            allowed=permit is not None,
            limit=algorithm.capacity,
            remaining=algorithm.remaining(state, now),
            retry_after=wait,
            reset_after=algorithm.reset_after(state, now),
            permit=permit,
        )


def _build(
    rate_limit: RateLike | None,
    algorithm: "type[Algorithm[Any]] | Algorithm[Any] | None",
    guard: float,
) -> Algorithm[Any]:
    """Make one algorithm of what the user said of rate, law and guard."""
    _check_seconds("guard", guard)
    if rate_limit is None:
        if guard:
            raise ValueError(f"guard={guard!r} stretches the period of a rate_limit: give one")
        if algorithm is None:
            return Unlimited()
        if isinstance(algorithm, Algorithm):
            algorithm.start()  # one that lacks a rate says so
            return algorithm
        if isinstance(algorithm, type):
            raise ValueError(f"{algorithm.__name__} needs a rate_limit; or give an instance")
        raise TypeError(f"algorithm is an Algorithm, or a class of one, not {algorithm!r}")
    rate = as_rate(rate_limit)
    rate = Rate(rate.limit, rate.period + guard)
    if algorithm is None:
        return RollingWindow(rate)
    if isinstance(algorithm, TokenBucket) and algorithm.rate is None:
        return TokenBucket(rate, burst=algorithm.burst)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return algorithm(rate)  # type: ignore[call-arg]
    if isinstance(algorithm, Algorithm):
        raise ValueError(
            f"two rates: rate_limit={rate_limit!r} and that of {algorithm!r}; give one of them"
        )
    raise TypeError(f"algorithm is an Algorithm, or a class of one, not {algorithm!r}")


def _check_concurrency(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"concurrency_limit is a whole number, 1 or more, not {limit!r}")
    if limit < 1:
        raise ValueError(f"concurrency_limit is 1 or more (None for no limit), not {limit!r}")


def _check_seconds(what: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= sys.float_info.max:
        raise ValueError(f"{what} is a finite number of seconds, 0 or more, not {seconds!r}")
