"""The public face of one engine: checks arguments, and calls the engine.

Invariant: a wrong argument, or two that contradict each other, raise before a limiter exists.
"""

import functools
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, ParamSpec, Self, TypeVar

from aiothrottle import events
from aiothrottle._checks import (
    check_choice,
    check_number,
    check_whole,
    duration,
    explains_arguments,
    no_attribute,
    number,
    shown,
)
from aiothrottle._core.engine import Engine, Verdict, running_loop
from aiothrottle._core.feedback import Feedback
from aiothrottle._core.limits import (
    UNCHANGED,
    AlgorithmLike,
    Burst,
    ConcurrencyLimit,
    Guard,
    Limits,
    RateLimit,
    Unchanged,
    misplaced,
    slots_of,
)
from aiothrottle._core.observers import Listener
from aiothrottle._core.sharing import (
    StoreOptions,
    check_store,
    default_guard,
    reserved,
    share_rate,
    share_slots,
)
from aiothrottle._core.wait_queue import Waiter
from aiothrottle.amounts import Cost, check_cost, read_cost, resources_of
from aiothrottle.errors import entered_before, no_copy, not_async, too_high
from aiothrottle.permit import ONE, Decision, Permit, WatchedPermit
from aiothrottle.rate import RateLike, as_rate
from aiothrottle.statistics import Statistics
from aiothrottle.stores.store import Key, OnStoreError, SharedConcurrency, Store, check_share

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@explains_arguments
class RateLimiter:
    """Limits how many requests start per period, and how many are in flight at once.

    Use ``async with limiter.throttle():`` around each request. The request waits for its turn,
    first come, first served, and holds one slot until the end of the block. A limiter needs no
    set-up and no clean-up: it may be made anywhere, also before a loop runs. ``async with
    limiter:``, once, closes it at the end.

    A limiter belongs to the event loop that first uses it. After that loop is closed, another loop
    may use it; the spent tokens stay spent.

    Args:
        rate_limit: Tokens per second, a string such as ``"100/min"``, or a `Rate`. For several
            rates that all hold: a list of them (not a tuple), or ``"100/min, 1000/h"``. None: no
            limit. For several resources, such as requests and the tokens of a model: a mapping
            of each to its rate or list of rates; then the cost of a request says what it takes of
            each. ``"server"``: the rates that the server reports, which the sessions of this
            package pass to `follow`; give a `concurrency_limit` too, which alone holds if 20
            answers have reported nothing. An `AdaptiveRate`: found by trying.
        concurrency_limit: How many requests may be inside ``throttle()`` at once; or an
            `AdaptiveConcurrency`; or a `SharedConcurrency`, the limit of all processes together.
            None: no limit.
        burst: How many tokens may be taken back to back, 1 or more; after that, tokens are granted
            at the average rate (of the fastest rate, if there are several). Of a limiter with
            resources, a mapping. None: the whole limit.
        algorithm: How the rate is enforced: a class, which is called with the rate, or an instance.
            By default `SlidingWindowLog`: never more than the limit in any period.
        guard: A safety margin in seconds, added to the period, for the jitter of the network:
            a request that is delayed more than the request one period later arrives in the same
            window as that one. ``"auto"``: measured from the round trips that
            `Permit.report_success` reports, which the sessions of this package call. It takes at
            most 4 % of the limit, or up to half if the server throttles in spite of that, and
            the burst that the server accepts is learned with it (`Statistics.burst`). None:
            ``"auto"``; but with a store that processes share 4.5 % of the shortest period, 0.05 s
            at the most; and 0 without reports, with a `MemoryStore`, for a `FixedWindow`, whose
            periods are the clock's, and for an algorithm of your own.
        parent: Another limiter that has to grant each request as well.
        max_queue: How many requests may wait. None: no limit.
        store: Where the rate limit, or a `SharedConcurrency`, is counted if several processes
            share it. Any other concurrency limit, pauses and the queue belong to this limiter.
        key: Names the record in the store: limiters with the same key share the limit. Required
            with a `store`.
        max_reservation: Seconds ahead that tokens are reserved in the store, at the most: so many
            a process loses when it crashes. None: until a spent limit has the next token, and
            the time of 16 more, or of more where more processes wait; between 0.2 and 60 seconds,
            and two round trips more if the store is far away. A `WaitUntil` has its `raise_after`.
        prefetch: Tokens that each call reserves beyond those of the waiters, and how long they may
            be used: ``"50/100ms"``. At a high rate most requests then need no call. A token that is
            used late was counted early: together the limiters may exceed the limit, in any period,
            by the prefetched tokens of each. None: it is learned, and used in time. While tasks
            come again in the same turn of the event loop, each call reserves twice as much as the
            one before; of a far store the tokens of a round trip are prefetched.
        on_store_error: What happens while the store fails. ``"raise"``: all waiters get
            `StoreUnavailable`. ``"local"``: this process keeps to its share of the limit.
            ``"open"``: there is no rate limit. ``"closed"``: all wait until the store answers.
            It also holds for the slots of a `SharedConcurrency`.
        local_share: With ``on_store_error="local"``, the part of the limit that this process may
            use alone while the store fails, above 0 and at most 1: ``1/8`` for eight equal
            processes. Of the slots of a `SharedConcurrency` it is rounded down, to 1 at the least.
            The shares of all processes should add up to 1. None: an equal part for each of the
            processes that were counted in the store, and the slots that it held.
        learn_rate: Whether a limiter without a rate limit learns one. It begins with one slot,
            opens another one with each answer, and more each second. When a server throttles
            it, the slots open anew after the pause, up to the number that the server has worked on
            at once, if that is the limit. When it is throttled again, it spaces requests evenly at
            the rate that the server was seen to admit, follows the limit as an `AdaptiveRate`
            does, and gives the rate up when nothing was throttled in ten minutes of use or more.
            One that is throttled at its own rate, whatever its burst and guard (``"auto"``), learns
            a lower one in the same way, until its own proves to be right.
            With or without a rate limit, a run of failures (no response, 5xx, or a 403 without a
            report of limits) after many successes counts as throttled: some servers limit so.
            429s that come by chance, whatever the rate, are no limit: after several of them one
            delays only its own request, until a fifth of the requests is throttled.
            It needs the outcome of every request, which the sessions and transports of this
            package report; without them nothing is learned, and all slots are open.
        name: What log, errors, events and metrics call this limiter. None: its limits, as they were
            written, such as ``"10/s"``.
        clock: Returns the time in seconds; must not go back. On an event loop with its own time
            (`aiothrottle.testing.VirtualTimeLoop`) the default follows that time.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range, or two of them contradict each other.

    >>> limiter = RateLimiter(rate_limit=20, concurrency_limit=10)
    >>> limiter = RateLimiter(["10/s", "500/min", "10000/day"], concurrency_limit=8)
    >>> limiter = RateLimiter({"requests": "500/min", "tokens": ["200000/min", "2000000/day"]})
    """

    __slots__ = ("__weakref__", "_engine", "_entered")

    def __init__(
        self,
        rate_limit: RateLimit | Literal["server"] | None = None,
        *positional: Never,
        concurrency_limit: ConcurrencyLimit | None = None,
        burst: Burst | None = None,
        algorithm: AlgorithmLike | None = None,
        guard: Guard | None = None,
        parent: "RateLimiter | None" = None,
        max_queue: int | None = None,
        store: Store | None = None,
        key: Key | None = None,
        max_reservation: float | None = None,
        prefetch: RateLike | None = None,
        on_store_error: OnStoreError = "raise",
        local_share: float | None = None,
        learn_rate: bool = True,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if positional:
            raise misplaced("RateLimiter", rate_limit, positional)
        if parent is not None and not isinstance(parent, RateLimiter):
            raise TypeError(f"parent must be a RateLimiter, got {shown(parent)}")
        slots = slots_of(concurrency_limit)
        check_whole("max_queue", max_queue, none="None for no limit")
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(
                f"name must be a text, such as 'api.example.org', or None, got {name!r}"
            )
        check_choice("learn_rate", learn_rate, (True, False))
        if not callable(clock):
            raise TypeError(f"clock must be a function that returns seconds, got {clock!r}")
        above = None if parent is None else parent._engine
        if above is not None and above.store_up is not None:
            raise ValueError("a limiter with a store cannot be a parent")
        leased = concurrency_limit if isinstance(concurrency_limit, SharedConcurrency) else None
        check_share(on_store_error, local_share)
        check_store(store, key, above, leased, on_store_error)
        check_number("max_reservation", max_reservation, "seconds", none="None")
        limits = Limits(
            rate_limit,
            concurrency_limit,
            burst=burst,
            algorithm=algorithm,
            guard=default_guard(store) if guard is None else guard,
            learn_rate=learn_rate,
            given_name=name,
        )
        resources = limits.resources
        if resources and prefetch is not None:
            raise ValueError("prefetch is for limiters without resources: give none")
        has_rate = rate_limit is not None or algorithm is not None
        if above is not None and above.resources and not resources and has_rate:
            raise ValueError(
                f"the parent has the resources {', '.join(above.resources)}: give rate_limit a "
                "rate for each of the limiter's own, such as {'requests': '2/s'}"
            )
        shares_rate = store is not None and (has_rate or leased is None)
        plan = limits.plan(shared=shares_rate)
        if not shares_rate and not (max_reservation is None and prefetch is None):
            raise ValueError(
                "max_reservation and prefetch say how a store is called: give a store, and a rate"
            )
        own = reserved(plan) if shares_rate else plan
        #: Where its requests arrive.
        self._engine: Engine = Engine(own, clock, limits=limits, max_queue=max_queue, above=above)
        if store is not None and key is not None:
            options = StoreOptions(key=key, choice=on_store_error, local_share=local_share)
            if leased is not None:
                share_slots(self._engine, leased, store, options)
            if shares_rate:
                share_rate(self._engine, plan.algorithm, store, options, max_reservation, prefetch)
        feedback = Feedback(plan.rate, slots, plan.guard)
        # Until the server has reported its rate, its answers are counted.
        if feedback.is_needed or limits.rate_unknown:
            self._engine.adaptation.feedback = feedback
        self._entered = False

    @classmethod
    def _around(cls, engine: Engine) -> "RateLimiter":
        """Make a limiter of an existing engine."""
        limiter = cls.__new__(cls)
        limiter._engine, limiter._entered = engine, False
        return limiter

    # Not keyword-only: Python looks up the default of each keyword-only argument in a dict at every
    # call, which is a tenth of the time of an entry.
    def throttle(
        self, cost: Cost = ONE, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """Return the permit to enter around a request, ``async with``: it waits for its turn.

        Args:
            cost: Tokens of the request, 0 to 1e12. Cheaper requests never overtake a costly one.
                Of a limiter with resources, a mapping such as ``{"tokens": 1500}``: a resource
                that it does not name costs 0, but ``requests`` cost 1.
            priority: The higher priority is granted first. Each step counts as 10 seconds of
                waiting, so no request starves.
            timeout: Seconds to wait at the most. The request is rejected at once if pauses and
                rates are known to need longer.

        Raises:
            CostTooHigh: The limit can never admit this cost.
            TypeError: An argument has a wrong type.
            ValueError: An argument is out of range.
            ThrottleTimeout: On entering: the wait would be, or was, longer than `timeout`.
            QueueFull: On entering: `max_queue` requests wait already.
            LimiterClosed: On entering: the limiter is closed, or is closed during the wait.
            RuntimeError: On entering: the limiter belongs to another event loop that is open.

        >>> async def fetch(limiter):
        ...     async with limiter.throttle() as permit:
        ...         print(f"waited {permit.waited} s")
        """
        if cost is not ONE or priority != 0 or timeout is not None:
            return self._make(cost, priority, timeout)
        engine = self._engine
        if engine.debug:
            return WatchedPermit(engine)
        permit = Permit()
        # Set here: by an `__init__` an entry would take a tenth longer.
        permit._engine = engine
        permit._held = permit._waiter = None
        return permit

    async def acquire(
        self, cost: Cost = ONE, *, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """Wait for a turn and return the permit. Arguments and errors are those of `throttle`.

        For code in which no ``async with`` fits: the permit holds its slot until
        `Permit.release`, or until the end of an ``async with permit:``.
        """
        return await self._make(cost, priority, timeout)._acquire()

    async def try_acquire(self, cost: Cost = ONE) -> Decision:
        """Start a request if it may start now and no request waits; never wait.

        Args:
            cost: As for `throttle`, whose errors it raises too.

        Returns:
            The decision. If it is allowed, it has the permit. Else it says when to try again, in
            `retry_after`; 0.0 there is not "now", but that nobody knows, as only a slot is missing.
        """
        waiter = Waiter(self._check(cost))
        verdict = await self._engine.try_start(waiter)
        permit = WatchedPermit(self._engine, waiter, granted=True) if verdict.allowed else None
        return self._decision(verdict, permit)

    async def peek(self, cost: Cost = ONE) -> Decision:
        """Return the decision of `try_acquire`, and spend nothing.

        Args:
            cost: As for `throttle`, whose errors it raises too.
        """
        return self._decision(await self._engine.try_start(Waiter(self._check(cost)), peek=True))

    async def record(self, cost: Cost = ONE) -> None:
        """Take tokens for a request that was sent already; this may make a debt.

        Args:
            cost: Tokens, 0 to 1e12, or a mapping of resources to tokens. It may exceed the limit.

        Raises:
            TypeError: `cost` has a wrong type.
            ValueError: `cost` is below zero or not finite, or names an unknown resource.
            StoreUnavailable: The store does not answer, with ``on_store_error="raise"``.
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        await self._engine.record(self._check_cost(cost))

    def throttled(
        self, cost: Cost = ONE, *, priority: float = 0, timeout: float | None = None
    ) -> "Decorator":
        """Return a decorator of an async function: each call waits for its turn.

        The arguments are those of `throttle`.

        Raises:
            TypeError: An argument has a wrong type, or the function is not async.
            ValueError: An argument is out of range.
            CostTooHigh: The cost is above the limit.

        >>> limiter = RateLimiter("5/s")
        >>> @limiter.throttled()
        ... async def greet(name):
        ...     print(f"hello {name}")
        """
        if inspect.isfunction(cost):
            raise TypeError(f"throttled() is called: @limiter.throttled() above {cost.__name__}")
        self._check(cost, priority, timeout)  # a wrong argument, now
        return Decorator(functools.partial(self.throttle, cost, priority=priority, timeout=timeout))

    def pause(self, seconds: float) -> None:
        """Grant nothing for so many seconds from now, neither to waiters nor to new requests.

        Requests in flight continue. A pause is never shortened.

        Args:
            seconds: The least length of the pause, 0 or more.

        Raises:
            TypeError: `seconds` is not a number.
            ValueError: `seconds` is below zero or not finite.
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        check_number("a pause", seconds, "seconds")
        self._bind_if_running()
        self._engine.pause_for(seconds, "requested")

    def update(
        self,
        *,
        rate_limit: RateLimit | Literal[Unchanged.UNCHANGED] | None = UNCHANGED,
        concurrency_limit: ConcurrencyLimit | Literal[Unchanged.UNCHANGED] | None = UNCHANGED,
    ) -> None:
        """Change the limits, also for the present waiters. Spent tokens stay spent.

        The default algorithm counts also what was sent before, if the new period is longer. Tokens
        that are reserved in a store keep their instants, so a faster rate holds behind the last of
        them; after `reset` it holds at once.
        A limiter with resources needs rates for the same resources, or None for no rate limit.
        Requests in flight keep their slots, also if the new concurrency limit is lower. A waiter
        whose cost is above the new limit gets `CostTooHigh`.

        Args:
            rate_limit: As for `RateLimiter`, without ``"server"``; None: no rate limit but that of
                an algorithm that has one of its own. By default it stays.
            concurrency_limit: As for `RateLimiter`; None: no limit. By default it stays.

        Raises:
            TypeError: A limit has a wrong type; nothing is changed.
            ValueError: A limit is out of range; nothing is changed.
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        self._bind_if_running()
        self._engine.update(rate_limit, concurrency_limit)

    @property
    def name(self) -> str:
        """What log, errors, events and metrics call this limiter."""
        return self._engine.observers.name

    @property
    def follows_server(self) -> bool:
        """Whether the limiter follows the server's rates: ``rate_limit="server"``."""
        return self._engine.limits.follows_server

    def follow(self, *rates: RateLike) -> None:
        """Keep to the rates that the server has reported, with ``rate_limit="server"``.

        Until the first call one request is in flight at a time, or until 20 answers were reported
        (`Permit.report_success`); then the concurrency limit holds, if there is one. Without rates
        the limiter keeps only to the quota that `Permit.update_quota` reports.

        Args:
            rates: As `rate_limit` of `RateLimiter`: numbers per second, texts or `Rate` objects.

        Raises:
            TypeError: A rate has a wrong type.
            ValueError: A rate is out of range; or the limiter has a rate of its own.
        """
        engine = self._engine
        engine.check_thread()
        if not self.follows_server:
            raise ValueError(f"{self!r} has a rate of its own: use update() to change it")
        engine.follow(rates)

    def adopt(self, *rates: RateLike) -> None:
        """Adopt a rate that the server has reported, if the rate limit is an `AdaptiveRate`.

        The limiter stays a little below it, evenly spaced, from then on. Of several the one with
        the shortest period counts; a period longer than a minute has no effect, nor has any call
        where the rate limit is not adaptive.

        Args:
            rates: As `rate_limit` of `RateLimiter`: numbers per second, texts or `Rate` objects.

        Raises:
            TypeError: A rate has a wrong type.
            ValueError: A rate is out of range.
        """
        self._bind_if_running()
        self._engine.adopt_rate([as_rate(rate) for rate in rates])

    async def reset(self) -> None:
        """Forget the tokens that were spent, as if no request had been sent.

        Waiters are granted as the fresh limit allows. Requests in flight keep their slots, and a
        pause, the quota that the server reported and learned rates stay. A parent keeps its tokens.
        With a `store` the record is deleted there, so it holds for all processes, whose waiters
        notice it within a minute; tokens that they have reserved may still be used.

        Raises:
            StoreUnavailable: The store does not answer; nothing is changed.
            RuntimeError: The limiter belongs to another event loop that is open.

        >>> async def midnight(limiter):  # of an API that resets its quota by hand
        ...     await limiter.reset()
        """
        await self._engine.reset()

    def statistics(self) -> Statistics:
        """Return the counts so far, and the state now."""
        self._engine.check_thread()  # it flushes pending counts
        return self._engine.statistics()

    def observe(self, observer: events.Observer) -> Callable[[], None]:
        """Call a function with each event from now on, see `aiothrottle.events`.

        Without observers it costs nothing.

        Args:
            observer: Called with each event, at once. The first exception that it raises is logged.

        Returns:
            A function that removes the observer. It may be called more than once.

        Raises:
            TypeError: The observer is not callable.

        >>> limiter = RateLimiter("5/s")
        >>> stop = limiter.observe(print)
        >>> limiter.pause(2)
        Paused(name='5/s', key=None, seconds=2.0, reason='requested')
        >>> stop()
        """
        listener = Listener(observer)
        self._engine.check_thread()
        self._engine.listen(listener)
        return functools.partial(self._engine.observers.remove, listener)

    async def aclose(self, *, drain: bool = False) -> None:
        """Close the limiter: new requests get `LimiterClosed`. Requests in flight continue.

        Args:
            drain: Serve the present waiters, and return when all are served. Otherwise they get
                `LimiterClosed`; so do those that a cancelled drain has left.

        Raises:
            RuntimeError: The limiter belongs to another event loop that is open.
        """
        check_choice("drain", drain, (True, False))
        await self._engine.close(drain=drain)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise entered_before("throttle()")
        self._entered = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # a type checker would take any attribute for a real one

        def __enter__(self) -> NoReturn:
            raise not_async("RateLimiter(...) as limiter:")

        def __exit__(self, *exc_info: object) -> None:
            """Never run: without it the error of `with` is about this method."""

        def __getattr__(self, name: str) -> NoReturn:
            """Name what stands here for a method of another library."""
            raise no_attribute(self, name)

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
        elif self.follows_server:
            state += f"at {' and '.join(map(str, engine.adaptation.rates())) or 'no rate yet'}, "
        return (
            f"<RateLimiter {self.name!r:.200}, {state}"
            f"{engine.in_flight}{limit} in flight, {engine.waiting} waiting>"
        )

    def _make(self, cost: Cost, priority: float, timeout: float | None) -> WatchedPermit:
        """Make a permit with a cost, a priority or a timeout."""
        tokens = self._check(cost, priority, timeout)
        if tokens == ONE and not priority and timeout is None:
            return WatchedPermit(self._engine)
        return WatchedPermit(self._engine, Waiter(tokens, priority, timeout))

    def _check(self, cost: Cost, priority: float = 0, timeout: float | None = None) -> float:
        """Check the arguments of a permit. Returns the cost for the engine."""
        tokens = ONE if cost is ONE else self._check_cost(cost)
        engine = self._engine
        # For most costs without the call: a number that is not above the limit fits.
        if (engine.resources or tokens > engine.capacity) and (
            error := too_high(tokens, engine.capacity, engine.observers.label)
        ):
            raise error
        if priority or type(priority) is not int:  # None, say, which the queue cannot order
            check_number("priority", priority, least=-math.inf)
        if timeout is not None:
            check_number("timeout", timeout, "seconds")
        return tokens

    def _check_cost(self, cost: Any) -> float:  # noqa: ANN401 - a `Cost`, until it is checked
        """Check a cost. Returns it for the engine."""
        if self._engine.resources and cost is not ONE:
            return read_cost(cost, self._engine.resources)
        try:
            check_cost(cost)
        except TypeError as error:
            if isinstance(cost, str):  # the name of a bucket, as other libraries have it
                raise TypeError(f"{error}; for a limit of each name: KeyedRateLimiter") from None
            raise
        tokens: float = cost
        return tokens

    def _bind_if_running(self) -> None:
        if running_loop() is not None:
            self._engine.bind()
        else:  # before any loop runs, any thread may change the limits
            self._engine.check_thread()

    def _decision(self, verdict: Verdict, permit: Permit | None = None) -> Decision:
        limit, remaining = self._engine.capacity, verdict.remaining
        return Decision(
            allowed=verdict.allowed,
            limit=limit.real,
            remaining=remaining.real,
            retry_after=verdict.retry_after,
            reset_after=verdict.reset_after,
            permit=permit,
            resources=resources_of(limit, remaining, self._engine.resources),
        )


class Decorator:
    """The decorator that `throttled` returns.

    Args:
        throttle: Returns what a call enters.
    """

    def __init__(self, throttle: Callable[[], Permit]) -> None:
        self._throttle = throttle

    def __call__(
        self, function: Callable[_Parameters, Awaitable[_Result]]
    ) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]:
        """Return the function, each call of which waits for its turn."""
        if not (callable(function) and inspect.iscoroutinefunction(function)):
            kind = "the async generator " if inspect.isasyncgenfunction(function) else ""
            raise TypeError(f"throttled() decorates an async function, not {kind}{shown(function)}")

        @functools.wraps(function)
        async def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            async with self._throttle():
                return await function(*args, **kwargs)

        return wrapper
