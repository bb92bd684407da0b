"""The code of docs/servers/signed-requests.md: signatures of two seconds stay fresh."""

import hashlib
import hmac
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from aiothrottle.aiohttp import ThrottledSession, throttled_middlewares
from aiothrottle.httpx import ThrottledTransport
from tests.clients.checks import StandingClock, assert_idle, finish, run_blocks, throttled
from tests.integrations.clients import Client
from tests.support.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "servers" / "signed-requests.md"
VALID_FOR = 2.0


@pytest.fixture
async def names() -> dict[str, Any]:
    return await run_blocks(PAGE.read_text(encoding="utf-8"), PAGE.name)


@pytest.fixture
def clock(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """The time, which the page signs too; it stands still from the end of the page on."""
    assert names
    clock = StandingClock(monkeypatch)
    monkeypatch.setattr("time.time", clock.time)
    return clock


def signing(way: str, names: dict[str, Any], limiter: Any) -> Client:
    """Start a client that signs, as the page says or, by httpx's `auth`, too early."""
    sign, signature = names["sign"], names["Signature"]()
    if way == "session":
        return Client(ThrottledSession(limiter, middlewares=[sign]))
    if way == "middlewares":
        middlewares = [*throttled_middlewares(limiter), sign]
        return Client(aiohttp.ClientSession(middlewares=middlewares))
    if way == "transport":
        transport = ThrottledTransport(limiter, transport=names["SigningTransport"](signature))
        return Client(httpx.AsyncClient(transport=transport))
    return Client(httpx.AsyncClient(transport=ThrottledTransport(limiter), auth=signature))


@pytest.mark.parametrize("way", ["session", "middlewares", "transport", "auth"])
async def test_signature_is_fresh_after_queue_and_pause(
    way: str, names: dict[str, Any], clock: StandingClock
) -> None:
    async def check(request: web.Request) -> web.Response:
        now = request.headers["Timestamp"]
        text = f"{now} {request.method} {request.raw_path}".encode()
        valid = hmac.digest(b"key", text, hashlib.sha256).hex() == request.headers["Signature"]
        return web.Response(status=200 if valid and clock.time() - float(now) <= VALID_FOR else 403)

    limiter = clock.limiter("1/s", concurrency_limit=2)
    client = signing(way, names, limiter)
    async with serving(throttled(10), check) as (url, seen), client.raw:
        began = clock.time()
        replies = await finish(clock, limiter, *(client.send(url / "path") for _ in range(8)))
        assert clock.time() - began > 8 + 10 - 2
    statuses = [reply.status for reply in replies]
    assert statuses.count(403) >= 4 if way == "auth" else statuses == [200] * 8
    assert len(seen) > 8
    await assert_idle(limiter)
