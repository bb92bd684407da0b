"""The cost of a throttled request beside a plain one: `uv run benchmarks/overhead.py`.

One GET after the other on one connection, to a server in another process, so the CPU time is the
client's. No request waits. The limits are a million per second, far above the demand, or twice the
demand, where the learned burst stays small. aiohttp-retry only retries, and aiolimiter with a
semaphore only limits; the others do both.
"""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import ClientSession
from aiohttp_retry import RetryClient
from aiolimiter import AsyncLimiter
from measure import Report, arguments, interleave, machine, show

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import ThrottledSession, ThrottleMiddleware, throttled_session

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["report"]

PLENTY, TWICE = 1_000_000, 20_000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
PLAIN = "aiohttp alone"
HALF_USED = f"ThrottledSession, {TWICE:,}/s"

Get = Callable[[], Awaitable[None]]


class Hello(asyncio.Protocol):
    """Says hello to each request without a body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer: a small request comes in one piece."""
        self.transport.write(ANSWER * data.count(b"\r\n\r\n"))


def serve(pipe: "Connection[int, int]") -> None:
    """Serve for ever, in a process that is killed at the end."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Hello, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def compare(port: int, rounds: int, repeat: int) -> dict[str, float]:
    """Measure all contestants; return nanoseconds of CPU per request."""
    url = f"http://127.0.0.1:{port}/"
    rate, slots = AsyncLimiter(PLENTY, 0.001), asyncio.Semaphore(1000)

    async def times(count: int, get: Get) -> None:
        for _ in range(count):
            await get()

    async def get(session: ClientSession | ThrottledSession | RetryClient) -> None:
        async with session.get(url) as response:
            await response.read()

    async def get_behind_a_limiter(session: ClientSession) -> None:
        async with slots, rate, session.get(url) as response:
            await response.read()

    def limiter(rate: int = PLENTY) -> RateLimiter:
        return RateLimiter(rate, concurrency_limit=1000)

    async with (
        ClientSession() as plain,
        ThrottledSession(limiter()) as ours,
        ThrottledSession(limiter(TWICE)) as half_used,
        ThrottledSession(KeyedRateLimiter(PLENTY, concurrency_limit=1000)) as keyed,
        ClientSession(middlewares=[ThrottleMiddleware(limiter())]) as middleware,
        throttled_session(limiter()) as both,
        RetryClient() as retrying,
    ):
        runs: dict[str, Get] = {
            PLAIN: partial(get, plain),
            "ThrottledSession": partial(get, ours),
            HALF_USED: partial(get, half_used),
            "ThrottledSession, a limiter per host": partial(get, keyed),
            "ThrottleMiddleware": partial(get, middleware),
            "throttled_session": partial(get, both),
            "aiohttp-retry": partial(get, retrying),
            "aiolimiter and a semaphore": partial(get_behind_a_limiter, plain),
        }
        contestants = {name: partial(times, repeat, run) for name, run in runs.items()}
        return await interleave(contestants, rounds=rounds, per_round=repeat)


def report(rounds: int = 25, repeat: int = 500) -> Report:
    """Measure, and compare the results with the targets."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        medians = asyncio.run(compare(ours.recv(), rounds, repeat))
    finally:
        server.kill()
        server.join()
    found = Report("A request")
    plain = medians[PLAIN]
    rows = [["one GET", "us of CPU", "more", "x aiohttp alone"]]
    for name, ns in medians.items():
        more = f"{(ns - plain) / 1000:.1f}"
        rows.append([name, f"{ns / 1000:.1f}", more, f"{ns / plain:.3f}"])
    found.add(f"Median of {rounds} interleaved rounds of {repeat:,} requests.", rows)
    for name, most in (
        ("ThrottledSession", 1.08),
        (HALF_USED, 1.08),
        ("ThrottleMiddleware", 1.10),
        ("throttled_session", 1.12),
    ):
        found.want(f"{name}, beside aiohttp alone", medians[name] / plain, most)
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=(25, "rounds"), repeat=(500, "requests a round"))
    print(machine())
    show(report(options.rounds, options.repeat))


if __name__ == "__main__":
    main()
