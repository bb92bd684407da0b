"""Stores on real servers and in real files, by the kind of the server and of the client."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol

from pymongo import AsyncMongoClient
from redis.asyncio import Redis
from valkey.asyncio import Valkey

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
    kind: str, server: Any, prefix: str, *, port: Any = None, timeout: float = 5.0, **options: Any
) -> AsyncGenerator[Make]:
    """Yield a function that makes stores of one client, with its options.

    The names of records begin with the prefix, or their collection has it. The port is that of a
    proxy in front of the server.
    """
    port = port or getattr(server, "port", 0)
    make: Any
    async with AsyncExitStack() as stack:
        if kind == "sqlite":

            def make_sqlite(*, timeout: Any = timeout, clock: Any = None) -> SQLiteStore:
                store = SQLiteStore(server / f"{prefix}.db", timeout=timeout, clock=clock)
                stack.push_async_callback(store.aclose)
                return store

            make = make_sqlite
        elif kind == "memcached":
            from aiothrottle.stores.memcached import MemcachedStore

            cache = connect_memcached(port, timeout=timeout)
            make = partial(MemcachedStore, await stack.enter_async_context(cache), prefix)
        elif kind == "mongodb":
            uri = f"mongodb://127.0.0.1:{port}/?directConnection=true" if port else server
            mongo = AsyncMongoClient[Any](uri, retryWrites=False, **options)
            await stack.enter_async_context(mongo)
            of_database = partial(MongoStore, mongo, "aiothrottle_test")
            make = partial(of_database, collection=prefix, timeout=timeout)
        else:
            if kind in {"cluster", "sentinel"}:
                client: Any = server.connect(**options)
            elif kind == "valkey-py":
                client = Valkey(port=port, **options)
            else:
                client = Redis(port=port, decode_responses=kind == "decoded", **options)
            client = await stack.enter_async_context(client)
            make = partial(RedisStore, client, prefix, timeout=timeout)
        yield make
