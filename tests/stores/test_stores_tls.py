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
from tests.servers import FaultProxy, Valkey


class Secured(NamedTuple):
    server: Valkey
    port: int
    authority: str

    def client(self, host: str = "127.0.0.1", **options: Any) -> Any:  # noqa: ANN401 - the driver's
        return cast("Any", Redis).from_url(f"rediss://{host}:{self.port}", **options)

    def is_empty(self) -> bool:
        return bool(self.server.command("DBSIZE") == 0)


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    """Return a TLS proxy on loopback, with a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cast("Any", authority.issue_cert("127.0.0.1")).configure_cert(context)
    return context


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncGenerator[Secured]:
    """Start a server behind a TLS proxy: the server of the package has no TLS of its own."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority")
    server = Valkey()
    async with FaultProxy(server.port, context_of(authority)) as proxy:
        yield Secured(server, proxy.port, str(tmp_path / "authority"))
    server.stop()


async def test_rates_and_slots_are_shared_over_tls(secured: Secured) -> None:
    async with secured.client(ssl_ca_certs=secured.authority) as client:
        settings = dict(client.connection_pool.connection_kwargs)
        one, other = (
            RateLimiter(
                "3/min",
                concurrency_limit=SharedConcurrency(1),
                store=RedisStore(client, timeout=5),
                key="k",
            )
            for _ in range(2)
        )
        async with asyncio.timeout(20):
            held = await one.acquire()
            waiting = asyncio.create_task(other.acquire())
            assert not await one.try_acquire()
            await asyncio.sleep(0.05)  # it has subscribed by now, or will poll
            held.release()
            (await waiting).release()
        assert (await one.peek()).remaining == 1
        for limiter in (one, other):
            await limiter.aclose()
        assert client.connection_pool.connection_kwargs == settings
    assert not secured.is_empty()


async def test_untrusted_certificate_is_an_error(secured: Secured) -> None:
    async with secured.client() as client:
        limiter = RateLimiter("3/min", store=RedisStore(client, timeout=5), key="k")
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            await limiter.acquire()
        assert isinstance(root_of(caught.value), ssl.SSLCertVerificationError)
        await limiter.aclose()
    assert secured.is_empty()


async def test_wrong_host_name_is_an_error(secured: Secured) -> None:
    """If the client verifies it."""
    trusting = {"ssl_ca_certs": secured.authority, "ssl_check_hostname": True}
    async with secured.client("localhost", **trusting) as client:
        limiter = RateLimiter("3/min", store=RedisStore(client, timeout=5), key="k")
        with pytest.raises(StoreUnavailable, match="localhost"):
            await limiter.acquire()
        await limiter.aclose()
    assert secured.is_empty()


def root_of(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
