"""The limiter: what people hold in their hands."""

import asyncio
import functools
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Literal, ParamSpec, Self, TypeAlias, TypeVar, cast

from aiothrottle.algorithms import Algorithm, AllOf, RollingWindow, TokenBucket, Unlimited
from aiothrottle.decision import Decision
from aiothrottle.errors import CostTooHigh
from aiothrottle.line import Line
from aiothrottle.permit import Permit, make_permit
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.statistics import Statistics

__all__ = ["RateLimiter"]

Law: TypeAlias = type[Algorithm[Any]] | Algorithm[Any]
_Law: TypeAlias = tuple[float | None, Law | None, float]
RateLimit: TypeAlias = RateLike | Sequence[RateLike]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


_UNCHANGED = _Unchanged.UNCHANGED

# The very object, so that the usual cost is known by a look and needs no check.
_ONE = 1.0


class RateLimiter:
    """Keeps what you do under so many per period, and so many at once.

    Use ``async with limiter.throttle():`` around each request. It waits its turn, first come first
    served, and holds one slot until the block is left. A limiter needs no set-up and no clean-up:
    make it anywhere, before a loop runs too. ``async with`` around it closes it at the end.

    It belongs to the event loop that it is first used on. When that loop is closed, the next one
    may use it, and finds the budget as it was.

    Args:
        rate_limit: Tokens per second, a string such as ``"100/min"``, or a `Rate`; or a list of
            them, which all hold at once. None: no limit.
        concurrency_limit: How many may be inside ``throttle()`` at once. None: no limit.
        burst: How many tokens may go back to back, 1 or more, after which they go at the average
            of the rate (of the fastest, if there are several). Without it the whole limit may.
        algorithm: How the rate is meant: a class, which is given the rate, or an instance. By
            default `RollingWindow`: never more than the limit in any period.
        guard: Seconds by which the period is stretched, for the jitter of the network between
            here and the server: a request that is delayed more than the one a period later
            arrives in the same window as that one.
        parent: Another limiter that has to let each request go as well.
        max_queue: How many may wait. None: no limit.
        clock: Gives the time in seconds; must not go back. On an event loop with a time of its
            own (`aiothrottle.testing.VirtualTimeLoop`) the default follows that time.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range, or two of them contradict each other.

    >>> limiter = RateLimiter(rate_limit=20, concurrency_limit=10)
    >>> limiter = RateLimiter(["10/s", "500/min", "10000/day"], 8)
    """

    __slots__ = ("__weakref__", "_law", "_line")

    def __init__(
        self,
        rate_limit: RateLimit | None = None,
        concurrency_limit: int | None = None,
        *,
        burst: float | None = None,
        algorithm: Law | None = None,
        guard: float = 0.0,
        parent: "RateLimiter | None" = None,
        max_queue: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_whole("concurrency_limit", concurrency_limit)
        _check_whole("max_queue", max_queue)
        if parent is not None and not isinstance(parent, RateLimiter):
            raise TypeError(f"parent is a RateLimiter, not {parent!r}")
        # Kept for `update`, which changes the rate alone.
        self._law: _Law = (burst, algorithm, guard)
        self._line: Line = Line(
            _build(rate_limit, *self._law),
            concurrency_limit,
            clock,
            parent=None if parent is None else parent._line,
            max_queue=max_queue,
        )

    @classmethod
    def _around(cls, line: Line, law: _Law) -> Self:
        """Make a limiter of a line that lives already."""
        limiter = cls.__new__(cls)
        limiter._line = line
        limiter._law = law
        return limiter

    def throttle(
        self, cost: float = _ONE, *, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """Give what to enter, ``async with``, around a request: waits for its turn.

        Args:
            cost: Tokens that it costs, 0 or more. A heavy one is never overtaken by lighter ones.
            priority: Who has more goes first. Each step counts as 10 seconds of waiting, so
                nobody starves.
            timeout: Seconds to wait at the most. It is refused at once if the rate is known to
                need longer.

        Raises:
            CostTooHigh: The limit can never admit as much.
            TypeError: An argument is of a wrong kind.
            ValueError: An argument is out of range.
            ThrottleTimeout: On entering: it would take, or took, longer than `timeout`.
            QueueFull: On entering: as many wait as may.
            LimiterClosed: On entering: the limiter is closed, or is closed meanwhile.
            RuntimeError: On entering: the limiter belongs to another event loop that is open.

        >>> async def fetch(limiter):
        ...     async with limiter.throttle() as permit:
        ...         print(f"waited {permit.waited} s")
        """
        line = self._line
        if cost is not _ONE:
            self._check_cost(cost)
        if priority or timeout is not None:
            _check_number("priority", priority, least=-sys.float_info.max)
            if timeout is not None:
                _check_number("timeout", timeout)
            return make_permit(line, cost, priority, timeout)
        permit = Permit()
        permit._line = line
        permit.cost = cost
        permit._held = None
        return permit

    async def acquire(
        self, cost: float = 1.0, *, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """Wait for a turn and give the permit. Release it when done; raises what `throttle` does.

        For where no ``async with`` fits: the slot is yours until `Permit.release`.
        """
        return await self.throttle(cost, priority=priority, timeout=timeout).__aenter__()

    async def try_acquire(self, cost: float = 1.0) -> Decision:
        """Spend `cost` if it may go now and nobody waits; never waits.

        The decision carries the permit if it was spent. Raises what `throttle` does.
        """
        permit, line = self.throttle(cost), self._line
        line.bind()
        permit._at = now = line.now()
        if line.try_now(permit, now):
            return self._decide(now, 0.0, allowed=True, permit=permit)
        line.refused += 1
        return self._decide(now, line.delay(now, permit))

    async def peek(self, cost: float = 1.0) -> Decision:
        """Tell what `try_acquire` would say, and spend nothing. Raises what `throttle` does."""
        permit, line = self.throttle(cost), self._line
        line.bind()
        permit._at = now = line.now()
        allowed = line.would_go(permit, now)
        return self._decide(now, 0.0 if allowed else line.delay(now, permit), allowed=allowed)

    async def record(self, cost: float = 1.0) -> None:
        """Count what has happened already, without asking: there may be a debt afterwards."""
        _check_number("a cost", cost)
        self._line.bind()
        self._line.record(cost)

    def throttled(
        self, cost: float = 1.0, *, priority: float = 0, timeout: float | None = None
    ) -> Callable[
        [Callable[_Parameters, Awaitable[_Result]]],
        Callable[_Parameters, Coroutine[Any, Any, _Result]],
    ]:
        """Decorate an async function: each call waits its turn. Arguments as for `throttle`.

        >>> limiter = RateLimiter("5/s")
        >>> @limiter.throttled()
        ... async def greet(name):
        ...     print(f"hello {name}")
        """
        self.throttle(cost, priority=priority, timeout=timeout)  # a wrong argument, now

        def decorate(
            function: Callable[_Parameters, Awaitable[_Result]],
        ) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"throttled() decorates an async function, not {function!r}")

            @functools.wraps(function)
            async def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
                async with self.throttle(cost, priority=priority, timeout=timeout):
                    return await function(*args, **kwargs)

            return wrapper

        return decorate

    def pause(self, seconds: float) -> None:
        """Let nothing start for so long from now: present waiters, newcomers, everybody.

        What runs goes on. A pause under way is never shortened.

        Raises:
            TypeError: `seconds` is no number.
            ValueError: `seconds` is below zero or not finite.
        """
        _check_number("a pause", seconds)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # before any loop runs: as good a time as any
        else:
            self._line.bind()
        self._line.pause(seconds)

    def update(
        self,
        *,
        rate_limit: RateLimit | Literal[_Unchanged.UNCHANGED] | None = _UNCHANGED,
        concurrency_limit: int | Literal[_Unchanged.UNCHANGED] | None = _UNCHANGED,
    ) -> None:
        """Change the limits, for those who wait now too. What was spent stays spent.

        Whoever is inside stays there, also if the new concurrency limit is lower. A waiter whose
        cost is above the new limit gets `CostTooHigh`.

        Raises:
            TypeError: A limit is of a wrong kind; nothing is changed.
            ValueError: A limit is out of range; nothing is changed.
        """
        algorithm: Algorithm[Any] | None = None
        if rate_limit is None:
            algorithm = Unlimited()
        elif rate_limit is not _UNCHANGED:
            algorithm = _build(rate_limit, *self._law)
        if concurrency_limit is not _UNCHANGED:
            _check_whole("concurrency_limit", concurrency_limit)
        if algorithm is not None:
            self._line.use(algorithm)
        if concurrency_limit is not _UNCHANGED:
            self._line.bound(concurrency_limit)

    def statistics(self) -> Statistics:
        """Tell what was done so far, and how things stand."""
        return self._line.statistics()

    async def aclose(self, *, drain: bool = False) -> None:
        """Close for good: whoever comes later gets `LimiterClosed`. What runs goes on.

        Args:
            drain: Serve those who wait now, and return when they are served. Otherwise they get
                `LimiterClosed`.
        """
        await self._line.close(drain=drain)

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
        if cost > self._line.capacity:
            raise CostTooHigh(cost, self._line.capacity)

    def _decide(
        self, now: float, wait: float, *, allowed: bool = False, permit: Permit | None = None
    ) -> Decision:
        algorithm, state = self._line.algorithm, self._line.state
        return Decision(
            allowed=allowed,
            limit=algorithm.capacity,
            remaining=algorithm.remaining(state, now),
            retry_after=wait,
            reset_after=algorithm.reset_after(state, now),
            permit=permit,
        )


def _build(
    rate_limit: RateLimit | None, burst: float | None, algorithm: Law | None, guard: float
) -> Algorithm[Any]:
    """Make one algorithm of what the user said of rate, burst, law and guard."""
    _check_number("guard", guard)
    if burst is not None:
        _check_number("burst", burst)
    if rate_limit is None:
        if guard or burst is not None:
            raise ValueError("guard and burst say how a rate_limit is used: give one")
        if algorithm is None:
            return Unlimited()
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
            raise ValueError(f"{algorithm.__name__} needs a rate_limit; or give an instance")
        if isinstance(algorithm, Algorithm):
            algorithm.start()  # one that lacks a rate says so
            return algorithm
        raise TypeError(f"algorithm is an Algorithm, or a class of one, not {algorithm!r}")
    if isinstance(rate_limit, list | tuple):
        if not rate_limit:
            raise ValueError("rate_limit is an empty list: give a rate, or None for no limit")
        rates = [as_rate(rate) for rate in cast("Sequence[RateLike]", rate_limit)]
    else:
        rates = [as_rate(cast("RateLike", rate_limit))]
    rates = [Rate(rate.limit, rate.period + guard) for rate in rates]
    laws = [_apply(algorithm, rate) for rate in rates]
    if burst is not None:
        fastest = max(rates, key=lambda rate: rate.limit / rate.period)
        if burst > max(1, fastest.limit):
            raise ValueError(f"burst={burst!r} is more than the limit ever admits: {fastest}")
        pace = TokenBucket(fastest, burst=burst)
        laws = [pace] if algorithm is TokenBucket and len(laws) == 1 else [*laws, pace]
    return laws[0] if len(laws) == 1 else AllOf(*laws)


def _apply(algorithm: Law | None, rate: Rate) -> Algorithm[Any]:
    """Give the algorithm its rate."""
    if algorithm is None:
        return RollingWindow(rate)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return algorithm(rate)  # type: ignore[call-arg]
    if isinstance(algorithm, Algorithm):
        return algorithm.with_rate(rate)
    raise TypeError(f"algorithm is an Algorithm, or a class of one, not {algorithm!r}")


def _check_whole(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, 1 or more, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} is 1 or more (None for no limit), not {value!r}")


def _check_number(name: str, value: float, *, least: float = 0.0) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not least <= value <= sys.float_info.max:
        raise ValueError(f"{name} is a finite number, {least:g} or more, not {value!r}")
