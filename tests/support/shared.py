"""Stores that processes share, by an address: "redis:PORT" or "sqlite:FILE"."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiothrottle.stores import SQLiteStore


@asynccontextmanager
async def open_store(address: str, *bases: type) -> AsyncGenerator[Any]:
    """Open a store, of a class with the bases before that of the store."""
    kind, _, place = address.partition(":")
    if kind == "redis":
        # Here, as a process with a file need not wait for it.
        from redis.asyncio import Redis

        from aiothrottle.stores.redis import RedisStore

        made: Any = type("Made", (*bases, RedisStore), {})
        async with Redis(port=int(place)) as client:
            yield made(client, "workers", timeout=10)
    else:
        made = type("Made", (*bases, SQLiteStore), {})
        store = made(place, timeout=10)
        yield store
        await store.aclose()
