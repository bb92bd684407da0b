"""What every recipe has to keep: checks against a server that counts, in skipped time."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle.testing import RateLimitedServer
from tests.integrations.clients import Clock
from tests.serving import Handler
from tests.virtually import counts, turns

__all__ = [
    "CALLS",
    "StandingClock",
    "assert_idle",
    "assert_limit_is_kept",
    "finish",
    "limited",
    "throttled",
]

_T = TypeVar("_T")


class StandingClock(Clock):
    """A clock that stands still unless it is moved: requests take no time, on any machine."""

    def time(self) -> float:
        return 1000.0 + self._skipped


#: How many calls make a limit of five a second felt.
CALLS = 20


def limited(handler: Handler) -> RateLimitedServer:
    """Return a server that admits five requests a second, two of them at once."""
    return RateLimitedServer("5/s", concurrency_limit=2, handler=handler)


async def assert_limit_is_kept(
    clock: Clock, limiter: RateLimiter, server: RateLimitedServer, call: Callable[[], Awaitable[_T]]
) -> list[_T]:
    """Make calls of one request each at once; assert that the server throttled none of them."""
    limiter.update(rate_limit="5/s", concurrency_limit=2)
    began = clock.time()
    results = await finish(clock, limiter, *(call() for _ in range(CALLS)))
    assert server.audit.sent == CALLS
    assert server.audit.refused == 0
    assert clock.time() - began >= CALLS / 5 - 1
    return results


async def finish(clock: Clock, limiter: RateLimiter, *calls: Awaitable[_T]) -> list[_T]:
    """Move the time forward, but only while no request is in flight, until all calls have ended."""
    ended = asyncio.ensure_future(_gather(calls))
    while not ended.done():
        await turns()
        if counts(limiter)[0] == 0:
            await clock.skip(0.01)
    return await ended


async def assert_idle(limiter: RateLimiter) -> None:
    """Assert that no slot is taken, nothing waits, and no socket is left to the collector."""
    await turns()
    gc.collect()  # a socket that is not closed warns, and a warning fails the test
    assert counts(limiter) == (0, 0)


def throttled(seconds: int, body: Any = "") -> Handler:
    """Return a handler that throttles a request for so many seconds."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response(body, status=429, headers={"Retry-After": str(seconds)})

    return handler


async def _gather(calls: Iterable[Awaitable[_T]]) -> list[_T]:
    return list(await asyncio.gather(*calls))
