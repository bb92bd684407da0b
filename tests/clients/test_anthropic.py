"""The SDK of Anthropic with the options of `llm.anthropic`, in front of a fake of the API."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle.httpx2 import ThrottledTransport
from tests.clients.recipes import run_recipe
from tests.llm.calling import outcomes, prompt_of
from tests.llm.fake_api import Failure, FakeAnthropic
from tests.virtually import counts, virtual

Untyped: TypeAlias = Any  # of the SDK, which need not be installed
sdk: Untyped = pytest.importorskip("anthropic")
httpx2: Untyped = pytest.importorskip("httpx2")

LIMITS = {"requests": "500/min", "input_tokens": "30000/min", "output_tokens": "8000/min"}
SLOW = {"requests": "500/min", "input_tokens": "30000/h", "output_tokens": "8000/h"}


def new_limiter(limits: dict[str, str]) -> RateLimiter:
    return RateLimiter(limits, algorithm=TokenBucket)


def client_of(
    fake: FakeAnthropic, limiter: RateLimiter | None, *, max_retries: int = 2, **options: Untyped
) -> Untyped:
    """Return an SDK in front of the fake; without a limiter it is the bare SDK."""
    transport = fake.transport(httpx2)
    if limiter is not None:
        given: Untyped = {**llm.anthropic(most_tokens=30_000), **options}
        transport = ThrottledTransport(limiter, transport=transport, **given)
    client = sdk.AsyncAnthropic(
        api_key="key",
        base_url="https://api.anthropic.com",
        http_client=sdk.DefaultAsyncHttpxClient(transport=transport),
        max_retries=max_retries,
    )
    client._platform = "Linux"  # else it is found out in a thread, which virtual time cannot await
    return client


async def ask(client: Untyped, number: int = 0, **options: Untyped) -> Untyped:
    system, user = prompt_of(number)
    given: dict[str, Any] = {"model": "small", "max_tokens": 64_000, **options}
    return await client.messages.create(system=system["content"], messages=[user], **given)


async def raw_stream(client: Untyped, number: int = 0) -> Untyped:
    return [event async for event in await ask(client, number, stream=True, max_tokens=500)]


async def helper_stream(client: Untyped, number: int = 0) -> Untyped:
    _, user = prompt_of(number)
    async with client.messages.stream(model="small", max_tokens=500, messages=[user]) as stream:
        return await stream.get_final_message()


async def plain(client: Untyped, number: int = 0) -> Untyped:
    return await ask(client, number, max_tokens=500)


async def tokens_left(limiter: RateLimiter) -> dict[str, float]:
    resources = (await limiter.peek()).resources
    return {name: each.remaining for name, each in resources.items() if name != "requests"}


@virtual
async def test_300_calls_use_the_token_limit_and_are_not_throttled() -> None:
    calls = (plain, raw_stream, helper_stream)
    fake, limiter = FakeAnthropic(requests=500), new_limiter(LIMITS)
    async with limiter, client_of(fake, limiter) as client:
        succeeded, errors = await outcomes(lambda number: calls[number % 3](client, number), 300)
    assert (succeeded, errors) == (300, [])
    assert fake.throttled <= 0.01 * fake.requests
    assert fake.share("output_tokens") >= 0.95


@pytest.mark.parametrize("call", [plain, raw_stream, helper_stream], ids=lambda call: call.__name__)
@virtual
async def test_call_is_settled_by_its_usage(call: Callable[[Any], Any]) -> None:
    fake, limiter = FakeAnthropic(), new_limiter(SLOW)
    async with limiter, client_of(fake, limiter) as client:
        await call(client)
        left = await tokens_left(limiter)
        assert 30_000 - left["input_tokens"] == pytest.approx(fake.used["input_tokens"], abs=10)
        assert 8_000 - left["output_tokens"] == pytest.approx(fake.used["output_tokens"], abs=5)
        assert counts(limiter) == (0, 0)


@virtual
async def test_cached_input_is_not_counted() -> None:
    fake, limiter = FakeAnthropic(cached=20_000), new_limiter(SLOW)
    async with limiter, client_of(fake, limiter) as client:
        for _ in range(3):  # together far above the limit
            text = "word " * 16_000
            messages = [{"role": "user", "content": text}]
            await client.messages.create(model="small", max_tokens=100, messages=messages)
        assert fake.throttled == 0
        assert (await tokens_left(limiter))["input_tokens"] > 25_000


@virtual
async def test_counting_tokens_costs_a_request_alone() -> None:
    fake, limiter = FakeAnthropic(failures=(404,)), new_limiter(SLOW)
    async with limiter, client_of(fake, limiter) as client:
        with pytest.raises(sdk.NotFoundError):
            await client.messages.count_tokens(model="small", messages=[prompt_of(1)[1]])
        assert await tokens_left(limiter) == {"input_tokens": 30_000, "output_tokens": 8_000}


FAILING: tuple[Failure | None, ...] = (500, None, None, 502, None, None, 503, None, 408, 529)


@pytest.mark.parametrize("failures", [FAILING, (409,), (529, 529), (429, 429), ("cut",)], ids=str)
@virtual
async def test_call_that_the_bare_sdk_repeats_is_not_lost(failures: tuple[Failure, ...]) -> None:
    for limiter in (None, new_limiter(LIMITS)):
        fake = FakeAnthropic(requests=500, failures=failures)
        async with client_of(fake, limiter) as client:
            for number in range(10):
                await plain(client, number)
        assert fake.requests == 10 + sum(failure is not None for failure in failures)


async def test_recipe_limits_calls_and_settles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAnthropic(latency=0.01)
    async with fake.serve() as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        names = await run_recipe("Anthropic")
        async with names["limiter"] as limiter, names["client"] as client:
            for call in (plain, raw_stream):
                before, left = fake.used["output_tokens"], await tokens_left(limiter)
                await call(client)
                spent = left["output_tokens"] - (await tokens_left(limiter))["output_tokens"]
                assert spent == pytest.approx(fake.used["output_tokens"] - before, abs=40)
            assert counts(limiter) == (0, 0)
