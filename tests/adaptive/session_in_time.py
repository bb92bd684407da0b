"""A session in front of a server, in virtual time."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from aiothrottle import RateLimiter
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.testing import VirtualTimeLoop
from tests.server_limits import Admits

__all__ = ["Record", "run"]


@dataclass
class Record:
    """What a server saw: admitted and throttled requests, in seconds since the start."""

    admitted: list[float] = field(default_factory=list[float])
    throttled: list[float] = field(default_factory=list[float])

    def part_throttled(self, begin: float, end: float) -> float:
        """Return the part of the requests of that time that was throttled."""
        throttled = sum(begin <= at < end for at in self.throttled)
        return throttled / (throttled + sum(begin <= at < end for at in self.admitted))

    def used(self, begin: float, end: float, rate: float) -> float:
        """Return the part of the rate that was used in that time."""
        return sum(begin <= at < end for at in self.admitted) / ((end - begin) * rate)


class _Network(httpx.AsyncBaseTransport):
    """Delays requests and responses by 1 to 5 ms each."""

    def __init__(self, admits: Admits, seed: int, retry_after: int | None) -> None:
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.began_at = asyncio.get_running_loop().time()
        self.admits = admits
        self.random = random.Random(seed)
        self.record = Record()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self.random.uniform(0.001, 0.005))
        now = asyncio.get_running_loop().time()
        admitted = self.admits(now)
        times = self.record.admitted if admitted else self.record.throttled
        times.append(now - self.began_at)
        await asyncio.sleep(self.random.uniform(0.001, 0.005))
        if admitted:
            return httpx.Response(200, request=request)
        return httpx.Response(429, headers=self.headers, request=request)


def run(
    admits: Admits,
    seconds: float,
    *,
    seed: int = 0,
    workers: int = 24,
    limiter: Callable[[], RateLimiter] = lambda: RateLimiter("20/s", concurrency_limit=8),
    every: float = 0.0,
    retry_after: int | None = None,
    watch: Callable[[RateLimiter], object] = lambda _: None,
) -> Record:
    """Let workers of a session send requests; return what the server saw.

    Args:
        admits: What the server admits.
        seconds: How long.
        seed: Of the network's delays.
        workers: How many tasks send requests.
        limiter: Makes the limiter.
        every: Seconds from one request of a worker to its next, if it gets the response in time.
        retry_after: The Retry-After of a 429, in seconds.
        watch: Called with the limiter.
    """

    async def work(client: httpx.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            await client.get("http://server/")
            next_at = max(next_at + every, loop.time())
            await asyncio.sleep(next_at - loop.time())

    async def main() -> Record:
        network = _Network(admits, seed, retry_after)
        limits = limiter()
        watch(limits)
        transport = ThrottledTransport(limits, transport=network)
        async with httpx.AsyncClient(transport=transport) as client:
            workers_ = [asyncio.create_task(work(client)) for _ in range(workers)]
            await asyncio.sleep(seconds)
            for worker in workers_:
                worker.cancel()
            await asyncio.gather(*workers_, return_exceptions=True)
        return network.record

    random.seed(seed)  # of the jitter of pauses
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=1000.3 + seed / 7)) as runner:
        return runner.run(main())
