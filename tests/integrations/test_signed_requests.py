"""The code of docs/servers/signed-requests.md: signatures of two seconds stay fresh."""

import ast
import hashlib
import hmac
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession, throttled_middlewares
from aiothrottle.httpx import ThrottledTransport
from tests.clients.limits import StandingClock, assert_idle, finish, throttled
from tests.serving import Handler, serving

PAGE = Path(__file__).parents[2] / "docs" / "servers" / "signed-requests.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VALID_FOR = 2.0

Names = dict[str, Any]
Get = Callable[[URL], Awaitable[int]]


@pytest.fixture
async def names() -> Names:
    """The names that the page defines."""
    found: Names = {"__name__": PAGE.name}
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        code = compile(block, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, found)
        if inspect.isawaitable(done):
            await done
    return found


@pytest.fixture
def clock(names: Names, monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """The time, which the page signs too; it stands still from the end of the page on."""
    assert names
    clock = StandingClock(monkeypatch)
    monkeypatch.setattr("time.time", clock.time)
    return clock


@asynccontextmanager
async def by_middlewares(names: Names, limiter: RateLimiter) -> AsyncGenerator[Get]:
    middlewares = [*throttled_middlewares(limiter), names["sign"]]
    async with aiohttp.ClientSession(middlewares=middlewares) as session:
        yield lambda url: status_of(session, url)


@asynccontextmanager
async def by_a_session(names: Names, limiter: RateLimiter) -> AsyncGenerator[Get]:
    async with ThrottledSession(limiter, middlewares=[names["sign"]]) as session:
        yield lambda url: status_of(session, url)


@asynccontextmanager
async def by_a_transport(names: Names, limiter: RateLimiter) -> AsyncGenerator[Get]:
    signing = names["SigningTransport"](names["Signature"]())
    transport = ThrottledTransport(limiter, transport=signing)
    async with httpx.AsyncClient(transport=transport) as client:
        yield lambda url: httpx_status_of(client, url)


@asynccontextmanager
async def by_auth(names: Names, limiter: RateLimiter) -> AsyncGenerator[Get]:
    """The wrong way: the client signs above the transport."""
    transport = ThrottledTransport(limiter)
    async with httpx.AsyncClient(transport=transport, auth=names["Signature"]()) as client:
        yield lambda url: httpx_status_of(client, url)


async def status_of(session: aiohttp.ClientSession | ThrottledSession, url: URL) -> int:
    async with session.get(url) as response:
        return response.status


async def httpx_status_of(client: httpx.AsyncClient, url: URL) -> int:
    return (await client.get(str(url))).status_code


def checking(clock: StandingClock) -> Handler:
    """Return a handler that accepts a request signed at most two seconds ago."""

    async def handler(request: web.Request) -> web.Response:
        now = request.headers["Timestamp"]
        text = f"{now} {request.method} {request.raw_path}".encode()
        valid = hmac.digest(b"key", text, hashlib.sha256).hex() == request.headers["Signature"]
        fresh = clock.time() - float(now) <= VALID_FOR
        return web.Response(status=200 if valid and fresh else 403)

    return handler


@pytest.mark.parametrize("way", [by_middlewares, by_a_session, by_a_transport])
async def test_signature_is_fresh_after_queue_and_pause(
    way: Callable[..., Any], names: Names, clock: StandingClock
) -> None:
    limiter = clock.limiter("1/s", concurrency_limit=2)
    async with (
        serving(throttled(10), checking(clock)) as (url, seen),
        way(names, limiter) as get,
    ):
        began = clock.time()
        statuses = await finish(clock, limiter, *(get(url / "path") for _ in range(8)))
        assert clock.time() - began > 8 + 10 - 2
    assert statuses == [200] * 8
    assert len(seen) > 8
    await assert_idle(limiter)


async def test_signature_of_httpx_auth_grows_stale(names: Names, clock: StandingClock) -> None:
    limiter = clock.limiter("1/s", concurrency_limit=2)
    async with (
        serving(checking(clock)) as (url, _),
        by_auth(names, limiter) as get,
    ):
        statuses = await finish(clock, limiter, *(get(url / "path") for _ in range(8)))
    assert statuses.count(403) >= 4
