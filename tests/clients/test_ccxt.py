"""ccxt, in front of a fake of the Binance API, which checks signatures."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from tests.clients.checks import API, Recipe, check_limit, check_long_pause, run_recipe
from tests.support.serving import until
from tests.support.virtually import counts

ccxt: Any = pytest.importorskip("ccxt.async_support")

_VALID_FOR = 2000  # milliseconds


class _Binance:
    """The API. Its clock, which the client has as well, is set by hand, in milliseconds."""

    now = 1_700_000_000_000

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/account"):
            signed, _, signature = request.query_string.rpartition("&signature=")
            expected = hmac.new(b"SECRET", signed.encode(), hashlib.sha256).hexdigest()
            assert signature == expected
            if self.now - int(request.query["timestamp"]) > _VALID_FOR:
                error = {"code": -1021, "msg": "Timestamp is outside of the recvWindow."}
                return web.json_response(error, status=400)
        return web.json_response({"balances": []})


Opened: TypeAlias = tuple[Recipe, _Binance]


@pytest.fixture
async def recipe() -> AsyncGenerator[Opened]:
    fake, names = _Binance(), await run_recipe("ccxt")
    error = {"code": -1003, "msg": "Too many requests."}
    api, exchange = API(fake.answer, error), names["exchange"]
    async with api.server:
        exchange.urls["api"] = dict.fromkeys(exchange.urls["api"], api.url)
        exchange.milliseconds = lambda: fake.now
        exchange.timeout_on_exit = 0

        async def call(_: int) -> Any:
            return await exchange.public_get_depth({"limit": 100})  # weighs 1

        try:
            yield Recipe(api, names, names["limiter"], call, ccxt.DDoSProtection), fake
        finally:
            await exchange.close()


async def test_calls_keep_the_limit_and_a_pause_holds_for_all(recipe: Opened) -> None:
    await check_limit(recipe[0])
    await check_long_pause(recipe[0])


async def test_weight_of_the_call_is_its_cost(recipe: Opened) -> None:
    limiter, exchange = recipe[0].limiter, recipe[0].names["exchange"]
    await exchange.public_get_ping()
    assert (await limiter.peek()).remaining == pytest.approx(1199.8)
    await exchange.private_get_account()
    assert (await limiter.peek()).remaining == pytest.approx(1195.8)


async def test_signature_is_fresh_after_a_long_queue(recipe: Opened) -> None:
    """After five times as long as it is valid."""
    opened, fake = recipe
    opened.limiter.update(rate_limit="10/h")
    await opened.limiter.record(10)
    call = asyncio.ensure_future(opened.names["exchange"].private_get_account())
    await until(lambda: counts(opened.limiter)[1] == 1)
    fake.now += 5 * _VALID_FOR
    opened.limiter.update(rate_limit=None)
    assert await call == {"balances": []}
