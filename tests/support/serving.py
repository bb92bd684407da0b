"""A server on loopback with scripted responses, and conditions that tests check about it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

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


def answer(status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text="body", headers=named)

    return handle


async def hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang_up_in_a_header(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: secret")
    request.transport.close()
    return web.Response()


async def speak_no_http(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    request.transport.close()
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def in_flight(limiter: RateLimiter) -> bool:
    return " 0 of " not in repr(limiter)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds; the suite's timeout ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - sockets send no event
        await asyncio.sleep(0)
