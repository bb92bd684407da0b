"""A server on loopback with scripted responses, and conditions that tests check about it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from operator import methodcaller
from typing import Any

from aiohttp import web
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.testing import RateLimitedServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(*script: Handler) -> AsyncGenerator[tuple[URL, list[tuple[str, bytes]]]]:
    """Serve the handlers one per request, the last one for ever; yield the URL and the requests."""
    seen: list[tuple[str, bytes]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, await request.read()))
        return await script[min(len(seen), len(script)) - 1](request)

    async with RateLimitedServer(None, handler=handle) as server:
        yield server.url, seen


def headers_of(names: Mapping[str, str]) -> dict[str, str]:
    """Return headers by names that Python allows: `Retry_After` is the header Retry-After."""
    return {name.replace("_", "-"): value for name, value in names.items()}


def answer(status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, text="body", headers=headers_of(headers))

    return handle


def in_chunks(
    *chunks: bytes | asyncio.Event, status: int = 200, then: Handler | None = None, **headers: str
) -> Handler:
    """Send a body in chunks, which ends with them, or do something else `then`.

    An event between them is waited for.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers_of(headers))
        await response.prepare(request)
        for chunk in chunks:
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
            else:
                await response.write(chunk)
                await asyncio.sleep(0)
        await (response.write_eof() if then is None else then(request))
        return response

    return handle


def ending(how: Callable[[Any], object], data: bytes = b"") -> Handler:
    """Return a handler that sends bare data, and ends the connection in place of a response."""

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(data)
        how(request.transport)
        return web.Response()

    return handle


hang_up = ending(methodcaller("abort"))
#: Once all has been sent.
cut = ending(methodcaller("close"))
hang_up_in_a_header = ending(methodcaller("close"), b"HTTP/1.1 200 OK\r\nSet-Cookie: secret")
speak_no_http = ending(methodcaller("close"), b"SSH-2.0-OpenSSH_9.6\r\n")


def without_end(status: int = 200) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    return handle


endless = without_end()


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def generated(*pieces: bytes | float | Exception) -> AsyncGenerator[bytes]:
    """Yield a body in pieces; between them wait for seconds, or raise an error."""
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        elif isinstance(piece, Exception):
            raise piece
        else:
            await asyncio.sleep(piece)


def in_flight(limiter: RateLimiter) -> bool:
    return " 0 of " not in repr(limiter)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds; the suite's timeout ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - sockets send no event
        await asyncio.sleep(0)
