"""gidgethub, in front of a fake of the GitHub API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.clients.counting import check_limit
from tests.clients.recipes import run_recipe
from tests.serving import Handler
from tests.virtually import counts

gidgethub: Any = pytest.importorskip("gidgethub")


async def _answer(_: web.Request) -> web.Response:
    return web.json_response({"stars": 1}, headers={"X-RateLimit-Limit": "5000"})


def _throttle_first(status: int, **headers: str) -> Handler:
    """Return a handler that throttles the first request."""
    waiting = [{name.replace("_", "-"): value for name, value in headers.items()}]

    async def handle(request: web.Request) -> web.Response:
        if not waiting:
            return await _answer(request)
        body = {"message": "You have exceeded a secondary rate limit"}
        return web.json_response(body, status=status, headers=waiting.pop())

    return handle


@asynccontextmanager
async def _recipe(
    handler: Handler = _answer,
) -> AsyncGenerator[tuple[dict[str, Any], RateLimitedServer]]:
    """Run the recipe against the fake; close the session and the server at the end."""
    names = await run_recipe("gidgethub")
    async with RateLimitedServer(handler=handler) as server, names["session"]:
        names["github"].base_url = str(server.url).rstrip("/")
        yield names, server


async def test_calls_keep_the_limit() -> None:
    async with _recipe() as (names, server):
        await check_limit(
            names["session"].limiter,
            lambda number: names["github"].getitem(f"/repos/python/{number}"),
            server,
        )


@pytest.mark.parametrize("status", [403, 429])
async def test_throttled_call_waits_and_is_sent_again(status: int) -> None:
    async with _recipe(_throttle_first(status, Retry_After="0.2")) as (names, server):
        assert await names["github"].getitem("/user") == {"stars": 1}
        first, second = server.audit.requests
        assert second.arrived_at - first.arrived_at >= 0.2
        assert counts(names["session"].limiter) == (0, 0)


async def test_long_pause_holds_for_all_calls() -> None:
    async with _recipe(_throttle_first(403, Retry_After="3600")) as (names, server):
        with pytest.raises(gidgethub.HTTPException):
            await names["github"].post("/user/repos", data={"name": "new"})
        limiter = names["session"].limiter
        assert (await limiter.peek()).retry_after > 100
        assert server.audit.sent == 1
        assert counts(limiter) == (0, 0)


async def test_used_quota_of_the_server_stops_calls() -> None:
    async def answer(_: web.Request) -> web.Response:
        headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "4000000000"}
        return web.json_response({}, headers={"X-RateLimit-Limit": "5000", **headers})

    async with _recipe(answer) as (names, _):
        await names["github"].getitem("/user")
        assert not await names["session"].limiter.peek()
