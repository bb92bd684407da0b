"""Handlers of a server on loopback, for the fixture `serve`."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.support.serving import Handler, hang_up, headers_of, in_chunks


def urls_of(server: RateLimitedServer, names: int | Iterable[str]) -> list[str]:
    return [f"{server.url}{it}" for it in (range(names) if isinstance(names, int) else names)]


def always(
    status: int = 200, body: str | bytes = "", *, after: float = 0.0, **headers: str
) -> Handler:
    """Answer all requests alike, after some seconds."""
    content: Any = {"text" if isinstance(body, str) else "body": body}

    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(after)
        return web.Response(status=status, headers=headers_of(headers), **content)

    return handle


#: Half of a body, and then the end of the connection.
cut_off = in_chunks(b"x" * 50, then=hang_up, Content_Length="100")


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
