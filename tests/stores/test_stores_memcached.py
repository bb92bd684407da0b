"""`MemcachedStore`: clocks of several machines, and expiry."""

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from aiothrottle import SlidingWindowLog
from aiothrottle.stores import Claim
from aiothrottle.testing.store_contract import ManualClock
from tests.support.servers import Process, connect_memcached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from emcache import Client
if TYPE_CHECKING or find_spec("emcache"):
    from aiothrottle.stores.memcached import MemcachedStore

HOURLY = SlidingWindowLog("10/h")


@pytest.fixture
async def client(memcached_server: Process) -> "AsyncIterator[Client]":
    async with connect_memcached(memcached_server.port) as client:
        yield client


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
    assert (await stores[0].claim("key", Claim("ann", 1, 0, 1, 30.0, 1))).granted == 1
    for number in range(40):
        for owner, store in zip(("bob", "cid"), stores, strict=True):
            answer = await store.claim("key", Claim(owner, 1, 0, 1, 30.0, number))
            assert not answer.granted, "the lease has not expired"


async def test_record_that_went_away_meanwhile_is_not_swapped(client: "Client") -> None:
    store = MemcachedStore(client, "gone")
    await store.record("key", HOURLY)
    data, mark, _ = await store.load("key")
    await store.clear("key")
    assert not await store.swap("key", mark, data, 1.0)
    for number in (1, 2):
        assert (await store.claim("key", Claim("ann", 1, 0, 1, 30.0, number))).granted == 1
        await store.claim("key", Claim("ann", 1, 0, 0, 30.0, number))  # nothing is left to keep


async def test_record_lasts_its_time(client: "Client", monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemcachedStore(client, "own")
    weeks, decades = SlidingWindowLog("10/8w"), SlidingWindowLog("10/9000d")
    for window in (weeks, decades):
        await store.reserve(repr(window), window, [1])
        assert (await store.peek(repr(window), window)).remaining == 9.0
    expires: list[int] = []

    async def add(*_: bytes, exptime: int) -> None:
        expires.append(exptime)

    monkeypatch.setattr(client, "add", add)
    month = 30 * 86400  # memcached reads more seconds than that as a date
    for seconds in (0.5, 2.0, month - 1.0, month - 0.5, 2.0 * month):
        now = time.time()
        await store.swap("key", None, b"data", seconds)
        given = expires.pop()
        # A number of seconds begins with the second of the server that is under way.
        kept = given - now if given > month else given - 1.0
        assert seconds <= kept < seconds + 2.0, seconds
