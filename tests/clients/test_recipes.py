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
from tests.support.serving import never, serving, until
from tests.support.virtually import counts


@pytest.fixture
async def recipe(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Recipe]:
    monkeypatch.chdir(tmp_path)  # the recipe of aiohttp-client-cache has its file there
    async with DRIVERS[request.param](monkeypatch) as opened:
        yield opened


def of(*names: str) -> Callable[..., Any]:
    """Run a test for the recipes of these packages."""
    return pytest.mark.parametrize("recipe", names, indirect=True)


THROTTLED = ["aiohttp_client_cache", "fsspec", "gidgethub", "google_genai", "gql"]
CHECKS: dict[Callable[[Recipe], Awaitable[None]], list[str]] = {
    check_limit: [*DRIVERS],
    check_throttled_call: [*THROTTLED, "huggingface_hub", "discord", "slack_sdk"],
    check_long_pause: ["gidgethub", "google_genai", "slack_sdk"],
    check_lost_connection: ["slack_sdk"],
}


@pytest.mark.parametrize(
    ("recipe", "check"),
    [(name, check) for check, names in CHECKS.items() for name in names],
    indirect=["recipe"],
)
async def test_recipe_keeps_limit_and_pauses(
    recipe: Recipe, check: Callable[[Recipe], Awaitable[None]]
) -> None:
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
