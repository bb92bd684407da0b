"""The recipe of gql: queries keep the limit, and a 429 pauses all of them."""

from typing import Any

import pytest
from aiohttp import web

from tests.clients.limits import assert_idle, assert_limit_is_kept, finish, limited, throttled
from tests.clients.recipes import run_recipe
from tests.integrations.clients import Clock
from tests.serving import serving

gql = pytest.importorskip("gql")
exceptions = pytest.importorskip("gql.transport.exceptions")


async def answer(request: web.Request) -> web.Response:
    query = (await request.json())["query"]
    return web.json_response({"data": {"query": query}})


async def recipe(url: object) -> dict[str, Any]:
    names = await run_recipe("gql")
    names["transport"].url = f"{url}graphql"
    return names


async def test_queries_keep_the_limit(clock: Clock) -> None:
    query = gql.gql("{ hello }")
    async with limited(answer) as server:
        names = await recipe(server.url)
        async with names["client"] as session:
            results = await assert_limit_is_kept(
                clock, names["limiter"], server, lambda: session.execute(query)
            )
    assert all("hello" in result["query"] for result in results)
    await assert_idle(names["limiter"])


async def test_throttled_query_pauses_the_limiter_and_is_retried(clock: Clock) -> None:
    async with serving(throttled(30), answer) as (url, seen):
        names = await recipe(url)
        began = clock.time()
        async with names["client"] as session:
            await finish(clock, names["limiter"], session.execute(gql.gql("{ hello }")))
    assert len(seen) == 2
    assert 30 <= clock.time() - began < 60
    await assert_idle(names["limiter"])


async def test_failed_query_releases_its_slot(clock: Clock) -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.json_response({"errors": ["no"]}, status=400)

    async with serving(fail) as (url, seen):
        names = await recipe(url)
        async with names["client"] as session:
            with pytest.raises(exceptions.TransportError):
                await finish(clock, names["limiter"], session.execute(gql.gql("{ hello }")))
    assert len(seen) == 1
    await assert_idle(names["limiter"])
