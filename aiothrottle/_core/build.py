"""Which parts a limiter gets: an engine alone, in a chain below a parent, or before a store."""

import math
from typing import TYPE_CHECKING, NamedTuple

from aiothrottle._core.chain import Chain, Entry
from aiothrottle._core.engine import Engine
from aiothrottle._core.plan import Plan, check_shareable
from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.checks import check_number
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.redact import shown
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
    """What of the limits is kept in a store, and how: as the user said it."""

    store: Store | None
    key: Key | None
    max_reservation: float | None
    prefetch: RateLike | None
    on_store_error: OnStoreError
    local_share: float | None
    #: What all processes share of the slots, if anything.
    slots: SharedConcurrency | None
    #: Whether there is a rate limit.
    has_rate: bool


def make_entry(
    plan: Plan,
    slots: int | None,
    clock: "Callable[[], float]",
    max_queue: int | None,
    *,
    parent: Entry | None,
    sharing: Sharing,
) -> Entry:
    """Make an engine by all that the user said, with its chain, or refuse what contradicts itself.

    Raises:
        TypeError: Something is of a wrong kind.
        ValueError: Two things contradict each other.
    """
    if not callable(clock):
        raise TypeError(f"clock is a function that gives seconds, not {clock!r}")
    if parent is not None and parent.engine.store_up is not None:
        raise ValueError("a limiter with a store cannot be a parent")
    store, key, max_reservation, prefetch, on_store_error, local_share, shared, has_rate = sharing
    _check(sharing, parent)
    if store is not None and key is not None and (has_rate or not shared):
        check_shareable(plan)
        if max_wait(plan.algorithm) < math.inf and not (
            max_reservation is None and prefetch is None
        ):
            raise ValueError(
                f"{plan.algorithm!r} says itself how far ahead a request may wait: "
                "no max_reservation and no prefetch"
            )
        engine = Engine(Reserved(plan.algorithm), slots, clock, max_queue=max_queue)
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
    elif max_reservation is not None or prefetch is not None:
        raise ValueError(
            "max_reservation and prefetch say how a store is called: give a store, and a rate"
        )
    else:
        engine = Engine(plan.algorithm, slots, clock, max_queue=max_queue)
    if shared and key is not None:
        if not isinstance(store, SlotStore):
            raise TypeError(
                f"slots are shared through a SlotStore, such as a SwapStore, not {shown(store)}"
            )
        engine.lease_slots(
            SharedSemaphore(
                engine,
                shared,
                store=store,
                key=key,
                on_store_error=on_store_error,
                local_share=local_share,
            )
        )
    return engine if parent is None else Chain(engine, parent)


def _check(sharing: Sharing, parent: Entry | None) -> None:
    """Refuse what is of no use without a store, or cannot be a record in one."""
    store, on_store_error = sharing.store, sharing.on_store_error
    check_share(on_store_error, sharing.local_share)
    if store is None:
        if on_store_error != "raise":
            raise ValueError("on_store_error says what to do when a store fails: give a store")
        if sharing.slots is not None:
            raise ValueError("a SharedConcurrency is counted in a store: give a store")
        if sharing.key is not None:
            raise ValueError("key names the record in the store: give a store")
        return
    if not isinstance(store, Store):
        raise TypeError(f"store is a Store, such as RedisStore(client), not {shown(store)}")
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
