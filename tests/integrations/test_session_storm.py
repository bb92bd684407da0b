"""Requests of sessions that fail or are cancelled at any time: no slot and no token is lost."""

import asyncio
import gc
import io
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import ClientTimeout

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from tests.integrations.clients import Readers
from tests.support.misbehaving_server import LARGE, MisbehavingServer
from tests.support.serving import until

# ---- many requests at once, of which many fail ---------------------------------------------------

SLOTS = 10
PATHS = [
    *("whole", "later", "chunked", "until-eof", "large", "error"),
    *("cut", "reset", "drop", "reset-early", "stall", "silent", "no-content", "broken-gzip"),
]
#: What programs do with a response, besides dropping it.
WAYS = ["read", "leave", "release", "close", "drop"]


@pytest.mark.parametrize("make", [ThrottledSession, throttled_session])
async def test_failing_requests_lose_no_slot_and_no_token(make: Callable[..., Any]) -> None:
    limiter, chance = RateLimiter(concurrency_limit=SLOTS), random.Random(7)

    async def one(session: Any, url: Any) -> None:
        with suppress(aiohttp.ClientError, TimeoutError):
            response = await session.get(url)
            way = chance.choice(WAYS)
            if way in ("release", "close"):
                getattr(response, way)()
            elif way != "drop":
                async with response, asyncio.timeout(0.02):
                    await (response.read() if way == "read" else response.content.readany())

    timeout = ClientTimeout(sock_read=0.03)
    options: dict[str, Any] = {"retry": Retry(attempts=1), "max_hold": 0.1, "timeout": timeout}
    async with MisbehavingServer() as server, make(limiter, **options) as session:
        urls = [server.url / chance.choice(PATHS) for _ in range(200)]
        tasks = [asyncio.create_task(one(session, url)) for url in urls]
        while running := [task for task in tasks if not task.done()]:
            chance.choice(running[:SLOTS]).cancel()  # one in flight
            chance.choice(running).cancel()  # or one in the queue
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):  # all of them are returned
            permits = [await limiter.acquire() for _ in range(SLOTS)]
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (len(permits), 0)
        assert 0 < server.peak <= SLOTS
        assert 100 <= server.hits.total() <= statistics.granted - SLOTS <= len(urls)


# ---- a cancellation before each single step of the loop, on real sockets -------------------------

RETRY = Retry(attempts=3, backoff=0.001)


class Use(NamedTuple):
    path: str
    upload: int = 0
    #: Bytes that are read before the block is left; None: all.
    read: int | None = None

    async def run(self, session: Any, url: Any) -> None:
        data = io.BytesIO(bytes(self.upload)) if self.upload else None
        async with session.request("PUT" if data else "GET", url / self.path, data=data) as it:
            assert it.status == 200
            if self.read is None:
                async for _ in it.content.iter_chunked(50_000):
                    pass
            else:
                await it.content.readexactly(self.read)


READ = Use("later")
USES = [
    *(READ, Use("large", read=LARGE // 100), Use("throttled", upload=1000)),
    *(Use("throttled-large"), Use("half-closed-early")),
]


class _Ready(deque[asyncio.Handle]):
    step: Callable[[], None]

    def popleft(self) -> asyncio.Handle:
        self.step()
        return super().popleft()


class Steps(asyncio.SelectorEventLoop):
    victim: "asyncio.Task[object] | None" = None

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        # Private to asyncio.
        self._ready = _Ready()
        self._ready.step = self.step

    def step(self) -> None:
        if self.victim is not None:
            self.at -= 1
            if self.at == 0:
                self.victim.cancel()


async def cancelled(
    loop: Steps, make: Callable[..., Any], use: Use, settle: Readers | None
) -> bool:
    """Return whether the victim was really cancelled; another request waits behind it."""
    limiter = RateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as server:
        server.throttled_times, server.retry_after = 1, "Retry-After: 0.001\r\n"
        timeout = ClientTimeout(total=30)
        async with make(limiter, retry=RETRY, timeout=timeout, settle=settle) as session:
            victim = loop.victim = asyncio.ensure_future(use.run(session, server.url))
            other = asyncio.create_task(READ.run(session, server.url))
            await asyncio.wait([victim, other])
            loop.victim = None
            other.result()
            if not victim.cancelled():
                victim.result()
            statistics = limiter.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            assert not session.connector._acquired
        await until(lambda: not server.connected)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return victim.cancelled()


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.path} {use.upload}")
@pytest.mark.parametrize(
    ("make", "settled"), [(ThrottledSession, False), (throttled_session, True)]
)
def test_request_cancelled_at_any_step_leaves_nothing(
    use: Use, make: Callable[..., Any], settled: bool
) -> None:
    at, often, is_over = 1, 0, False
    while not is_over:
        readers = Readers()
        loop = Steps(at)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:  # type: ignore[misc]
            often += runner.run(cancelled(loop, make, use, readers if settled else None))
        if settled:
            gc.collect(0)
            assert {len(ends) for ends in readers.ends} == {1}, f"cancelled at step {at}"
        is_over = loop.at > 0  # it was done before
        at += 1
    assert often >= 5
