"""Shared slots in an outage: which a process may use, and what the store learns afterwards."""

import asyncio
from functools import partial
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, Permit, RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores import Claim, Granted, Key
from aiothrottle.stores.store import CHOICES, OnStoreError
from tests.outages.processes import OUTAGES
from tests.support.failing import Client, Server
from tests.support.sharing import Link, Shared, share
from tests.support.virtually import cancel, now, turns

UNREACHABLE = StoreUnavailable("unreachable")

# The tasks that acquire; a permit without a reference would be released.
came: list[asyncio.Task[Permit]] = []


async def inside(limiter: RateLimiter, count: int) -> int:
    """Start `count` requests; return how many are granted soon."""
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(count)]
    came.extend(tasks)
    await asyncio.sleep(0.5)
    return sum(task.done() for task in tasks)


@pytest.mark.parametrize(
    ("limit", "per_process", "given", "slots"),
    [
        (100, None, 0.25, 25),
        (100, None, 0.29, 29),  # 0.29 * 100 is below 29
        (7, None, 0.5, 3),
        (3, None, 0.125, 1),
        (3, None, 1, 3),
        (3, 2, None, 2),
        (10, 2, 0.5, 2),
    ],
)
async def test_share_of_slots_is_bounded_and_rounded_down(
    limit: int, per_process: int | None, given: float | None, slots: int
) -> None:
    shared = Shared()
    links = [Link(shared), Link(shared)]
    options: dict[str, Any] = {"on_store_error": "local", "local_share": given}
    limiter, other = (share(link, limit, per_process=per_process, **options) for link in links)
    permit = await other.acquire()
    for link in links:
        link.error = UNREACHABLE
    assert await inside(limiter, limit + 1) == slots
    assert await inside(other, limit + 1) == slots - 1  # it holds one slot already
    permit.release()
    await turns()
    assert other.statistics().in_flight == slots


async def test_update_applies_to_the_share_of_slots_too() -> None:
    link = Link(Shared())
    limiter = share(link, 10, on_store_error="local", local_share=0.5)
    link.error = UNREACHABLE
    assert await inside(limiter, 3) == 3
    limiter.update(concurrency_limit=SharedConcurrency(8, 3.0))
    assert await inside(limiter, 3) == 1
    limiter.update(concurrency_limit=SharedConcurrency(10, 3.0))
    await asyncio.sleep(1.0)  # with the next try
    assert limiter.statistics().in_flight == 5


async def test_short_lease_is_claimed_again_within_it() -> None:
    link = Link(Shared())
    limiter = share(link, lease=0.3, on_store_error="closed")
    link.error = UNREACHABLE
    assert await inside(limiter, 1) == 0
    await asyncio.sleep(10.0)  # other calls have longer pauses by now
    link.error = None
    await asyncio.sleep(0.11)
    assert came[-1].done()


@pytest.mark.parametrize("rate", [None, "100/s"])
async def test_rejected_try_says_when_a_failing_store_is_asked(rate: str | None) -> None:
    server = Server()
    slots = SharedConcurrency(1)
    limiter = RateLimiter(
        rate, concurrency_limit=slots, store=Client(server), key="x", on_store_error="closed"
    )
    server.mode = "refuses"
    for _ in range(20):
        decision = await limiter.try_acquire()
        assert not decision
        assert decision.retry_after > 0.0
        await asyncio.sleep(decision.retry_after)
    assert now() < 30.0


async def test_error_that_is_no_outage_ends_the_fallback() -> None:
    link = Link(Shared())
    limiter = share(link, on_store_error="local")
    link.error = UNREACHABLE
    _held = await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await turns()
    link.error = ValueError("damaged")
    for call in (waiter, limiter.try_acquire()):
        with pytest.raises(ValueError, match="damaged"):
            await call


class Damaged(Link):
    """Answers claims for one key with an error, once it answers."""

    async def claim(self, key: Key, claim: Claim) -> Granted:
        granted = await super().claim(key, claim)
        if key == "damaged":
            raise ValueError("damaged")
        return granted


async def test_error_that_is_no_outage_ends_the_outage_and_is_seldom_repeated() -> None:
    link = Damaged(Shared())
    sound, damaged = (
        RateLimiter(
            concurrency_limit=SharedConcurrency(1), store=link, key=key, on_store_error="closed"
        )
        for key in ("sound", "damaged")
    )
    link.error = UNREACHABLE
    waiters = [asyncio.create_task(limiter.acquire()) for limiter in (sound, damaged)]
    await asyncio.sleep(2.0)
    assert not any(task.done() for task in waiters)
    link.error = None
    permit = await waiters[0]
    with pytest.raises(ValueError, match="damaged"):
        await waiters[1]
    assert damaged.statistics().store_up
    asked = len(link.claims)
    await asyncio.sleep(10.0)
    assert len(link.claims) - asked < 40
    permit.release()


@pytest.mark.parametrize("choice", ["local", "open", "closed"])
async def test_fallback_serves_a_key_whose_last_error_was_no_outage(choice: OnStoreError) -> None:
    link = Link(Shared())
    make = partial(RateLimiter, concurrency_limit=SharedConcurrency(1), store=link)
    finder, damaged = make(key="sound"), make(key="damaged", on_store_error=choice)
    (await damaged.acquire()).release()
    await turns()  # the slot has gone back
    link.error = ValueError("damaged")
    with pytest.raises(ValueError, match="damaged"):
        await damaged.acquire()
    link.error = UNREACHABLE
    for seconds in (0.1, 0.0):
        with pytest.raises(StoreUnavailable):
            await finder.acquire()
        await asyncio.sleep(seconds)
    waiter = asyncio.create_task(damaged.acquire())
    done, _ = await asyncio.wait([waiter], timeout=0.01)
    assert [task.exception() for task in done] == ([] if choice == "closed" else [None])


@pytest.mark.parametrize("mode", OUTAGES)
async def test_held_slot_is_renewed_when_the_store_returns(mode: str) -> None:
    server = Server()
    limiter, other = (
        RateLimiter(concurrency_limit=SharedConcurrency(1, 30.0), store=Client(server), key="x")
        for _ in range(2)
    )
    permit = await limiter.acquire()
    server.mode = mode
    with pytest.raises(StoreUnavailable):
        await other.acquire()
    await asyncio.sleep(24)
    server.mode = "up"
    await asyncio.sleep(2)
    waiter = asyncio.create_task(other.acquire())
    await asyncio.sleep(100)
    assert not waiter.done()
    permit.release()
    await waiter
    assert now() < 128


@pytest.mark.parametrize("choice", CHOICES)
async def test_slot_of_a_lost_answer_is_returned(choice: OnStoreError) -> None:
    server = Server()
    make = partial(RateLimiter, concurrency_limit=SharedConcurrency(1), key="x")
    limiter = make(store=Client(server), on_store_error=choice)
    server.mode = "drops"
    waiter = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(1.5)
    await cancel(waiter)
    del waiter
    server.mode = "up"
    async with asyncio.timeout(2.0):
        await make(store=Client(server)).acquire()


async def test_release_is_not_retried_after_the_lease() -> None:
    link = Link(Shared())
    limiters = KeyedRateLimiter(concurrency_limit=SharedConcurrency(1, 3.0), store=link, key="x")
    permit = await limiters.acquire("ann")
    link.error = UNREACHABLE
    permit.release()
    del permit
    asked: list[int] = []
    for seconds in (1.0, 2.1, 1000.0):  # the lease ends in the second pause
        await asyncio.sleep(seconds)
        asked.append(len(link.claims))
    assert asked[0] < asked[1] == asked[2]
    assert "ann" not in limiters  # it has nothing to do, and is forgotten
