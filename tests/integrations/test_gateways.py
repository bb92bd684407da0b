"""Gateways that throttle by a token bucket: no request uses up its attempts.

In virtual time: the integration, its limiter and the client are real, the network is a transport.
"""

import asyncio
import random
from collections import Counter

import httpx
import pytest

from aiothrottle import RateLimiter
from aiothrottle.httpx import ThrottledTransport
from tests.virtually import now, virtual

RATE, SLOTS, WORKERS, SECONDS = 20.0, 8, 24, 60.0


class Gateway(httpx.AsyncBaseTransport):
    """A token bucket, with the latency of a local network.

    `precise` adds the headers of Traefik: the wait of this one request, a few milliseconds.
    """

    def __init__(self, burst: float, status: int = 429, *, precise: bool) -> None:
        self._burst = self._tokens = burst
        self._status = status
        self._precise = precise
        self._at = now()
        self._chance = random.Random(3)
        self.statuses: Counter[int] = Counter()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:  # noqa: ARG002
        await self._travel()
        self._tokens = min(self._burst, self._tokens + (now() - self._at) * RATE)
        self._at = now()
        status, headers = 200, {}
        if self._tokens < 1.0:
            status = self._status
            wait = 1000.0 * (1.0 - self._tokens) / RATE
            if self._precise:
                headers = {"Retry-After": "0", "X-Retry-In": f"{wait:.6f}ms"}
        else:
            self._tokens -= 1.0
        self.statuses[status] += 1
        await self._travel()
        return httpx.Response(status, headers=headers)

    async def _travel(self) -> None:
        await asyncio.sleep(0.0025 + 0.005 * self._chance.random())


async def finals(gateway: Gateway, limiter: RateLimiter) -> Counter[int]:
    """Send for a minute of virtual time, and return the statuses that the callers got."""
    statuses: Counter[int] = Counter()
    transport = ThrottledTransport(limiter, transport=gateway)

    async def work(client: httpx.AsyncClient) -> None:
        while True:
            statuses[(await client.get("http://example.org/")).status_code] += 1

    async with httpx.AsyncClient(transport=transport) as client:
        workers = [asyncio.create_task(work(client)) for _ in range(WORKERS)]
        await asyncio.sleep(SECONDS)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return statuses


@pytest.mark.parametrize("burst", [20.0, 5.0])
@pytest.mark.parametrize("rate", [None, "20/s"])
@virtual
async def test_waits_of_milliseconds_use_up_no_attempts(burst: float, rate: str | None) -> None:
    gateway = Gateway(burst, precise=True)
    statuses = await finals(gateway, RateLimiter(rate, concurrency_limit=SLOTS))
    assert set(statuses) == {200}
    assert gateway.statuses[200] >= 0.4 * RATE * SECONDS
    assert gateway.statuses[429] < 1.5 * gateway.statuses[200]


@pytest.mark.parametrize("status", [429, 503])
@virtual
async def test_bare_statuses_use_up_no_attempts(status: int) -> None:
    gateway = Gateway(20.0, status, precise=False)
    statuses = await finals(gateway, RateLimiter(concurrency_limit=SLOTS))
    assert set(statuses) == {200}
    assert gateway.statuses[200] >= 0.95 * RATE * SECONDS
    assert gateway.statuses[status] < 0.8 * gateway.statuses[200]
