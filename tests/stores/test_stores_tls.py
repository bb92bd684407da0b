"""A real Valkey behind TLS: rates and slots work, and the client decides what is verified."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import trustme
from redis.asyncio import Redis

from aiothrottle import RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores.redis import RedisStore
from tests.support.servers import FaultProxy, Valkey


class Secured(NamedTuple):
    server: Valkey
    port: int
    authority: str

    def client(self, host: str = "127.0.0.1", **options: Any) -> Any:
        return cast("Any", Redis).from_url(f"rediss://{host}:{self.port}", **options)


@pytest.fixture
async def secured(tmp_path: Path, valkey: Valkey) -> AsyncGenerator[Secured]:
    """Put the server behind a TLS proxy: the one of the package has no TLS of its own."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cast("Any", authority.issue_cert("127.0.0.1")).configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "authority")
    async with FaultProxy(valkey.port, context) as proxy:
        yield Secured(valkey, proxy.port, str(tmp_path / "authority"))


async def test_rates_and_slots_are_shared_over_tls(secured: Secured) -> None:
    async with secured.client(ssl_ca_certs=secured.authority) as client:
        settings = dict(client.connection_pool.connection_kwargs)
        limits: dict[str, Any] = {"concurrency_limit": SharedConcurrency(1), "key": "k"}
        one, other = (
            RateLimiter("3/min", store=RedisStore(client, timeout=5), **limits) for _ in range(2)
        )
        async with asyncio.timeout(20):
            held = await one.acquire()
            waiting = asyncio.create_task(other.acquire())
            assert not await one.try_acquire()
            await asyncio.sleep(0.05)  # it has subscribed by now, or will poll
            held.release()
            (await waiting).release()
        # On a busy machine the proxy may lose an answer, and the repeated call takes again.
        assert (await one.peek()).remaining <= 1
        for limiter in (one, other):
            await limiter.aclose()
        assert client.connection_pool.connection_kwargs == settings
    assert secured.server.command("DBSIZE") > 0


# An unknown authority: tests/outages/test_reasons.py.
async def test_wrong_host_name_is_an_error(secured: Secured) -> None:
    options = {"ssl_ca_certs": secured.authority, "ssl_check_hostname": True}
    async with secured.client("localhost", **options) as client:
        limiter = RateLimiter("3/min", store=RedisStore(client, timeout=5), key="k")
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            await limiter.acquire()
        error: BaseException = caught.value
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
        assert isinstance(error, ssl.SSLCertVerificationError)
        assert "localhost" in str(caught.value)
        await limiter.aclose()
    assert secured.server.command("DBSIZE") == 0
