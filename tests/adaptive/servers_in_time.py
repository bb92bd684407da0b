"""Servers with small bursts, as pure functions of time, and a session before them in virtual time.

Each is modelled on the documentation of its server.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from aiothrottle import RateLimiter
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.testing import VirtualTimeLoop

__all__ = ["Bucket", "Envoy", "Nginx", "Record", "Server", "SlidingCounter", "Window", "run"]


class Server(Protocol):
    """What admits requests; `now` never decreases."""

    def admits(self, now: float) -> bool: ...


@dataclass
class Nginx:
    """`limit_req` with nodelay: a leaky bucket in thousandths of a request, on a clock of ms."""

    rate: int
    burst: int
    _excess: int = -1
    _last: int = 0

    def admits(self, now: float) -> bool:
        ms = int(now * 1000)
        if self._excess < 0:  # the first request makes the record
            self._excess, self._last = 0, ms
            return True
        excess = max(0, self._excess - self.rate * (ms - self._last) + 1000)
        if excess > self.burst * 1000:
            return False
        self._excess, self._last = excess, ms
        return True


@dataclass
class Envoy:
    """`local_ratelimit`: a bucket that is refilled in steps."""

    most: int
    per_fill: int
    interval: float
    _tokens: int = -1
    _fills: int = 0

    def admits(self, now: float) -> bool:
        if self._tokens < 0:
            self._tokens = self.most
        fills = int(now / self.interval)
        self._tokens = min(self.most, self._tokens + (fills - self._fills) * self.per_fill)
        self._fills = fills
        if not self._tokens:
            return False
        self._tokens -= 1
        return True


@dataclass
class Bucket:
    """Traefik's `rateLimit`: a token bucket; a request may be delayed by up to half an interval."""

    rate: float
    burst: int
    _tokens: float = -1.0
    _last: float = 0.0

    def admits(self, now: float) -> bool:
        if self._tokens < -1.0 + 1e-9 and not self._last:
            self._tokens = self.burst
        tokens = min(self.burst, self._tokens + (now - self._last) * self.rate) - 1.0
        if tokens < -0.5:
            return False
        self._tokens, self._last = tokens, now
        return True


@dataclass
class SlidingCounter:
    """HAProxy's `http_req_rate(1s) gt 20`: the last period counts in part, and so do 429s."""

    limit: int
    _period: int = 0
    _before: int = 0
    _count: int = 0

    def admits(self, now: float) -> bool:
        period = int(now)
        if period > self._period:
            self._before = self._count if period == self._period + 1 else 0
            self._period, self._count = period, 0
        self._count += 1
        return self._count + int(self._before * (period + 1 - now)) <= self.limit


@dataclass
class Window:
    """A rolling window of a second, exact."""

    limit: int
    _log: list[float] = field(default_factory=list[float])

    def admits(self, now: float) -> bool:
        self._log = [at for at in self._log if at > now - 1.0]
        if len(self._log) >= self.limit:
            return False
        self._log.append(now)
        return True


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

    def __init__(self, server: Server, seed: int) -> None:
        self.began_at = asyncio.get_running_loop().time()
        self.server = server
        self.random = random.Random(seed)
        self.record = Record()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self.random.uniform(0.001, 0.005))
        now = asyncio.get_running_loop().time()
        admitted = self.server.admits(now)
        times = self.record.admitted if admitted else self.record.throttled
        times.append(now - self.began_at)
        await asyncio.sleep(self.random.uniform(0.001, 0.005))
        return httpx.Response(200 if admitted else 429, request=request)


def run(
    server: Server,
    seconds: float,
    *,
    seed: int = 0,
    workers: int = 24,
    limiter: Callable[[], RateLimiter] = lambda: RateLimiter("20/s", concurrency_limit=8),
    every: float = 0.0,
    watch: Callable[[RateLimiter], object] = lambda _: None,
) -> Record:
    """Let workers of a session send requests; return what the server saw.

    Args:
        server: The server.
        seconds: How long.
        seed: Of the network's delays.
        workers: How many tasks send requests.
        limiter: Makes the limiter.
        every: Seconds from one request of a worker to its next, if it gets the response in time.
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
        network = _Network(server, seed)
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
