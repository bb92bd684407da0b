"""litellm, in front of fakes of the APIs of OpenAI and Anthropic."""

import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web

from tests.clients.checks import (
    API,
    Recipe,
    check_limit,
    check_long_pause,
    check_lost_connection,
    check_throttled_call,
    run_recipe,
)
from tests.support.servers import dead_port
from tests.support.virtually import counts

# Else it would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm: Any = pytest.importorskip("litellm")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of pydantic, about its models

_QUESTION = [{"role": "user", "content": "Hello?"}]
_MODELS = ("openai/gpt-4o", "anthropic/claude-sonnet-4-5")
_REPLY = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}
_HEAD: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
_OPENAI = {
    **_HEAD,
    "choices": [_REPLY],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
_MESSAGE = {"id": "1", "type": "message", "role": "assistant", "stop_reason": "end_turn"}
_ANTHROPIC = {
    **_MESSAGE,
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi."}],
    "usage": {"input_tokens": 5, "output_tokens": 2},
}


async def _answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if not body.get("stream"):
        openai = request.path.endswith("/chat/completions")
        return web.json_response(_OPENAI if openai else _ANTHROPIC)
    says = {"index": 0, "delta": {"role": "assistant", "content": "H"}}
    ends = {"index": 0, "delta": {"content": "i."}, "finish_reason": "stop"}
    head = {**_HEAD, "object": "chat.completion.chunk"}
    parts = [json.dumps({**head, "choices": [choice]}) for choice in (says, ends)]
    events = "".join(f"data: {part}\n\n" for part in (*parts, "[DONE]"))
    return web.Response(text=events, content_type="text/event-stream")


async def _ask(recipe: Recipe, model: str, **options: Any) -> Any:
    if not model.startswith("openai/"):
        options["client"] = recipe.names["client"]
    return await litellm.acompletion(model, _QUESTION, **options)


@pytest.fixture(params=_MODELS)
async def recipe(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Recipe]:
    model: str = request.param
    api = API(_answer, {"error": {"type": "rate_limit_error", "message": "too many"}})
    monkeypatch.setattr(litellm, "aclient_session", None)
    async with api.server:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_API_BASE", f"{api.url}/")
            monkeypatch.setenv(f"{name}_API_KEY", "KEY")
        names = await run_recipe("litellm")
        limiter = names["limiters"][api.url.removeprefix("http://")]

        async def call(_: int) -> None:
            answer = await _ask(opened, model, **options)
            assert answer.choices[0].message.content == "Hi."

        options: dict[str, Any] = {}
        names["options"] = options
        opened = Recipe(api, names, limiter, call, litellm.RateLimitError)
        async with names["session"]:
            yield opened
        litellm.in_memory_llm_clients_cache.flush_cache()


only_openai = pytest.mark.parametrize("recipe", _MODELS[:1], indirect=True)
only_anthropic = pytest.mark.parametrize("recipe", _MODELS[1:], indirect=True)


@pytest.mark.parametrize("check", [check_limit, check_throttled_call, check_long_pause])
async def test_recipe_keeps_limit_and_pauses(recipe: Recipe, check: Any) -> None:
    if check is check_long_pause:
        recipe.names["options"]["max_retries"] = 0
    await check(recipe)


@only_openai
async def test_stream_holds_its_slot_to_the_end(recipe: Recipe) -> None:
    stream = await _ask(recipe, _MODELS[0], stream=True)
    parts = [part.choices[0].delta.content or "" async for part in stream]
    assert "".join(parts) == "Hi."
    assert counts(recipe.limiter) == (0, 0)


@only_openai
async def test_lost_connection_is_repeated_with_a_token(recipe: Recipe) -> None:
    await check_lost_connection(recipe)


@only_anthropic
async def test_failed_connection_leaves_the_session_open(recipe: Recipe) -> None:
    # litellm repeats the call with a client of its own, which it closes.
    with dead_port() as port, pytest.raises(litellm.InternalServerError):
        await _ask(recipe, _MODELS[1], api_base=f"http://127.0.0.1:{port}")
    assert recipe.api.server.audit.sent == 0
    await recipe.call(1)
    assert recipe.limiter.statistics().granted == 1
