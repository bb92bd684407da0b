"""Makes the parts of a limiter: an engine alone, in a chain below a parent, or before a store.

Invariant: a wrong argument, or two that contradict each other, raise before a limiter exists.
"""

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from aiothrottle._core.chain import Chain
from aiothrottle._core.engine import Engine
from aiothrottle._core.entry import Entry
from aiothrottle._core.feedback import Feedback
from aiothrottle._core.limits import SERVER, Limits
from aiothrottle._core.plan import (
    AlgorithmChoice,
    ConcurrencyLimit,
    Plan,
    RateLimit,
    check_shareable,
    make_plan,
    names_of,
    slots_of,
)
from aiothrottle.algorithms import Unlimited
from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.checks import check_number, check_whole
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.redact import shown
from aiothrottle.stores.memory import MemoryStore
from aiothrottle.stores.reserved import Reserved
from aiothrottle.stores.share_size import OnStoreError, check_share
from aiothrottle.stores.shared_bucket import SharedBucket
from aiothrottle.stores.shared_concurrency import SharedConcurrency
from aiothrottle.stores.shared_semaphore import SharedSemaphore
from aiothrottle.stores.slots import SlotStore
from aiothrottle.stores.store import Key, Store, name_of
from aiothrottle.texts import number

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sharing", "make_entry"]


class Sharing(NamedTuple):
    """Which limits are counted in a store, and how: the arguments of `RateLimiter`."""

    store: Store | None
    key: Key | None
    max_reservation: float | None
    prefetch: RateLike | None
    on_store_error: OnStoreError
    local_share: float | None


def make_entry(
    rate_limit: RateLimit | Literal["server"] | None,
    choice: AlgorithmChoice,
    concurrency_limit: ConcurrencyLimit | None,
    *,
    clock: "Callable[[], float]",
    max_queue: int | None,
    parent: Entry | None,
    sharing: Sharing,
) -> Entry:
    """Make the engine of a limiter, and its chain below a parent.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of range, or two arguments contradict each other.
    """
    slots = slots_of(concurrency_limit)
    check_whole("max_queue", max_queue, none="None for no limit")
    if not callable(clock):
        raise TypeError(f"clock must be a function that returns seconds, got {clock!r}")
    if parent is not None and parent.engine.store_up is not None:
        raise ValueError("a limiter with a store cannot be a parent")
    _check(sharing, concurrency_limit, parent)
    if choice[2] is None and isinstance(sharing.store, MemoryStore):
        choice = (*choice[:2], 0.0)  # in one process no answer is late
    resources = names_of(rate_limit, choice[1])
    if resources and sharing.prefetch is not None:
        raise ValueError("prefetch is for limiters without resources: give none")
    above = () if parent is None else parent.engine.resources
    if above and not resources and not (rate_limit is None and choice[1] is None):
        raise ValueError(
            f"the parent has the resources {', '.join(above)}: give rate_limit a rate for each of "
            "the limiter's own, such as {'requests': '2/s'}"
        )
    limits = Limits(choice, concurrency_limit, resources)
    plan = Plan(Unlimited())
    if rate_limit != SERVER:
        plan = make_plan(rate_limit, choice, shared=sharing.store is not None)
    elif sharing.store is not None:
        raise ValueError(
            "rate_limit='server' holds for one process: with a store, give a fixed rate"
        )
    else:
        limits.expect_server()
    shared = concurrency_limit if isinstance(concurrency_limit, SharedConcurrency) else None
    has_rate = rate_limit is not None or choice[1] is not None
    engine = _make_engine(
        plan,
        limits,
        clock=clock,
        max_queue=max_queue,
        sharing=sharing,
        shares_rate=has_rate or shared is None,
    )
    if shared is not None:
        _share_slots(engine, shared, sharing)
    feedback = Feedback(plan.rate, slots, plan.guard)
    # Until the server has reported its rate, its answers are counted.
    engine.feedback = feedback if feedback.is_needed or limits.rate_unknown else None
    engine.resources = (*resources, *(name for name in above if name not in resources))
    return engine if parent is None else Chain(engine, parent)


def _make_engine(
    plan: Plan,
    limits: Limits,
    *,
    clock: "Callable[[], float]",
    max_queue: int | None,
    sharing: Sharing,
    shares_rate: bool,
) -> Engine:
    """Make an engine; with a store it reserves its tokens there, if it shares its rate."""
    store, key, max_reservation, prefetch, on_store_error, local_share = sharing
    if store is None or key is None or not shares_rate:
        if max_reservation is not None or prefetch is not None:
            raise ValueError(
                "max_reservation and prefetch say how a store is called: give a store, and a rate"
            )
        return Engine(plan.algorithm, limits.slots, clock, max_queue=max_queue, limits=limits)
    check_shareable(plan)
    waits_in_store = max_wait(plan.algorithm) < math.inf
    if waits_in_store and not (max_reservation is None and prefetch is None):
        raise ValueError(
            f"{plan.algorithm!r} says itself how far ahead a request may wait: "
            "no max_reservation and no prefetch"
        )
    reserved = Reserved(plan.algorithm)
    engine = Engine(reserved, limits.slots, clock, max_queue=max_queue, limits=limits)
    engine.share_rate(
        SharedBucket(
            engine,
            plan.algorithm,
            store=store,
            key=key,
            max_reservation=max_reservation,
            prefetch=_prefetch(prefetch),
            on_store_error=on_store_error,
            local_share=local_share,
        )
    )
    return engine


def _share_slots(engine: Engine, shared: SharedConcurrency, sharing: Sharing) -> None:
    """Lease the slots of the engine in the store."""
    store, key = sharing.store, sharing.key
    if not isinstance(store, SlotStore):
        raise TypeError(
            f"slots are shared through a SlotStore, such as a SwapStore, not {shown(store)}"
        )
    assert key is not None  # `_check` requires it with a store
    engine.lease_slots(
        SharedSemaphore(
            engine,
            shared,
            store=store,
            key=key,
            on_store_error=sharing.on_store_error,
            local_share=sharing.local_share,
        )
    )


def _check(
    sharing: Sharing, concurrency_limit: ConcurrencyLimit | None, parent: Entry | None
) -> None:
    """Reject arguments that need a store without one, and a store that cannot be used."""
    store, on_store_error = sharing.store, sharing.on_store_error
    check_share(on_store_error, sharing.local_share)
    if store is None:
        if on_store_error != "raise":
            raise ValueError("on_store_error says what to do when a store fails: give a store")
        if isinstance(concurrency_limit, SharedConcurrency):
            raise ValueError("a SharedConcurrency is counted in a store: give a store")
        if sharing.key is not None:
            raise ValueError("key names the record in the store: give a store")
        return
    if not isinstance(store, Store):
        raise TypeError(f"store must be a Store, such as RedisStore(client), got {shown(store)}")
    if sharing.key is None:
        raise TypeError(
            "key is required with store: it names the record, and limiters with the same key share "
            "their limit; write key='api.example.org', for example"
        )
    name_of(sharing.key)
    check_number("max_reservation", sharing.max_reservation, "seconds", none="None")
    if parent is not None:
        raise ValueError(
            "a limiter with a store has no parent: tokens of both cannot be had at once"
        )


def _prefetch(prefetch: RateLike | None) -> Rate | None:
    """Check the tokens to prefetch, and the seconds to keep them."""
    if prefetch is None:
        return None
    tokens = as_rate(prefetch)
    if tokens.limit < 1:
        raise ValueError(f"prefetch must be 1 token or more, got {number(tokens.limit)}")
    return tokens
