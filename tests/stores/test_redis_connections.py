"""`RedisStore` uses the connections of the driver's pool, as they are, and returns them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.redis import RedisStore
from tests.support.servers import FaultProxy, Valkey
from tests.support.virtually import turns
from tests.support.watching import sweep

WINDOW = SlidingWindowLog("10/min")


@asynccontextmanager
async def one_connection(port: int, timeout: float = 5.0) -> AsyncGenerator[RedisStore]:
    """Give a store on a pool of one connection, for which other calls wait.

    It knows the script, and has taken a token. In the end the connection is back in the pool.
    """
    pool = BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=1, timeout=20)
    async with Redis.from_pool(pool) as client:
        store = RedisStore(client, timeout=timeout)
        await store.reserve("key", WINDOW, [1])
        yield store
        async with asyncio.timeout(10):
            await store.peek("key", WINDOW)


@asynccontextmanager
async def through_proxy(valkey: Valkey) -> AsyncGenerator[tuple[FaultProxy, RedisStore]]:
    async with FaultProxy(valkey.port) as proxy, one_connection(proxy.port, 0.3) as store:
        yield proxy, store
        proxy.mode, proxy.delay = "pass", 0.0


@pytest.mark.parametrize("mode", ["blackhole", "drop reply", "cut", "reset", "refuse"])
async def test_connection_is_returned_after_a_failed_call(valkey: Valkey, mode: str) -> None:
    async with through_proxy(valkey) as (proxy, store):
        if mode == "refuse":
            proxy.stop()
        proxy.mode = mode
        with pytest.raises(StoreUnavailable) as caught:
            await store.reserve("key", WINDOW, [1])
        assert caught.value.__cause__ is not None
        if mode == "refuse":
            await proxy.start()
        proxy.mode = "pass"
        answer = await store.reserve("key", WINDOW, [1] * 20)
        # The failed call may have been counted, once.
        assert len(answer.instants) in ({8} if mode == "drop reply" else {8, 9})


async def test_slots_change_hands_over_one_connection(valkey: Valkey) -> None:
    async with one_connection(valkey.port) as store, asyncio.timeout(10):
        options: Any = {"concurrency_limit": SharedConcurrency(1), "store": store, "key": "slots"}
        async with RateLimiter(**options) as one, RateLimiter(**options) as other:
            for limiter in (one, other, one, other):
                permit = await limiter.acquire()
                waiting = asyncio.create_task(limiter.acquire())
                await asyncio.sleep(0.01)
                permit.release()
                (await waiting).release()


# Of one caller; or of the task that sends the pipeline, as by a sweep of all tasks.
@pytest.mark.parametrize(("calls", "outcomes"), [(1, set[Any]()), (9, {StoreUnavailable})])
async def test_connection_is_returned_after_cancellation_at_any_turn(
    valkey: Valkey, calls: int, outcomes: set[Any]
) -> None:
    async with one_connection(valkey.port) as store:
        for step in range(0, 24, 2):
            keys = [f"{step} {place}" for place in range(calls)]
            asking = [asyncio.create_task(store.reserve(key, WINDOW, [1])) for key in keys]
            await turns(step)
            cancel: Callable[[], object] = sweep if calls > 1 else asking[0].cancel
            cancel()
            found = await asyncio.gather(*asking, return_exceptions=True)
            errors = {type(each) for each in found if isinstance(each, Exception)}
            assert errors <= outcomes, step
            async with asyncio.timeout(10):
                answer = await store.reserve(keys[0], WINDOW, [1] * 20)
            assert answer.remaining == 0.0, step
