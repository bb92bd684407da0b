"""A clock that is moved forward while calls of a client wait."""

import asyncio
import gc
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from aiohttp import web

from aiothrottle import RateLimiter
from tests.integrations.clients import Clock
from tests.support.serving import Handler
from tests.support.virtually import counts, turns

_T = TypeVar("_T")


class StandingClock(Clock):
    """A clock that stands still unless it is moved: requests take no time, on any machine."""

    def time(self) -> float:
        return 1000.0 + self._skipped


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
