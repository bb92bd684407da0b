"""A session in front of a server, in virtual time.

The workers call the transport as a client does, without the client: that would take most of the
time of a test.
"""

import asyncio
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx

from aiothrottle import RateLimiter, Retry
from aiothrottle.httpx import ThrottledTransport
from tests.support.server_limits import Admits
from tests.support.virtually import now, on_virtual_loop, work_for

__all__ = ["Record", "Refusal", "empty_response", "run"]


@dataclass
class Record:
    """What a server saw: admitted and throttled requests, in seconds since the start."""

    admitted: list[float] = field(default_factory=list[float])
    throttled: list[float] = field(default_factory=list[float])
    #: How many requests of the workers have ended, and how many of them in vain.
    ended: int = 0
    lost: int = 0

    def part_throttled(self, begin: float, end: float) -> float:
        """Return the part of the requests of that time that was throttled."""
        throttled = sum(begin <= at < end for at in self.throttled)
        return throttled / (throttled + sum(begin <= at < end for at in self.admitted))

    def used(self, begin: float, end: float, rate: float) -> float:
        """Return the part of the rate that was used in that time."""
        return sum(begin <= at < end for at in self.admitted) / ((end - begin) * rate)


class Refusal(NamedTuple):
    """What a server does with a request that it does not admit, and after how many seconds."""

    #: None: it answers never, and the client waits for so many seconds.
    status: int | None = 429
    after: float = 0.0


THROTTLED = Refusal()
_EMPTY = httpx.Response(200)


def empty_response(status: int, headers: dict[str, str]) -> httpx.Response:
    """Copy a response: to read the body of a new one would take a fifth of the time of a test."""
    response = copy.copy(_EMPTY)
    response.status_code, response.headers = status, httpx.Headers(headers)
    return response


class _Network(httpx.AsyncBaseTransport):
    """Delays requests and responses by 1 to 5 ms each."""

    def __init__(
        self,
        admits: Admits,
        seed: int,
        retry_after: int | None,
        refusal: Refusal,
        reports: Callable[[float], dict[str, str]],
        takes: float,
    ) -> None:
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.refusal, self.reports, self.takes = refusal, reports, takes
        self.began_at = now()
        self.admits = admits
        self.random = random.Random(seed)
        self.record = Record()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self.random.uniform(0.001, 0.005))
        admitted = self.admits(now())
        times = self.record.admitted if admitted else self.record.throttled
        times.append(now() - self.began_at)
        headers = self.reports(now())
        if not admitted:
            if self.refusal.after:
                await asyncio.sleep(self.refusal.after)
            if self.refusal.status is None:
                raise httpx.ReadTimeout("no answer", request=request)
        await asyncio.sleep(self.random.uniform(0.001, 0.005))
        if admitted:
            if self.takes:
                await asyncio.sleep(self.takes * self.random.lognormvariate(0.0, 0.5))
            return empty_response(200, headers)
        return empty_response(self.refusal.status or 0, self.headers | headers)


def run(
    admits: Admits,
    seconds: float,
    *,
    seed: int = 0,
    workers: int = 24,
    limiter: RateLimiter | None = None,
    every: float = 0.0,
    retry_after: int | None = None,
    refusal: Refusal = THROTTLED,
    retry: Retry | None = None,
    reports: Callable[[float], dict[str, str]] = lambda _: {},
    takes: float = 0.0,
) -> Record:
    """Let workers of a session send requests for so many seconds; return what the server saw.

    `every` is the time from one request of a worker to its next, if it gets the response in time;
    `retry_after` is that of a 429, and `refusal` what comes instead of one; `reports` returns the
    headers of all responses of an instant; an admitted request takes about `takes` seconds. The
    seed is that of the delays.
    """
    limits = limiter or RateLimiter("20/s", concurrency_limit=8)

    request = httpx.Request("GET", "http://server/")

    async def work(transport: ThrottledTransport, record: Record) -> None:
        next_at = now()
        while True:
            try:
                response = await transport.handle_async_request(request)
                await response.aread()
                status = response.status_code
            except httpx.ReadTimeout:
                status = None
            record.ended += 1
            record.lost += status != 200
            next_at = max(next_at + every, now())
            if next_at > now():
                await asyncio.sleep(next_at - now())

    async def main() -> Record:
        network = _Network(admits, seed, retry_after, refusal, reports, takes)
        async with ThrottledTransport(
            limits, transport=network, retry=retry or Retry()
        ) as transport:
            await work_for(seconds, (work(transport, network.record) for _ in range(workers)))
        return network.record

    random.seed(seed)  # of the jitter of pauses
    return on_virtual_loop(main(), start=1000.3 + seed / 7)
