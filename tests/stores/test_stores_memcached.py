"""`MemcachedStore` on a real memcached."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.errors import StoreUnavailable
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock
from tests.servers import Process, connect_memcached, memcached, need_emcache

if TYPE_CHECKING:
    from emcache import Client
if TYPE_CHECKING or find_spec("emcache"):
    from aiothrottle.stores.memcached import MemcachedStore

# Each machine has a clock of its own, and memcached shares none.
TRUE_OF_ALL = [
    check for check in CHECKS if "a_clock_that_stepped_back_delays" not in check.__name__
]


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    server = memcached()
    yield server
    server.stop()


@pytest.fixture
async def client(server: Process) -> "AsyncIterator[Client]":
    async with connect_memcached(server.port) as client:
        yield client


@pytest.mark.parametrize("check", TRUE_OF_ALL, ids=lambda check: check.__name__)
async def test_store_keeps_the_contract(client: "Client", check: Check) -> None:
    clock = ManualClock()
    await check(lambda: MemcachedStore(client, check.__name__, clock=clock), clock)


async def test_machine_with_a_slow_clock_mints_nothing(client: "Client") -> None:
    window, ahead, behind = SlidingWindowLog("10/s"), ManualClock(1000), ManualClock(999)
    stores = [MemcachedStore(client, "skew", clock=clock) for clock in (ahead, behind)]
    granted = 0
    for _ in range(40):
        for store in stores:
            granted += len((await store.reserve("key", window, [1] * 10)).instants)
        ahead.advance(0.05)
        behind.advance(0.05)
    assert 20 <= granted <= 30


async def test_own_clock_grants_now(client: "Client") -> None:
    store = MemcachedStore(client, "own")
    assert (await store.reserve("key", SlidingWindowLog("10/h"), [1] * 20)).delays == (0.0,) * 10
    # memcached reads more than thirty days as a date.
    await store.reserve("weeks", SlidingWindowLog("10/8w"), [1])
    assert (await store.peek("weeks", SlidingWindowLog("10/8w"))).remaining == 9.0


async def test_stopped_server_is_reported() -> None:
    server = memcached()
    async with connect_memcached(server.port) as client:
        store = MemcachedStore(client)
        await store.record("key", SlidingWindowLog(10))
        server.stop()
        with pytest.raises(StoreUnavailable) as caught:
            await store.peek("key", SlidingWindowLog(10))
        assert caught.value.__cause__ is not None
        # On Python 3.11 emcache swallows a cancellation at the very instant at which it fails to
        # connect, and never closes.
        await asyncio.sleep(0.1)


def test_wrong_client_is_rejected() -> None:
    need_emcache()
    with pytest.raises(TypeError, match="emcache"):
        MemcachedStore(None)  # type: ignore[arg-type]
