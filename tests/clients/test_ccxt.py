"""ccxt, in front of a fake of the Binance API, which checks signatures."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer
from tests.clients.counting import check_limit
from tests.clients.recipes import run_recipe
from tests.serving import until
from tests.virtually import counts

ccxt: Any = pytest.importorskip("ccxt.async_support")

_VALID_FOR = 2000  # milliseconds


class _Binance:
    """The API. Its clock, which the client has as well, is set by hand, in milliseconds."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.throttles = False

    async def answer(self, request: web.Request) -> web.Response:
        if self.throttles:
            body = {"code": -1003, "msg": "Too many requests."}
            return web.json_response(body, status=429, headers={"retry-after": "30"})
        if request.path.endswith("/account"):
            signed, _, signature = request.query_string.rpartition("&signature=")
            expected = hmac.new(b"SECRET", signed.encode(), hashlib.sha256).hexdigest()
            assert signature == expected
            if self.now - int(request.query["timestamp"]) > _VALID_FOR:
                error = {"code": -1021, "msg": "Timestamp is outside of the recvWindow."}
                return web.json_response(error, status=400)
        return web.json_response({"balances": []})


@asynccontextmanager
async def _recipe() -> AsyncGenerator[tuple[dict[str, Any], _Binance, RateLimitedServer]]:
    """Run the recipe against the fake; close the exchange and the server at the end."""
    names = await run_recipe("ccxt")
    fake, exchange = _Binance(), names["exchange"]
    async with RateLimitedServer(handler=fake.answer) as server:
        exchange.urls["api"] = dict.fromkeys(exchange.urls["api"], str(server.url).rstrip("/"))
        exchange.milliseconds = lambda: fake.now
        exchange.timeout_on_exit = 0
        try:
            yield names, fake, server
        finally:
            await exchange.close()


async def test_calls_keep_the_limit() -> None:
    async with _recipe() as (names, _, server):
        await check_limit(
            names["limiter"],
            lambda _: names["exchange"].public_get_depth({"limit": 100}),  # weighs 1
            server,
        )


async def test_weight_of_the_call_is_its_cost() -> None:
    async with _recipe() as (names, _, _server):
        limiter = names["limiter"]
        await names["exchange"].public_get_ping()
        assert (await limiter.peek()).remaining == pytest.approx(1199.8)
        await names["exchange"].private_get_account()
        assert (await limiter.peek()).remaining == pytest.approx(1195.8)


async def test_throttled_call_pauses_all_calls() -> None:
    async with _recipe() as (names, fake, server):
        fake.throttles = True
        with pytest.raises(ccxt.DDoSProtection):
            await names["exchange"].public_get_ping()
        assert (await names["limiter"].peek()).retry_after > 29
        assert server.audit.sent == 1
        assert counts(names["limiter"]) == (0, 0)


async def _ask_after_long_queue(exchange: Any, limiter: RateLimiter, fake: _Binance) -> Any:
    """Return the response to a signed request that waited five times as long as it is valid."""
    limiter.update(rate_limit="10/h")
    await limiter.record(10)
    call = asyncio.ensure_future(exchange.private_get_account())
    await until(lambda: counts(limiter)[1] == 1)
    fake.now += 5 * _VALID_FOR
    limiter.update(rate_limit=None)
    return await call


async def test_signature_is_fresh_after_a_long_queue() -> None:
    async with _recipe() as (names, fake, _):
        account = await _ask_after_long_queue(names["exchange"], names["limiter"], fake)
        assert account == {"balances": []}


async def test_signature_would_be_stale_behind_a_session() -> None:
    async with _recipe() as (names, fake, _):
        exchange, limiter = names["exchange"], RateLimiter()
        async with ThrottledSession(limiter) as exchange.session:
            exchange.own_session = False
            with pytest.raises(ccxt.InvalidNonce):
                await _ask_after_long_queue(exchange, limiter, fake)
