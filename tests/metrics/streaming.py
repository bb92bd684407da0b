"""Reads the stream of the live page, as the page does."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp


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
