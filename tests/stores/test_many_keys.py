"""A thousand keys that are busy at once, over each kind of store: few connections, no errors."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from pymongo import AsyncMongoClient
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from valkey.asyncio import Valkey as ValkeyClient

from aiothrottle import KeyedRateLimiter, SharedConcurrency
from aiothrottle.algorithms import FixedWindow, TokenBucket
from aiothrottle.stores import SlotStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from tests.servers import Cluster, Process, Valkey, memcached, mongodb, need_emcache

MANY = 1000


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.stop()


async def connections(server: Valkey) -> int:
    """Count the connections ever made, except the two of these queries."""
    stats = await asyncio.to_thread(server.command, "INFO", "stats")
    return int(stats["total_connections_received"])


async def keep_busy(store: SlotStore, many: int, rounds: int, **limits: Any) -> None:  # noqa: ANN401
    """Request each key at once, so often; every error is raised."""
    limiter = KeyedRateLimiter("1000/s", store=store, key="many", **limits)

    async def go(key: str) -> None:
        for _ in range(rounds):
            async with limiter.throttle(key):
                pass

    async with limiter, asyncio.TaskGroup() as group:
        for place in range(many):
            group.create_task(go(f"{place}"))


async def test_many_keys_over_a_client_as_documented(server: Valkey) -> None:
    async with Redis(port=server.port) as client:
        before = await connections(server)
        await keep_busy(RedisStore(client), MANY, 3)
        assert await connections(server) - before <= 1 + 5


async def test_many_keys_with_slots(server: Valkey) -> None:
    async with Redis(port=server.port) as client:
        limits: dict[str, Any] = {"concurrency_limit": SharedConcurrency(5)}
        await keep_busy(RedisStore(client), MANY // 5, 2, **limits)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool])
async def test_many_keys_over_a_pool_of_few(
    server: Valkey, kind: type[ConnectionPool], most: int
) -> None:
    pool: Any = cast("Any", kind)(host="127.0.0.1", port=server.port, max_connections=most)
    async with Redis.from_pool(pool) as client:
        await keep_busy(RedisStore(client), MANY, 2)


async def test_many_keys_over_one_connection(server: Valkey) -> None:
    async with Redis(port=server.port, single_connection_client=True) as client:
        await keep_busy(RedisStore(client), MANY // 5, 2)


async def test_many_keys_over_valkey_py(server: Valkey) -> None:
    client: Any = ValkeyClient(port=server.port)
    async with client:
        await keep_busy(RedisStore(client), MANY, 2)


async def test_many_keys_over_a_cluster() -> None:
    cluster = Cluster()
    try:
        async with cluster.connect() as client:
            await keep_busy(RedisStore(client, timeout=5), MANY, 2)
    finally:
        cluster.stop()


async def test_server_version_is_queried_once(server: Valkey) -> None:
    async with Redis(port=server.port) as client:
        store, algorithm = RedisStore(client), TokenBucket("10/s")
        before = server.command("INFO", "commandstats")["cmdstat_info"]["calls"]
        await asyncio.gather(*(store.peek(f"{place}", algorithm) for place in range(MANY)))
        after = server.command("INFO", "commandstats")["cmdstat_info"]["calls"]
        assert after - before == 2  # the store's, and the first one here


async def test_lost_script_is_sent_once_per_batch(server: Valkey) -> None:
    async with Redis(port=server.port) as client:
        store, algorithm = RedisStore(client), TokenBucket("10/s")
        await store.peek("one", algorithm)
        server.command("SCRIPT", "FLUSH")
        server.command("CONFIG", "RESETSTAT")
        taken = await asyncio.gather(*(store.reserve(f"{n}", algorithm, [1]) for n in range(MANY)))
        assert all(len(answer.instants) == 1 for answer in taken)
        assert server.command("INFO", "commandstats")["cmdstat_script|load"]["calls"] <= 5


async def test_bad_record_fails_no_other_key(server: Valkey) -> None:
    async with Redis(port=server.port) as client:
        store, algorithm = RedisStore(client, "bad"), TokenBucket("10/s")
        await store.record("7", FixedWindow("10/h"))
        await client.rpush("{bad:8}", "a list")  # pyright: ignore[reportGeneralTypeIssues]
        asking = [store.reserve(f"{n}", algorithm, [1]) for n in range(20)]
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert "another algorithm" in str(found[7])
        granted = [place for place, each in enumerate(found) if getattr(each, "instants", ())]
        assert granted == [place for place in range(20) if place not in {7, 8}]


async def test_cancelled_keys_harm_no_other(server: Valkey) -> None:
    async with Redis(port=server.port) as client:
        store, algorithm = RedisStore(client, "cancelled"), TokenBucket("10/s")
        tasks = [
            asyncio.create_task(store.reserve(f"{n}", algorithm, [n % 9])) for n in range(MANY)
        ]
        for place in range(0, MANY, 3):
            await asyncio.sleep(0)
            tasks[place].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for place, answer in enumerate(found):
            if place % 3:  # each gets the answer to its own call
                assert not isinstance(answer, BaseException)
                assert answer.remaining == pytest.approx(10 - place % 9, abs=0.01)


@asynccontextmanager
async def of_mongodb(server: Process) -> AsyncGenerator[SlotStore]:
    client = AsyncMongoClient[Any](f"mongodb://127.0.0.1:{server.port}", retryWrites=False)
    async with client:
        yield MongoStore(client, "many")


@asynccontextmanager
async def of_memcached(server: Process) -> AsyncGenerator[SlotStore]:
    need_emcache()
    import emcache

    from aiothrottle.stores.memcached import MemcachedStore

    client = await emcache.create_client([emcache.MemcachedHostAddress("127.0.0.1", server.port)])
    try:
        yield MemcachedStore(client, "many")
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("start", "connect"), [(mongodb, of_mongodb), (memcached, of_memcached)], ids=["mongodb", "mc"]
)
async def test_many_keys_by_compare_and_swap(start: Any, connect: Any) -> None:  # noqa: ANN401
    server = start()
    try:
        async with connect(server) as store:
            await keep_busy(store, MANY, 1)
    finally:
        await asyncio.to_thread(server.stop)
