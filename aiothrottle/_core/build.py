"""Makes the engine of a limiter, with its store and below its parent.

Invariant: a wrong argument, or two that contradict each other, raise before a limiter exists.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict

from aiothrottle._checks import check_choice, check_number, check_whole, number, shown
from aiothrottle._core.engine import Engine
from aiothrottle._core.feedback import Feedback
from aiothrottle._core.limits import (
    AlgorithmLike,
    Burst,
    ConcurrencyLimit,
    Guard,
    Limits,
    RateLimit,
    slots_of,
)
from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import max_wait
from aiothrottle.rate import RateLike, as_rate
from aiothrottle.stores.store import (
    Key,
    OnStoreError,
    SharedConcurrency,
    Store,
    check_share,
    name_of,
)


def make_engine(
    rate_limit: RateLimit | Literal["server"] | None,
    *,
    concurrency_limit: ConcurrencyLimit | None,
    burst: Burst | None,
    algorithm: AlgorithmLike | None,
    guard: Guard | None,
    parent: Engine | None,
    max_queue: int | None,
    store: Store | None,
    key: Key | None,
    max_reservation: float | None,
    prefetch: RateLike | None,
    on_store_error: OnStoreError,
    local_share: float | None,
    learn_rate: bool,
    name: str | None,
    clock: Callable[[], float],
) -> Engine:
    """Make the engine of a limiter; the arguments are those of `RateLimiter`.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of range, or two arguments contradict each other.
    """
    slots = slots_of(concurrency_limit)
    check_whole("max_queue", max_queue, none="None for no limit")
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"name must be a text, such as 'api.example.org', or None, got {name!r}")
    check_choice("learn_rate", learn_rate, (True, False))
    if not callable(clock):
        raise TypeError(f"clock must be a function that returns seconds, got {clock!r}")
    if parent is not None and parent.store_up is not None:
        raise ValueError("a limiter with a store cannot be a parent")
    leased = concurrency_limit if isinstance(concurrency_limit, SharedConcurrency) else None
    check_share(on_store_error, local_share)
    if store is None:
        if on_store_error != "raise":
            raise ValueError("on_store_error says what to do when a store fails: give a store")
        if leased is not None:
            raise ValueError("a SharedConcurrency is counted in a store: give a store")
        if key is not None:
            raise ValueError("key names the record in the store: give a store")
    else:
        _check_store(store, key, parent)
    check_number("max_reservation", max_reservation, "seconds", none="None")
    if guard is None:
        guard = _default_guard(store)
    limits = Limits(
        rate_limit,
        concurrency_limit,
        burst=burst,
        algorithm=algorithm,
        guard=guard,
        learn_rate=learn_rate,
        name=name,
    )
    resources = limits.resources
    if resources and prefetch is not None:
        raise ValueError("prefetch is for limiters without resources: give none")
    above = () if parent is None else parent.resources
    has_rate = rate_limit is not None or algorithm is not None
    if above and not resources and has_rate:
        raise ValueError(
            f"the parent has the resources {', '.join(above)}: give rate_limit a rate for each of "
            "the limiter's own, such as {'requests': '2/s'}"
        )
    shares_rate = store is not None and (has_rate or leased is None)
    plan = limits.plan(shared=shares_rate)
    limits.fixed_guard = plan.fixed_guard
    if not shares_rate and not (max_reservation is None and prefetch is None):
        raise ValueError(
            "max_reservation and prefetch say how a store is called: give a store, and a rate"
        )
    own = _reserved(plan.algorithm) if shares_rate else plan.algorithm
    engine = Engine(own, clock, limits=limits, max_queue=max_queue, above=parent)
    if store is not None and key is not None:
        options = _StoreOptions(key=key, on_store_error=on_store_error, local_share=local_share)
        if leased is not None:
            _share_slots(engine, leased, store, options)
        if shares_rate:
            _share_rate(engine, plan.algorithm, store, options, max_reservation, prefetch)
    feedback = Feedback(plan.rate, slots, plan.guard)
    # Until the server has reported its rate, its answers are counted.
    engine.adaptation.feedback = feedback if feedback.is_needed or limits.rate_unknown else None
    engine.adaptation.use_rate()
    engine.watch()
    return engine


class _StoreOptions(TypedDict):
    """How the limits are counted in a store."""

    key: Key
    on_store_error: OnStoreError
    local_share: float | None


# The parts that call a store are imported when there is one: most limiters have none.


def _default_guard(store: Store | None) -> float | None:
    """Return the guard where the user gave none; None: what suits."""
    if store is None:
        return None
    from aiothrottle.stores.memory import MemoryStore

    return 0.0 if isinstance(store, MemoryStore) else None  # where no answer is late


def _reserved(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """Return the algorithm that knows only what is reserved in a store."""
    from aiothrottle.stores.reserved import Reserved

    return Reserved(algorithm)


def _share_rate(
    engine: Engine,
    algorithm: Algorithm[Any],
    store: Store,
    options: _StoreOptions,
    max_reservation: float | None,
    prefetch: RateLike | None,
) -> None:
    """Reserve the tokens of the engine in the store."""
    from aiothrottle.stores.caller import Caller, weakly
    from aiothrottle.stores.shared_bucket import SharedBucket
    from aiothrottle.stores.wait_until import SharedWaitUntil

    rejects = max_wait(algorithm) < math.inf
    if rejects and not (max_reservation is None is prefetch):
        raise ValueError(
            f"{algorithm!r} says itself how far ahead a request may wait: "
            "no max_reservation and no prefetch"
        )
    tokens = None
    if prefetch is not None:
        tokens = as_rate(prefetch)
        if tokens.limit < 1:
            raise ValueError(f"prefetch must be 1 token or more, got {number(tokens.limit)}")
    make = partial(SharedWaitUntil, observers=engine.observers) if rejects else SharedBucket
    engine.shared = make(
        *(engine.bucket, engine.queue, engine.semaphore, engine.pause, algorithm),
        store=store,
        changed=weakly(engine.store_changed),
        max_reservation=max_reservation,
        prefetch=tokens,
        **options,
    )
    now, serve = engine.bucket.now, engine.store_answered
    engine.callers += (Caller(engine.shared, "aiothrottle tokens", now, serve),)


def _share_slots(
    engine: Engine, shared: SharedConcurrency, store: Store, options: _StoreOptions
) -> None:
    """Lease the slots of the engine in the store."""
    from aiothrottle.stores.caller import Caller, weakly
    from aiothrottle.stores.shared_semaphore import SharedSemaphore
    from aiothrottle.stores.slots import SlotStore

    if not isinstance(store, SlotStore):
        raise TypeError(
            f"slots are shared through a SlotStore, such as a SwapStore, not {shown(store)}"
        )
    engine.leased = SharedSemaphore(
        *(engine.semaphore, engine.bucket, engine.observers, shared),
        store=store,
        startable=weakly(engine.startable),
        changed=weakly(engine.store_changed),
        **options,
    )
    bucket, serve = engine.bucket, engine.store_answered
    now = lambda: bucket.clock()  # noqa: E731, PLW0108 - another loop brings another clock
    engine.callers += (Caller(engine.leased, "aiothrottle slots", now, serve),)


def _check_store(store: Store, key: Key | None, parent: Engine | None) -> None:
    """Reject a store that cannot be used."""
    if not isinstance(store, Store):
        raise TypeError(f"store must be a Store, such as RedisStore(client), got {shown(store)}")
    if key is None:
        raise TypeError(
            "key is required with store: it names the record, and limiters with the same key share "
            "their limit; write key='api.example.org', for example"
        )
    name_of(key)
    if parent is not None:
        raise ValueError(
            "a limiter with a store has no parent: tokens of both cannot be had at once"
        )
