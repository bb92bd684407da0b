"""A limiter for each key, such as a host or an account; unused keys are forgotten."""

import asyncio
import functools
import inspect
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Self, TypeAlias, TypedDict, Unpack

from aiothrottle import events
from aiothrottle._checks import arguments_of, check_choice, check_names, shown
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.engine import Engine, check_thread, running_loop
from aiothrottle._core.limits import (
    UNCHANGED,
    AlgorithmLike,
    Burst,
    ConcurrencyLimit,
    Guard,
    RateLimit,
    Unchanged,
    misplaced,
)
from aiothrottle._core.observers import Listener, Observers, Past
from aiothrottle.algorithms.protocol import used
from aiothrottle.amounts import Cost
from aiothrottle.errors import entered_before, no_copy, not_async
from aiothrottle.limiter import Decorator, RateLimiter
from aiothrottle.permit import ONE, Decision, Permit
from aiothrottle.rate import RateLike
from aiothrottle.statistics import Statistics
from aiothrottle.stores.store import Key, OnStoreError, Store, parts_of

# Seconds between two rounds in which keys are forgotten, at the least and at the most.
_SOONEST, _LATEST = 1.0, 60.0
# Rounds for keys that are all in use, which may end without a look-up. Not for ever: a loop in
# virtual time finds a deadlock by having no timer.
_ROUNDS = 60
# The arguments that an override may have.
_ARGUMENTS = arguments_of(RateLimiter)
# Keys that are checked in one turn of the loop.
_CHUNK = 500


class LimiterOptions(TypedDict, total=False):
    """The arguments of `RateLimiter` that a `KeyedRateLimiter` only passes on."""

    burst: Burst | None
    algorithm: AlgorithmLike | None
    guard: Guard | None
    max_queue: int | None
    store: Store | None
    key: Key | None
    max_reservation: float | None
    prefetch: RateLike | None
    on_store_error: OnStoreError
    local_share: float | None
    learn_rate: bool
    name: str | None
    clock: Callable[[], float]


class KeyedRateLimiter:
    """One `RateLimiter` for each key, made when the key is first used.

    A busy key never delays another key. A key is forgotten when that makes no difference: it has no
    waiter, its state is as good as new, and no permit of it nor a reference to its limiter is left.

    Args:
        rate_limit: As for `RateLimiter`, for each key.
        concurrency_limit: As for `RateLimiter`, for each key.
        overrides: Arguments of `RateLimiter` for single keys, in place of these.
        parent: A limit for all keys together. Keys with waiters take turns there.
        options: Other arguments of `RateLimiter`, for each key. With a `store`, `key` is required:
            it is the first part of each record's key, the action. The second part is the key of
            the limiter as a string, so 7 and "7" share a record.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of range.

    >>> limiter = KeyedRateLimiter(
    ...     "2/s",
    ...     concurrency_limit=2,
    ...     overrides={"example.org": {"rate_limit": "10/s"}},
    ...     parent=RateLimiter("50/s"),
    ... )
    >>> async def fetch(host):
    ...     async with limiter.throttle(host):
    ...         print(f"one of {len(limiter)} hosts")
    """

    def __init__(
        self,
        rate_limit: RateLimit | Literal["server"] | None = None,
        *positional: Never,
        concurrency_limit: ConcurrencyLimit | None = None,
        overrides: Mapping[Any, Mapping[str, Any]] | None = None,
        parent: RateLimiter | None = None,
        **options: Unpack[LimiterOptions],
    ) -> None:
        if positional:
            raise misplaced("KeyedRateLimiter", rate_limit, positional)
        check_names("KeyedRateLimiter", _ARGUMENTS, {"rate_limit": rate_limit, **options})
        self._defaults: dict[str, Any] = {
            "rate_limit": rate_limit,
            "concurrency_limit": concurrency_limit,
            "parent": parent,
            **options,
        }
        self._overrides = _checked(overrides)
        # Raises if an argument is wrong. It stays unused: the engines of keys are made like it.
        self._usual = RateLimiter(**self._defaults)._engine
        for key, override in self._overrides.items():
            try:
                RateLimiter(**{**self._defaults, **override})
            except (TypeError, ValueError) as error:
                raise type(error)(f"the override of {key!r}: {error}") from error
        self._limiters: OrderedDict[Hashable, RateLimiter] = OrderedDict()
        # While a permit or a child of a forgotten key lives, the key must keep its engine: two
        # engines would grant the limit twice.
        self._alive = weakref.WeakValueDictionary[Hashable, Engine]()
        # The loop that the limiters are used on, its thread, and whether a timer runs there.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._is_timed = False
        # In this round: how many keys are still to be checked, and after how many seconds the first
        # of the others may be forgotten.
        self._unseen = 0
        self._most = 0  # the most keys since the tables were made
        self._soonest = math.inf
        self._past = Past()
        self._closed = self._entered = False
        # Whether a session or transport reports the outcome of each request.
        self._reported = False
        self._listeners: tuple[Listener, ...] = ()

    def __getitem__(self, key: Hashable) -> RateLimiter:
        limiter = self._limiters.get(key)
        if limiter is None:
            return self._make(key)
        # A mere look from another loop does not move the timer there.
        if not self._is_timed and limiter._engine.loop is running_loop():
            self._keep_tidy()
        return limiter

    def __len__(self) -> int:
        return len(self._limiters)

    def __bool__(self) -> bool:
        """Return True, also without keys: `limiter or another` would make a second limit."""
        return True

    def __contains__(self, key: Hashable) -> bool:
        return key in self._limiters

    def __iter__(self) -> Iterator[Hashable]:
        """Iterate over the present keys. Without it Python would look up 0, 1, 2 and so on."""
        return iter(tuple(self._limiters))

    def throttle(
        self, key: Hashable, cost: Cost = ONE, *, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """`RateLimiter.throttle` of that key.

        Args:
            key: The key, any hashable value.
            cost: As for `RateLimiter.throttle`.
            priority: As for `RateLimiter.throttle`.
            timeout: As for `RateLimiter.throttle`.
        """
        return self[key].throttle(cost, priority=priority, timeout=timeout)

    async def acquire(
        self, key: Hashable, cost: Cost = ONE, *, priority: float = 0, timeout: float | None = None
    ) -> Permit:
        """`RateLimiter.acquire` of that key.

        Args:
            key: The key, any hashable value.
            cost: As for `RateLimiter.throttle`.
            priority: As for `RateLimiter.throttle`.
            timeout: As for `RateLimiter.throttle`.
        """
        return await self[key].acquire(cost, priority=priority, timeout=timeout)

    async def try_acquire(self, key: Hashable, cost: Cost = ONE) -> Decision:
        """`RateLimiter.try_acquire` of that key.

        Args:
            key: The key, any hashable value.
            cost: As for `RateLimiter.throttle`.
        """
        return await self[key].try_acquire(cost)

    async def peek(self, key: Hashable, cost: Cost = ONE) -> Decision:
        """`RateLimiter.peek` of that key.

        Args:
            key: The key, any hashable value.
            cost: As for `RateLimiter.throttle`.
        """
        return await self[key].peek(cost)

    async def record(self, key: Hashable, cost: Cost = ONE) -> None:
        """`RateLimiter.record` of that key.

        Args:
            key: The key, any hashable value.
            cost: As for `RateLimiter.record`.
        """
        await self[key].record(cost)

    async def reset(self, key: Hashable) -> None:
        """`RateLimiter.reset` of that key.

        Args:
            key: The key, any hashable value.
        """
        await self[key].reset()

    def pause(self, key: Hashable, seconds: float) -> None:
        """`RateLimiter.pause` of that key.

        Args:
            key: The key, any hashable value.
            seconds: As for `RateLimiter.pause`.
        """
        self[key].pause(seconds)

    def update(
        self,
        key: Hashable,
        *,
        rate_limit: RateLimit | Literal[Unchanged.UNCHANGED] | None = UNCHANGED,
        concurrency_limit: ConcurrencyLimit | Literal[Unchanged.UNCHANGED] | None = UNCHANGED,
    ) -> None:
        """`RateLimiter.update` of that key, which is never forgotten afterwards.

        Args:
            key: The key, any hashable value.
            rate_limit: As for `RateLimiter.update`.
            concurrency_limit: As for `RateLimiter.update`.
        """
        self[key].update(rate_limit=rate_limit, concurrency_limit=concurrency_limit)

    def merge(self, key: Hashable, into: Hashable) -> None:
        """Count the requests of a key under another one from now on.

        For a server that says only in its answer which limit a request belongs to, such as Discord
        by ``X-RateLimit-Bucket``: begin with the route as the key, and merge it into the bucket. A
        bucket that is new takes over the limiter of the route, with its waiters and all that is
        spent. Otherwise the bucket is paused as long as the route, and charged what the route has
        spent, and its present waiters too, which are granted where they wait. Slots that the route
        holds do not count there. A route that changes its bucket leaves behind what it has spent.

        A merged key is forgotten with the other one.

        Args:
            key: The key of the requests.
            into: The key under which they count.

        Raises:
            ValueError: The limits are in a store, which keeps a record of each key.
            RuntimeError: The limiter belongs to another event loop that is open.

        >>> limiter = KeyedRateLimiter("5/s")
        >>> async def call(route, send):
        ...     async with limiter.throttle(route):
        ...         response = await send()
        ...     limiter.merge(route, response.headers.get("X-RateLimit-Bucket", route))
        """
        self._thread = check_thread(self._loop, self._thread)
        for each in (key, into):
            if {**self._defaults, **self._overrides.get(each, {})}.get("store") is not None:
                raise ValueError("keys of a store cannot be merged: each has a record there")
        old, new = self._limiters.get(key), self._limiters.get(into)
        if key == into or (old is not None and old is new):
            return
        if old is not None and old._engine.key != key:
            old = None  # of the bucket where it counted until now, and which others may share
        has_override = key in self._overrides or into in self._overrides
        if old is not None and new is None and into not in self._alive and not has_override:
            old._engine.observers.key = into
            self._adopt(into, old)
            return
        new = self[into]
        # A loop with a time of its own would void what is charged before.
        new._bind_if_running()
        self._adopt(key, new)
        if old is not None:
            engine = old._engine
            spent = used(*engine.bucket.own, engine.bucket.now()) + engine.queue.cost
            new._engine.charge_here(spent)  # the parent was charged by the requests
            if left := engine.pause.left(engine.bucket.clock()):
                new._engine.pause_for(left, engine.observers.pause_reason)
            self._alive[object()] = engine  # it has no key any more, but waiters to serve
            weakref.finalize(engine, self._absorb, engine.bucket, engine.observers).atexit = False

    def _adopt(self, key: Hashable, limiter: RateLimiter) -> None:
        """Use a limiter for one more key."""
        self._limiters[key], self._alive[key] = limiter, limiter._engine
        self._soonest = _SOONEST  # this round does not check it

    def throttled(
        self, key: Hashable, cost: Cost = ONE, *, priority: float = 0, timeout: float | None = None
    ) -> Decorator:
        """`RateLimiter.throttled` of that key.

        Args:
            key: The key of each call. One that depends on the arguments of a call is passed to
                `throttle`, in the function.
            cost: As for `RateLimiter.throttle`.
            priority: As for `RateLimiter.throttle`.
            timeout: As for `RateLimiter.throttle`.
        """
        if inspect.isfunction(key):
            raise TypeError(
                f"throttled() takes the same key for each call, not a function, got {shown(key)}; "
                "for a key of each call: async with limiter.throttle(key): in the function"
            )
        self[key]._check(cost, priority, timeout)
        # Each call finds the limiter: the key may be merged into another one.
        return Decorator(
            functools.partial(self.throttle, key, cost, priority=priority, timeout=timeout)
        )

    def statistics(self, key: Hashable) -> Statistics:
        """`RateLimiter.statistics` of that key, since it was last forgotten.

        Args:
            key: The key, any hashable value.
        """
        return self[key].statistics()

    def total(self) -> Statistics:
        """Return the counts of all keys together, and the longest of their pauses.

        Keys that were forgotten since count too; ``list(limiter)`` has the present ones. Limits are
        those of each key, so the total has none.

        >>> limiter = KeyedRateLimiter("10/s")
        >>> limiter.total().granted
        0
        """
        self._thread = check_thread(self._loop, self._thread)  # it flushes pending counts
        engines = self._engines()
        return self._past.total((engine.statistics(), engine.observers) for engine in engines)

    def observe(self, observer: events.Observer) -> Callable[[], None]:
        """`RateLimiter.observe` of all keys, present and future, but not of the parent.

        Args:
            observer: Called with each event, at once. The key of an event is its `key`.
        """
        listener = Listener(observer)
        self._thread = check_thread(self._loop, self._thread)
        self._listeners += (listener,)
        for engine in self._engines():
            engine.listen(listener)
        return functools.partial(self._forget, listener)

    def _forget(self, listener: Listener) -> None:
        self._listeners = tuple(other for other in self._listeners if other is not listener)
        for engine in self._engines():
            engine.observers.remove(listener)

    async def aclose(self, *, drain: bool = False) -> None:
        """Close the limiters of all keys, present and future. The parent stays open.

        Args:
            drain: As for `RateLimiter.aclose`.
        """
        check_choice("drain", drain, (True, False))
        self._closed = True
        await asyncio.gather(*(engine.close(drain=drain) for engine in self._engines()))

    if not TYPE_CHECKING:  # a type checker finds that mistake by itself

        def __enter__(self) -> NoReturn:
            raise not_async("KeyedRateLimiter(...) as limiter:")

        def __exit__(self, *exc_info: object) -> None:
            """Never run: without it the error of `with` is about this method."""

    async def __aenter__(self) -> Self:
        if self._entered:
            raise entered_before("throttle(key)")
        self._entered = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        """Reject pickling and copying."""
        raise no_copy("KeyedRateLimiter")

    def __repr__(self) -> str:
        return f"<KeyedRateLimiter of {len(self)} keys>"

    def _engines(self) -> list[Engine]:
        # Forgotten keys too, while a permit of them is held.
        alive = [known() for known in self._alive.valuerefs()]
        # Merged keys have one engine.
        return [*dict.fromkeys(engine for engine in alive if engine is not None)]

    def _make(self, key: Hashable) -> RateLimiter:
        self._thread = check_thread(self._loop, self._thread)
        engine = self._alive.get(key)
        if engine is None:
            engine = self._new_engine(key)
            engine.closed = self._closed
            engine.observers.key = key
            engine.observers.listeners = self._listeners
            if self._reported:
                engine.expect_outcomes()
        limiter = RateLimiter._around(engine)
        if not self._closed:  # else the next one is closed too: there is nothing to remember
            self._adopt(key, limiter)
            self._keep_tidy()
        return limiter

    def _new_engine(self, key: Hashable) -> Engine:
        options = {**self._defaults, **self._overrides.get(key, {})}
        if options.get("store") is not None:
            options["key"] = (*parts_of(options["key"]), str(key))
        elif key not in self._overrides:
            return self._usual.fresh()
        return RateLimiter(**options)._engine

    def _keep_tidy(self) -> None:
        """Start the timer that forgets keys, on the running loop, if there is none."""
        loop = running_loop()
        # Without a loop the first key on one starts it.
        if loop is not None and (self._loop is not loop or not self._is_timed):
            self._loop, self._thread, self._is_timed = loop, get_ident(), True
            # A weak reference: a timer must not keep a limiter alive.
            loop.call_later(_SOONEST, _tidy, weakref.ref[KeyedRateLimiter](self), loop, _ROUNDS)

    def _forget_some(self) -> float:
        """Check some keys, oldest first.

        Returns the seconds until the next call; infinity if time alone makes none forgettable.
        """
        if not self._unseen:
            self._unseen, self._soonest = len(self._limiters), math.inf
            self._most = max(self._most, self._unseen)
        dropped: list[tuple[Hashable, LocalBucket, Observers]] = []
        for _ in range(min(_CHUNK, self._unseen)):
            self._unseen -= 1
            key, limiter = self._limiters.popitem(last=False)
            engine = limiter._engine
            if engine.observers.listeners != self._listeners:
                self._limiters[key] = limiter  # it has an observer of its own, which waits
            elif engine.is_forgettable():
                dropped.append((key, engine.bucket, engine.observers))
            else:
                self._limiters[key] = limiter  # at the end: the others are checked first
                self._soonest = min(self._soonest, max(_SOONEST, engine.forgettable_in))
            del limiter, engine  # the last reference, unless there is one elsewhere
        for key, bucket, observers in dropped:
            alive = self._alive.get(key)
            if alive is None:
                self._absorb(bucket, observers)
            elif alive.key == key:  # a permit may still report, a reference still spend
                self._limiters[key] = RateLimiter._around(alive)
        if self._unseen:
            return 0.0
        if 4 * len(self._limiters) < self._most:
            # New tables, as a dict of Python never shrinks.
            self._limiters = OrderedDict(self._limiters)
            self._alive = weakref.WeakValueDictionary(self._alive)
            self._most = len(self._limiters)
        return self._soonest

    def _absorb(self, bucket: LocalBucket, observers: Observers) -> None:
        """Keep the counts of an engine that is gone; merged keys have one engine."""
        bucket.now()  # counts what started on credit
        self._past.absorb(bucket.granted, observers)
        bucket.granted = 0


#: What most parts take for a limiter.
AnyLimiter: TypeAlias = RateLimiter | KeyedRateLimiter


def check_limiter(limiter: object) -> None:
    """Raise a TypeError unless it is a limiter."""
    if not isinstance(limiter, AnyLimiter):
        raise TypeError(
            f"limiter must be a RateLimiter or a KeyedRateLimiter, got {shown(limiter)}"
        )


def engine_of(limiter: AnyLimiter, key: Hashable) -> Engine | None:
    """Return the engine of a key, or of a limiter without keys; None: the key has none now."""
    return limiter._engine if isinstance(limiter, RateLimiter) else limiter._alive.get(key)


def engines_of(limiter: AnyLimiter) -> list[Engine]:
    """Return the engine of a limiter, or the engines of all keys, to read them; in any thread."""
    if isinstance(limiter, RateLimiter):
        return [limiter._engine]
    return limiter._engines()


def expect_outcomes(limiter: AnyLimiter) -> None:
    """Begin with small bursts: from now on the outcome of each request is reported. Idempotent."""
    if isinstance(limiter, KeyedRateLimiter):
        if limiter._reported:
            return
        limiter._reported = True
    for engine in engines_of(limiter):
        engine.expect_outcomes()


def _checked(overrides: Mapping[Any, Mapping[str, Any]] | None) -> dict[Any, dict[str, Any]]:
    if not isinstance(overrides, Mapping | None):
        raise TypeError(f"overrides must be a mapping of keys to arguments, got {shown(overrides)}")
    for key, override in (overrides or {}).items():
        if not isinstance(override, Mapping):
            raise TypeError(
                f"the override of {key!r} must be a mapping of arguments, such as "
                f'{{"rate_limit": "10/s"}}, got {shown(override)}'
            )
        for name in override:
            if name not in _ARGUMENTS:
                raise TypeError(
                    f"unknown argument {name!r} in the override of {key!r}: a RateLimiter takes "
                    f"{', '.join(_ARGUMENTS)}"
                )
    return {key: dict(override) for key, override in (overrides or {}).items()}


def _tidy(
    limiter: "weakref.ref[KeyedRateLimiter]", loop: asyncio.AbstractEventLoop, rounds: int
) -> None:
    """Forget keys of a limiter, and start its timer again while keys may become forgettable."""
    known = limiter()
    if known is None or known._loop is not loop:
        return
    seconds = known._forget_some()
    if seconds == math.inf:
        rounds = rounds - 1 if known._limiters else 0
    if rounds:
        loop.call_later(min(seconds, _LATEST), _tidy, limiter, loop, rounds)
    else:
        known._is_timed = False
