"""The SDK of OpenAI with the options of `llm.openai`, in front of a fake of the API."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest

from aiothrottle import CostTooHigh, KeyedRateLimiter, RateLimiter, TokenBucket, llm
from aiothrottle.httpx2 import ThrottledTransport
from tests.clients.recipes import run_recipe
from tests.llm.calling import outcomes, prompt_of
from tests.llm.fake_api import Failure, FakeOpenAI
from tests.virtually import counts, virtual

Untyped: TypeAlias = Any  # of the SDK, which need not be installed
sdk: Untyped = pytest.importorskip("openai")
httpx2: Untyped = pytest.importorskip("httpx2")

LIMITS = {"requests": "500/min", "tokens": "30000/min"}


def new_limiter(**limits: Untyped) -> RateLimiter:
    return RateLimiter({**LIMITS, **limits}, algorithm=TokenBucket)


def client_of(
    fake: FakeOpenAI,
    limiter: RateLimiter | KeyedRateLimiter | None,
    *,
    max_retries: int = 2,
    **options: Untyped,
) -> Untyped:
    """Return an SDK in front of the fake; without a limiter it is the bare SDK."""
    transport = fake.transport(httpx2)
    if limiter is not None:
        given: Untyped = {**llm.openai(most_tokens=30_000), **options}
        transport = ThrottledTransport(limiter, transport=transport, **given)
    client = sdk.AsyncOpenAI(
        api_key="key",
        base_url="https://api.openai.com/v1",
        http_client=sdk.DefaultAsyncHttpx2Client(transport=transport),
        max_retries=max_retries,
    )
    client._platform = "Linux"  # else it is found out in a thread, which virtual time cannot await
    return client


async def chat(client: Untyped, number: int = 0, **options: Untyped) -> Untyped:
    given: dict[str, Any] = {"model": "small", "max_tokens": 500, **options}
    return await client.chat.completions.create(messages=prompt_of(number), **given)


async def streamed_chat(client: Untyped, number: int = 0, **options: Untyped) -> list[Any]:
    options = {"stream_options": {"include_usage": True}, **options}
    return [chunk async for chunk in await chat(client, number, stream=True, **options)]


async def either(client: Untyped, number: int) -> Untyped:
    return await (streamed_chat if number % 2 else chat)(client, number)


async def tokens_left(limiter: RateLimiter) -> float:
    decision = await limiter.peek()
    return decision.resources["tokens"].remaining


# ---- the limit is used, and not exceeded ---------------------------------------------------------


@virtual
async def test_300_calls_use_the_token_limit_and_are_not_throttled() -> None:
    fake, limiter = FakeOpenAI(), new_limiter()
    async with limiter, client_of(fake, limiter) as client:
        succeeded, errors = await outcomes(partial(either, client), 300)
    assert (succeeded, errors) == (300, [])
    assert fake.throttled <= 0.01 * fake.requests
    assert fake.share("tokens") >= 0.95


@virtual
async def test_calls_are_few_throttled_by_a_server_that_counts_bounds() -> None:
    fake, limiter = FakeOpenAI(reserved=True), new_limiter()
    async with limiter, client_of(fake, limiter) as client:
        succeeded, errors = await outcomes(partial(either, client), 300)
    assert (succeeded, errors) == (300, [])
    assert fake.throttled <= 0.01 * fake.requests
    assert fake.share("tokens") >= 0.9


# ---- settlement ----------------------------------------------------------------------------------


async def respond(client: Untyped, **options: Untyped) -> Untyped:
    return await client.responses.create(
        model="small", input="A question", max_output_tokens=500, **options
    )


async def streamed_response(client: Untyped) -> list[Any]:
    return [event async for event in await respond(client, stream=True)]


async def embed(client: Untyped) -> Untyped:
    return await client.embeddings.create(model="small", input=["one", "two"])


@pytest.mark.parametrize(
    "call", [chat, streamed_chat, respond, streamed_response, embed], ids=lambda it: it.__name__
)
@virtual
async def test_call_is_settled_by_its_usage(call: Callable[[Any], Any]) -> None:
    fake, limiter = FakeOpenAI(), new_limiter(tokens="30000/h")
    async with limiter, client_of(fake, limiter) as client:
        await call(client)
        spent = 30_000 - await tokens_left(limiter)
        assert spent == pytest.approx(fake.used["tokens"], abs=10)  # some have trickled back
        assert counts(limiter) == (0, 0)


@virtual
async def test_stream_that_is_left_early_stays_charged() -> None:
    fake, limiter = FakeOpenAI(), new_limiter(tokens="30000/h")
    async with limiter, client_of(fake, limiter) as client:
        stream = await chat(client, stream=True, stream_options={"include_usage": True})
        async for _ in stream:
            break
        await stream.close()
        assert 30_000 - await tokens_left(limiter) > 500
        assert counts(limiter) == (0, 0)


@virtual
async def test_throttled_call_costs_no_tokens() -> None:
    fake, limiter = FakeOpenAI(failures=(429, 400)), new_limiter(tokens="30000/h")
    async with limiter, client_of(fake, limiter, retry=llm.retry(1), max_retries=0) as client:
        for error in (sdk.RateLimitError, sdk.BadRequestError):
            with pytest.raises(error):
                await chat(client)
        assert await tokens_left(limiter) == 30_000


@virtual
async def test_call_above_the_limit_is_sent_only_with_most_tokens() -> None:
    fake, limiter = FakeOpenAI(tokens=50_000), new_limiter(tokens="30000/h")
    async with limiter:
        async with client_of(fake, limiter) as client:
            await chat(client, max_tokens=30_001)
        async with client_of(fake, limiter, **llm.openai()) as client:
            with pytest.raises(CostTooHigh) as caught:
                await chat(client, max_tokens=30_001)
        assert caught.value.resource == "tokens"


@virtual
async def test_each_model_has_its_own_limit() -> None:
    fake = FakeOpenAI()
    limiter = KeyedRateLimiter({"requests": "1/h", "tokens": "1000/h"}, algorithm=TokenBucket)
    async with limiter, client_of(fake, limiter, **llm.openai(per_model=True)) as client:
        async with asyncio.timeout(60):
            await asyncio.gather(chat(client, model="small"), chat(client, model="large"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await chat(client, model="small")
    assert fake.requests == 2


# ---- retries: never less reliable than the bare SDK ----------------------------------------------

FAILING: tuple[Failure | None, ...] = (500, None, None, 502, None, None, 503, None, 408, None)
LOSING: tuple[Failure | None, ...] = ("cut", "cut", None)


@pytest.mark.parametrize("failures", [FAILING, (409,), (520, 529), (429, 429), LOSING], ids=str)
@virtual
async def test_call_that_the_bare_sdk_repeats_is_not_lost(failures: tuple[Failure, ...]) -> None:
    for limiter in (None, new_limiter()):
        fake = FakeOpenAI(failures=failures)
        async with client_of(fake, limiter) as client:
            for number in range(10):
                await chat(client, number)
        assert fake.requests == 10 + sum(failure is not None for failure in failures)


@virtual
async def test_statuses_are_retried_without_the_sdk() -> None:
    for limiter, expected in ((None, 6), (new_limiter(), 10)):
        fake = FakeOpenAI(failures=FAILING)
        async with client_of(fake, limiter, max_retries=0) as client:
            succeeded, _ = await outcomes(partial(chat, client), 10)
        assert succeeded == expected


@virtual
async def test_lost_body_is_retried_by_the_sdk_alone() -> None:
    # The transport has returned the response; this is why the SDK keeps its `max_retries`.
    fake = FakeOpenAI(failures=("cut",))
    async with client_of(fake, new_limiter(), max_retries=0) as client:
        with pytest.raises(sdk.APIConnectionError):
            await chat(client)


@virtual
async def test_advice_of_the_server_on_retries_is_followed() -> None:
    def advised(fake: FakeOpenAI, advice: str) -> FakeOpenAI:
        fake.advice = advice
        return fake

    for advice, failure, requests in (("false", 500, 1), ("true", 418, 2), ("", 418, 1)):
        fake = advised(FakeOpenAI(failures=(failure,)), advice)
        async with client_of(fake, new_limiter(), max_retries=0) as client:
            succeeded, _ = await outcomes(partial(chat, client), 1)
        assert (fake.requests, succeeded) == (requests, requests - 1)


# ---- the recipe, over sockets --------------------------------------------------------------------


async def test_recipe_limits_calls_and_settles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeOpenAI(latency=0.01)
    async with fake.serve() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        names = await run_recipe("OpenAI")
        async with names["limiter"] as limiter, names["client"] as client:
            for call in (chat, streamed_chat):
                before = fake.used["tokens"]
                left = await tokens_left(limiter)
                await call(client)
                spent = left - await tokens_left(limiter)
                assert spent == pytest.approx(fake.used["tokens"] - before, abs=150)
            assert counts(limiter) == (0, 0)
