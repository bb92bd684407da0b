"""LangChain: a chat model with a rate limiter, in front of a fake of its API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import aiohttp
import pytest
from aiohttp import web

from aiothrottle import KeyedRateLimiter, LimiterClosed, RateLimiter
from tests.clients.checks import API, Call, Recipe, check_limit
from tests.clients.recipes import run_recipe
from tests.support.virtually import counts

chat_models: Any = pytest.importorskip("langchain_core.language_models.chat_models")
messages: Any = pytest.importorskip("langchain_core.messages")
outputs: Any = pytest.importorskip("langchain_core.outputs")
# Without LangChain, what it returns has no type.
adapter: Any = pytest.importorskip("aiothrottle.integrations.langchain")


async def _answer(_: web.Request) -> web.Response:
    return web.Response(text="Hello.")


def _model(session: aiohttp.ClientSession, url: str) -> type[Any]:
    """Return a class of chat models that ask a server, with a stream of one part."""

    async def ask() -> Any:
        async with session.post(url) as response:
            return await response.text()

    async def generate(*_: object, **_options: object) -> Any:
        message = messages.AIMessage(await ask())
        return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    async def stream(*_: object, **_options: object) -> AsyncGenerator[Any]:
        message = messages.AIMessageChunk(content=await ask())
        yield outputs.ChatGenerationChunk(message=message)

    def generate_now(*_: object, **_options: object) -> NoReturn:
        raise AssertionError("called without a token")

    members: dict[str, Any] = {
        "_agenerate": generate,
        "_astream": stream,
        "_generate": generate_now,
    }
    members |= {"__module__": __name__, "_llm_type": property(lambda _: "fake")}
    return type("Model", (chat_models.BaseChatModel,), members)


@asynccontextmanager
async def _recipe() -> AsyncGenerator[tuple[Any, Recipe]]:
    """Make a model with the limiter of the recipe; close session and server at the end."""
    names, api = await run_recipe("LangChain"), API(_answer)
    async with api.server, aiohttp.ClientSession() as session:
        model = _model(session, api.url)(rate_limiter=names["rate_limiter"])
        call: Call = lambda _: model.ainvoke("Hello?")  # noqa: E731
        yield model, Recipe(api, names, names["limiter"], call)


async def test_calls_and_streams_keep_the_limit() -> None:
    async with _recipe() as (model, recipe):
        await check_limit(recipe)

        async def read(_: int) -> None:
            parts = [part.content async for part in model.astream("Hello?")]
            assert "".join(parts) == "Hello."

        await check_limit(recipe._replace(call=read))


async def test_call_that_does_not_block_returns_whether_it_may() -> None:
    limiter = RateLimiter("1/h")
    rate_limiter = adapter.langchain_rate_limiter(limiter)
    assert await rate_limiter.aacquire(blocking=False) is True
    assert await rate_limiter.aacquire(blocking=False) is False
    assert counts(limiter) == (0, 0)


async def test_synchronous_call_and_closed_limiter_raise() -> None:
    async with _recipe() as (model, recipe):
        with pytest.raises(RuntimeError, match="call ainvoke, astream or abatch"):
            model.invoke("Hello?")
        assert recipe.api.server.audit.sent == 0
        assert (await recipe.limiter.peek()).remaining == 500
        await recipe.limiter.aclose()
        with pytest.raises(LimiterClosed):
            await model.ainvoke("Hello?")


@pytest.mark.parametrize(
    ("limiter", "error", "message"),
    [
        (RateLimiter("1/s", concurrency_limit=2), ValueError, "give a limiter without one"),
        (KeyedRateLimiter("1/s"), TypeError, "must be a RateLimiter"),
        ("1/s", TypeError, "must be a RateLimiter, got '1/s'"),
    ],
)
def test_wrong_limiter_is_rejected(limiter: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        adapter.langchain_rate_limiter(limiter)
