"""`RedisStore` uses the connections of the driver's pool and returns them in every case."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from inspect import signature
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline

from aiothrottle import RateLimiter, SlidingWindowLog, StoreUnavailable, TokenBucket
from aiothrottle.stores.redis import RedisStore
from tests.servers import FaultProxy, Valkey
from tests.stores.test_store_faults import cancel_in_the_midst

WINDOW = SlidingWindowLog("10/min")
PLENTY = SlidingWindowLog("1000000/s")


@asynccontextmanager
async def one_connection(port: int) -> AsyncGenerator[Any]:
    """Give a client whose pool has one connection; other calls wait for it."""
    pool = BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=1, timeout=20)
    async with Redis.from_pool(pool) as client:
        yield client
        await is_returned(client)


@asynccontextmanager
async def through_proxy(valkey: Valkey) -> AsyncGenerator[tuple[FaultProxy, RedisStore]]:
    """Give a store with one connection, on which the server knows the script."""
    async with FaultProxy(valkey.port) as proxy, one_connection(proxy.port) as client:
        store = RedisStore(client, timeout=0.3)
        await store.reserve("key", WINDOW, [1])
        yield proxy, store
        proxy.mode, proxy.delay = "pass", 0.0


async def is_returned(client: Any) -> None:  # noqa: ANN401
    """Fail if the only connection is not in the pool."""
    async with asyncio.timeout(10):
        await client.ping()


async def test_pool_serves_other_users_between_calls(valkey: Valkey) -> None:
    async with one_connection(valkey.port) as client:
        limiter = RateLimiter(algorithm=PLENTY, store=RedisStore(client), key="k")
        stop, begun = False, asyncio.Event()

        async def work() -> None:
            while not stop:
                async with limiter.throttle():
                    begun.set()

        working = asyncio.create_task(work())
        await begun.wait()
        for _ in range(3):
            await is_returned(client)
        assert not working.done()
        stop = True
        await working
        await limiter.aclose()


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
        assert len(answer.instants) in {8, 9}  # the failed call may have been counted, once
        if mode == "drop reply":
            assert len(answer.instants) == 8


@pytest.mark.skipif(
    signature(Redis).parameters["retry"].default is None,
    reason="this redis-py does not retry by default: it does from 6.0 on",
)
async def test_cut_idle_connection_is_replaced_without_an_error(valkey: Valkey) -> None:
    async with FaultProxy(valkey.port) as proxy, Redis(port=proxy.port) as client:
        store = RedisStore(client)
        await store.reserve("key", WINDOW, [1])
        for writer in list(proxy._writers):
            writer.transport.abort()
        assert (await store.reserve("key", WINDOW, [1])).remaining == 8.0


async def test_late_reply_answers_no_other_call(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, store):
        proxy.delay = 0.5
        with pytest.raises(StoreUnavailable):
            await store.reserve("key", WINDOW, [1])
        proxy.delay = 0.0
        for place in range(20):
            algorithm = TokenBucket(f"{100 + place}/s")
            assert (await store.peek(f"another {place}", algorithm)).remaining == 100 + place


async def test_calls_cancelled_while_the_reply_is_under_way(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, store):
        await cancel_in_the_midst(proxy, store)


@pytest.mark.parametrize("step", range(12))
async def test_connection_is_returned_after_cancellation(valkey: Valkey, step: int) -> None:
    async with one_connection(valkey.port) as client:
        store = RedisStore(client)
        await store.peek("key", WINDOW)
        task = asyncio.create_task(store.reserve("key", WINDOW, [1]))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await is_returned(client)
        assert (await store.reserve("key", WINDOW, [1] * 20)).remaining == 0.0


@pytest.mark.parametrize("step", range(0, 24, 2))
async def test_connection_is_returned_after_cancelled_pipeline(valkey: Valkey, step: int) -> None:
    """The task that sends the pipeline is cancelled, as by a sweep of all tasks."""
    async with one_connection(valkey.port) as client:
        store = RedisStore(client)
        await store.peek("key", WINDOW)
        asking = [asyncio.create_task(store.reserve(f"{n}", WINDOW, [1])) for n in range(9)]
        await asyncio.sleep(0)
        for _ in range(step):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            if task.get_name() == "aiothrottle store":
                task.cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(each) for each in found if isinstance(each, BaseException)} <= {
            StoreUnavailable
        }
        await is_returned(client)
        answer = await store.reserve("0", WINDOW, [1] * 20)
        assert answer.remaining == 0.0


async def test_script_lost_after_the_pipeline_has_loaded_it(valkey: Valkey) -> None:
    """As when the server is restarted between two attempts of the driver."""

    load_scripts: Any = Pipeline.load_scripts

    class Forgetful(Pipeline):
        async def load_scripts(self: Any) -> None:
            await load_scripts(self)
            await self.immediate_execute_command("SCRIPT FLUSH")

    class Client(Redis):
        def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
            return Forgetful(self.connection_pool, {}, transaction, shard_hint)

    client: Any = Client(port=valkey.port)
    async with client:
        store = RedisStore(client)
        await store.peek("key", WINDOW)
        asking = [store.reserve(f"{n}", WINDOW, [1]) for n in range(20)]
        answers = await asyncio.gather(*asking)
        assert [answer.remaining for answer in answers] == [9.0] * 20


def test_second_loop_has_connections_of_its_own(valkey: Valkey) -> None:
    stores: list[RedisStore] = []
    clients: list[Any] = []

    async def first() -> None:
        clients.append(Redis(port=valkey.port))
        stores.append(store := RedisStore(clients[0]))
        assert (await store.reserve("key", WINDOW, [1])).remaining == 9.0
        await clients[0].connection_pool.disconnect()

    async def second() -> None:
        assert (await stores[0].reserve("key", WINDOW, [1])).remaining == 8.0
        await clients[0].aclose()

    asyncio.run(first())
    asyncio.run(second())
