"""Many requests at once, of which many fail: no slot and no token is lost."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, ClientTimeout

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_middlewares
from tests.support.misbehaving_server import MisbehavingServer

REQUESTS, SLOTS = 300, 10
PATHS = [
    *("whole", "later", "unread", "chunked", "gzipped", "until-eof", "large", "error"),
    *("cut", "reset", "drop", "reset-early", "stall", "silent", "no-content", "broken-gzip"),
]


async def use(response: ClientResponse, chance: random.Random) -> None:
    """Read it, or abandon it in one of the ways in which programs do."""
    way = chance.choice(["read", "read", "leave", "leave", "release", "close", "drop"])
    if way == "read":
        async with response, asyncio.timeout(0.02):
            await response.read()
    elif way == "leave":
        async with response:
            await response.content.readany()
    elif way == "release":
        response.release()
    elif way == "close":
        response.close()


def with_middlewares(
    limiter: RateLimiter, *, middlewares: list[Any], **options: Any
) -> ClientSession:
    return ClientSession(middlewares=[*throttled_middlewares(limiter, **options), *middlewares])


@pytest.mark.parametrize("make", [ThrottledSession, with_middlewares])
async def test_failing_requests_lose_no_slot_and_no_token(make: Callable[..., Any]) -> None:
    limiter, chance, sent = RateLimiter(concurrency_limit=SLOTS), random.Random(7), 0
    timeout = ClientTimeout(sock_read=0.03)

    async def witness(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        nonlocal sent
        sent += 1
        return await handler(request)

    async def one(session: Any, url: Any) -> None:
        # Not a GET, which aiohttp itself repeats if its connection was lost.
        with suppress(aiohttp.ClientError, TimeoutError):
            await use(await session.post(url, timeout=timeout), chance)

    async def cancel_some(tasks: list[asyncio.Task[None]]) -> None:
        while running := [task for task in tasks if not task.done()]:
            chance.choice(running[:SLOTS]).cancel()  # one in flight
            chance.choice(running).cancel()  # or one in the queue
            await asyncio.sleep(0.01)

    options: dict[str, Any] = {"retry": Retry(attempts=1), "max_hold": 0.1}
    async with (
        MisbehavingServer() as server,
        make(limiter, middlewares=[witness], **options) as session,
    ):
        urls = [server.url / chance.choice(PATHS) for _ in range(REQUESTS)]
        tasks = [asyncio.create_task(one(session, url)) for url in urls]
        await cancel_some(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(5):  # all of them are returned
            permits = [await limiter.acquire() for _ in range(SLOTS)]
        assert 0 < server.peak <= SLOTS
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (len(permits), 0)
        assert statistics.granted == sent + SLOTS
        assert server.hits.total() <= sent
        assert REQUESTS / 2 <= sent <= REQUESTS
