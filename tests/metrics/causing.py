"""Causes events that need a server or a store: retries, and outages; and reads the live page."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from aiothrottle import RateLimiter, Retry
from aiothrottle.events import StoreUp
from tests.integrations.scripted import Script, Step
from tests.support.failing import Client, Server
from tests.support.observing import observed


async def retries(limiter: RateLimiter, *failures: Step) -> None:
    """Send a request that fails so often, and then succeeds."""
    retry = Retry(attempts=1 + len(failures), statuses={500, 503})
    async with Script(*failures, 200).client(limiter, retry=retry) as client:
        assert (await client.get("http://example.org/")).status_code == 200


@asynccontextmanager
async def outage() -> AsyncGenerator[tuple[RateLimiter, Callable[[], Awaitable[None]]]]:
    """Yield a limiter whose store does not answer, and a function that ends the outage."""
    server = Server()
    server.mode = "refuses"
    store = Client(server)
    async with RateLimiter("1000/s", store=store, key="key", on_store_error="open") as limiter:
        returns = observed(limiter, StoreUp)

        async def end() -> None:
            server.mode = "up"
            while not returns:
                await limiter.acquire()
                await asyncio.sleep(0.1)

        yield limiter, end


@asynccontextmanager
async def streaming(url: str) -> AsyncGenerator[Callable[[], Awaitable[Any]]]:
    """Read the stream as a page does: gives a function that waits for the next event."""
    async with aiohttp.ClientSession() as session, session.get(url + "events") as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"

        async def received() -> Any:
            text = (await response.content.readuntil(b"\n\n")).decode()
            return "end" if text.startswith("event: end\n") else json.loads(text[6:])

        first = await response.content.readuntil(b"\n\n")
        assert first.startswith(b"event: history\ndata: [")

        yield received
