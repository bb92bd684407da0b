"""slack_sdk, in front of a fake of the Slack Web API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.clients.counting import check_limit
from tests.clients.recipes import run_recipe
from tests.serving import hang_up
from tests.virtually import counts

pytest.importorskip("slack_sdk.web.async_client")
errors: Any = pytest.importorskip("slack_sdk.errors")


class _Slack:
    """The API. Each of `throttled` is a Retry-After, for one request."""

    def __init__(self) -> None:
        self.throttled: list[str] = []
        self.hangs_up = 0

    async def answer(self, request: web.Request) -> web.Response:
        if self.hangs_up:
            self.hangs_up -= 1
            return await hang_up(request)
        if self.throttled:
            headers = {"Retry-After": self.throttled.pop()}
            body = {"ok": False, "error": "ratelimited"}
            return web.json_response(body, status=429, headers=headers)
        return web.json_response({"ok": True})


@asynccontextmanager
async def _recipe() -> AsyncGenerator[tuple[dict[str, Any], _Slack, RateLimitedServer]]:
    """Run the recipe against the fake; close the session and the server at the end."""
    names = await run_recipe("slack_sdk")
    fake = _Slack()
    async with RateLimitedServer(handler=fake.answer) as server, names["session"]:
        names["client"].base_url = str(server.url / "api/")
        yield names, fake, server


async def test_calls_of_one_method_keep_its_limit() -> None:
    async with _recipe() as (names, _, server):
        await check_limit(
            names["session"].limiter["/api/users.info"],
            lambda number: names["client"].users_info(user=f"U{number}"),
            server,
        )


async def test_long_pause_holds_for_one_method_alone() -> None:
    async with _recipe() as (names, fake, server):
        fake.throttled.append("3600")
        with pytest.raises(errors.SlackApiError, match="ratelimited"):
            await names["client"].chat_postMessage(channel="C1", text="Hello")
        limiters = names["session"].limiter
        assert (await limiters.peek("/api/chat.postMessage")).retry_after > 100
        assert server.audit.sent == 1
        await names["client"].users_info(user="U1")
        assert counts(limiters["/api/chat.postMessage"]) == (0, 0)


async def test_throttled_call_waits_and_is_sent_again() -> None:
    async with _recipe() as (names, fake, server):
        fake.throttled.append("0.2")
        assert (await names["client"].users_info(user="U1"))["ok"]
        first, second = server.audit.requests
        assert second.arrived_at - first.arrived_at >= 0.2


async def test_lost_connection_is_repeated_with_a_token() -> None:
    async with _recipe() as (names, fake, server):
        fake.hangs_up = 1
        assert (await names["client"].users_info(user="U1"))["ok"]
        assert server.audit.sent == 2
        assert names["session"].limiter["/api/users.info"].statistics().granted == 2
