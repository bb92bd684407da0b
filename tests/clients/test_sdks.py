"""The SDKs of OpenAI and Anthropic with the options of `llm`, in front of fakes of the APIs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pytest

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle.httpx2 import ThrottledTransport
from tests.clients.checks import run_recipe
from tests.llm.calling import outcomes, prompt_of
from tests.llm.fake_api import Failure, FakeAnthropic, FakeAPI, FakeOpenAI
from tests.support.virtually import counts, virtual

Untyped: TypeAlias = Any  # of the SDKs, which need not be installed
openai: Untyped = pytest.importorskip("openai")
anthropic: Untyped = pytest.importorskip("anthropic")
httpx2: Untyped = pytest.importorskip("httpx2")


class SDK(NamedTuple):
    """An SDK, the fake of its API, and the limits of the fake."""

    name: str
    client: Callable[..., Untyped]
    http_client: Callable[..., Untyped]
    url: str
    fake: Callable[..., FakeAPI]
    options: Callable[..., Untyped]
    limits: Mapping[str, float]

    def limiter(self, per: str = "h", **limits: str) -> RateLimiter:
        tokens = {name: f"{limit}/{per}" for name, limit in self.limits.items()}
        return RateLimiter({"requests": "500/min", **tokens, **limits}, algorithm=TokenBucket)

    def opened(
        self, fake: FakeAPI, limiter: object, retries: int = 2, **options: Untyped
    ) -> Untyped:
        """Return a client in front of the fake; without a limiter it is the bare SDK."""
        transport = fake.transport(httpx2)
        if limiter is not None:
            given: Untyped = {**self.options(most_tokens=30_000), **options}
            transport = ThrottledTransport(limiter, transport=transport, **given)  # type: ignore[arg-type]
        http_client = self.http_client(transport=transport)
        client = self.client(
            api_key="key", base_url=self.url, http_client=http_client, max_retries=retries
        )
        client._platform = "Linux"  # else a thread finds it, which virtual time cannot await
        return client


OPENAI = SDK(
    *("OpenAI", openai.AsyncOpenAI, openai.DefaultAsyncHttpx2Client, "https://api.openai.com/v1"),
    *(FakeOpenAI, llm.openai, {"tokens": 30_000}),
)
ANTHROPIC = SDK(
    *("Anthropic", anthropic.AsyncAnthropic, anthropic.DefaultAsyncHttpxClient),
    *("https://api.anthropic.com", partial(FakeAnthropic, requests=500), llm.anthropic),
    {"input_tokens": 30_000, "output_tokens": 8_000},
)


async def left(limiter: RateLimiter) -> dict[str, float]:
    resources = (await limiter.peek()).resources
    return {name: each.remaining for name, each in resources.items() if name != "requests"}


# ---- calls: of a client, with a number that varies the prompt ------------------------------------


async def chat(client: Untyped, number: int = 0, **options: Untyped) -> Untyped:
    given: dict[str, Any] = {"model": "small", "max_tokens": 500, **options}
    return await client.chat.completions.create(messages=prompt_of(number), **given)


async def streamed_chat(client: Untyped, number: int = 0) -> Untyped:
    usage = {"include_usage": True}
    return [chunk async for chunk in await chat(client, number, stream=True, stream_options=usage)]


async def respond(client: Untyped, number: int = 0, **options: Untyped) -> Untyped:
    return await client.responses.create(
        model="small", input=f"Question {number}", max_output_tokens=500, **options
    )


async def streamed_response(client: Untyped, number: int = 0) -> Untyped:
    return [event async for event in await respond(client, number, stream=True)]


async def embed(client: Untyped, number: int = 0) -> Untyped:
    return await client.embeddings.create(model="small", input=["one", f"{number}"])


async def message(client: Untyped, number: int = 0, **options: Untyped) -> Untyped:
    system, user = prompt_of(number)
    given: dict[str, Any] = {"model": "small", "max_tokens": 500, "messages": [user], **options}
    return await client.messages.create(system=system["content"], **given)


async def raw_stream(client: Untyped, number: int = 0) -> Untyped:
    return [event async for event in await message(client, number, stream=True)]


async def helper_stream(client: Untyped, number: int = 0) -> Untyped:
    _, user = prompt_of(number)
    async with client.messages.stream(model="small", max_tokens=500, messages=[user]) as stream:
        return await stream.get_final_message()


CALLS: dict[str, tuple[Callable[..., Untyped], ...]] = {
    "OpenAI": (chat, streamed_chat, respond, streamed_response, embed),
    "Anthropic": (message, raw_stream, helper_stream),
}
EACH = [
    pytest.param(sdk, call, id=call.__name__)
    for sdk in (OPENAI, ANTHROPIC)
    for call in CALLS[sdk.name]
]

# ---- the limit is used, and not exceeded ---------------------------------------------------------


@pytest.mark.parametrize(
    ("sdk", "resource", "share", "options"),
    [
        (OPENAI, "tokens", 0.95, {}),
        (OPENAI, "tokens", 0.9, {"reserved": True}),
        (ANTHROPIC, "output_tokens", 0.95, {}),
    ],
    ids=["OpenAI", "OpenAI that counts bounds", "Anthropic"],
)
@virtual
async def test_300_calls_use_the_token_limit_and_are_not_throttled(
    sdk: SDK, resource: str, share: float, options: dict[str, bool]
) -> None:
    fake, limiter = sdk.fake(**options), sdk.limiter("min")
    calls = CALLS[sdk.name][:2] if sdk is OPENAI else CALLS[sdk.name]
    async with limiter, sdk.opened(fake, limiter) as client:
        succeeded, errors = await outcomes(lambda n: calls[n % len(calls)](client, n), 300)
    assert (succeeded, errors) == (300, [])
    assert fake.throttled <= 0.01 * fake.requests
    assert fake.share(resource) >= share


# ---- settlement ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("sdk", "call"), EACH)
@virtual
async def test_call_is_settled_by_its_usage(sdk: SDK, call: Callable[..., Untyped]) -> None:
    fake, limiter = sdk.fake(), sdk.limiter()
    async with limiter, sdk.opened(fake, limiter) as client:
        await call(client)
        for name, tokens in (await left(limiter)).items():  # some have trickled back
            assert sdk.limits[name] - tokens == pytest.approx(fake.used[name], abs=10)
        assert counts(limiter) == (0, 0)


@virtual
async def test_call_that_runs_no_model_costs_no_tokens() -> None:
    fake, limiter = FakeOpenAI(failures=(429, 400)), OPENAI.limiter()
    async with limiter, OPENAI.opened(fake, limiter, 0, retry=llm.retry(1)) as client:
        for error in (openai.RateLimitError, openai.BadRequestError):
            with pytest.raises(error):
                await chat(client)
        assert await left(limiter) == OPENAI.limits
    other, limiter = FakeAnthropic(failures=(404,)), ANTHROPIC.limiter()
    async with limiter, ANTHROPIC.opened(other, limiter) as client:
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.count_tokens(model="small", messages=[prompt_of(1)[1]])
        assert await left(limiter) == ANTHROPIC.limits


# ---- retries: never less reliable than the bare SDK ----------------------------------------------

FAILING: tuple[Failure | None, ...] = (500, None, None, 502, None, None, 503, None, 408)


@pytest.mark.parametrize(
    "failures", [(*FAILING, 529), (409,), (529, 529), (429, 429), ("cut", "cut")], ids=str
)
@pytest.mark.parametrize("sdk", [OPENAI, ANTHROPIC], ids=lambda sdk: sdk.name)
@virtual
async def test_call_the_sdk_repeats_is_not_lost(sdk: SDK, failures: tuple[Failure, ...]) -> None:
    for limiter in (None, sdk.limiter("min")):
        fake = sdk.fake(failures=failures)
        async with sdk.opened(fake, limiter) as client:
            for number in range(10):
                await CALLS[sdk.name][0](client, number)
        assert fake.requests == 10 + sum(failure is not None for failure in failures)


@virtual
async def test_more_calls_succeed_than_with_the_bare_sdk() -> None:
    # A body is lost after the transport: this is why the SDK keeps its `max_retries`.
    for limiter, expected in ((None, 5), (OPENAI.limiter("min"), 9)):
        fake = FakeOpenAI(failures=(*FAILING, "cut"))
        async with OPENAI.opened(fake, limiter, 0) as client:
            succeeded, errors = await outcomes(partial(chat, client), 10)
        assert succeeded == expected
        assert isinstance(errors[-1], openai.APIConnectionError)


# ---- the recipes, over sockets -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sdk", "resource", "path"), [(OPENAI, "tokens", "/v1"), (ANTHROPIC, "output_tokens", "")]
)
async def test_recipe_limits_calls_and_settles_them(
    sdk: SDK, resource: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = sdk.fake(latency=0.01)
    async with fake.serve() as url:
        monkeypatch.setenv(f"{sdk.name.upper()}_BASE_URL", url + path)
        monkeypatch.setenv(f"{sdk.name.upper()}_API_KEY", "key")
        names = await run_recipe(sdk.name)
        async with names["limiter"] as limiter, names["client"] as client:
            for call in CALLS[sdk.name][:2]:
                before, remaining = fake.used[resource], await left(limiter)
                await call(client)
                spent = remaining[resource] - (await left(limiter))[resource]
                assert spent == pytest.approx(
                    fake.used[resource] - before, abs=40 if sdk is ANTHROPIC else 150
                )
            assert counts(limiter) == (0, 0)
