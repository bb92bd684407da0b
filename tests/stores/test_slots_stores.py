"""Shared slots in every store: the contract, and the script compared with the Python."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from aiothrottle.stores import Claim, Key, MemoryStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.slots import SlotTable
from aiothrottle.testing.slots_contract import SLOT_CHECKS, Owner, SlotCheck
from aiothrottle.testing.store_contract import ManualClock
from tests.servers import Cluster, Process, Valkey, connect_memcached, memcached, mongodb
from tests.stores.test_stores import DictStore

every_check = pytest.mark.parametrize("check", SLOT_CHECKS, ids=lambda check: check.__name__)


@pytest.fixture(scope="module", params=[Valkey, Cluster], ids=["single", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Valkey | Cluster]:
    server = request.param()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mongo() -> Iterator[Process]:
    server = mongodb()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cache() -> Iterator[Process]:
    server = memcached()
    yield server
    server.stop()


@every_check
async def test_memory(check: SlotCheck) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await check(lambda: store, clock)


@every_check
async def test_custom_store(check: SlotCheck) -> None:
    clock, records = ManualClock(), dict[Key, Any]()
    await check(lambda: DictStore(records, clock), clock)


@every_check
async def test_redis(server: Valkey | Cluster, check: SlotCheck) -> None:
    async with server.connect() as client:
        clock = ManualClock()
        await check(lambda: RedisStore(client, check.__name__, clock=clock, timeout=5), clock)


@every_check
async def test_mongodb(mongo: Process, check: SlotCheck) -> None:
    uri = f"mongodb://127.0.0.1:{mongo.port}"
    async with AsyncMongoClient[Any](uri, retryWrites=False) as client:
        clock = ManualClock()
        collection = check.__name__
        await check(
            lambda: MongoStore(client, collection=collection, clock=clock, timeout=5), clock
        )


@every_check
async def test_memcached(cache: Process, check: SlotCheck) -> None:
    if "steps_back" in check.__name__:
        return  # each machine has a clock of its own, and memcached shares none
    from aiothrottle.stores.memcached import MemcachedStore

    async with connect_memcached(cache.port) as client:
        clock = ManualClock()
        await check(lambda: MemcachedStore(client, check.__name__, clock=clock), clock)


async def test_script_answers_as_the_python_does(server: Valkey | Cluster) -> None:
    dice, clock = random.Random(7), ManualClock()
    async with server.connect() as client:
        for life in range(40):
            script, python = (
                RedisStore(client, "beside", clock=clock, timeout=5),
                MemoryStore(clock=clock),
            )
            limit, owners = dice.randint(1, 9), [f"{life}x{place}" for place in range(4)]
            held = dict.fromkeys(owners, 0)
            for number in range(50):
                clock.advance(dice.choice([0.0, 0.1, 1.0, 9.0, -3.0]))
                owner = dice.choice(owners)
                keeps, wants = dice.randint(0, held[owner]), dice.choice([0, 1, 2, 5])
                claim = Claim(owner, limit, keeps, wants, dice.choice([5.0, 30.0]), number)
                theirs = await script.claim(str(life), claim)
                ours = await python.claim(str(life), claim)
                # The script remembers owners without slots, and may ask to check for their end.
                assert theirs.retry_after <= ours.retry_after
                assert replace(theirs, retry_after=0) == replace(ours, retry_after=0)
                held[owner] = keeps + ours.granted


async def test_late_claim_changes_nothing(server: Valkey | Cluster) -> None:
    async with server.connect() as client:
        store = RedisStore(client, "late", timeout=5)
        old = Claim("ann", 3, 0, 3, 30.0, 1)
        assert (await store.claim("key", old)).granted == 3
        assert (await store.claim("key", old)).granted == 3  # sent twice by the driver
        await store.claim("key", replace(old, number=2, wanted=0))
        assert (await store.claim("key", old)).granted == 0
        assert (await store.claim("key", Claim("bob", 3, 0, 3, 30.0, 1))).granted == 3


async def test_expired_leases_leave_no_record(server: Valkey | Cluster) -> None:
    async with server.connect() as client:
        store = RedisStore(client, "brief", timeout=5)
        await store.claim("key", Claim("ann", 1, 0, 1, 0.05, 1))
        await store.claim("key", Claim("bob", 1, 0, 5, 0.1, 1))
        while True:
            if not [name async for name in client.scan_iter("{brief*")]:
                return
            await asyncio.sleep(0.02)


async def test_next_owner_is_notified(
    server: Valkey | Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own store alone, whichever of its owners it is."""
    # A busy machine may be slow to answer: without that patience all owners would be woken.
    monkeypatch.setattr("aiothrottle.stores.wakes._ANSWER", 60.0)
    async with server.connect() as client:
        here, there = (RedisStore(client, "notified", timeout=5) for _ in range(2))
        if not hasattr(client, "pubsub"):  # redis-py before 8: a cluster's client cannot listen
            assert not here.listen("bob", lambda: None)
            return
        ann = Owner(lambda: here, "ann", limit=1)
        bob = Owner(lambda: here, "bob", limit=1)
        cid = Owner(lambda: there, "cid", limit=1)
        for_bob, for_cid = asyncio.Event(), asyncio.Event()
        for store, name, event in ((here, "bob", for_bob), (there, "cid", for_cid)):
            assert store.listen(name, event.set)
            await event.wait()  # from now on it listens
            event.clear()
        assert await ann.gets(1) == 1
        assert await bob.gets(1) == await cid.gets(1) == 0
        await ann.gets(released=1)
        await for_bob.wait()
        assert not for_cid.is_set()
        await bob.gets()  # it wants none any more
        await for_cid.wait()
        here.unlisten("bob")
        there.unlisten("cid")


def test_table_survives_as_bytes() -> None:
    table = SlotTable()
    table.claim(0.1, Claim("ann", 1, 0, 3, 1 / 3, 1))
    table.claim(0.05, Claim("bob", 1, 0, 1, 30.0, 1))
    assert SlotTable.load(table.dump()) == table
