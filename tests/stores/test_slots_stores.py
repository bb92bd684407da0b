"""Shared slots in every store: the contract, and the script compared with the Python."""

import asyncio
import random
from dataclasses import replace

import pytest

from aiothrottle.stores import Claim, Key, MemoryStore
from aiothrottle.testing.store_contract import SLOT_CHECKS, ManualClock, Owner, SlotCheck
from tests.stores.conftest import Open
from tests.support.servers import Valkey
from tests.support.stored import DictStore

every_check = pytest.mark.parametrize("check", SLOT_CHECKS, ids=lambda check: check.__name__)


@every_check
async def test_slots_without_a_server_keep_the_contract(check: SlotCheck) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await check(lambda: store, clock)
    clock, records = ManualClock(), dict[Key, bytes]()
    await check(lambda: DictStore(records, clock), clock)


@every_check
@pytest.mark.parametrize("kind", ["redis", "cluster", "mongodb", "memcached", "sqlite"])
async def test_server_keeps_the_contract(kind: str, check: SlotCheck, open_stores: Open) -> None:
    if kind == "memcached" and "steps_back" in check.__name__:
        return  # each machine has a clock of its own, and memcached shares none
    clock = ManualClock()
    async with open_stores(kind) as make:
        await check(lambda: make(clock=clock), clock)


async def test_script_answers_as_the_python_does(open_stores: Open) -> None:
    dice, clock = random.Random(7), ManualClock()
    async with open_stores("redis") as make:
        for life in range(40):
            script, python = make(clock=clock), MemoryStore(clock=clock)
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


async def test_late_claim_changes_nothing_and_expired_leases_leave_no_record(
    valkey: Valkey, open_stores: Open
) -> None:
    async with open_stores("redis") as make:
        store = make()
        old = Claim("ann", 3, 0, 3, 30.0, 1)
        for _ in range(2):  # sent twice by the driver
            assert (await store.claim("key", old)).granted == 3
        await store.claim("key", replace(old, number=2, wanted=0))
        assert (await store.claim("key", old)).granted == 0
        assert (await store.claim("key", Claim("bob", 3, 0, 3, 30.0, 1))).granted == 3
        valkey.command("FLUSHALL")
        await store.claim("key", Claim("ann", 1, 0, 1, 0.05, 3))
        await store.claim("key", Claim("bob", 1, 0, 5, 0.1, 2))
        while valkey.command("KEYS", "*"):  # noqa: ASYNC110 - ended by the timeout
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["redis", "cluster"])
async def test_next_owner_is_notified(
    kind: str, open_stores: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own store alone, whichever of its owners it is."""
    # A busy machine may be slow to answer: without that patience all owners would be woken.
    monkeypatch.setattr("aiothrottle.stores.redis_wakes._ANSWER", 60.0)
    async with open_stores(kind) as make:
        here, there = make(), make()
        for_bob, for_cid = asyncio.Event(), asyncio.Event()
        if not here.listen("bob", for_bob.set):
            assert kind == "cluster"  # redis-py before 8: a cluster's client cannot listen
            return
        there.listen("cid", for_cid.set)
        for event in (for_bob, for_cid):
            await event.wait()  # from now on it listens
            event.clear()
        ann, bob = Owner(lambda: here, "ann", limit=1), Owner(lambda: here, "bob", limit=1)
        cid = Owner(lambda: there, "cid", limit=1)
        for owner in (ann, bob, cid):
            await owner.claim(1)
        assert [ann.held, bob.held, cid.held] == [1, 0, 0]
        await ann.claim(released=1)
        await for_bob.wait()
        assert not for_cid.is_set()
        await bob.claim()  # it wants none any more
        await for_cid.wait()
        here.unlisten("bob")
        there.unlisten("cid")
