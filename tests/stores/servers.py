"""Stores on real servers and in real files, by the kind of the server and of the client."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from pymongo import AsyncMongoClient
from redis.asyncio import Redis

from aiothrottle.stores import SlotStore, SQLiteStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from tests.support.servers import connect_memcached

#: The fixture of the server, by the kind of the store.
SERVERS = {
    "redis": "valkey",
    "decoded": "valkey",
    "valkey-py": "valkey",
    "cluster": "cluster",
    "sentinel": "sentinel",
    "memcached": "memcached_server",
    "mongodb": "mongodb_uri",
    "sqlite": "tmp_path",
}
#: One of each driver.
KINDS = ["redis", "memcached", "mongodb", "sqlite"]


class Make(Protocol):
    """Makes a store of a client, as each process does."""

    def __call__(
        self, *, timeout: float = 5.0, clock: Callable[[], float] | None = None
    ) -> SlotStore: ...


@asynccontextmanager
async def stores(
    kind: str,
    server: Any,
    prefix: str,
    *,
    port: int | None = None,
    timeout: float = 5.0,
    **options: Any,
) -> AsyncGenerator[Make]:
    """Yield a function that makes stores, of one client.

    Args:
        kind: A key of `SERVERS`.
        server: The server, or the folder of the file.
        prefix: Begins the names of the records, or names their collection.
        port: That of a proxy in front of the server.
        timeout: Seconds, of the stores, and of the client of memcached.
        options: Options of the client.
    """
    given = timeout
    if kind == "sqlite":
        async with AsyncExitStack() as files:

            def make_sqlite(*, timeout: Any = given, clock: Any = None) -> Any:
                store = SQLiteStore(server / f"{prefix}.db", timeout=timeout, clock=clock)
                files.push_async_callback(store.aclose)
                return store

            yield make_sqlite
        return
    if kind == "memcached":
        from aiothrottle.stores.memcached import MemcachedStore

        async with connect_memcached(port or server.port, timeout=timeout) as cache:

            def make_memcached(*, timeout: Any = given, clock: Any = None) -> Any:  # noqa: ARG001
                return MemcachedStore(cache, prefix, clock=clock)

            yield make_memcached
        return
    if kind == "mongodb":
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true" if port else server
        async with AsyncMongoClient[Any](uri, retryWrites=False, **options) as mongo:

            def make_mongo(*, timeout: Any = given, clock: Any = None) -> Any:
                return MongoStore(
                    mongo, "aiothrottle_test", collection=prefix, timeout=timeout, clock=clock
                )

            yield make_mongo
        return
    if kind == "valkey-py":
        from valkey.asyncio import Valkey

        connection: Any = Valkey(port=port or server.port, **options)
    elif kind in {"cluster", "sentinel"}:
        connection = server.connect(**options)
    else:
        connection = Redis(port=port or server.port, decode_responses=kind == "decoded", **options)
    async with connection as client:

        def make_redis(*, timeout: Any = given, clock: Any = None) -> Any:
            return RedisStore(client, prefix, timeout=timeout, clock=clock)

        yield make_redis
