"""Handlers of a server on loopback, for the fixture `serve`."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.support.serving import Handler, hang_up


def urls_of(server: RateLimitedServer, names: int | Iterable[str]) -> list[str]:
    return [f"{server.url}{it}" for it in (range(names) if isinstance(names, int) else names)]


def always(
    status: int = 200, body: str | bytes = "", *, after: float = 0.0, **headers: str
) -> Handler:
    """Answer all requests alike, after some seconds; `Retry_After` is the header Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(after)
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=named)
        return web.Response(status=status, body=body, headers=named)

    return handle


def to(location: str, status: int = 302) -> Handler:
    return always(status, Location=location)


def by_path(handlers: Mapping[str, Handler]) -> Handler:
    """Answer each path by its handler, without its first slash."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handlers[request.path[1:]](request)

    return handle


def in_turn(*handlers: Handler, then: Handler | None = None) -> Handler:
    """Answer the first requests by these handlers, and all others by `then`, or "at last"."""
    left, last = list(handlers), then or always(body="at last")

    async def handle(request: web.Request) -> web.StreamResponse:
        return await (left.pop(0) if left else last)(request)

    return handle


class Seen(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: str


def noting(seen: list[Seen], handler: Handler | None = None) -> Handler:
    answer = handler or always()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.text()
        seen.append(Seen(request.method, request.path, request.headers, body))
        return await answer(request)

    return handle


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"x" * 50)
    return await hang_up(request)
