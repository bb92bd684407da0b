"""The row about processes: two limiters that have nothing but a server or a file in common."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from redis.asyncio import Redis

from aiothrottle import RateLimiter
from aiothrottle.stores.redis import RedisStore
from tests.peers.limiters import token_throttle
from tests.peers.table import OURS, cell, columns, the_package
from tests.support.servers import Valkey

SHARED = "Shared between processes"

# Returns whether a request may start now, under 3 per hour.
Ask: TypeAlias = Callable[[], Awaitable[bool]]


async def has_capacity(limiter: Any) -> bool:
    try:
        await limiter.acquire_capacity({"requests": 1}, model="model", timeout=0)
    except TimeoutError:
        return False
    return True


@contextlib.asynccontextmanager
async def through_redis(column: str, valkey: Valkey) -> AsyncGenerator[Ask]:
    """Yield a limiter with a connection of its own."""
    package = the_package(column)
    async with Redis(port=valkey.port) as client:
        if column == OURS:
            async with RateLimiter("3/h", store=RedisStore(client), key="key") as limiter:

                async def ask() -> bool:
                    return (await limiter.try_acquire()).allowed

                yield ask
        elif column == "pyrate-limiter":
            rates = [package.Rate(3, package.Duration.HOUR)]
            pyrate = package.Limiter(await package.RedisBucket.init(rates, client, "pyrate"))
            yield lambda: pyrate.try_acquire_async("key", blocking=False)
            pyrate.close()
        elif column == "limits":
            aio: Any = import_module("limits.aio")
            storage = aio.storage.RedisStorage(
                f"async+redis://127.0.0.1:{valkey.port}",
                implementation="redispy",
                connection_pool=client.connection_pool,
            )
            window = aio.strategies.MovingWindowRateLimiter(storage)
            yield lambda: window.hit(package.parse("3/hour"))
        else:
            backend = package.RedisBackendBuilder(client, key_prefix="prefix")
            async with token_throttle(3600, backend=backend, requests=3) as tokens:
                yield lambda: has_capacity(tokens)


@columns(OURS, "pyrate-limiter", "limits", "token-throttle")
async def test_limit_is_shared_through_redis(column: str, valkey: Valkey) -> None:
    async with through_redis(column, valkey) as one, through_redis(column, valkey) as other:
        assert [await one(), await other(), await one()] == [True] * 3
        assert [await other(), await one()] == [False] * 2
    assert "Redis" in cell(SHARED, column)


@columns("pyrate-limiter", "token-throttle")
async def test_limit_is_shared_through_a_file(column: str, tmp_path: Path) -> None:
    package = the_package(column)
    path, answers = str(tmp_path / "limits.sqlite"), list[bool]()
    for _ in range(4):
        if column == "pyrate-limiter":
            rates = [package.Rate(3, package.Duration.HOUR)]
            bucket = package.SQLiteBucket.init_from_file(rates, db_path=path)
            with package.Limiter(bucket) as limiter:
                answers.append(limiter.try_acquire("key", blocking=False))
        else:
            backend = package.SqliteBackendBuilder(path, key_prefix="prefix")
            async with token_throttle(3600, backend=backend, requests=3) as tokens:
                answers.append(await has_capacity(tokens))
    assert answers == [True] * 3 + [False]
    assert "SQLite" in cell(SHARED, column)


def test_other_stores_exist() -> None:
    """Our MongoDB and memcached are tested in tests/stores; those of the peers only exist here."""
    assert cell(SHARED, OURS) == "SQLite, Redis, MongoDB, memcached"
    storage: Any = the_package("limits") and import_module("limits.aio.storage")
    assert storage.MongoDBStorage
    assert storage.MemcachedStorage
    assert cell(SHARED, "limits") == "Redis, MongoDB, memcached"
    assert the_package("pyrate-limiter").PostgresBucket
    assert cell(SHARED, "pyrate-limiter") == "Redis, Postgres, SQLite"
    assert cell(SHARED, "token-throttle") == "Redis, SQLite"
