"""The limiter: what people hold in their hands."""

import asyncio
import functools
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Final, Literal, Never, NoReturn, ParamSpec, Self, TypeVar

from aiothrottle import events
from aiothrottle._core.chain import Entry
from aiothrottle._core.feedback import Feedback
from aiothrottle._core.verdict import Verdict
from aiothrottle._core.wait_queue import Waiter
from aiothrottle.algorithms import Unlimited
from aiothrottle.assembly import Sharing, make_entry
from aiothrottle.checks import check_number, check_whole
from aiothrottle.decision import Decision
from aiothrottle.errors import CostTooHigh, entered_before, no_copy
from aiothrottle.permit import ONE, Permit, WatchedPermit, granted_permit, make_permit
from aiothrottle.plan import (
    AUTO,
    AlgorithmChoice,
    AlgorithmLike,
    ConcurrencyLimit,
    Guard,
    Plan,
    RateLimit,
    check_algorithm,
    check_shareable,
    make_plan,
    misplaced,
    number_of,
    slots_of,
)
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.redact import shown
from aiothrottle.sharing.concurrency import SharedConcurrency
from aiothrottle.sharing.standin import OnStoreError
from aiothrottle.statistics import Statistics
from aiothrottle.stores.store import Key, Store
from aiothrottle.texts import duration, number

__all__ = ["RateLimiter"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Unchanged(Enum):
    """What `update` takes for: as it was."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

#: The rate limit that is whatever the server says.
SERVER: Final = "server"


class RateLimiter:
    """Keeps what you do under so many per period, and so many at once.

    Use ``async with limiter.throttle():`` around each request. It waits its turn, first come first
    served, and holds one slot until the block is left. A limiter needs no set-up and no clean-up:
    make it anywhere, before a loop runs too. ``async with limiter:``, once, closes it at the end.

    It belongs to the event loop that it is first used on. When that loop is closed, the next one
    may use it, and finds the budget as it was.

    Args:
        rate_limit: Tokens per second, a string such as ``"100/min"``, or a `Rate`. Several, which
            all hold at once: a list of them (no tuple), or ``"100/min, 1000/h"``. None: no limit.
            ``"server"``: what the server announces, which the sessions of this package pass on
            (see `follow`). An `AdaptiveRate`: what is found by trying.
        concurrency_limit: How many may be inside ``throttle()`` at once, or an
            `AdaptiveConcurrency`, or a `SharedConcurrency`: so many in all processes together.
            None: no limit.
        burst: How many tokens may go back to back, 1 or more, after which they go at the average
            of the rate (of the fastest, if there are several). Without it the whole limit may.
        algorithm: How the rate is meant: a class, which is given the rate, or an instance. By
            default `SlidingWindowLog`: never more than the limit in any period.
        guard: Seconds by which the period is stretched, for the jitter of the network between
            here and the server: a request that is delayed more than the one a period later
            arrives in the same window as that one. ``"auto"``: as much as the round trips differ,
            as `Permit.report_success` tells, which the sessions of this package call. It takes no
            more than a tenth of the limit, or a fifth if the server refuses in spite of that. None:
            ``"auto"``, or 0 where a store keeps the rate or nobody tells, for a `FixedWindow`,
            whose periods are the calendar's, and for an algorithm of your own.
        parent: Another limiter that has to let each request go as well.
        max_queue: How many may wait. None: no limit.
        store: Where the rate limit is counted, if several processes share it, and a
            `SharedConcurrency`. Another concurrency limit, pauses and the queue stay this
            limiter's own.
        key: Names the record in the store: limiters with the same key share the limit. Required
            with a `store`.
        max_reservation: Seconds ahead that tokens are reserved in the store, at the most: what a
            process that crashes takes with it. None: until a spent limit has the next token, and
            the time of 16 more; between 0.2 and 60 seconds. A `WaitUntil` has its `raise_after`.
        prefetch: Tokens that each call reserves beyond those of the waiters, and how long they may
            be used: ``"50/100ms"``. At a high rate most requests then need no call. A token that is
            used late was counted early: together the limiters may exceed the limit, in any period,
            by the prefetched tokens of each. None: a single task that comes again in the same turn
            of the event loop gets tokens for that turn; otherwise none.
        on_store_error: What to do while the store fails. ``"raise"``: all who wait get
            `StoreUnavailable`. ``"local"``: this process goes on with its fair share of the limit.
            ``"open"``: there is no rate limit. ``"closed"``: all wait until the store is back.
            It is for the slots of a `SharedConcurrency` as well.
        clock: Gives the time in seconds; must not go back. On an event loop with a time of its
            own (`aiothrottle.testing.VirtualTimeLoop`) the default follows that time.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range, or two of them contradict each other.

    >>> limiter = RateLimiter(rate_limit=20, concurrency_limit=10)
    >>> limiter = RateLimiter(["10/s", "500/min", "10000/day"], concurrency_limit=8)
    """

    __slots__ = ("__weakref__", "_choice", "_concurrency_limit", "_engine", "_entered", "_entry")

    def __init__(
        self,
        rate_limit: RateLimit | Literal["server"] | None = None,
        *positional: Never,
        concurrency_limit: ConcurrencyLimit | None = None,
        burst: float | None = None,
        algorithm: AlgorithmLike | None = None,
        guard: Guard | None = None,
        parent: "RateLimiter | None" = None,
        max_queue: int | None = None,
        store: Store | None = None,
        key: Key | None = None,
        max_reservation: float | None = None,
        prefetch: RateLike | None = None,
        on_store_error: OnStoreError = "raise",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if positional:
            raise misplaced("RateLimiter", rate_limit, positional)
        slots = slots_of(concurrency_limit)
        check_whole("max_queue", max_queue, none="None for no limit")
        if parent is not None and not isinstance(parent, RateLimiter):
            raise TypeError(f"parent is a RateLimiter, not {shown(parent)}")
        # Kept for `update`, which changes the rate alone.
        self._choice: AlgorithmChoice = (burst, algorithm, guard)
        follows = rate_limit == SERVER
        plan = Plan(Unlimited())
        if not follows:
            plan = make_plan(rate_limit, self._choice, shared=store is not None)
        if follows and store is not None:
            raise ValueError("what a server says is of one process: a store needs a fixed rate")
        shared = concurrency_limit if isinstance(concurrency_limit, SharedConcurrency) else None
        has_rate = rate_limit is not None or algorithm is not None
        #: Where its requests arrive: its engine, or a chain that begins with it.
        self._entry: Entry = make_entry(
            plan,
            1 if follows else number_of(concurrency_limit),  # one asks before others follow
            clock,
            max_queue,
            parent=None if parent is None else parent._entry,
            sharing=Sharing(
                store, key, max_reservation, prefetch, on_store_error, shared, has_rate
            ),
        )
        self._engine = engine = self._entry.engine
        self._concurrency_limit = concurrency_limit
        self._entered = False
        feedback = Feedback(plan.rate, slots, plan.guard)
        engine.feedback = feedback if feedback.is_needed else None
        if follows:
            check_algorithm(burst, algorithm, 0.0 if guard is None or guard == AUTO else guard)
            # Whatever the server will say, there has to be an algorithm of it.
            make_plan(Rate(1), (None if burst is None else min(burst, 1), algorithm, guard))
            engine.server_rates = ()
            engine.rate_unknown = True

    @classmethod
    def _around(
        cls, entry: Entry, choice: AlgorithmChoice, concurrency_limit: ConcurrencyLimit | None
    ) -> Self:
        """Make a limiter of an engine that lives already."""
        limiter = cls.__new__(cls)
        limiter._entry = entry
        limiter._engine = entry.engine
        limiter._choice = choice
        limiter._concurrency_limit = concurrency_limit
        limiter._entered = False
        return limiter

    # Where arguments may be given by name alone, Python looks up the default of each in a dict at
    # every call: it is a tenth of what an entry costs.
    def throttle(
        self, cost: float = ONE, priority: float = 0, timeout: float | None = None
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
        if cost is not ONE or priority or timeout is not None:
            return self._particular(cost, priority, timeout)
        permit = WatchedPermit() if self._engine.debug else Permit()
        permit._entry = self._entry
        permit._held = None
        return permit

    async def acquire(
        self, cost: float = ONE, *, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """Wait for a turn and give the permit. Release it when done; raises what `throttle` does.

        For where no ``async with`` fits: the slot is yours until `Permit.release`. Where one does
        later on, ``async with permit:`` releases it at the end of the block.
        """
        self._check(cost, priority, timeout)
        permit = make_permit(self._entry, cost, priority, timeout)
        permit._given = False
        await permit.__aenter__()
        permit._given = True
        return permit

    async def try_acquire(self, cost: float = ONE) -> Decision:
        """Spend `cost` if it may go now and nobody waits; never waits.

        The decision carries the permit if it was spent. Raises what `throttle` does.
        """
        waiter = self._waiter_of(cost)
        verdict = await self._entry.try_start(waiter)
        permit = granted_permit(self._entry, waiter) if verdict.allowed else None
        return self._decision(verdict, permit)

    async def peek(self, cost: float = ONE) -> Decision:
        """Tell what `try_acquire` would say, and spend nothing. Raises what `throttle` does."""
        return self._decision(await self._entry.peek(self._waiter_of(cost)))

    async def record(self, cost: float = ONE) -> None:
        """Count what has happened already, without asking: there may be a debt afterwards."""
        check_number("a cost", cost, "tokens")
        await self._entry.record(cost)

    def throttled(
        self, cost: float = ONE, *, priority: float = 0, timeout: float | None = None
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
        if inspect.isfunction(cost):
            raise TypeError(f"throttled() is called: @limiter.throttled() above {cost.__name__}")
        self._check(cost, priority, timeout)  # a wrong argument, now

        def decorate(
            function: Callable[_Parameters, Awaitable[_Result]],
        ) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"throttled() decorates an async function, not {shown(function)}")

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
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        check_number("a pause", seconds, "seconds")
        self._bind_if_running()
        self._engine.pause_for(seconds)

    def update(
        self,
        *,
        rate_limit: RateLimit | Literal[Unchanged.UNCHANGED] | None = UNCHANGED,
        concurrency_limit: ConcurrencyLimit | Literal[Unchanged.UNCHANGED] | None = UNCHANGED,
    ) -> None:
        """Change the limits, for those who wait now too. What was spent stays spent.

        Whoever is inside stays there, also if the new concurrency limit is lower. A waiter whose
        cost is above the new limit gets `CostTooHigh`.

        Raises:
            TypeError: A limit is of a wrong kind; nothing is changed.
            ValueError: A limit is out of range; nothing is changed.
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        self._bind_if_running()
        engine = self._engine
        plan: Plan | None = None
        if rate_limit is None and isinstance(self._choice[1], type | None):
            plan = Plan(Unlimited())
        elif rate_limit is not UNCHANGED:
            plan = make_plan(
                rate_limit, self._choice, shared=engine.shares_rate, before=engine.feedback
            )
        if plan is not None and engine.shares_rate:
            check_shareable(plan)
        if engine.leased is not None and plan is not None and not engine.shares_rate:
            raise ValueError("this limiter shares slots alone: make a new one to share a rate too")
        shares = isinstance(concurrency_limit, SharedConcurrency)
        if concurrency_limit is not UNCHANGED and shares != (engine.leased is not None):
            raise ValueError("a concurrency limit stays shared, or of this process: make a new one")
        feedback = engine.feedback or Feedback()
        if concurrency_limit is not UNCHANGED:
            feedback.slots = slots_of(concurrency_limit)
            self._concurrency_limit = concurrency_limit
            if engine.leased is not None and isinstance(concurrency_limit, SharedConcurrency):
                engine.leased.shared = concurrency_limit
                engine.leased.look()
        if plan is not None:
            engine.use(plan.algorithm)
            engine.updated = True
            engine.server_rates, engine.rate_unknown = None, False
            feedback.rate, feedback.guard = plan.rate, plan.guard
        engine.feedback = feedback if feedback.is_needed else None
        self._resize()

    def _resize(self) -> None:
        """Have as many slots as there are to be, unless the server has announced nothing yet."""
        engine = self._engine
        slots = engine.feedback and engine.feedback.slots
        number = int(slots.state.limit) if slots else number_of(self._concurrency_limit)
        if not (engine.leased or engine.rate_unknown) and engine.semaphore.limit != number:
            engine.resize(number)
            engine.updated = True

    @property
    def follows_server(self) -> bool:
        """Whether its rate is what the server says: ``rate_limit="server"``."""
        return self._engine.server_rates is not None

    def follow(self, *rates: RateLike) -> None:
        """Go on at the rates that the server has announced, if the server is to be followed.

        Until the first such call one request is under way at a time. With no rates it means: there
        is no rate, but something else to go by, such as what is left (`Permit.update_quota`).

        Raises:
            TypeError: A rate is of a wrong kind.
            ValueError: A rate is out of range; or the limiter has a rate of its own.
        """
        engine = self._engine
        engine.check_thread()
        if engine.server_rates is None:
            raise ValueError(f"{self!r} has a rate of its own: use update() to change it")
        announced = tuple(as_rate(rate) for rate in rates)
        if announced and announced != engine.server_rates:
            burst, algorithm, guard = self._choice
            if burst is not None:  # no server can make that an error
                fastest = max(announced, key=lambda rate: rate.limit / rate.period)
                burst = min(burst, max(1, fastest.limit))
            plan = make_plan(list(announced), (burst, algorithm, guard), before=engine.feedback)
            engine.use(plan.algorithm)
            if not engine.server_rates:  # the request that has asked counts, here and not above
                engine.charge(1.0)
            feedback = engine.feedback or Feedback()
            feedback.guard = plan.guard
            engine.feedback = feedback if feedback.is_needed else None
            engine.server_rates = announced
            if engine.observers.listeners:
                engine.observers.emit(events.QuotaUpdated(engine.key, None, None, announced))
        engine.rate_unknown = False
        self._resize()

    def statistics(self) -> Statistics:
        """Tell what was done so far, and how things stand."""
        self._engine.check_thread()  # it counts what is not counted yet
        return self._engine.statistics()

    def observe(self, observer: events.Observer) -> Callable[[], None]:
        """Have a function told of each decision from now on, see `aiothrottle.events`.

        While nobody observes, it costs nothing.

        Args:
            observer: Is called with each event, at once. What it raises is logged, once.

        Returns:
            A function that ends it. It may be called more than once.

        Raises:
            TypeError: The observer cannot be called.

        >>> limiter = RateLimiter("5/s")
        >>> stop = limiter.observe(print)
        >>> limiter.pause(2)
        Paused(key=None, seconds=2.0, reason='requested')
        >>> stop()
        """
        listener = events.Listener(observer)
        self._engine.check_thread()
        self._engine.listen(listener)
        return functools.partial(self._engine.observers.remove, listener)

    async def aclose(self, *, drain: bool = False) -> None:
        """Close for good: whoever comes later gets `LimiterClosed`. What runs goes on.

        Args:
            drain: Serve those who wait now, and return when they are served. Otherwise they get
                `LimiterClosed`.

        Raises:
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        await self._entry.close(drain=drain)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise entered_before("throttle()")
        self._entered = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        """Reject pickling and copying."""
        raise no_copy("RateLimiter")

    def __repr__(self) -> str:
        engine, slots = self._engine, self._engine.semaphore.limit
        limit = "" if slots is None else f" of {slots}"
        state = "closed, " if engine.closed else ""
        if (left := engine.pause.left(engine.bucket.clock())) > 0:
            state += f"paused for {duration(left)}, "
        if engine.feedback is not None and engine.feedback.rate is not None:
            state += f"at {number(engine.feedback.rate.state.rate, 3)}/s, "
        return (
            f"<RateLimiter {engine.bucket.algorithm!r}, {state}"
            f"{engine.in_flight}{limit} in flight, {engine.waiting} waiting>"
        )

    def _particular(self, cost: float, priority: float, timeout: float | None) -> Permit:
        """Make a permit that is not just any, if it is none."""
        self._check(cost, priority, timeout)
        return make_permit(self._entry, cost, priority, timeout)

    def _waiter_of(self, cost: float) -> Waiter:
        """Make the waiter of a request that is not going to wait."""
        self._check(cost)
        return Waiter(cost)

    def _check(self, cost: float, priority: float = 0, timeout: float | None = None) -> None:
        """Refuse arguments with which no permit can be had."""
        check_number("a cost", cost, "tokens")
        if cost > self._entry.capacity:
            raise CostTooHigh(cost, self._entry.capacity, key=self._engine.key)
        if priority:
            check_number("priority", priority, least=-math.inf)
        if timeout is not None:
            check_number("timeout", timeout, "seconds")

    def _bind_if_running(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._engine.check_thread()
            return  # before any loop runs: as good a time as any
        self._entry.bind()

    def _decision(self, verdict: Verdict, permit: Permit | None = None) -> Decision:
        return Decision(
            allowed=verdict.allowed,
            limit=self._entry.capacity,
            remaining=verdict.remaining,
            retry_after=verdict.retry_after,
            reset_after=verdict.reset_after,
            permit=permit,
        )
