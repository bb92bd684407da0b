"""The recipe of elasticsearch: requests keep the limit, and a 429 pauses all of them."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.clients.limits import assert_idle, assert_limit_is_kept, finish, limited, throttled
from tests.clients.recipes import run_recipe
from tests.integrations.clients import Clock
from tests.serving import hang_up, never, serving, until
from tests.virtually import counts

elasticsearch = pytest.importorskip("elasticsearch")
elastic_transport = pytest.importorskip("elastic_transport")


async def answer(_: web.Request) -> web.Response:
    product = {"X-Elastic-Product": "Elasticsearch"}  # the client asks for no other
    return web.json_response({"count": 7}, headers=product)


async def recipe(url: object) -> tuple[dict[str, Any], Any]:
    names = await run_recipe("elasticsearch")
    await names["client"].close()
    client = elasticsearch.AsyncElasticsearch(
        str(url), node_class=names["ThrottledNode"], retry_on_timeout=False
    )
    return names, client


async def test_requests_keep_the_limit(clock: Clock) -> None:
    async with limited(answer) as server:
        names, client = await recipe(server.url)
        async with client:
            results = await assert_limit_is_kept(clock, names["limiter"], server, client.count)
    assert all(result["count"] == 7 for result in results)
    await assert_idle(names["limiter"])


async def test_throttled_request_pauses_the_limiter_and_is_retried(clock: Clock) -> None:
    async with serving(throttled(1), answer) as (url, seen):
        names, client = await recipe(url)
        began = clock.time()
        async with client:
            await finish(clock, names["limiter"], client.count())
    assert len(seen) == 2
    assert clock.time() - began >= 0.25  # the limiter's own pause: the server reports none
    await assert_idle(names["limiter"])


async def test_retries_of_lost_connections_take_tokens(clock: Clock) -> None:
    async with serving(hang_up) as (url, seen):
        names, client = await recipe(url)
        async with client:
            with pytest.raises(elastic_transport.ConnectionError):
                await finish(clock, names["limiter"], client.count())
    assert names["limiter"].statistics().granted == len(seen) == 4
    await assert_idle(names["limiter"])


async def test_cancelled_request_releases_its_slot() -> None:
    async with serving(never) as (url, _):
        names, client = await recipe(url)
        async with client:
            call = asyncio.create_task(client.count())
            await until(lambda: counts(names["limiter"]) == (1, 0))
            call.cancel()
            await asyncio.wait([call])
    await assert_idle(names["limiter"])
