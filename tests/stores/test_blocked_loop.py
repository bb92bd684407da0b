"""A loop that is blocked for longer than the store's timeout, amid a call: no outage.

Real servers, behind a link that takes a while; the block is real too.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiothrottle import RateLimiter, SharedConcurrency, SlidingWindowLog, StoreUnavailable
from aiothrottle.events import Event, StoreDown
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.slots import SlotStore
from tests.servers import (
    Cluster,
    FaultProxy,
    Process,
    Sentinels,
    Valkey,
    connect_memcached,
    memcached,
    mongodb,
)
from tests.virtually import turns

pytestmark = pytest.mark.slow

TIMEOUT = 0.5  # a busy machine needs a part of it
PERIOD = "1h"  # nothing leaves the window meanwhile
Connect = Callable[[int], AbstractAsyncContextManager[SlotStore]]


@contextlib.asynccontextmanager
async def far(port: int) -> AsyncGenerator[FaultProxy]:
    """Put the server at a distance, on a loop in a thread: it is not blocked with this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def there(act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(act), loop))

    proxy = FaultProxy(port)
    await there(proxy.start)
    try:
        yield proxy
    finally:
        for act in (turns, proxy.__aexit__, turns):  # what was accepted last is closed as well
            await there(act)
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _awaited(act: Callable[[], Awaitable[None]]) -> None:
    await act()


@contextlib.asynccontextmanager
async def by_redis(port: int, **options: Any) -> AsyncGenerator[SlotStore]:  # noqa: ANN401 - the driver's
    async with Redis(port=port, **options) as client:
        yield RedisStore(client, timeout=TIMEOUT)


def by_impatient_redis(port: int) -> AbstractAsyncContextManager[SlotStore]:
    """Connect with a client that has the timeout of the store, and gives up after it."""
    retry = Retry(NoBackoff(), 0)
    return by_redis(port, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=retry)


@contextlib.asynccontextmanager
async def by_mongodb(port: int) -> AsyncGenerator[SlotStore]:
    uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
    async with AsyncMongoClient[Any](uri, retryWrites=False) as client:
        yield MongoStore(client, timeout=TIMEOUT)


@contextlib.asynccontextmanager
async def by_memcached(port: int) -> AsyncGenerator[SlotStore]:
    from aiothrottle.stores.memcached import MemcachedStore

    async with connect_memcached(port, timeout=TIMEOUT) as client:
        yield MemcachedStore(client)


SERVERS: dict[str, tuple[Callable[[], Valkey | Process], Connect]] = {
    "redis": (Valkey, by_redis),
    "impatient redis": (Valkey, by_impatient_redis),
    "mongodb": (mongodb, by_mongodb),
    "memcached": (memcached, by_memcached),
}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[int, Connect]]:
    start, connect = SERVERS[request.param]
    server = start()
    yield server.port, connect
    server.stop()


class Subject:
    """A limiter on the store whose calls are under way while the loop is blocked."""

    def __init__(self, store: SlotStore, key: str) -> None:
        self.store, self.key = store, key
        self.events: list[Event] = []
        self.window = SlidingWindowLog(f"10/{PERIOD}")
        self.limiter = RateLimiter(
            algorithm=self.window,
            concurrency_limit=SharedConcurrency(3, lease=600.0),
            store=store,
            key=key,
        )
        self.limiter.observe(self.events.append)

    async def once(self) -> None:
        async with self.limiter.throttle():
            pass

    async def check(self, spent: int) -> None:
        assert not [event for event in self.events if isinstance(event, StoreDown)]
        await self.limiter.aclose()
        assert (await self.store.peek(self.key, self.window)).remaining == 10 - spent


def block() -> None:
    time.sleep(1.2 * TIMEOUT)


async def warm(store: SlotStore) -> None:
    """Have as many connections as the tests use: a handshake needs several round trips."""
    window = SlidingWindowLog("1/s")
    await asyncio.gather(*[store.reserve(f"warm {place}", window, [1]) for place in range(8)])
    async with RateLimiter(
        concurrency_limit=SharedConcurrency(3), store=store, key="warm slots"
    ) as limiter:
        await asyncio.gather(*[limiter.acquire() for _ in range(3)])


async def test_reply_that_came_in_the_block_is_no_outage(server: tuple[int, Connect]) -> None:
    """Blocked from an instant in the call, at each of several calls of a request in turn."""
    port, connect = server
    async with far(port) as link, connect(link.port) as store:
        await warm(store)
        link.delay = 0.02
        for place, seconds in enumerate((0.0, 0.005, 0.02, 0.035, 0.05, 0.07)):
            subject = Subject(store, f"reply {place}")
            asking = asyncio.create_task(subject.once())
            asyncio.get_running_loop().call_later(seconds, block)
            await asking
            await subject.check(spent=1)


async def test_block_at_each_turn_of_a_call_is_no_outage(server: tuple[int, Connect]) -> None:
    port, connect = server
    async with connect(port) as store:
        await warm(store)
        for turn in range(8):
            subject = Subject(store, f"turn {turn}")
            asking = asyncio.create_task(subject.once())
            for _ in range(turn):
                await asyncio.sleep(0)
            block()
            await asking
            await subject.check(spent=1)


async def test_block_amid_many_calls_counts_each_once(server: tuple[int, Connect]) -> None:
    port, connect = server
    async with connect(port) as store:
        await warm(store)
        subjects = [Subject(store, f"many {place}") for place in range(10)]
        asking = [asyncio.create_task(subject.once()) for subject in subjects]
        await asyncio.sleep(0)
        block()
        await asyncio.gather(*asking)
        for subject in subjects:
            await subject.check(spent=1)


async def test_dead_server_is_found_although_the_loop_was_blocked(
    server: tuple[int, Connect],
) -> None:
    port, connect = server
    async with far(port) as link, connect(link.port) as store:
        await warm(store)
        link.mode = "blackhole"
        asking = asyncio.create_task(store.reserve("dead", SlidingWindowLog("10/h"), [1]))
        await asyncio.sleep(0)
        block()
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await asking
        # A busy machine takes its time: what counts is that the steps do not begin again and again.
        assert time.monotonic() - begin < 10 * TIMEOUT
        link.mode = "pass"  # a client that closes says so to its server


@pytest.fixture(scope="module", params=[Sentinels, Cluster])
def several(request: pytest.FixtureRequest) -> Iterator[Sentinels | Cluster]:
    servers = request.param()
    yield servers
    servers.stop()


async def test_block_is_no_outage_with_several_servers(several: Sentinels | Cluster) -> None:
    for options in ({}, {"socket_timeout": TIMEOUT}):
        async with several.connect(**options) as client:
            store = RedisStore(client, timeout=TIMEOUT)
            await warm(store)
            for turn in range(6):
                subject = Subject(store, f"{options} {turn}")
                asking = asyncio.create_task(subject.once())
                for _ in range(turn):
                    await asyncio.sleep(0)
                block()
                await asking
                await subject.check(spent=1)
