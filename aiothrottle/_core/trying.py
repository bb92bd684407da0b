"""`try_acquire` and `peek`: requests that do not wait in the queue.

Invariant: such a request never overtakes a waiter, and a rejected one changes nothing.
"""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from aiothrottle import events
from aiothrottle._core.starter import Starter
from aiothrottle._core.verdict import Verdict
from aiothrottle.errors import LimiterClosed

if TYPE_CHECKING:
    from collections.abc import Hashable

    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.pause import Pause
    from aiothrottle._core.semaphore import Semaphore
    from aiothrottle._core.shared import SharedSlots, SharedTokens
    from aiothrottle._core.wait_queue import Waiter, WaitQueue

__all__ = ["peek", "try_start"]


class Host(Protocol):
    """The engine, as far as these requests need it."""

    bucket: "LocalBucket"
    closed: bool
    key: "Hashable"
    leased: "SharedSlots | None"
    queue: "WaitQueue"
    pause: "Pause"
    semaphore: "Semaphore"
    shared: "SharedTokens | None"

    def now(self) -> float: ...
    def decide(self, now: float, cost: float) -> float: ...
    def estimate(self, now: float, waiter: "Waiter") -> float: ...
    def reject(self, reason: events.Rejection) -> None: ...
    def release(self, waiter: "Waiter") -> None: ...
    def start_trial(self, waiter: "Waiter", now: float) -> None: ...
    def pass_on(self, waiter: "Waiter | None") -> None: ...


class EntryPoint(Starter, Protocol):
    """An engine, or a chain that begins with it."""

    @property
    def engine(self) -> Host: ...
    def now(self) -> float: ...
    def verdict(self, wait: float, *, allowed: bool = False) -> Verdict: ...


async def try_start(entry: EntryPoint, waiter: "Waiter") -> Verdict:
    """Start the request if it may start now.

    Args:
        entry: The engine, or the chain that begins with it.
        waiter: The request.

    Returns:
        The verdict; the request has started if it is allowed.
    """
    entry.bind()
    engine = entry.engine
    async with _try_lease(engine):
        if engine.shared is not None:
            return await _try_shared(engine, engine.shared, waiter)
        waiter.at = now = entry.now()
        if entry.decide_at_once(waiter, now) <= 0.0:
            entry.start(waiter, now)
            return entry.verdict(0.0, allowed=True)
        engine.reject("no room")
        return entry.verdict(entry.estimate(now, waiter))


async def peek(entry: EntryPoint, waiter: "Waiter") -> Verdict:
    """Return the verdict of `try_start`, and change nothing."""
    entry.bind()
    engine = entry.engine
    async with _try_lease(engine):
        if engine.shared is not None:
            if _has_room(engine, waiter):
                return await engine.shared.peek(waiter.cost)
            return await _rejection(engine, engine.shared, waiter)
        waiter.at = now = entry.now()
        if entry.decide_at_once(waiter, now) <= 0.0:
            return entry.verdict(0.0, allowed=True)
        return entry.verdict(entry.estimate(now, waiter))


def _try_lease(engine: Host) -> AbstractAsyncContextManager[None]:
    """Lease a slot for the block, if slots are shared and one is free."""
    return nullcontext() if engine.leased is None else engine.leased.try_lease()


async def _try_shared(engine: Host, tokens: "SharedTokens", waiter: "Waiter") -> Verdict:
    if not _has_room(engine, waiter):
        engine.reject("no room")
        return await _rejection(engine, tokens, waiter)
    engine.semaphore.taken += 1  # keeps the slot during the call of the store
    if engine.pause.awaits_trial:
        engine.start_trial(waiter, engine.now())  # and no other request goes ahead meanwhile
    allowed = False
    try:
        verdict = await tokens.try_start(waiter)
        allowed = verdict.allowed
    finally:
        if not allowed:
            engine.pass_on(waiter)
            engine.release(waiter)
    if not allowed:
        engine.reject("no room")
    return verdict


def _has_room(engine: Host, waiter: "Waiter") -> bool:
    """Return whether everything but the store admits a request now."""
    if engine.closed:
        raise LimiterClosed(key=engine.key)
    now = engine.now()
    wait = max(engine.decide(now, 0.0), engine.bucket.quota_delay(now, waiter.cost))
    return engine.queue.count == 0 and wait <= 0.0


async def _rejection(engine: Host, tokens: "SharedTokens", waiter: "Waiter") -> Verdict:
    """Return the verdict of a request that queue, slots or pause reject."""
    waiter.at = now = engine.now()
    wait = engine.estimate(now, waiter)
    verdict = await tokens.peek(waiter.cost)
    return verdict._replace(allowed=False, retry_after=max(wait, verdict.retry_after))
