"""Many keys that are busy at once, over each kind of store: few connections, no errors."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis

from aiothrottle import KeyedRateLimiter, TokenBucket
from aiothrottle.stores import SlotStore
from aiothrottle.stores.redis import RedisStore
from tests.stores.conftest import Open
from tests.support.servers import Valkey

MANY = 600  # more than the calls of all round trips that are under way at a time
TEN = TokenBucket("10/s")


async def keep_busy(store: SlotStore, many: int) -> None:
    """Request each key at once, twice; every error is raised."""
    limiter = KeyedRateLimiter("1000/s", store=store, key="many")

    async def go(key: str) -> None:
        for _ in range(2):
            async with limiter.throttle(key):
                pass

    async with limiter, asyncio.TaskGroup() as group:
        for place in range(many):
            group.create_task(go(f"{place}"))


@pytest.mark.parametrize(("kind", "most"), [(ConnectionPool, 2), (BlockingConnectionPool, 1)])
async def test_many_keys_over_a_pool_of_few(valkey: Valkey, kind: Any, most: int) -> None:
    pool = kind(host="127.0.0.1", port=valkey.port, max_connections=most)
    async with Redis.from_pool(pool) as client:
        await keep_busy(RedisStore(client, timeout=5), 200)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("redis", {"single_connection_client": True}),
        *((kind, {}) for kind in ("valkey-py", "cluster", "memcached", "mongodb", "sqlite")),
    ],
)
async def test_many_keys_over_each_kind(
    open_stores: Open, kind: str, options: dict[str, Any]
) -> None:
    async with open_stores(kind, **options) as make:
        await keep_busy(make(), 60)


async def test_many_keys_need_few_connections_and_commands(valkey: Valkey) -> None:
    def connections() -> int:
        return int(valkey.command("INFO", "stats")["total_connections_received"])

    def calls(command: str) -> int:
        return int(valkey.command("INFO", "commandstats")[f"cmdstat_{command}"]["calls"])

    async with Redis(port=valkey.port) as client:  # as documented
        store, before = RedisStore(client, timeout=5), connections()
        valkey.command("CONFIG", "RESETSTAT")
        await keep_busy(store, MANY)
        assert calls("info") == 1
        assert "cmdstat_script|exists" not in valkey.command("INFO", "commandstats")
        assert connections() - before <= 1 + 5
        valkey.command("SCRIPT", "FLUSH")
        valkey.command("CONFIG", "RESETSTAT")
        taken = await asyncio.gather(*(store.reserve(f"{n}", TEN, [1]) for n in range(MANY)))
        assert all(len(answer.instants) == 1 for answer in taken)
        assert calls("script|load") <= 5
