"""Limiters on real servers through faults: no waiter, token or slot is lost, and none is doubled.

The server is behind a proxy that harms all connections for a while. What each choice serves
meanwhile is in `test_choices.py`, in virtual time; the faults of a server, in `test_redis_faults`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis

from aiothrottle import RateLimiter, SharedConcurrency, StoreUnavailable, ThrottleTimeout
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.store import CHOICES, OnStoreError
from tests.outages.drivers import leaks_sockets, store_on
from tests.support.observing import observed
from tests.support.servers import Cluster, FaultProxy
from tests.support.virtually import cancel, visit

SERVED = ["redis", "mongodb", "memcached"]
MODES = ["blackhole", "drop reply", "cut", "reset", "refused"]
DEADLINE = 60.0  # seconds, ten times what it takes
CALL, SOON = 0.7, 0.3  # seconds: for a call, and for waiters that end without a grant
# No lease ends while the server is away, however slow the machine.
SLOTS = SharedConcurrency(3, lease=60.0)


@asynccontextmanager
async def harmed(proxy: FaultProxy, mode: str) -> AsyncGenerator[None]:
    if mode == "refused":
        proxy.mode = "reset"  # for a connection that was accepted, and is not served yet
        proxy.stop()
    else:
        proxy.mode = mode
    yield
    proxy.mode = "pass"
    if mode == "refused":
        await proxy.start()


async def until_back(limiter: RateLimiter) -> None:
    while limiter.statistics().store_up is not True:
        with suppress(StoreUnavailable):
            decision = await limiter.try_acquire(0)
            if decision.permit is not None:
                decision.permit.release()
        await asyncio.sleep(0.02)


async def tokens_in_an_outage(driver: str, port: int, choice: OnStoreError, mode: str) -> None:
    key, uncertain = f"{choice}-{mode}-tokens", 0
    share = 1.0 if choice == "local" else None  # there are others on the same server
    options: dict[str, Any] = {"on_store_error": choice, "local_share": share}
    async with FaultProxy(port) as proxy, store_on(driver, proxy.port, CALL) as store:
        limiter = RateLimiter("10/h", store=store, key=key, **options)
        assert all([await limiter.try_acquire() for _ in range(2)])
        async with harmed(proxy, mode):
            # The store may count a call without an answer, and a driver may be slow to give up.
            while limiter.statistics().store_up:
                uncertain += 1
                with suppress(StoreUnavailable, ThrottleTimeout):
                    await limiter.acquire(timeout=SOON)
            granted = limiter.statistics().granted
            match choice:
                case "raise":
                    with pytest.raises(StoreUnavailable):
                        await limiter.acquire()
                    uncertain += 1
                case "closed":
                    with pytest.raises(ThrottleTimeout):
                        await limiter.acquire(timeout=SOON)
                case "local" | "open":
                    assert all([await limiter.try_acquire() for _ in range(3)])
                    granted += 3
        await until_back(limiter)
        remaining = (await limiter.peek()).remaining
        assert 10 - granted - uncertain <= remaining <= 10 - granted
        await limiter.aclose()


async def slots_in_an_outage(driver: str, port: int, choice: OnStoreError, mode: str) -> None:
    key = f"{choice}-{mode}"
    async with FaultProxy(port) as proxy, store_on(driver, proxy.port, CALL) as store:
        limiter = RateLimiter(concurrency_limit=SLOTS, store=store, key=key, on_store_error=choice)
        events = observed(limiter, StoreDown, StoreUp)
        held = await limiter.acquire()
        async with harmed(proxy, mode):
            if choice == "open":
                more = await asyncio.gather(*(limiter.acquire(timeout=20.0) for _ in range(5)))
                for permit in more:
                    permit.release()
            # With "closed" and "local" it keeps its slot, and gets no more. A driver that
            # retries by itself may need longer to give up.
            while choice != "open" and limiter.statistics().store_up:
                failure = StoreUnavailable if choice == "raise" else ThrottleTimeout
                with pytest.raises(failure):
                    await limiter.acquire(timeout=None if choice == "raise" else CALL + SOON)
            if choice in ("closed", "local"):
                assert not await limiter.try_acquire()
            assert limiter.statistics().store_up is False
            assert limiter.statistics().in_flight == 1
        await until_back(limiter)
        held.release()
        await limiter.aclose()
    kinds = [type(event) for event in events]
    assert kinds == [StoreDown, StoreUp] * (len(kinds) // 2)  # more than once if it is slow
    assert kinds
    async with store_on(driver, port, timeout=20.0) as store:
        second = RateLimiter(concurrency_limit=SLOTS, store=store, key=key)
        permits = [await second.acquire() for _ in range(SLOTS.limit)]  # none is lost
        assert not await second.try_acquire()
        for permit in permits:
            permit.release()
        await second.aclose()


@leaks_sockets
@pytest.mark.parametrize("served", SERVED, indirect=True)
async def test_nothing_is_lost_or_granted_twice_in_an_outage(served: tuple[str, int]) -> None:
    """All outages at the same time, each with a proxy of its own."""
    outages = [(tokens_in_an_outage, mode) for mode in MODES]
    outages += [(slots_in_an_outage, mode) for mode in ("blackhole", "reset")]
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        for place, (outage, mode) in enumerate(outages):
            for choice in CHOICES:
                if (place + CHOICES.index(choice)) % 2:  # two with each kind of outage
                    group.create_task(outage(*served, choice, mode), name=f"{choice} {mode}")


@pytest.mark.skipif(
    # redis-py before 6 closes the connections of all nodes when it looks for them anew.
    redis.__version__ < "6",
    reason="healthy nodes need redis-py 6 or later",
)
@pytest.mark.parametrize(("choice", "fault"), [("raise", "kill"), ("open", "pause")])
async def test_dead_master_harms_no_other_keys(
    cluster: Cluster, choice: OnStoreError, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    dead = cluster.nodes[0]
    nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]

    async def until(limiter: RateLimiter, *, store_up: bool) -> None:
        async with asyncio.timeout(DEADLINE):
            while limiter.statistics().store_up is not store_up:  # noqa: ASYNC110 - it sets no event
                await asyncio.sleep(0.01)

    async def trying(limiter: RateLimiter) -> None:
        while True:
            with suppress(StoreUnavailable):
                await visit(limiter)
            await asyncio.sleep(0.005)

    async with cluster.connect() as client:
        store = RedisStore(client)
        keys = {store.node_of(f"{place}"): f"{place}" for place in range(50)}
        # For tokens and for slots, one on each node.
        tokens = [
            RateLimiter("1000/s", store=store, key=keys[node], on_store_error=choice)
            for node in nodes
        ]
        slotted = [
            RateLimiter(concurrency_limit=SharedConcurrency(1), store=store, key=keys[node])
            for node in nodes
        ]
        tasks = [asyncio.create_task(trying(limiter)) for limiter in (tokens[0], slotted[0]) * 4]
        await asyncio.to_thread(dead.kill if fault == "kill" else dead.pause)
        async with asyncio.timeout(10.0):  # in vain calls of the dead node take a second each
            for limiter in (*tokens[1:], *slotted[1:]) * 20:
                async with limiter.throttle():
                    assert limiter.statistics().store_up
        await until(tokens[0], store_up=False)
        await asyncio.to_thread(dead.restart if fault == "kill" else dead.go_on)
        await until(tokens[0], store_up=True)
        await cancel(*tasks)
        for limiter in (*tokens, *slotted):
            await limiter.aclose()
    lines = [line for line in caplog.messages if line.startswith("RedisStore")]
    assert all(f"{nodes[0]} fails, on_store_error=" in line for line in lines[0::2])
    assert all(f"{nodes[0]} is back after " in line for line in lines[1::2])
    assert lines
