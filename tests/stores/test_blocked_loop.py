"""A loop that is blocked for longer than the store's timeout, amid a call: no outage.

Real servers, behind a link that takes a while; the block is real too.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiothrottle import RateLimiter, SharedConcurrency, SlidingWindowLog
from aiothrottle.events import StoreDown
from aiothrottle.stores import SlotStore
from tests.stores.conftest import Open
from tests.stores.servers import SERVERS
from tests.support.background import in_thread
from tests.support.observing import observed
from tests.support.servers import FaultProxy
from tests.support.virtually import turns, visits

TIMEOUT = 0.3  # seconds; a busy machine needs a part of it
# A client that has the timeout of the store, and gives up after it.
IMPATIENT: dict[str, Any] = {
    "socket_timeout": TIMEOUT,
    "socket_connect_timeout": TIMEOUT,
    "retry": Retry(NoBackoff(), 0),
}


@contextlib.asynccontextmanager
async def far(port: int) -> AsyncGenerator[FaultProxy]:
    """Put the server at a distance, on a loop in a thread: it is not blocked with this one."""

    @contextlib.asynccontextmanager
    async def proxy() -> AsyncGenerator[FaultProxy]:
        async with FaultProxy(port) as link:
            yield link
            await turns()  # what was accepted last is closed as well

    with in_thread(proxy) as link:
        yield link


async def warm(store: SlotStore) -> None:
    """Have as many connections as the tests use: a handshake needs several round trips."""
    window = SlidingWindowLog("1/s")
    await asyncio.gather(*[store.reserve(f"warm {place}", window, [1]) for place in range(8)])
    limits = SharedConcurrency(3)
    async with RateLimiter(concurrency_limit=limits, store=store, key="warm slots") as limiter:
        await asyncio.gather(*[limiter.acquire() for _ in range(3)])


async def check_block(store: SlotStore, name: str, until: Callable[[], Awaitable[object]]) -> None:
    """Block amid the calls of several limiters: no outage, and each request counts once."""
    window = SlidingWindowLog("10/h")
    slots = SharedConcurrency(3, lease=600.0)
    limits: dict[str, Any] = {"algorithm": window, "concurrency_limit": slots}
    keys = [f"{name} {place}" for place in range(3)]
    limiters = [RateLimiter(store=store, key=key, **limits) for key in keys]

    outages = [observed(limiter, StoreDown) for limiter in limiters]
    tasks = [task for limiter in limiters for task in visits(limiter, 1)]
    await until()
    time.sleep(1.2 * TIMEOUT)  # noqa: ASYNC251 - this is the block
    await asyncio.gather(*tasks)
    for limiter in limiters:
        await limiter.aclose()
    assert not any(outages), name
    answers = await asyncio.gather(*[store.peek(key, window) for key in keys])
    assert [answer.remaining for answer in answers] == [9] * len(keys), name


@pytest.mark.parametrize(
    ("kind", "options"),
    [("redis", {}), ("redis", IMPATIENT), ("mongodb", {}), ("memcached", {})],
    ids=["redis", "impatient redis", "mongodb", "memcached"],
)
async def test_block_is_no_outage(
    kind: str, options: dict[str, Any], open_stores: Open, request: pytest.FixtureRequest
) -> None:
    """Blocked from a turn of the call, or from an instant at which data is on its way."""
    port = request.getfixturevalue(SERVERS[kind].removesuffix("_uri")).port
    async with (
        far(port) as link,
        open_stores(kind, port=link.port, timeout=TIMEOUT, **options) as make,
    ):
        await warm(store := make())
        link.delay = 0.01
        await check_block(store, "turn of the driver", lambda: turns(5))
        await check_block(store, "reply under way", lambda: asyncio.sleep(0.015))


@pytest.mark.parametrize(
    ("kind", "options"), [("cluster", {"socket_timeout": TIMEOUT}), ("sentinel", {})]
)
async def test_block_is_no_outage_with_several_servers(
    open_stores: Open, kind: str, options: dict[str, Any]
) -> None:
    async with open_stores(kind, timeout=TIMEOUT, **options) as make:
        await warm(store := make())
        await check_block(store, "first turn", lambda: turns(1))
        await check_block(store, "turn of the driver", lambda: turns(4))
