"""litellm, in front of fakes of the APIs of OpenAI and Anthropic."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.clients.counting import check_limit
from tests.clients.recipes import run_recipe
from tests.servers import free_port
from tests.serving import hang_up
from tests.virtually import counts

# Else it would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm: Any = pytest.importorskip("litellm")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of pydantic, about its models

_QUESTION = [{"role": "user", "content": "Hello?"}]
_MODELS = ("openai/gpt-4o", "anthropic/claude-sonnet-4-5")
_OPENAI = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
_ANTHROPIC = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 2},
}
_PARTS = [
    {**_OPENAI, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    for delta in ({"role": "assistant", "content": "H"}, {"content": "i."})
]


class _Provider:
    """Both APIs. Each of `throttled` is a Retry-After, for one request."""

    def __init__(self) -> None:
        self.throttled: list[str] = []
        self.hangs_up = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.hangs_up:
            self.hangs_up -= 1
            return await hang_up(request)
        body = await request.json()
        if self.throttled:
            error = {"error": {"type": "rate_limit_error", "message": "too many"}}
            headers = {"Retry-After": self.throttled.pop()}
            return web.json_response(error, status=429, headers=headers)
        if not body.get("stream"):
            openai = request.path.endswith("/chat/completions")
            return web.json_response(_OPENAI if openai else _ANTHROPIC)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in _PARTS:
            await response.write(f"data: {json.dumps(part)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def _recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[tuple[dict[str, Any], _Provider, RateLimitedServer]]:
    """Run the recipe against the fakes; close the session and the server at the end."""
    fake = _Provider()
    monkeypatch.setattr(litellm, "aclient_session", None)
    async with RateLimitedServer(handler=fake.answer) as server:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_API_BASE", str(server.url))
            monkeypatch.setenv(f"{name}_API_KEY", "KEY")
        names = await run_recipe("litellm")
        names["limiter"] = names["limiters"][f"{server.url.host}:{server.url.port}"]
        async with names["session"]:
            yield names, fake, server
        litellm.in_memory_llm_clients_cache.flush_cache()


async def _ask(names: dict[str, Any], model: str, **options: Any) -> Any:
    if not model.startswith("openai/"):
        options["client"] = names["client"]
    return await litellm.acompletion(model, _QUESTION, **options)


@pytest.mark.parametrize("model", _MODELS)
async def test_calls_keep_the_limit(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, _, server):
        await check_limit(names["limiter"], lambda _: _ask(names, model), server)


async def test_stream_holds_its_slot_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, _, _server):
        stream = await _ask(names, _MODELS[0], stream=True)
        parts = [part.choices[0].delta.content or "" async for part in stream]
        assert "".join(parts) == "Hi."
        assert counts(names["limiter"]) == (0, 0)


@pytest.mark.parametrize("model", _MODELS)
async def test_throttled_call_waits_and_is_sent_again(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _recipe(monkeypatch) as (names, fake, server):
        fake.throttled.append("0.2")
        answer = await _ask(names, model)
        assert answer.choices[0].message.content == "Hi."
        first, second = server.audit.requests
        assert second.arrived_at - first.arrived_at >= 0.2


@pytest.mark.parametrize("model", _MODELS)
async def test_long_pause_holds_for_all_calls(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, fake, server):
        fake.throttled.append("3600")
        with pytest.raises(litellm.RateLimitError):
            await _ask(names, model, max_retries=0)
        assert server.audit.sent == 1
        assert (await names["limiter"].peek()).retry_after > 100
        assert counts(names["limiter"]) == (0, 0)


async def test_lost_connection_is_repeated_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, fake, server):
        fake.hangs_up = 1
        answer = await _ask(names, _MODELS[0])
        assert answer.choices[0].message.content == "Hi."
        assert server.audit.sent == 2
        assert names["limiter"].statistics().granted == 2


async def test_failed_connection_leaves_the_session_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _recipe(monkeypatch) as (names, _, server):
        # litellm repeats the call with a client of its own, which it closes.
        with pytest.raises(litellm.InternalServerError):
            await _ask(names, _MODELS[1], api_base=f"http://127.0.0.1:{free_port()}")
        assert server.audit.sent == 0
        await _ask(names, _MODELS[1])
        assert names["limiter"].statistics().granted == 1
