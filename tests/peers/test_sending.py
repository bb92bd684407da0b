"""The rows about requests: slots, `Retry-After`, retries, and the clients that are supported."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from importlib import import_module
from typing import Any, TypeAlias

import aiohttp
import httpx
import pytest
from aiohttp import web
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.testing import RateLimitedServer
from tests.peers.limiters import WAITING, acquirer, pyrate
from tests.peers.table import COLUMNS, NO, OURS, YES, cell, columns, source_of, the_package

CONCURRENCY = "Concurrency limit"
RETRY_AFTER = "Retry-After pauses all requests"
RETRIES = "Retries with backoff"
CLIENTS = "For aiohttp and httpx"

Get: TypeAlias = Callable[[URL], Coroutine[Any, Any, int]]


@contextlib.asynccontextmanager
async def getter(column: str) -> AsyncGenerator[Get]:
    """Yield a GET under a limit that is never reached, which returns the status."""
    package = the_package(column)
    async with contextlib.AsyncExitStack() as stack:
        client: Any
        if column == OURS:
            limiter = RateLimiter(1000, concurrency_limit=3)
            client = await stack.enter_async_context(ThrottledSession(limiter))
        elif column == "aiohttp-retry":
            options = package.ExponentialRetry(attempts=3, start_timeout=0.01, statuses={429})
            client = await stack.enter_async_context(package.RetryClient(retry_options=options))
        elif column == "pyrate-limiter":
            extra: Any = import_module("pyrate_limiter.extras.aiohttp_limiter")
            client = await stack.enter_async_context(extra.RateLimitedSession(pyrate(1000)))
        else:
            client = await stack.enter_async_context(aiohttp.ClientSession())
        by_itself = {OURS, "pyrate-limiter", "aiohttp-retry"}
        wait = acquirer(column, 1000) if column in {*WAITING} - by_itself else None

        async def get(url: URL) -> int:
            if wait is not None:
                await wait(1)
            response = await client.get(url)
            async with response:
                await response.read()
                return int(response.status)

        yield get


async def answer_slowly(_: web.Request) -> web.Response:
    await asyncio.sleep(0.05)
    return web.Response()


@columns()
async def test_requests_in_flight_and_repeated(column: str) -> None:
    async with RateLimitedServer(handler=answer_slowly) as server, getter(column) as get:
        await asyncio.gather(*(get(server.url) for _ in range(20)))
        greatest = server.audit.greatest_concurrency
    assert cell(CONCURRENCY, column) == (YES if greatest <= 3 else NO), greatest
    moody = Moody(retry_after=0)
    async with RateLimitedServer(handler=moody) as server, getter(column) as get:
        status = await get(server.url)
    assert cell(RETRIES, column) == (YES if (status, len(moody.paths)) == (200, 2) else NO)


class Moody:
    """A handler that throttles its first request, and asks it to wait `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        self.retry_after = retry_after
        self.paths: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if len(self.paths) > 1:
            return web.Response()
        return web.Response(status=429, headers={"Retry-After": str(self.retry_after)})


@columns()
async def test_pause_after_a_throttled_request(column: str) -> None:
    """The server asks for 30 s: an answer within half a second shows that nobody waits for them."""
    moody = Moody(retry_after=30)
    async with RateLimitedServer(handler=moody) as server, getter(column) as get:
        first = asyncio.create_task(get(server.url / "first"))
        while not moody.paths:  # noqa: ASYNC110 - the handler notes it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # the response arrives
        paused = False
        try:
            async with asyncio.timeout(0.5):
                await get(server.url / "second")
        except TimeoutError:
            paused = True
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert ("/second" in moody.paths) is not paused
    assert cell(RETRY_AFTER, column) == (YES if paused else NO)


@columns(OURS, "pyrate-limiter")
async def test_httpx_is_supported_as_aiohttp_is(column: str) -> None:
    the_package(column)
    transport: httpx.AsyncBaseTransport
    if column == OURS:
        transport = ThrottledTransport(RateLimiter(1000))
    else:
        extra: Any = import_module("pyrate_limiter.extras.httpx_limiter")
        transport = extra.AsyncRateLimiterTransport(limiter=pyrate(1000))
    async with RateLimitedServer() as server, httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(str(server.url))).status_code == 200
    assert cell(CLIENTS, column) == "both"


@pytest.mark.parametrize("column", sorted(COLUMNS.keys() - {OURS, "pyrate-limiter"}))
def test_other_clients_are_imported_nowhere(column: str) -> None:
    texts = "".join(source_of(column))
    found = [it for it in ("aiohttp", "httpx") if re.search(f"import {it}|from {it} ", texts)]
    assert cell(CLIENTS, column) == (", ".join(found) or NO)
