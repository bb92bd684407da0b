"""Opens a store by its URL, for command lines."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiothrottle._checks import redact
from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.stores import SQLiteStore, Store

# Seconds.
_CLOSING = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class StoreAddress:
    """The address of a store.

    Args:
        url: ``sqlite:FILE``; or ``redis://``, ``rediss://`` (with TLS), ``mongodb://``,
            ``mongodb+srv://`` or ``memcached://``, with the options of their drivers.

    Raises:
        ValueError: The URL is not that of a store.
    """

    url: str

    def __post_init__(self) -> None:
        if not self._prefix:
            known = ", ".join(_OPENERS)
            raise ValueError(
                f"the URL of a store must begin with one of {known}, got {str(self)!r}"
            )
        if self.url.lower().startswith("sqlite://"):
            raise ValueError(f"{self} cannot be read: write sqlite:FILE, such as sqlite:limits.db")
        if str(self).endswith("***"):
            # A driver would take a part of the password for the host, and show it in its error.
            raise ValueError(
                f"{self} cannot be read: write {self._prefix}USER:PASSWORD@HOST:PORT, "
                "with / ? # @ in the password as %2F %3F %23 %40"
            )

    def __str__(self) -> str:
        """Return the address without its secrets."""
        return self.url if self._prefix == _FILE else redact(self.url)

    @property
    def _prefix(self) -> str:
        """The beginning of the address that tells the store; "" if no store has it."""
        return next((it for it in _OPENERS if self.url.lower().startswith(it)), "")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Store]:
        """Connect, check that the store responds, yield it, and close it.

        Raises:
            ImportError: The driver is not installed.
            StoreUnavailable: The store does not respond.
            ValueError: The driver cannot read the URL.
        """
        async with _OPENERS[self._prefix](self.url) as store:
            await store.peek("aiothrottle fetch", SlidingWindowLog(1))
            yield store


@asynccontextmanager
async def _sqlite(url: str) -> AsyncGenerator[Store]:
    store = SQLiteStore(url[len(_FILE) :])
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def _redis(url: str) -> AsyncGenerator[Store]:
    from aiothrottle.stores.redis import RedisStore  # first: its error says what to install

    # isort: split
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        client: Redis = cast("Any", Redis).from_url(url)  # partly untyped
    except RedisError as error:
        raise ValueError(str(error)) from error
    async with client:
        yield RedisStore(client)


@asynccontextmanager
async def _mongo(url: str) -> AsyncGenerator[Store]:
    from aiothrottle.stores.mongo import MongoStore  # first

    # isort: split
    from pymongo import AsyncMongoClient
    from pymongo.errors import ConfigurationError, InvalidURI

    try:
        client = AsyncMongoClient[dict[str, object]](url, retryWrites=False)
    except (ConfigurationError, InvalidURI) as error:
        raise ValueError(str(error)) from error
    async with client:
        yield MongoStore(client)


@asynccontextmanager
async def _memcached(url: str) -> AsyncGenerator[Store]:
    from aiothrottle.stores.memcached import MemcachedStore  # first

    # isort: split
    import emcache

    parts = urlsplit(url)
    address = emcache.MemcachedHostAddress(parts.hostname or "localhost", parts.port or 11211)
    client = await emcache.create_client([address])
    try:
        yield MemcachedStore(client)
    finally:
        # A task of emcache 1.3 that connects may lose its cancellation. `close` waits for it, and
        # may lose its own: hence not `asyncio.wait_for`, which would wait on, and more than one.
        closing = asyncio.create_task(client.close())
        try:
            await asyncio.wait({closing}, timeout=_CLOSING)
            while not closing.done():
                closing.cancel()
                await asyncio.wait({closing}, timeout=_CLOSING / 10)
        finally:
            closing.cancel()  # its error, too, is of no use any more


_FILE: Final = "sqlite:"
_OPENERS: Final[dict[str, Callable[[str], AbstractAsyncContextManager[Store]]]] = {
    _FILE: _sqlite,
    "redis://": _redis,
    "rediss://": _redis,
    "mongodb://": _mongo,
    "mongodb+srv://": _mongo,
    "memcached://": _memcached,
}
