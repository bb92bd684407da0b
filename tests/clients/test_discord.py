"""discord.py, in front of a fake of the Discord API."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.clients.counting import check_limit
from tests.clients.recipes import run_recipe
from tests.virtually import counts

discord: Any = pytest.importorskip("discord")

_USER = {"id": "42", "username": "bot", "discriminator": "0", "avatar": None}
_APPLICATION: dict[str, object] = {
    **_USER,
    "name": "bot",
    "description": "",
    "icon": None,
    "verify_key": "",
    "owner": _USER,
    "bot_public": True,
    "bot_require_code_grant": False,
}


class _Discord:
    """The API. It throttles what is in `throttled`, once each."""

    def __init__(self) -> None:
        self.throttled: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if name in self.throttled:
            self.throttled.remove(name)
            # Without a Via, discord.py takes a 429 for a ban of its address.
            headers = {"Via": "1.1 google", "X-RateLimit-Scope": "global"}
            body = {"message": "too many", "retry_after": 0.05, "global": True}
            return _json(body, status=429, headers=headers)
        if name.isdigit():
            return _json({"id": name, "type": 1, "recipients": [_USER]})
        return _json(_APPLICATION)


def _json(body: object, **options: Any) -> web.Response:
    # discord.py reads JSON only without a charset.
    data = json.dumps(body).encode()
    return web.Response(body=data, content_type="application/json", **options)


@asynccontextmanager
async def _recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[tuple[dict[str, Any], _Discord, RateLimitedServer]]:
    """Run the recipe against the fake, and log in; close the client and the server at the end."""
    names = await run_recipe("discord.py")
    fake = _Discord()
    async with RateLimitedServer(handler=fake.answer) as server:
        monkeypatch.setattr(discord.http.Route, "BASE", str(server.url).rstrip("/"))
        async with names["client"] as client:
            await client.login("TOKEN")
            assert server.audit.sent == 2  # the user, and the application
            yield names, fake, server


async def test_calls_of_all_routes_keep_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, _, server):
        # Of each channel discord.py sends one request at a time, until it knows its limit.
        await check_limit(
            names["limiter"],
            lambda number: names["client"].fetch_channel(1000 + number),
            server,
        )


async def test_throttled_call_takes_a_token_for_each_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _recipe(monkeypatch) as (names, fake, server):
        granted = names["limiter"].statistics().granted
        fake.throttled.add("7")
        channel = await names["client"].fetch_channel(7)
        assert channel.id == 7
        assert server.audit.sent == 4
        assert names["limiter"].statistics().granted - granted == 2
        assert counts(names["limiter"]) == (0, 0)
