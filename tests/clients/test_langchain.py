"""LangChain: a chat model with a rate limiter."""

import asyncio
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, LimiterClosed, RateLimiter
from tests.clients.checks import run_recipe
from tests.integrations.clients import cancel
from tests.support.serving import until
from tests.support.virtually import counts

models: Any = pytest.importorskip("langchain_core.language_models.fake_chat_models")
# Without LangChain, what it returns has no type.
adapter: Any = pytest.importorskip("aiothrottle.integrations.langchain")


@pytest.fixture
async def recipe() -> tuple[Any, RateLimiter]:
    """A model with the limiter of the recipe, and that limiter."""
    names = await run_recipe("LangChain")
    model = models.FakeListChatModel(responses=["Hello."], rate_limiter=names["rate_limiter"])
    return model, names["limiter"]


async def invoke(model: Any) -> str:
    return str((await model.ainvoke("Hello?")).content)


async def stream(model: Any) -> str:
    return "".join([part.content async for part in model.astream("Hello?")])


@pytest.mark.parametrize("ask", [invoke, stream])
async def test_calls_and_streams_keep_the_limit(recipe: tuple[Any, RateLimiter], ask: Any) -> None:
    model, limiter = recipe
    limiter.update(rate_limit="3/h")
    calls = [asyncio.create_task(ask(model)) for _ in range(8)]
    await until(lambda: sum(call.done() for call in calls) + counts(limiter)[1] == len(calls))
    assert counts(limiter) == (0, 5)
    await cancel(calls.pop())
    limiter.update(rate_limit=None)
    assert await asyncio.gather(*calls) == ["Hello."] * 7
    assert limiter.statistics().granted == 7
    assert counts(limiter) == (0, 0)


async def test_call_that_does_not_block_returns_whether_it_may() -> None:
    limiter = RateLimiter("1/h")
    rate_limiter = adapter.langchain_rate_limiter(limiter)
    assert await rate_limiter.aacquire(blocking=False) is True
    assert await rate_limiter.aacquire(blocking=False) is False
    assert counts(limiter) == (0, 0)


async def test_synchronous_call_and_closed_limiter_raise(recipe: tuple[Any, RateLimiter]) -> None:
    model, limiter = recipe
    with pytest.raises(RuntimeError, match="call ainvoke, astream or abatch"):
        model.invoke("Hello?")
    assert (await limiter.peek()).remaining == 500
    await limiter.aclose()
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
