"""`RedisStore` uses the connections of the driver's pool, as they are, and returns them."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.algorithms import SlidingWindowLog, TokenBucket
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.redis import RedisStore
from tests.support.servers import FaultProxy, Valkey
from tests.support.virtually import cancel, turns
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


async def test_late_reply_answers_no_other_call(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, store):
        proxy.delay = 0.5
        with pytest.raises(StoreUnavailable):
            await store.reserve("key", WINDOW, [1])
        proxy.delay = 0.0
        for place in range(20):
            algorithm = TokenBucket(f"{100 + place}/s")
            assert (await store.peek(f"another {place}", algorithm)).remaining == 100 + place
        proxy.delay = 0.005
        for _ in range(5):  # their reply is under way
            proxy.replying.clear()
            task = asyncio.create_task(store.reserve("key", WINDOW, [1]))
            await proxy.replying.wait()
            await cancel(task)
            assert task.cancelled()
        proxy.delay = 0.0
        assert (await store.peek("another", TokenBucket("7/s"))).remaining == 7.0
        assert 3 <= (await store.peek("key", WINDOW)).remaining <= 9


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
        answers = await asyncio.gather(*(store.reserve(f"{n}", WINDOW, [1]) for n in range(20)))
        assert [answer.remaining for answer in answers] == [9.0] * 20


async def test_rates_and_slots_are_shared_over_tls(valkey: Valkey, tmp_path: Path) -> None:
    """Behind a proxy: the server of the package has no TLS of its own."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate: Any = authority.issue_cert("127.0.0.1")
    certificate.configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "authority")
    limits: dict[str, Any] = {"concurrency_limit": SharedConcurrency(1), "key": "k"}
    async with (
        FaultProxy(valkey.port, context) as proxy,
        Redis(
            host="127.0.0.1", port=proxy.port, ssl=True, ssl_ca_certs=str(tmp_path / "authority")
        ) as client,
        RateLimiter("3/min", store=RedisStore(client, timeout=5), **limits) as one,
        RateLimiter("3/min", store=RedisStore(client, timeout=5), **limits) as other,
    ):
        settings = dict(client.connection_pool.connection_kwargs)
        async with asyncio.timeout(20):
            held = await one.acquire()
            waiting = asyncio.create_task(other.acquire())
            assert not await one.try_acquire()
            await asyncio.sleep(0.05)  # it has subscribed by now, or will poll
            held.release()
            (await waiting).release()
        # On a busy machine the proxy may lose an answer, and the repeated call takes again.
        assert (await one.peek()).remaining <= 1
        assert client.connection_pool.connection_kwargs == settings
    assert valkey.command("DBSIZE") > 0


@pytest.mark.skipif(
    signature(Redis).parameters["retry"].default is None,
    reason="this redis-py does not retry by default: it does from 6.0 on",
)
async def test_cut_idle_connection_is_replaced_without_an_error(valkey: Valkey) -> None:
    async with FaultProxy(valkey.port) as proxy, Redis(port=proxy.port) as client:
        store = RedisStore(client)
        await store.reserve("key", WINDOW, [1])
        proxy.reset()
        assert (await store.reserve("key", WINDOW, [1])).remaining == 8.0
