"""The recipe of aiohttp-client-cache: requests keep the limit, and hits are free."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from tests.clients.limits import assert_idle, assert_limit_is_kept, finish, limited, throttled
from tests.clients.recipes import run_recipe
from tests.integrations.clients import Clock
from tests.serving import serving

pytest.importorskip("aiohttp_client_cache")
pytest.importorskip("aiosqlite")


async def answer(request: web.Request) -> web.Response:
    return web.Response(text=f"body of {request.path_qs}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the recipe has the file of its cache there


async def get(session: Any, url: URL) -> str:
    async with session.get(url) as response:
        response.raise_for_status()
        text: str = await response.text()
        return text


async def test_misses_keep_the_limit_and_hits_are_free(clock: Clock) -> None:
    async with limited(answer) as server:
        names = await run_recipe("aiohttp-client-cache")
        limiter = names["limiter"]
        urls = [server.url.with_query(page=str(page)) for page in range(20)]
        fresh = iter(urls)
        async with names["session"] as session:
            await assert_limit_is_kept(clock, limiter, server, lambda: get(session, next(fresh)))
            taken = limiter.statistics().granted
            texts = await finish(clock, limiter, *(get(session, url) for url in urls))
            assert server.audit.sent == 20
    assert limiter.statistics().granted == taken
    assert texts == [f"body of /?page={page}" for page in range(20)]
    await assert_idle(limiter)


async def test_throttled_request_pauses_the_limiter_and_is_not_cached(clock: Clock) -> None:
    async with serving(throttled(30), answer) as (url, seen):
        names = await run_recipe("aiohttp-client-cache")
        began = clock.time()
        async with names["session"] as session:
            for _ in range(2):
                texts = await finish(clock, names["limiter"], get(session, url))
                assert texts == ["body of /"]
    assert len(seen) == 2
    assert 30 <= clock.time() - began < 60
    await assert_idle(names["limiter"])


async def test_revalidation_takes_a_token(clock: Clock) -> None:
    async def tagged(request: web.Request) -> web.Response:
        fresh = request.headers.get("If-None-Match") != '"1"'
        return web.Response(status=200 if fresh else 304, headers={"ETag": '"1"'})

    async with serving(tagged) as (url, seen):
        names = await run_recipe("aiohttp-client-cache")
        async with names["session"] as session:
            await finish(clock, names["limiter"], get(session, url))
            await finish(clock, names["limiter"], session.get(url, refresh=True))
    assert names["limiter"].statistics().granted == len(seen) == 2
    await assert_idle(names["limiter"])
