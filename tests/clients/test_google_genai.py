"""google-genai, in front of a fake of the Gemini API."""

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

pytest.importorskip("google.genai")
errors: Any = pytest.importorskip("google.genai.errors")

_PART = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hello."}]}}]}


class _Gemini:
    """The API. Each of `throttled` is a Retry-After, for one request."""

    def __init__(self) -> None:
        self.throttled: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.throttled:
            error = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota"}}
            headers = {"Retry-After": self.throttled.pop()}
            return web.json_response(error, status=429, headers=headers)
        if "streamGenerateContent" not in request.path:
            return web.json_response(_PART)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(3):
            await response.write(f"data: {json.dumps(_PART)}\r\n\r\n".encode())
        return response


@asynccontextmanager
async def _recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[tuple[dict[str, Any], _Gemini, RateLimitedServer]]:
    """Run the recipe against the fake; close the client and the server at the end."""
    fake = _Gemini()
    async with RateLimitedServer(handler=fake.answer) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", str(server.url))
        names = await run_recipe("google-genai")
        async with names["client"].aio:
            yield names, fake, server


async def _ask(names: dict[str, Any]) -> str:
    models = names["client"].aio.models
    response = await models.generate_content(model="gemini-2.5-flash", contents="Hello?")
    text: str = response.text
    return text


async def test_calls_keep_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, _, server):
        await check_limit(names["transport"].limiter, lambda _: _ask(names), server)


async def test_stream_holds_its_slot_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, _, _server):
        limiter = names["transport"].limiter
        stream = await names["client"].aio.models.generate_content_stream(
            model="gemini-2.5-flash", contents="Hello?"
        )
        assert (await anext(stream)).text == "Hello."
        assert counts(limiter) == (1, 0)
        assert [part.text async for part in stream] == ["Hello.", "Hello."]
        assert counts(limiter) == (0, 0)


async def test_throttled_call_waits_and_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, fake, server):
        fake.throttled.append("0.2")
        assert await _ask(names) == "Hello."
        first, second = server.audit.requests
        assert second.arrived_at - first.arrived_at >= 0.2


async def test_long_pause_holds_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, fake, server):
        fake.throttled.append("3600")
        with pytest.raises(errors.ClientError):
            await _ask(names)
        assert server.audit.sent == 1
        limiter = names["transport"].limiter
        assert (await limiter.peek()).retry_after > 100
        assert counts(limiter) == (0, 0)
