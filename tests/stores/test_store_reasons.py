"""The message of a `StoreUnavailable` has the reason of the outage, for each driver."""

import gc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, cast

import pytest
import trustme
from pymongo import AsyncMongoClient
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from valkey.asyncio import Valkey as ValkeyClient

from aiothrottle import RateLimiter, StoreUnavailable
from aiothrottle.stores import Store
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from tests.servers import FaultProxy, Process, Valkey, free_port, mongodb, need_emcache
from tests.stores.test_stores_tls import context_of

Opened: TypeAlias = AbstractAsyncContextManager[Store]

pytestmark = [
    # Drivers leave sockets to the collector when a connection fails.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect what drivers leave here, and not in a later test."""
    yield
    gc.collect()


@asynccontextmanager
async def over_redis(port: int, **options: Any) -> AsyncGenerator[Store]:  # noqa: ANN401
    client: Any = cast("Any", Redis)(host="127.0.0.1", port=port, **options)
    async with client:
        yield RedisStore(client)


@asynccontextmanager
async def over_redis_without_retries(port: int, **options: Any) -> AsyncGenerator[Store]:  # noqa: ANN401
    # As docs/guides/production.md advises: else a timeout may come during a retry, which hides it.
    async with over_redis(port, retry=Retry(NoBackoff(), 0), **options) as store:
        yield store


@asynccontextmanager
async def over_valkey(port: int, **options: Any) -> AsyncGenerator[Store]:  # noqa: ANN401
    client: Any = ValkeyClient(host="127.0.0.1", port=port, **options)
    async with client:
        yield RedisStore(client)


@asynccontextmanager
async def over_mongodb(port: int, user: str = "", **options: Any) -> AsyncGenerator[Store]:  # noqa: ANN401
    async with AsyncMongoClient[Any](f"mongodb://{user}127.0.0.1:{port}", **options) as client:
        yield MongoStore(client)


@asynccontextmanager
async def over_memcached(port: int) -> AsyncGenerator[Store]:
    need_emcache()
    import emcache

    from aiothrottle.stores.memcached import MemcachedStore

    client = await emcache.create_client([emcache.MemcachedHostAddress("127.0.0.1", port)])
    try:
        yield MemcachedStore(client)
    finally:
        await client.close()


async def reasons(opened: Opened) -> list[str]:
    """Return what a limiter and the store itself report of the outage; also the second time."""
    found: list[str] = []
    async with opened as store:
        limiter = RateLimiter("1/s", store=store, key="key")
        for call in (limiter.acquire, limiter.peek, limiter.acquire, lambda: store.clear("key")):
            with pytest.raises(StoreUnavailable) as caught:
                await call()
            assert caught.value.__cause__ is not None
            found.append(str(caught.value))
        await limiter.aclose()
    return found


@pytest.mark.parametrize(
    "over", [over_redis, over_redis_without_retries, over_valkey, over_mongodb]
)
async def test_refused_connection_is_reported(over: Callable[[int], Opened]) -> None:
    for reason in await reasons(over(free_port())):
        assert "Connect call failed" in reason or "Connection refused" in reason


async def test_memcached_error_names_the_logger_with_the_reason() -> None:
    port = free_port()
    # While it connects, the driver counts a missing connection: not each call has the reason.
    node = f"port={port}"
    reported = [reason for reason in await reasons(over_memcached(port)) if node in reason]
    assert reported
    assert all("the logger 'emcache' has the reason" in reason for reason in reported)


@pytest.mark.parametrize("over", [over_redis_without_retries, over_valkey])
async def test_wrong_password_is_reported_and_not_shown(valkey: Valkey, over: Any) -> None:  # noqa: ANN401
    valkey.command("CONFIG", "SET", "requirepass", "right")
    for reason in await reasons(over(valkey.port, password="sesame")):
        assert "invalid username-password pair" in reason
        assert "sesame" not in reason


@pytest.fixture(scope="module")
def mongo() -> Iterator[Process]:
    server = mongodb()
    yield server
    server.stop()


async def test_wrong_mongodb_password_is_reported_and_not_shown(mongo: Process) -> None:
    for reason in await reasons(over_mongodb(mongo.port, "ann:sesame@")):
        assert "authentication failed" in reason
        assert "sesame" not in reason


async def test_untrusted_certificate_is_reported(valkey: Valkey, mongo: Process) -> None:
    context = context_of(trustme.CA())
    async with FaultProxy(valkey.port, context) as proxy:
        for over in (over_redis_without_retries, over_valkey):
            for reason in await reasons(over(proxy.port, ssl=True)):
                assert "certificate verify failed" in reason
    async with FaultProxy(mongo.port, context) as proxy:
        for reason in await reasons(over_mongodb(proxy.port, tls=True)):
            assert "certificate verify failed" in reason
