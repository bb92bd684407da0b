"""Connections that are reset at any point: a `StoreUnavailable` with its cause, and nothing else.

Real servers behind a proxy, all drivers, on asyncio's loop and on uvloop.
"""

import asyncio
import gc
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

import pytest
from pymongo import AsyncMongoClient
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from valkey.asyncio import Valkey as ValkeyClient

from aiothrottle import KeyedRateLimiter, SharedConcurrency, StoreUnavailable, ThrottleTimeout
from aiothrottle.algorithms import Algorithm, SlidingWindowLog, TokenBucket, WaitUntil
from aiothrottle.stores import SlotStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.share_size import CHOICES, OnStoreError
from tests.servers import FaultProxy, Process, Valkey, memcached, mongodb, need_emcache

Calls: TypeAlias = Sequence[Coroutine[Any, Any, None]]
Connect: TypeAlias = Callable[[int], AbstractAsyncContextManager[SlotStore]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.uvloop,
    # Drivers whose connection is reset while they connect leave the socket to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ALGORITHMS: list[Algorithm[Any]] = [
    SlidingWindowLog("1000/s"),
    TokenBucket("1000/s"),
    WaitUntil(0.001, 5, 10),
]
TIMEOUT = 0.2


@asynccontextmanager
async def with_redis(port: int) -> AsyncGenerator[SlotStore]:
    client: Any = cast("Any", Redis)(port=port, retry=Retry(NoBackoff(), 1))
    async with client:
        yield RedisStore(client, timeout=TIMEOUT)


@asynccontextmanager
async def with_redis_as_made(port: int) -> AsyncGenerator[SlotStore]:
    async with Redis(port=port) as client:
        yield RedisStore(client, timeout=TIMEOUT)


@asynccontextmanager
async def with_valkey(port: int) -> AsyncGenerator[SlotStore]:
    client: Any = ValkeyClient(port=port)
    async with client:
        yield RedisStore(client, timeout=TIMEOUT)


@asynccontextmanager
async def with_mongodb(port: int) -> AsyncGenerator[SlotStore]:
    client = AsyncMongoClient[Any](f"mongodb://127.0.0.1:{port}", retryWrites=False)
    async with client:
        yield MongoStore(client, "resets", timeout=2 * TIMEOUT)


@asynccontextmanager
async def with_memcached(port: int) -> AsyncGenerator[SlotStore]:
    need_emcache()
    import emcache

    from aiothrottle.stores.memcached import MemcachedStore

    address = emcache.MemcachedHostAddress("127.0.0.1", port)
    client = await emcache.create_client([address], timeout=TIMEOUT)
    try:
        yield MemcachedStore(client, "resets")
    finally:
        await client.close()


DRIVERS = [with_redis, with_valkey, with_redis_as_made, with_mongodb, with_memcached]
START: dict[Any, Callable[[], Valkey | Process]] = {
    with_mongodb: mongodb,
    with_memcached: memcached,
}


@pytest.fixture(scope="module", params=DRIVERS, ids=lambda driver: driver.__name__[5:])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Connect, int]]:
    server = START.get(request.param, Valkey)()
    yield request.param, server.port
    server.stop()


@pytest.fixture(autouse=True)
def _drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have emcache reconnect at once, and collect what drivers leave here."""
    if find_spec("emcache"):
        monkeypatch.setattr("emcache.connection_pool.CREATE_CONNECTION_MAX_BACKOFF", 0.1)
    yield
    gc.collect()


class Witness:
    """Checks the errors that calls raise."""

    def __init__(self) -> None:
        self.outages = self.baseless = self.calls = 0

    async def sees(self, call: Callable[[], Awaitable[object]]) -> None:
        self.calls += 1
        try:
            await call()
        except StoreUnavailable as error:
            self.outages += 1
            cause: BaseException | None = error
            while isinstance(cause, StoreUnavailable):
                cause = cause.__cause__
            self.baseless += not isinstance(cause, Exception)
        except ThrottleTimeout:
            pass


def some_call(store: SlotStore, lots: random.Random) -> Callable[[], Awaitable[object]]:
    place = lots.randrange(len(ALGORITHMS))
    key, algorithm = f"key {lots.randrange(2)} {place}", ALGORITHMS[place]
    return lots.choice(
        [
            lambda: store.reserve(key, algorithm, [1]),
            lambda: store.peek(key, algorithm),
            lambda: store.record(key, algorithm),
            lambda: store.clear(key),
        ]
    )


async def reset_while(proxy: FaultProxy, lots: random.Random, calls: Calls) -> None:
    """Make the calls, have one cancelled, and reset all connections at some point of that."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    for _ in range(lots.randrange(25)):
        await asyncio.sleep(0)
    if lots.random() < 0.5:
        await asyncio.sleep(lots.uniform(0.0, 0.002))
    proxy.reset()
    tasks[-1].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found if each] in ([], [asyncio.CancelledError])


async def test_methods_raise_nothing_but_outages(served: tuple[Connect, int]) -> None:
    connect, port = served
    lots, witness = random.Random(1), Witness()
    async with FaultProxy(port) as proxy, connect(proxy.port) as store:
        proxy.lots = random.Random(5)
        for place in range(15):
            proxy.mode = "lots" if place % 3 == 2 else "pass"
            for count in (1, 2, 4):
                calls = [witness.sees(some_call(store, lots)) for _ in range(count)]
                await reset_while(proxy, lots, calls)
        assert 0 < witness.outages < witness.calls
        assert not witness.baseless
        proxy.mode = "pass"
        await eventually(lambda: store.reserve("afterwards", ALGORITHMS[0], [1]))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("connect", DRIVERS[:2], ids=lambda driver: driver.__name__[5:])
async def test_limiters_raise_nothing_but_outages(
    valkey: Valkey, connect: Connect, choice: OnStoreError
) -> None:
    lots, witness = random.Random(1), Witness()
    async with FaultProxy(valkey.port) as proxy, connect(proxy.port) as store:
        limits: dict[str, Any] = {"store": store, "key": choice, "on_store_error": choice}
        limiter = KeyedRateLimiter(
            "100000/s", concurrency_limit=SharedConcurrency(50, lease=3), **limits
        )

        async def go(key: str) -> None:
            async with limiter.throttle(key, timeout=0.3):
                pass

        async with limiter:
            for _ in range(15):
                methods: list[Callable[[str], Awaitable[object]]] = lots.choices(
                    [go, limiter.try_acquire, limiter.peek, limiter.record], k=4
                )
                calls = [
                    witness.sees(partial(method, f"{lots.randrange(3)}")) for method in methods
                ]
                await reset_while(proxy, lots, calls)
            await eventually(lambda: go("afterwards"))
    assert not witness.baseless
    assert choice == "raise" or not witness.outages


async def eventually(call: Callable[[], Awaitable[object]]) -> None:
    """Make the call until it succeeds; all that fails until then is an outage."""
    async with asyncio.timeout(20):
        while True:
            try:
                await call()
            except (StoreUnavailable, ThrottleTimeout):
                await asyncio.sleep(0.05)
            else:
                return
