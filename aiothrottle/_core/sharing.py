"""Connects an engine to its store: tokens and slots that processes share.

The parts that call a store are imported when there is one: most limiters have none.
"""

import math
from functools import partial
from typing import Any, TypedDict

from aiothrottle._checks import number, shown
from aiothrottle._core.engine import Engine
from aiothrottle._core.limits import Plan
from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import max_wait
from aiothrottle.rate import RateLike, as_rate
from aiothrottle.stores.store import Key, OnStoreError, SharedConcurrency, Store, name_of


class StoreOptions(TypedDict):
    """How the limits are counted in a store."""

    key: Key
    choice: OnStoreError
    local_share: float | None


def default_guard(store: Store | None) -> float | None:
    """Return the guard where the user gave none; None: what suits."""
    if store is None:
        return None
    from aiothrottle.stores.memory import MemoryStore

    return 0.0 if isinstance(store, MemoryStore) else None  # where no answer is late


def reserved(plan: Plan) -> Plan:
    """Return the plan with an algorithm that knows only what is reserved in a store."""
    from aiothrottle.stores.reserved import Reserved

    return plan._replace(algorithm=Reserved(plan.algorithm))


def share_rate(
    engine: Engine,
    algorithm: Algorithm[Any],
    store: Store,
    options: StoreOptions,
    max_reservation: float | None,
    prefetch: RateLike | None,
) -> None:
    """Reserve the tokens of the engine in the store."""
    from aiothrottle.stores.caller import Caller, weakly
    from aiothrottle.stores.outage import Outage
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
        outage=Outage(store, report=weakly(engine.store_changed), **options),
        max_reservation=max_reservation,
        prefetch=tokens,
    )
    now, serve = engine.bucket.now, weakly(engine.tokens_answered)
    engine.callers += (Caller(engine.shared, "aiothrottle tokens", now, serve),)


def share_slots(
    engine: Engine, shared: SharedConcurrency, store: Store, options: StoreOptions
) -> None:
    """Lease the slots of the engine in the store."""
    from aiothrottle.stores.caller import Caller, weakly
    from aiothrottle.stores.outage import Outage
    from aiothrottle.stores.shared_semaphore import SharedSemaphore
    from aiothrottle.stores.slots import SlotStore

    if not isinstance(store, SlotStore):
        raise TypeError(
            f"slots are shared through a SlotStore, such as a SwapStore, not {shown(store)}"
        )
    outage = Outage(store, report=weakly(engine.store_changed), **options)
    engine.leased = SharedSemaphore(
        *(engine.semaphore, engine.bucket, engine.observers, shared, store, outage),
        startable=weakly(engine.startable),
    )
    bucket, serve = engine.bucket, weakly(engine.store_answered)
    now = lambda: bucket.clock()  # noqa: E731, PLW0108 - another loop brings another clock
    engine.callers += (Caller(engine.leased, "aiothrottle slots", now, serve),)
    engine.watch()


def check_store(
    store: Store | None,
    key: Key | None,
    parent: Engine | None,
    leased: SharedConcurrency | None,
    on_store_error: OnStoreError,
) -> None:
    """Reject a store that cannot be used, and what is about a store if there is none."""
    if store is None:
        if on_store_error != "raise":
            raise ValueError("on_store_error says what to do when a store fails: give a store")
        if leased is not None:
            raise ValueError("a SharedConcurrency is counted in a store: give a store")
        if key is not None:
            raise ValueError("key names the record in the store: give a store")
        return
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
