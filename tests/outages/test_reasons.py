"""The message of a `StoreUnavailable` begins with the reason of the outage, for each driver.

It goes on with the key, and what becomes of the requests.
"""

import gc
import itertools
import ssl
from asyncio import gather
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from aiothrottle import RateLimiter, StoreUnavailable
from tests.outages.drivers import leaks_sockets, store_on
from tests.support.servers import FaultProxy, Process, Valkey, dead_port, need_emcache

pytestmark = leaks_sockets

REDIS = ("redis once", "valkey-py")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect what drivers leave here, and not in a later test."""
    yield
    gc.collect()


async def reasons(driver: str, port: int, **options: Any) -> list[str]:
    """Return what a limiter and the store itself report of the outage; also the second time."""
    found: list[str] = []
    async with store_on(driver, port, **options) as store:
        limiter = RateLimiter("1/s", store=store, key="api.example.org")
        for call in (limiter.acquire, limiter.peek, limiter.reset, lambda: store.clear("key")):
            with pytest.raises(StoreUnavailable) as caught:
                await call()
            assert caught.value.__cause__ is not None
            found.append(str(caught.value))
    for reason in found:
        assert reason.startswith(("Redis: ", "MongoDB: ", "memcached: "))
    for reason in found[:2]:
        assert "; requests with key 'api.example.org' fail until it answers" in reason
    assert "; the record of 'api.example.org' may still be there" in found[2]
    return [reason.partition(": ")[2] for reason in found]


def is_refused(reason: str) -> bool:
    return "Connect call failed" in reason or "Connection refused" in reason


async def test_refused_connection_is_reported() -> None:
    drivers = ("redis", *REDIS, "mongodb")
    with dead_port() as port:
        retrying, *others = await gather(*(reasons(it, port, timeout=0.4) for it in drivers))
    for reason in itertools.chain(*others):
        assert is_refused(reason)
        assert not reason.startswith("no answer")
    # A call that is sent between two attempts of the driver ends with none.
    assert any(map(is_refused, retrying))
    for reason in retrying:
        assert is_refused(reason) or reason.startswith("no answer in time;")


async def test_memcached_error_names_the_logger_with_the_reason() -> None:
    need_emcache()
    # While it connects, the driver counts a missing connection: not each call has the reason.
    with dead_port() as port:
        found = await reasons("memcached", port, timeout=0.4)
    reported = [it for it in found if f" 127.0.0.1:{port};" in it]
    assert reported
    assert all("the logger 'emcache' has the reason" in reason for reason in reported)


async def test_wrong_password_is_reported_and_not_shown(
    own_valkey: Valkey, mongodb: Process
) -> None:
    own_valkey.command("CONFIG", "SET", "requirepass", "right")
    found = await gather(
        reasons("mongodb", mongodb.port, username="ann", password="sesame"),
        *(reasons(driver, own_valkey.port, password="sesame") for driver in REDIS),
    )
    for reason in itertools.chain(*found):
        assert "authentication failed" in reason or "invalid username-password pair" in reason
        assert "sesame" not in reason


async def test_untrusted_certificate_is_reported(valkey: Valkey, mongodb: Process) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate: Any = trustme.CA().issue_cert("127.0.0.1")
    certificate.configure_cert(context)
    async with (
        FaultProxy(valkey.port, context) as proxy,
        FaultProxy(mongodb.port, context) as other,
    ):
        several = await gather(
            reasons("mongodb", other.port, timeout=0.4, tls=True),
            *(reasons(it, proxy.port, ssl=True, timeout=0.4) for it in (*REDIS, "redis")),
        )
    assert valkey.command("DBSIZE") == 0
    found = list(itertools.chain(*several))
    known = [it for it in found if not it.startswith("no answer in time;")]  # between two attempts
    assert len(known) > len(found) / 2
    for reason in known:
        assert reason.startswith("certificate refused: ")
        assert "certificate verify failed" in reason
