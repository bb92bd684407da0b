"""aiogram, in front of a fake of the Telegram Bot API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.clients.counting import check_limit
from tests.clients.recipes import run_recipe
from tests.virtually import counts

pytest.importorskip("aiogram")
exceptions: Any = pytest.importorskip("aiogram.exceptions")
telegram: Any = pytest.importorskip("aiogram.client.telegram")

_RESULTS: dict[str, object] = {
    "getUpdates": [],
    "sendMessage": {"message_id": 1, "date": 1, "chat": {"id": 1, "type": "private"}},
}


async def _answer(request: web.Request) -> web.Response:
    method = request.path.rpartition("/")[2]
    if method == "sendMessage" and (await request.post())["text"] == "too many":
        error = {"error_code": 429, "description": "Too Many Requests: retry after 30"}
        return web.json_response(
            {"ok": False, **error, "parameters": {"retry_after": 30}}, status=429
        )
    return web.json_response({"ok": True, "result": _RESULTS[method]})


@asynccontextmanager
async def _recipe() -> AsyncGenerator[tuple[dict[str, Any], RateLimitedServer]]:
    """Run the recipe against the fake; close the bot and the server at the end."""
    names = await run_recipe("aiogram")
    async with RateLimitedServer(handler=_answer) as server:
        names["bot"].session.api = telegram.TelegramAPIServer.from_base(str(server.url))
        try:
            yield names, server
        finally:
            await names["bot"].session.close()


async def test_messages_to_one_chat_keep_its_limit() -> None:
    async with _recipe() as (names, server):
        await check_limit(
            names["chats"][1],
            lambda number: names["bot"].send_message(1, f"message {number}"),
            server,
        )


async def test_messages_to_all_chats_keep_the_common_limit() -> None:
    async with _recipe() as (names, server):
        await check_limit(
            names["all_chats"],
            lambda number: names["bot"].send_message(number, "message"),
            server,
        )


async def test_long_poll_takes_no_token() -> None:
    async with _recipe() as (names, server):
        for _ in range(50):
            await names["bot"].get_updates(timeout=0)
        assert server.audit.sent == 50
        assert len(names["chats"]) == 0


async def test_throttled_message_pauses_its_chat_alone() -> None:
    async with _recipe() as (names, server):
        with pytest.raises(exceptions.TelegramRetryAfter):
            await names["bot"].send_message(1, "too many")
        assert (await names["chats"].peek(1)).retry_after > 29
        assert counts(names["chats"][1]) == (0, 0)
        assert (await names["chats"].peek(2)).allowed
        assert server.audit.sent == 1
