"""Shared slots while a real server is away, each store with each `on_store_error`.

The server is behind a proxy that swallows everything for a while, or resets it. Nothing is counted
in windows of time: only which requests are granted, which events are sent, and that all slots are
free again at the end.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import pytest
from pymongo import AsyncMongoClient
from redis.asyncio import Redis

from aiothrottle import RateLimiter, SharedConcurrency, StoreUnavailable, ThrottleTimeout
from aiothrottle.events import Event, StoreDown, StoreUp
from aiothrottle.stores import Store
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.share_size import OnStoreError
from tests.servers import FaultProxy, Valkey, connect_memcached, memcached, mongodb

Kind: TypeAlias = Literal["valkey", "mongodb", "memcached"]

LIMIT = 3
# No lease ends while the server is away, however slow the machine.
SLOTS = SharedConcurrency(LIMIT, lease=60.0)
# Seconds for a call, for waiters that end without a slot, and for those that get one.
CALL, SOON, LONG = 1.0, 0.5, 20.0


@pytest.fixture(scope="module", params=["valkey", "mongodb", "memcached"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, int]]:
    kind: Kind = request.param
    start: dict[Kind, Callable[[], Any]] = {
        "valkey": Valkey,
        "mongodb": mongodb,
        "memcached": memcached,
    }
    process = start[kind]()
    yield kind, process.port
    process.stop()


@asynccontextmanager
async def store_at(kind: Kind, port: int) -> AsyncGenerator[Store]:
    match kind:
        case "valkey":
            async with Redis(port=port) as client:
                yield RedisStore(client, timeout=CALL)
        case "mongodb":
            uri = f"mongodb://127.0.0.1:{port}"
            async with AsyncMongoClient[Any](
                uri, retryWrites=False, serverSelectionTimeoutMS=5000
            ) as client:
                yield MongoStore(client, timeout=CALL)
        case "memcached":
            from aiothrottle.stores.memcached import MemcachedStore

            async with connect_memcached(port, timeout=CALL) as cache:
                yield MemcachedStore(cache)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - a store sends no events
        await asyncio.sleep(0.02)


async def inside(limiter: RateLimiter) -> int:
    """Count how many of five more requests are granted during the outage."""
    tasks = [asyncio.create_task(limiter.acquire(timeout=LONG)) for _ in range(5)]
    done = await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            assert isinstance(each, StoreUnavailable | ThrottleTimeout)
        else:
            each.release()
    return sum(not isinstance(each, BaseException) for each in done)


async def check_away(limiter: RateLimiter, choice: OnStoreError) -> None:
    """Check that the choice holds while one slot is held."""
    match choice:
        case "raise":
            with pytest.raises(StoreUnavailable) as caught:
                await limiter.acquire()
            assert caught.value.__cause__ is not None
        case "closed":
            assert not await limiter.try_acquire()
            with pytest.raises(ThrottleTimeout):
                await limiter.acquire(timeout=SOON)
        case "local":  # it had one slot before the outage, and gets no more
            # A driver that retries by itself may need longer to give up.
            while limiter.statistics().store_up:
                with pytest.raises(ThrottleTimeout):
                    await limiter.acquire(timeout=CALL + SOON)
        case "open":
            assert await inside(limiter) == 5
    assert limiter.statistics().store_up is False
    assert limiter.statistics().in_flight == 1


@pytest.mark.parametrize("mode", ["blackhole", "reset"])
@pytest.mark.parametrize("choice", ["raise", "local", "open", "closed"])
async def test_choice_holds_during_the_outage_without_losing_slots(
    server: tuple[Kind, int], choice: OnStoreError, mode: str
) -> None:
    kind, port = server
    events: list[Event] = []
    key = f"{choice}-{mode}"

    async def is_back() -> bool:
        try:
            decision = await limiter.try_acquire()
        except StoreUnavailable:
            return False
        if decision.permit is not None:
            decision.permit.release()
        return limiter.statistics().store_up is True

    async with asyncio.timeout(50), FaultProxy(port) as proxy, store_at(kind, proxy.port) as store:
        limiter = RateLimiter(concurrency_limit=SLOTS, store=store, key=key, on_store_error=choice)
        limiter.observe(events.append)
        held = await limiter.acquire()
        proxy.mode = mode
        await check_away(limiter, choice)
        proxy.mode = "pass"
        await until(is_back)
        held.release()
        await limiter.aclose()
    kinds = [type(event) for event in events if isinstance(event, StoreDown | StoreUp)]
    assert kinds == [StoreDown, StoreUp] * (len(kinds) // 2)  # more than once if it is slow
    assert kinds
    async with asyncio.timeout(20), store_at(kind, port) as store:
        second = RateLimiter(concurrency_limit=SLOTS, store=store, key=key)
        permits = [await second.acquire() for _ in range(LIMIT)]  # none is lost
        assert not await second.try_acquire()
        for permit in permits:
            permit.release()
        await second.aclose()
