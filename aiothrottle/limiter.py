"""The limiter: what people hold in their hands."""

import asyncio
import functools
import inspect
import math
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar, cast

from aiothrottle.adaptive import AdaptiveConcurrency, AdaptiveRate
from aiothrottle.adaptive.pace import Pace
from aiothrottle.algorithms import Algorithm, AllOf, RollingWindow, TokenBucket, Unlimited
from aiothrottle.decision import Decision
from aiothrottle.errors import CostTooHigh
from aiothrottle.feedback import Feedback, GuardControl, RateControl, SlotsControl
from aiothrottle.line import Line
from aiothrottle.permit import Permit, make_permit
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.shared import SharedLine
from aiothrottle.statistics import Statistics
from aiothrottle.stores.store import Key, Store, name_of

__all__ = ["RateLimiter"]

Law: TypeAlias = type[Algorithm[Any]] | Algorithm[Any]
Guard: TypeAlias = float | Literal["auto"]
_Law: TypeAlias = tuple[float | None, Law | None, Guard]
RateLimit: TypeAlias = RateLike | Sequence[RateLike] | AdaptiveRate
ConcurrencyLimit: TypeAlias = int | AdaptiveConcurrency

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


_UNCHANGED = _Unchanged.UNCHANGED

#: The rate limit that is whatever the server says.
SERVER: Final = "server"
#: The guard that measures what it has to be.
AUTO: Final = "auto"

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
            them, which all hold at once. None: no limit. ``"server"``: what the server announces,
            which the sessions of this package pass on (see `follow`). An `AdaptiveRate`: what is
            found by trying.
        concurrency_limit: How many may be inside ``throttle()`` at once, or an
            `AdaptiveConcurrency`. None: no limit.
        burst: How many tokens may go back to back, 1 or more, after which they go at the average
            of the rate (of the fastest, if there are several). Without it the whole limit may.
        algorithm: How the rate is meant: a class, which is given the rate, or an instance. By
            default `RollingWindow`: never more than the limit in any period.
        guard: Seconds by which the period is stretched, for the jitter of the network between
            here and the server: a request that is delayed more than the one a period later
            arrives in the same window as that one. ``"auto"``: as much as the round trips differ,
            as `Permit.succeeded` tells, and a quarter of the period at the most.
        parent: Another limiter that has to let each request go as well.
        max_queue: How many may wait. None: no limit.
        store: Where the rate limit is counted, if several processes share it. The concurrency
            limit, pauses and the queue stay this limiter's own.
        key: Names the record in the store: whoever has the same one shares the limit.
        horizon: Seconds ahead for which the store is asked, and what a process that dies takes with
            it at the most. None: 16 tokens' worth of the rate, between 0.2 and 60 seconds.
        clock: Gives the time in seconds; must not go back. On an event loop with a time of its
            own (`aiothrottle.testing.VirtualTimeLoop`) the default follows that time.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range, or two of them contradict each other.

    >>> limiter = RateLimiter(rate_limit=20, concurrency_limit=10)
    >>> limiter = RateLimiter(["10/s", "500/min", "10000/day"], 8)
    """

    __slots__ = ("__weakref__", "_concurrency_limit", "_law", "_line")

    def __init__(
        self,
        rate_limit: RateLimit | Literal["server"] | None = None,
        concurrency_limit: ConcurrencyLimit | None = None,
        *,
        burst: float | None = None,
        algorithm: Law | None = None,
        guard: Guard = 0.0,
        parent: "RateLimiter | None" = None,
        max_queue: int | None = None,
        store: Store | None = None,
        key: Key = "default",
        horizon: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        slots = _slots_of(concurrency_limit)
        _check_whole("max_queue", max_queue)
        if not callable(clock):
            raise TypeError(f"clock is a function that gives seconds, not {clock!r}")
        if parent is not None and not isinstance(parent, RateLimiter):
            raise TypeError(f"parent is a RateLimiter, not {parent!r}")
        if parent is not None and isinstance(parent._line, SharedLine):
            raise ValueError("a limiter with a store cannot be a parent")
        # Kept for `update`, which changes the rate alone.
        self._law: _Law = (burst, algorithm, guard)
        follows = rate_limit == SERVER
        plan = _Plan(Unlimited())
        if not follows:
            plan = _plan(rate_limit, self._law)
        slots_now = 1 if follows else _number_of(concurrency_limit)  # one asks before others follow
        self._line: Line
        if store is None:
            if horizon is not None:
                raise ValueError("horizon says how far ahead a store is asked: give a store")
            above = None if parent is None else parent._line
            self._line = Line(plan.algorithm, slots_now, clock, parent=above, max_queue=max_queue)
        else:
            _check_shared(store, key, horizon, parent)
            _check_shareable(plan)
            self._line = SharedLine(
                plan.algorithm,
                slots_now,
                clock,
                store=store,
                key=key,
                horizon=horizon,
                max_queue=max_queue,
            )
        self._concurrency_limit = concurrency_limit
        feedback = Feedback(plan.rate, slots, plan.guard)
        self._line.feedback = feedback if feedback.is_needed else None
        if follows:
            _check_law(burst, algorithm, 0.0 if guard == AUTO else guard)
            # Whatever the server will say, there has to be a law of it.
            _plan(Rate(1), (None if burst is None else min(burst, 1), algorithm, guard))
            self._line.followed = ()
            self._line.asking = True

    @classmethod
    def _around(cls, line: Line, law: _Law, concurrency_limit: ConcurrencyLimit | None) -> Self:
        """Make a limiter of a line that lives already."""
        limiter = cls.__new__(cls)
        limiter._line = line
        limiter._law = law
        limiter._concurrency_limit = concurrency_limit
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
        if isinstance(line, SharedLine):
            return await line.try_acquire(permit)
        permit._at = now = line.now()
        if line.try_now(permit, now):
            return self._decide(now, 0.0, allowed=True, permit=permit)
        line.refused += 1
        return self._decide(now, line.delay(now, permit))

    async def peek(self, cost: float = 1.0) -> Decision:
        """Tell what `try_acquire` would say, and spend nothing. Raises what `throttle` does."""
        permit, line = self.throttle(cost), self._line
        line.bind()
        if isinstance(line, SharedLine):
            return await line.peek(permit)
        permit._at = now = line.now()
        allowed = line.would_go(permit, now)
        return self._decide(now, 0.0 if allowed else line.delay(now, permit), allowed=allowed)

    async def record(self, cost: float = 1.0) -> None:
        """Count what has happened already, without asking: there may be a debt afterwards."""
        _check_number("a cost", cost)
        line = self._line
        line.bind()
        if isinstance(line, SharedLine):
            await line.count(cost)
        else:
            line.record(cost)

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
        concurrency_limit: ConcurrencyLimit | Literal[_Unchanged.UNCHANGED] | None = _UNCHANGED,
    ) -> None:
        """Change the limits, for those who wait now too. What was spent stays spent.

        Whoever is inside stays there, also if the new concurrency limit is lower. A waiter whose
        cost is above the new limit gets `CostTooHigh`.

        Raises:
            TypeError: A limit is of a wrong kind; nothing is changed.
            ValueError: A limit is out of range; nothing is changed.
        """
        plan: _Plan | None = None
        if rate_limit is None and not isinstance(self._law[1], Algorithm):
            plan = _Plan(Unlimited())
        elif rate_limit is not _UNCHANGED:
            plan = _plan(rate_limit, self._law)
        line = self._line
        if plan is not None and isinstance(line, SharedLine):
            _check_shareable(plan)
        feedback = line.feedback or Feedback()
        if concurrency_limit is not _UNCHANGED:
            feedback.slots = _slots_of(concurrency_limit)
            self._concurrency_limit = concurrency_limit
        if plan is not None:
            line.use(plan.algorithm)
            line.followed, line.asking = None, False
            feedback.rate, feedback.guard = plan.rate, plan.guard
        line.feedback = feedback if feedback.is_needed else None
        self._bound()

    def _bound(self) -> None:
        """Have as many slots as there are to be, unless the server has still to say something."""
        line = self._line
        slots = line.feedback and line.feedback.slots
        number = int(slots.state.limit) if slots else _number_of(self._concurrency_limit)
        if not line.asking and line.concurrency_limit != number:
            line.bound(number)

    @property
    def follows_server(self) -> bool:
        """Whether its rate is what the server says: ``rate_limit="server"``."""
        return self._line.followed is not None

    def follow(self, *rates: RateLike) -> None:
        """Go on at the rates that the server has announced, if the server is to be followed.

        Until the first such call one request is under way at a time. With no rates it means: there
        is no rate, but something else to go by, such as what is left (`Permit.told`).

        Raises:
            TypeError: A rate is of a wrong kind.
            ValueError: A rate is out of range; or the limiter has a rate of its own.
        """
        line = self._line
        if line.followed is None:
            raise ValueError(f"{self!r} has a rate of its own: use update() to change it")
        announced = tuple(as_rate(rate) for rate in rates)
        if announced and announced != line.followed:
            burst, algorithm, guard = self._law
            if burst is not None:  # no server can make that an error
                fastest = max(announced, key=lambda rate: rate.limit / rate.period)
                burst = min(burst, max(1, fastest.limit))
            plan = _plan(announced, (burst, algorithm, guard))
            line.use(plan.algorithm)
            if not line.followed:  # the request that has asked counts, here and not above
                line.algorithm.take(line.state, line.now(), 1.0)
            feedback = line.feedback or Feedback()
            feedback.guard = plan.guard
            line.feedback = feedback if feedback.is_needed else None
            line.followed = announced
        line.asking = False
        self._bound()

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
        if line.feedback is not None and line.feedback.rate is not None:
            state += f"at {line.feedback.rate.state.rate:.3g}/s, "
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
        line = self._line
        remaining, reset_after = line.remaining(now), line.reset_after(now)
        above = line.parent
        while above is not None:  # whatever it is, it has to fit there too
            now = above.now()
            remaining = min(remaining, above.remaining(now))
            reset_after = max(reset_after, above.reset_after(now))
            above = above.parent
        return Decision(
            allowed=allowed,
            limit=line.capacity,
            remaining=remaining,
            retry_after=wait,
            reset_after=reset_after,
            permit=permit,
        )


class _Plan(NamedTuple):
    """A law, and what is to move it."""

    algorithm: Algorithm[Any]
    rate: RateControl | None = None
    guard: GuardControl | None = None


def _plan(rate_limit: RateLimit | None, law: _Law) -> _Plan:
    """Make a law of what the user said, and what is to move it, if anything."""
    burst, algorithm, guard = law
    if isinstance(rate_limit, AdaptiveRate):
        if guard or burst is not None or algorithm is not None:
            raise ValueError("an AdaptiveRate has a law of its own: no burst, algorithm or guard")
        pace = Pace(rate_limit.initial, most=max(1.0, rate_limit.maximum))
        return _Plan(pace, rate=RateControl(rate_limit))
    if guard != AUTO:
        return _Plan(_build(rate_limit, burst, algorithm, guard))
    if rate_limit is None:
        raise ValueError("guard says how a rate_limit is used: give one")
    period = min(rate.period for rate in _rates(rate_limit))
    build = functools.partial(_build, rate_limit, burst, algorithm)
    return _Plan(build(0.0), guard=GuardControl(period, build))


def _check_shared(
    store: Store, key: Key, horizon: float | None, parent: RateLimiter | None
) -> None:
    """Refuse what cannot be a record in a store."""
    if not isinstance(store, Store):
        raise TypeError(f"store is a Store, such as RedisStore(client), not {store!r}")
    name_of(key)
    if horizon is not None:
        _check_number("horizon", horizon)
    if parent is not None:
        raise ValueError(
            "a limiter with a store has no parent: tokens of both cannot be had at once"
        )


def _check_shareable(plan: _Plan) -> None:
    """Refuse a law that this process would move, or that no store can hold those who wait to."""
    if isinstance(plan.algorithm, Unlimited):
        raise ValueError("a store shares a rate limit between processes: give a rate_limit")
    if plan.rate or plan.guard:
        raise ValueError("what is found by trying is of one process: a store needs a fixed rate")
    if plan.algorithm.longest_wait < math.inf:
        raise ValueError(f"{plan.algorithm!r} refuses by the length of the line: not with a store")


def _rates(rate_limit: RateLike | Sequence[RateLike]) -> list[Rate]:
    if isinstance(rate_limit, list | tuple):
        if not rate_limit:
            raise ValueError("rate_limit is an empty list: give a rate, or None for no limit")
        return [as_rate(rate) for rate in cast("Sequence[RateLike]", rate_limit)]
    return [as_rate(cast("RateLike", rate_limit))]


def _slots_of(concurrency_limit: ConcurrencyLimit | None) -> SlotsControl | None:
    """Make what is to move the number of slots, if anything."""
    if isinstance(concurrency_limit, AdaptiveConcurrency):
        return SlotsControl(concurrency_limit)
    _check_whole("concurrency_limit", concurrency_limit)
    return None


def _number_of(concurrency_limit: ConcurrencyLimit | None) -> int | None:
    """Give the number of slots to begin with."""
    if isinstance(concurrency_limit, AdaptiveConcurrency):
        return concurrency_limit.initial
    return concurrency_limit


def _build(
    rate_limit: RateLike | Sequence[RateLike] | None,
    burst: float | None,
    algorithm: Law | None,
    guard: float,
) -> Algorithm[Any]:
    """Make one algorithm of what the user said of rate, burst, law and guard."""
    _check_law(burst, algorithm, guard)
    if rate_limit is None:
        if guard or burst is not None:
            raise ValueError("guard and burst say how a rate_limit is used: give one")
        if algorithm is None:
            return Unlimited()
        if isinstance(algorithm, type):
            raise ValueError(f"{algorithm.__name__} needs a rate_limit; or give an instance")
        algorithm.start()  # one that lacks a rate says so
        return algorithm
    rates = [Rate(rate.limit, rate.period + guard) for rate in _rates(rate_limit)]
    laws = [_apply(algorithm, rate) for rate in rates]
    if burst is not None:
        fastest = max(rates, key=lambda rate: rate.limit / rate.period)
        if burst > max(1, fastest.limit):
            raise ValueError(f"burst={burst!r} is more than the limit ever admits: {fastest}")
        pace = TokenBucket(fastest, burst=burst)
        laws = [pace] if algorithm is TokenBucket and len(laws) == 1 else [*laws, pace]
    return laws[0] if len(laws) == 1 else AllOf(*laws)


def _check_law(burst: float | None, algorithm: Law | None, guard: float) -> None:
    if not isinstance(guard, int | float):
        raise TypeError(f'guard is a number of seconds, or "auto", not {guard!r}')
    _check_number("guard", guard)
    if burst is not None:
        _check_number("burst", burst, least=1.0)
    is_law = isinstance(algorithm, type) and issubclass(algorithm, Algorithm)
    if not (algorithm is None or is_law or isinstance(algorithm, Algorithm)):
        raise TypeError(f"algorithm is an Algorithm, such as TokenBucket, not {algorithm!r}")


def _apply(algorithm: Law | None, rate: Rate) -> Algorithm[Any]:
    """Give the algorithm its rate."""
    if algorithm is None:
        return RollingWindow(rate)
    if isinstance(algorithm, Algorithm):
        return algorithm.with_rate(rate)
    return algorithm(rate)  # type: ignore[call-arg]


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
