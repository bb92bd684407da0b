"""The options of `aiothrottle.llm` in the integrations, without any SDK."""

from typing import Any

import httpx
import pytest

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.httpx import ThrottledTransport
from tests.llm.calling import prompt_of
from tests.llm.fake_api import FakeAnthropic, FakeOpenAI
from tests.support.virtually import counts, now, virtual

CHAT = "/v1/chat/completions"


def chat(number: int = 1, *, stream: bool = False) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": prompt_of(number), "max_tokens": 500}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}} if stream else asked


async def tokens_spent(limiter: RateLimiter, resource: str = "tokens") -> float:
    each = (await limiter.peek()).resources[resource]
    return each.limit - each.remaining


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


@pytest.mark.parametrize(
    ("error", "attempts"),
    [("insufficient_quota", 1), ("Request too large for m", 1), ("rate_limit_exceeded", 5)],
)
@virtual
async def test_429_is_retried_and_pauses_only_if_waiting_helps(error: str, attempts: int) -> None:
    sent: list[float] = []

    def throttle(_: httpx.Request) -> httpx.Response:
        sent.append(now())
        return httpx.Response(429, headers={"retry-after": "2"}, json={"error": error})

    transport = httpx.MockTransport(throttle)
    async with RateLimiter({"requests": "500/min", "tokens": "30000/min"}) as limiter:
        throttled = ThrottledTransport(limiter, transport=transport, **llm.openai())
        async with httpx.AsyncClient(transport=throttled) as client:
            response = await client.post("http://localhost" + CHAT, json=chat())
        assert (response.status_code, response.json()) == (429, {"error": error})
        assert len(sent) == attempts
        assert (limiter.statistics().paused_for > 0) == (attempts > 1)


@pytest.mark.parametrize(("status", "attempts"), [(200, 1), (418, 2)])
@virtual
async def test_advice_to_retry_holds_for_errors_alone(status: int, attempts: int) -> None:
    sent: list[float] = []

    def advise(_: httpx.Request) -> httpx.Response:
        sent.append(now())
        return httpx.Response(status, headers={"x-should-retry": "true"}, json={})

    options: llm.LLMOptions = {**llm.openai(), "retry": llm.retry(2)}
    async with RateLimiter({"requests": "500/min", "tokens": "30000/min"}) as limiter:
        throttled = ThrottledTransport(limiter, transport=httpx.MockTransport(advise), **options)
        async with httpx.AsyncClient(transport=throttled) as client:
            assert (await client.post("http://localhost" + CHAT, json=chat())).status_code == status
    assert len(sent) == attempts
