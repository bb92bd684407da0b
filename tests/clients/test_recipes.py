"""Each recipe keeps its limit, and its pauses; what one recipe does besides."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from tests.clients.checks import (
    Call,
    Recipe,
    check_limit,
    check_long_pause,
    check_lost_connection,
    check_throttled_call,
    finish,
    run_recipe,
)
from tests.clients.drivers import DRIVERS, s3_files
from tests.clients.s3 import slow_down
from tests.integrations.clients import Clock
from tests.support.servers import dead_port
from tests.support.serving import never, serving, until
from tests.support.virtually import counts

# Of pydantic, about the models of litellm.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic")


@pytest.fixture
async def recipe(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Recipe]:
    monkeypatch.chdir(tmp_path)  # the recipe of aiohttp-client-cache has its file there
    async with DRIVERS[request.param](monkeypatch) as opened:
        yield opened


def of(*names: str) -> Callable[..., Any]:
    return pytest.mark.parametrize("recipe", names, indirect=True)


LITELLM = ["litellm_openai", "litellm_anthropic"]
THROTTLED = ["aiohttp_client_cache", "fsspec", "gidgethub", "google_genai", "gql", *LITELLM]
CHECKS: dict[Callable[[Recipe], Awaitable[None]], list[str]] = {
    check_limit: [*DRIVERS],
    check_throttled_call: [*THROTTLED, "huggingface_hub", "discord", "slack_sdk"],
    check_long_pause: ["ccxt", "gidgethub", "google_genai", "slack_sdk", *LITELLM],
    check_lost_connection: ["slack_sdk", "litellm_openai"],
}


@pytest.mark.parametrize(
    ("recipe", "check"),
    [(name, check) for check, names in CHECKS.items() for name in names],
    indirect=["recipe"],
)
async def test_recipe_keeps_limit_and_pauses(
    recipe: Recipe, check: Callable[[Recipe], Awaitable[None]]
) -> None:
    if check is check_long_pause:
        recipe.names["max_retries"] = 0  # of litellm
    await check(recipe)


@of("gidgethub")
async def test_403_of_github_is_throttled(recipe: Recipe) -> None:
    recipe.api.status = 403
    await check_throttled_call(recipe)


@of("fsspec", "gql")
async def test_failed_call_releases_its_slot(recipe: Recipe) -> None:
    recipe.api.status = 404
    recipe.api.throttles.append("")
    with pytest.raises(recipe.error):
        await recipe.call(1)
    await until(lambda: counts(recipe.limiter) == (0, 0))


# ---- aiogram and slack_sdk: a limiter for each chat or method ------------------------------------


@of("aiogram")
async def test_all_chats_have_a_common_limit_without_polls(recipe: Recipe) -> None:
    for _ in range(50):
        await recipe.names["bot"].get_updates(timeout=0)
    assert recipe.api.server.audit.sent == 50
    assert recipe.names["all_chats"].statistics().granted == 0
    chats, bot = recipe.names["chats"], recipe.names["bot"]
    await check_long_pause(recipe, "")  # that of the body, for one chat
    assert (await chats.peek(2)).allowed
    call: Call = lambda number: bot.send_message(10 + number, "message")  # noqa: E731
    await check_limit(recipe._replace(limiter=recipe.names["all_chats"], call=call))


@of("slack_sdk")
async def test_pause_of_one_method_holds_for_no_other(recipe: Recipe) -> None:
    await check_long_pause(recipe)
    await recipe.names["client"].chat_postMessage(channel="C1", text="Hello")
    assert recipe.api.server.audit.sent == 2


# ---- aiohttp-client-cache ------------------------------------------------------------------------


@of("aiohttp_client_cache")
async def test_hits_are_free_and_a_throttled_response_is_no_hit(recipe: Recipe) -> None:
    await check_throttled_call(recipe)
    for _ in range(5):
        await recipe.call(1)
    assert recipe.api.server.audit.sent == recipe.limiter.statistics().granted == 2


# ---- ccxt: the weight of a call is its cost ------------------------------------------------------


@of("ccxt")
async def test_weight_of_the_call_is_its_cost(recipe: Recipe) -> None:
    limiter, exchange = recipe.limiter, recipe.names["exchange"]
    await exchange.public_get_ping()
    assert (await limiter.peek()).remaining == pytest.approx(1199.8)
    await exchange.private_get_account()
    assert (await limiter.peek()).remaining == pytest.approx(1195.8)


@of("ccxt")
async def test_signature_is_fresh_after_a_long_queue(recipe: Recipe) -> None:
    """After five times as long as it is valid."""
    fake = recipe.names["fake"]
    recipe.limiter.update(rate_limit="10/h")
    await recipe.limiter.record(10)
    call = asyncio.ensure_future(recipe.names["exchange"].private_get_account())
    await until(lambda: counts(recipe.limiter)[1] == 1)
    fake.now += 5 * fake.VALID_FOR
    recipe.limiter.update(rate_limit=None)
    assert await call == {"balances": []}


# ---- elasticsearch -------------------------------------------------------------------------------


@of("elasticsearch")
async def test_retries_of_elasticsearch_pause_and_take_tokens(recipe: Recipe) -> None:
    await check_throttled_call(recipe, 0.25)  # the limiter's own pause: no header is read
    transport: Any = pytest.importorskip("elastic_transport")
    granted = recipe.limiter.statistics().granted
    recipe.api.hangs_up = 10
    with pytest.raises(transport.ConnectionError):
        await recipe.call(1)
    assert recipe.limiter.statistics().granted - granted == 10 - recipe.api.hangs_up == 4


async def test_cancelled_request_of_elasticsearch_releases_its_slot() -> None:
    package: Any = pytest.importorskip("elasticsearch")
    names = await run_recipe("elasticsearch")
    await names["client"].close()
    async with (
        serving(never) as (url, _),
        package.AsyncElasticsearch(str(url), node_class=names["ThrottledNode"]) as client,
    ):
        call = asyncio.create_task(client.count())
        await until(lambda: counts(names["limiter"]) == (1, 0))
        call.cancel()
        await asyncio.wait([call])
        assert counts(names["limiter"]) == (0, 0)


# ---- streams of models ---------------------------------------------------------------------------


@of("google_genai", "huggingface_hub")
async def test_stream_holds_its_slot_to_the_end(recipe: Recipe) -> None:
    if "clients" in recipe.names:
        question = [{"role": "user", "content": "How are you?"}]
        stream = await recipe.names["clients"][0].chat_completion(question, stream=True)
        expected = ["Fine."] * 3
    else:
        models = recipe.names["client"].aio.models
        stream = await models.generate_content_stream(model="m", contents="Hello?")
        expected = ["Hello."] * 3
    found = [await anext(stream)]
    assert counts(recipe.limiter) == (1, 0)
    found += [part async for part in stream]
    text = [getattr(it, "text", None) or it.choices[0].delta.content for it in found]
    assert text == expected
    await until(lambda: counts(recipe.limiter) == (0, 0))


@of("litellm_openai")
async def test_stream_of_litellm_is_whole_and_returns_its_slot(recipe: Recipe) -> None:
    stream = await recipe.names["ask"](stream=True)
    assert [part.choices[0].delta.content async for part in stream] == ["H", "i.", None]
    assert counts(recipe.limiter) == (0, 0)


@of("litellm_anthropic")
async def test_failed_connection_leaves_the_session_open(recipe: Recipe) -> None:
    litellm: Any = pytest.importorskip("litellm")
    # litellm repeats the call with a client of its own, which it closes.
    with dead_port() as port, pytest.raises(litellm.InternalServerError):
        await recipe.names["ask"](api_base=f"http://127.0.0.1:{port}")
    assert recipe.api.server.audit.sent == 0
    await recipe.call(1)
    assert recipe.limiter.statistics().granted == 1


# ---- file systems --------------------------------------------------------------------------------


async def test_retries_of_s3fs_take_tokens(clock: Clock) -> None:
    # aiobotocore gives up after five attempts, and s3fs begins anew.
    pytest.importorskip("s3fs")
    names = await run_recipe("s3fs")
    async with serving(slow_down(7)) as (url, seen):
        files = s3_files(names, url, asynchronous=True)
        session = await files.set_session()
        reading = files._cat_file("bucket/key", start=0, end=99)
        assert await finish(clock, names["limiter"], reading) == [b"object /bucket/key"]
        await session.close()
    assert names["limiter"].statistics().granted == len(seen) == 8


async def end(limiter: RateLimiter, files: Any) -> int:
    """Close the session of a file system, on its loop; return the grants."""

    async def close() -> int:
        await (await files.set_session()).close()
        return limiter.statistics().granted

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close(), files.loop))


async def test_file_system_of_fsspec_in_a_thread_reads_files() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"body of {request.path}")

    pytest.importorskip("fsspec")
    names = await run_recipe("fsspec")
    files, limiter = names["files"], names["limiter"]
    async with serving(answer) as (url, seen):

        def read() -> list[bytes]:
            found: dict[str, bytes] = files.cat([f"{url}a", f"{url}b"])
            with files.open(f"{url}c", block_size=0) as file:
                return [*found.values(), file.read()]

        bodies = await asyncio.to_thread(read)
        assert bodies == [b"body of /a", b"body of /b", b"body of /c"]
        assert await end(limiter, files) == len(seen)
