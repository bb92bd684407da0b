"""The options of `aiothrottle.llm` in the integrations, without any SDK."""

import math
from typing import Any

import httpx
import pytest

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle.aiohttp import ThrottledSession
from tests.integrations.scripted import client_of
from tests.llm.calling import prompt_of
from tests.llm.fake_api import FakeAnthropic, FakeOpenAI
from tests.support.serving import generated
from tests.support.virtually import counts, now, virtual

CHAT = "/v1/chat/completions"


def chat(*, stream: bool = False) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": prompt_of(1), "max_tokens": 500}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}} if stream else asked


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
                each = (await limiter.peek()).resources[name]
                assert each.limit - each.remaining == pytest.approx(fake.used[name], abs=10)
            assert counts(limiter) == (0, 0)


WAIT, ADVICE = {"retry-after": "2"}, {"x-should-retry": "true"}


@pytest.mark.parametrize(
    ("status", "headers", "error", "attempts"),
    [
        (429, WAIT, "insufficient_quota", 1),
        (429, WAIT, "Request too large for m", 1),
        (429, WAIT, "rate_limit_exceeded", 5),
        (429, WAIT | ADVICE, "insufficient_quota", 5),
        (200, ADVICE, "", 1),
        (418, ADVICE, "", 5),
        (500, {"x-should-retry": "false"}, "", 1),
        (500, ADVICE, "", 5),
    ],
)
@virtual
async def test_request_is_retried_and_pauses_only_if_waiting_helps(
    status: int, headers: dict[str, str], error: str, attempts: int
) -> None:
    sent: list[float] = []

    def respond(_: httpx.Request) -> httpx.Response:
        sent.append(now())
        return httpx.Response(status, headers=headers, json={"error": error})

    async with RateLimiter({"requests": "500/min", "tokens": "30000/min"}) as limiter:
        async with client_of(limiter, respond, **llm.openai()) as client:
            response = await client.post("http://localhost" + CHAT, json=chat())
        assert (response.status_code, response.json()) == (status, {"error": error})
        assert len(sent) == attempts
        assert (limiter.statistics().paused_for > 0) == (attempts > 1 and status != 500)


@pytest.mark.parametrize("error", [None, httpx.ReadError("lost")])
@virtual
async def test_429_whose_body_does_not_arrive_is_retried(error: Exception | None) -> None:
    script = [httpx.Response(200), httpx.Response(429, content=generated(error or math.inf))]
    limiter = RateLimiter({"requests": "500/min", "tokens": "30000/min"})
    async with client_of(limiter, lambda _: script.pop(), **llm.openai()) as client:
        assert (await client.post("http://localhost" + CHAT, json=chat())).status_code == 200
