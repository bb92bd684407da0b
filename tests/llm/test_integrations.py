"""The options of `aiothrottle.llm` in the integrations, without any SDK."""

from types import ModuleType
from typing import Any, TypeAlias

import httpx
import httpx2
import pytest

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle import httpx as for_httpx
from aiothrottle import httpx2 as for_httpx2
from aiothrottle.aiohttp import ThrottledSession
from tests.llm.calling import prompt_of
from tests.llm.fake_api import FakeAnthropic, FakeOpenAI
from tests.support.virtually import counts, virtual

Library: TypeAlias = Any  # httpx or httpx2

CHAT = "/v1/chat/completions"
SLOW = {"requests": "500/min", "tokens": "30000/h"}


def chat(number: int = 1, *, stream: bool = False) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": prompt_of(number), "max_tokens": 500}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}} if stream else asked


async def tokens_spent(limiter: RateLimiter, resource: str = "tokens") -> float:
    each = (await limiter.peek()).resources[resource]
    return each.limit - each.remaining


@pytest.mark.parametrize(
    ("library", "ours"), [(httpx, for_httpx), (httpx2, for_httpx2)], ids=["httpx", "httpx2"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@virtual
async def test_transport_settles_calls(library: Library, ours: ModuleType, stream: bool) -> None:
    fake, limiter = FakeOpenAI(), RateLimiter(SLOW, algorithm=TokenBucket)
    transport = ours.ThrottledTransport(
        limiter, transport=fake.transport(library), **llm.openai(most_tokens=30_000)
    )
    async with limiter, library.AsyncClient(transport=transport) as client:
        async with client.stream(
            "POST", "https://api.openai.com" + CHAT, json=chat(stream=stream)
        ) as response:
            assert await tokens_spent(limiter) > 500  # its estimate
            text = "".join([part async for part in response.aiter_text()])
        assert "w" in text
        assert await tokens_spent(limiter) == pytest.approx(fake.used["tokens"], abs=10)
        assert counts(limiter) == (0, 0)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_session_settles_calls(stream: bool) -> None:
    both = {"input_tokens": "30000/h", "output_tokens": "8000/h"}
    claude = {"model": "m", "messages": prompt_of(3)[1:], "max_tokens": 5000, "stream": stream}
    for fake, rates, options, path, body in (
        (FakeOpenAI(latency=0.0), {"tokens": "30000/h"}, llm.openai(), CHAT, chat(stream=stream)),
        (FakeAnthropic(latency=0.0), both, llm.anthropic(), "/v1/messages", claude),
    ):
        limiter = RateLimiter({"requests": "500/min", **rates}, algorithm=TokenBucket)
        async with fake.serve() as url, limiter, ThrottledSession(limiter, **options) as session:
            async with session.post(url + path, json=body) as response:
                assert response.status == 200
                assert await response.read()
            for name in rates:
                assert await tokens_spent(limiter, name) == pytest.approx(fake.used[name], abs=10)
            assert counts(limiter) == (0, 0)
