"""Many requests at once, of which many fail: no slot and no token is lost."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import aiohttp
import pytest
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, ClientTimeout

from aiothrottle import Permit, RateLimiter
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, ThrottleMiddleware
from tests.misbehaving_server import MisbehavingServer

REQUESTS, SLOTS = 1000, 20
PATHS = [
    *("whole", "later", "unread", "chunked", "gzipped", "until-eof", "large", "error"),
    *("cut", "reset", "drop", "reset-early", "stall", "silent", "no-content", "broken-gzip"),
]

Make: TypeAlias = Callable[..., Any]


class Witness:
    """The innermost middleware: it records when each request is sent, and when it is throttled."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.throttled: list[float] = []

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        self.sent.append(time.monotonic())
        response = await handler(request)
        if response.status == 429:
            self.throttled.append(time.monotonic())
        return response


def with_session(limiter: RateLimiter, witness: Witness, retry: Retry) -> ThrottledSession:
    return ThrottledSession(limiter, retry=retry, max_hold=0.1, middlewares=[witness])


def with_middlewares(limiter: RateLimiter, witness: Witness, retry: Retry) -> ClientSession:
    throttle = ThrottleMiddleware(limiter, retry=retry, max_hold=0.1)
    return ClientSession(middlewares=[RetryMiddleware(retry), throttle, witness])


both = pytest.mark.parametrize("make", [with_session, with_middlewares])


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


@both
async def test_failing_requests_lose_no_slot_and_no_token(make: Make) -> None:
    limiter, witness, chance = RateLimiter(concurrency_limit=SLOTS), Witness(), random.Random(7)
    timeout = ClientTimeout(sock_read=0.03)

    async def one(session: Any, url: Any) -> None:  # noqa: ANN401 - one of both
        try:
            # Not a GET, which aiohttp itself repeats if its connection was lost.
            response = await session.post(url, timeout=timeout)
            await use(response, chance)
        except (aiohttp.ClientError, TimeoutError):
            pass

    async def cancel_some(tasks: list[asyncio.Task[None]]) -> None:
        while running := [task for task in tasks if not task.done()]:
            chance.choice(running[:SLOTS]).cancel()  # one in flight
            chance.choice(running).cancel()  # or one in the queue
            await asyncio.sleep(0.01)

    async with MisbehavingServer() as server, make(limiter, witness, Retry(attempts=1)) as session:
        urls = [server.url / chance.choice(PATHS) for _ in range(REQUESTS)]
        tasks = [asyncio.create_task(one(session, url)) for url in urls]
        await cancel_some(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        permits: list[Permit] = []
        for _ in range(SLOTS):  # all of them are returned
            async with asyncio.timeout(5):
                permits.append(await limiter.acquire())
        assert 0 < server.peak <= SLOTS
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (SLOTS, 0)
        assert statistics.granted == len(witness.sent) + SLOTS
        assert server.hits.total() <= len(witness.sent)
        assert REQUESTS / 2 <= len(witness.sent) <= REQUESTS


@both
async def test_partly_throttled_requests_all_succeed(
    make: Make,
) -> None:
    limiter, witness, pause = RateLimiter(concurrency_limit=SLOTS), Witness(), 0.02
    retry = Retry(attempts=12, backoff=pause, max_backoff=pause)
    async with MisbehavingServer() as server, make(limiter, witness, retry) as session:
        server.retry_after = f"Retry-After: {pause}\r\n"

        async def fetch() -> int:
            async with session.get(server.url / "moody") as response:
                return int(response.status)

        statuses = await asyncio.gather(*(fetch() for _ in range(REQUESTS)))
        assert statuses == [200] * REQUESTS
        assert server.hits.total() == len(witness.sent) <= 1.6 * REQUESTS
        assert server.peak <= SLOTS
    assert len(witness.throttled) > REQUESTS / 5
    for at in witness.throttled:
        assert not [sent for sent in witness.sent if at < sent < at + pause]
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    assert statistics.granted == len(witness.sent)
