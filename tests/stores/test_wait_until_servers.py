"""`WaitUntil` through limiters on real servers, by their clocks; the rest is in virtual time."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from pymongo import AsyncMongoClient
from redis.asyncio import Redis

from aiothrottle import RateLimiter, ThrottleTimeout, WaitUntil
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.store import Store
from tests.servers import Valkey, connect_memcached, memcached, mongodb

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]

PATIENCE = 10.0  # seconds for a call: a busy machine is no outage


@asynccontextmanager
async def on_valkey(port: int) -> AsyncGenerator[Store]:
    async with Redis(port=port) as client:
        yield RedisStore(client, "timestamps", timeout=PATIENCE)


@asynccontextmanager
async def on_mongodb(port: int) -> AsyncGenerator[Store]:
    uri = f"mongodb://127.0.0.1:{port}"
    async with AsyncMongoClient[Any](uri, retryWrites=False) as client:
        yield MongoStore(client, "timestamps", timeout=PATIENCE)


@asynccontextmanager
async def on_memcached(port: int) -> AsyncGenerator[Store]:
    from aiothrottle.stores.memcached import MemcachedStore

    async with connect_memcached(port) as client:
        yield MemcachedStore(client, "timestamps")


@pytest.fixture(
    scope="module",
    params=[(Valkey, on_valkey), (mongodb, on_mongodb), (memcached, on_memcached)],
    ids=["valkey", "mongodb", "memcached"],
)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    start, store_on = request.param
    server = start()
    yield lambda: store_on(server.port)
    server.stop()


class Noting(Store):
    """Records the instants that the server granted, at first and after refunds."""

    __slots__ = ("first", "instants", "store")

    def __init__(self, store: Store, instants: list[float] | None = None) -> None:
        self.store = store
        self.first: list[float] = []
        self.instants = [] if instants is None else instants

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        answer = await self.store.reserve(key, algorithm, costs, horizon=horizon)
        self.first = self.first or [*answer.instants]
        self.instants += answer.instants
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        await self.store.refund(key, algorithm, cost, instant)
        self.instants.remove(instant)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        return await self.store.peek(key, algorithm, cost)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        return await self.store.record(key, algorithm, cost)

    async def clear(self, key: Key) -> None:
        await self.store.clear(key)


async def hit(limiter: RateLimiter) -> float:
    async with limiter.throttle():
        return time.monotonic()


async def hits(limiter: RateLimiter, count: int) -> tuple[list[float], list[float]]:
    """Return the times of the grants, and the waits reported to rejected requests."""
    outcomes = await asyncio.gather(*(hit(limiter) for _ in range(count)), return_exceptions=True)
    granted_at, waits = list[float](), list[float]()
    for outcome in outcomes:
        if isinstance(outcome, ThrottleTimeout):
            waits.append(outcome.retry_after)
        else:
            assert isinstance(outcome, float), outcome
            granted_at.append(outcome)
    return granted_at, waits


async def test_ten_simultaneous_requests(connect: Connect) -> None:
    async with connect() as store:
        noting = Noting(store)
        algorithm = WaitUntil(0.2, raise_after=1, limit=2)
        async with RateLimiter(algorithm=algorithm, store=noting, key="ten") as limiter:
            begin = time.monotonic()
            granted_at, waits = await hits(limiter, 10)
    assert waits == pytest.approx([1.2, 1.4, 1.6, 1.8])
    waits = [at - noting.first[0] for at in noting.first]
    assert waits == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert len(granted_at) == 6
    # By the server's clock; that of MongoDB counts milliseconds.
    assert all(at - begin >= 0.2 * place - 0.002 for place, at in enumerate(granted_at))


async def test_rejected_requests_count_up_to_the_limit(connect: Connect) -> None:
    algorithm = WaitUntil(100, raise_after=0, limit=1000)
    async with (
        connect() as store,
        RateLimiter(algorithm=algorithm, store=store, key="r") as limiter,
    ):
        granted_at, waits = await hits(limiter, 5)
        assert len(granted_at) == 1
        assert waits == pytest.approx([100, 200, 300, 400])
        granted_at, waits = await hits(limiter, 20)
        assert not granted_at
        assert waits[:3] == pytest.approx([500, 600, 700], abs=60)  # less the time that has passed
        assert waits[-10:] == pytest.approx([1000] * 10)
        assert not await limiter.try_acquire()
        assert (await limiter.peek()).retry_after == pytest.approx(1000, abs=60)


async def test_processes_share_one_grant_per_interval(connect: Connect) -> None:
    """Each has a client and a limiter of its own, as processes have."""
    algorithm, instants = WaitUntil(0.05, raise_after=1, limit=4), list[float]()
    rejected = 0

    async def process() -> None:
        nonlocal rejected
        async with (
            connect() as store,
            RateLimiter(algorithm=algorithm, store=Noting(store, instants), key="k") as limiter,
        ):
            for _ in range(4):
                _, waits = await hits(limiter, 10)
                rejected += len(waits)
                await asyncio.sleep(0.1)

    await asyncio.gather(*(process() for _ in range(4)))
    instants.sort()
    assert len(instants) + rejected == 160
    assert len(instants) >= 21  # the first grants
    assert all(later - first >= 0.05 - 1e-6 for first, later in pairwise(instants))
