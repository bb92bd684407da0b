"""All stores: the contracts of tokens and slots, a limit under concurrency, the server's clock."""

import asyncio
import random
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from aiothrottle import RateLimiter
from aiothrottle.algorithms import SlidingWindowLog, TokenBucket, WaitUntil
from aiothrottle.errors import StoreUnavailable, ThrottleTimeout
from aiothrottle.stores import Claim, Key, MemoryStore
from aiothrottle.testing.store_contract import CHECKS, SLOT_CHECKS, ManualClock, Owner
from tests.stores.conftest import Open
from tests.stores.servers import KINDS, SERVERS
from tests.support.servers import Valkey, imported
from tests.support.stored import DictStore
from tests.support.virtually import visit

# What a server, its driver, and their limits on names and numbers decide. All other decisions are
# those of `Record` and `SlotTable`, which the stores that compare and swap share.
OF_A_DRIVER = {
    "many_at_once_get_the_limit_and_no_more",
    "refunded_tokens_can_be_taken_again-SlidingWindowLog",
    "any_text_is_its_own_key",
    "another_algorithm_on_the_key_is_rejected",
    "keys_are_apart",
    "all_at_once_get_so_many",
}
# What the clock decides, of which machines that share memcached have one each.
OF_A_CLOCK = {
    "memcached": {"a_clock_that_steps_back_mints_nothing", "silent_owner_has_died"},
    "sqlite": {"a_clock_that_stepped_back_delays_nothing", "silent_owner_has_died"},
    "mongodb": {"a_clock_that_stepped_back_delays_nothing", "silent_owner_has_died"},
}
# Checks of tokens, and of slots.
ALL_CHECKS: list[Any] = [*CHECKS, *SLOT_CHECKS]


def is_tried(kind: str, name: str) -> bool:
    if name.endswith("WaitUntil") and kind == "mongodb":  # the server itself decides
        return True
    # That of Sentinels has connections of its own alone, which other tests use.
    is_of_the_driver = name in OF_A_DRIVER and kind != "sentinel"
    return kind == "redis" or is_of_the_driver or name in OF_A_CLOCK.get(kind, ())


# ---- stores that need no server ------------------------------------------------------------------


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
async def test_stores_without_a_server_keep_the_contract(check: Any) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await check(lambda: store, clock)
    clock = ManualClock()
    records: dict[Key, bytes] = {}
    await check(lambda: DictStore(records, clock), clock)


async def test_memory_store_drops_expired_records() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for number in range(1000):
        await store.record(str(number), SlidingWindowLog("10/s"))
        clock.advance(0.01)  # a hundred keys in a second
    assert 100 <= len(store._entries) <= 300


class Beaten(DictStore):
    rounds = 0

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:  # noqa: ARG002
        self.rounds += 1
        return False


async def test_changes_are_written_and_conflicts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, window = ManualClock(), SlidingWindowLog(1)
    records: dict[Key, bytes] = {}
    await DictStore(records, clock).reserve("key", window, [1])
    store, sleep = Beaten(records, clock), asyncio.sleep
    await store.reserve("key", window, [1])
    await store.peek("key", window)
    await store.record("other", window, 0)
    await store.refund("nobody", window, 1, 0.0)
    assert store.rounds == 0

    async def hardly(_: float) -> None:
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", hardly)  # the pauses grow to half a second
    with pytest.raises(StoreUnavailable, match="64 times in a row") as caught:
        await store.record("key", window)
    assert (store.rounds, caught.value.key) == (64, "key")


# ---- servers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        pytest.param(kind, check, id=f"{kind}-{check.__name__}")
        for kind in SERVERS
        for check in ALL_CHECKS
        if is_tried(kind, check.__name__)
    ],
)
async def test_server_keeps_the_contract(open_stores: Open, kind: str, check: Any) -> None:
    async with open_stores(kind) as make:
        clock = ManualClock()
        await check(lambda: make(clock=clock), clock)


@pytest.mark.parametrize("kind", KINDS)
async def test_time_is_since_2026(open_stores: Open, kind: str) -> None:
    async with open_stores(kind) as make:
        before = await make().record("key", TokenBucket(1))
        after = await make().peek("key", TokenBucket(1))
    assert 0.0 <= after.now - before.now < 5.0
    assert abs(time.time() - 1767225600 - after.now) < 60.0


@pytest.mark.parametrize("kind", ["redis", "cluster", "sentinel", "memcached", "mongodb", "sqlite"])
async def test_limit_holds_under_concurrency(open_stores: Open, kind: str) -> None:
    rates = {"requests": "50/h", "tokens": ["100/h", "1000/day"]}
    async with open_stores(kind) as one, open_stores(kind) as other:
        limiters = [RateLimiter(rates, store=make(), key="k") for make in (one, other) * 2]

        async def remaining() -> dict[str, float]:
            found = (await limiters[0].peek()).resources
            return {name: resource.remaining for name, resource in found.items()}

        asking = (limiters[place % 4].try_acquire({"tokens": 7}) for place in range(24))
        decisions = await asyncio.gather(*asking)
        assert sum(map(bool, decisions)) == 14
        assert await remaining() == {"requests": 36, "tokens": 2}
        await asyncio.gather(*(visit(limiter, {"tokens": 0.5}) for limiter in limiters))
        for decision in decisions:
            if decision.permit:
                decision.permit.settle({"tokens": 2})
        for limiter in limiters:
            await limiter.aclose()  # when all is settled
        limiters = [RateLimiter(rates, store=one(), key="k")]
        assert await remaining() == {"requests": 32, "tokens": 70}


# ---- `WaitUntil`, by the server's clock ----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_wait_until_decides_by_the_server_clock(open_stores: Open, kind: str) -> None:
    clock, algorithm = time.monotonic, WaitUntil(0.05, raise_after=0.25, limit=1)
    async with open_stores(kind) as make:
        begin, granted_at, waits = clock(), list[float](), list[float]()

        async def hit() -> None:
            try:
                await visit(limiter)
                granted_at.append(clock() - begin)
            except ThrottleTimeout as error:
                waits.append(error.retry_after)

        async with RateLimiter(algorithm=algorithm, store=make(), key="ten") as limiter:
            await asyncio.gather(*(hit() for _ in range(10)))
    assert waits == pytest.approx([0.3, 0.35, 0.4, 0.45])
    assert len(granted_at) == 6
    # The clock of MongoDB counts milliseconds.
    assert all(at >= 0.05 * place - 0.002 for place, at in enumerate(granted_at))


# ---- slots ---------------------------------------------------------------------------------------


async def test_script_answers_as_the_python_does(open_stores: Open) -> None:
    dice, clock = random.Random(7), ManualClock()
    async with open_stores("redis") as make:
        for life in range(20):
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
        await store.claim("key", Claim("ann", 1, 0, 1, 0.9, 3))
        await asyncio.sleep(0.15)  # a sixth of the lease
        assert (await store.claim("key", Claim("bob", 1, 0, 5, 0.1, 2))).granted == 0
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
        ann.limit = bob.limit = cid.limit = 2
        for owner, wanted in ((cid, 0), (ann, 2), (bob, 1), (cid, 1)):
            await owner.claim(wanted)
        for_bob.clear()
        for_cid.clear()
        await ann.claim(released=2)  # both are free for others
        await asyncio.gather(for_bob.wait(), for_cid.wait())
        here.unlisten("bob")
        there.unlisten("cid")


# ---- wrong arguments -----------------------------------------------------------------------------


async def test_costs_must_be_a_sequence() -> None:
    """Of an iterator the check would leave nothing to take."""
    store = MemoryStore()
    wrong: list[Any] = [1, iter([1]), "1", b"1"]
    for costs in wrong:
        with pytest.raises(TypeError, match=r"costs must be a list of numbers, .* got"):
            await store.reserve("key", SlidingWindowLog("2/s"), costs)


async def test_costs_must_be_numbers() -> None:
    store = MemoryStore()
    wrong: list[Any] = ["1", None, [1], "x" * 10_000]
    for cost in wrong:
        with pytest.raises(TypeError, match=r"^a cost is a number of tokens, not .{1,203}$"):
            await store.reserve("key", SlidingWindowLog("2/s"), [1, cost])
        with pytest.raises(TypeError, match="a cost is a number of tokens"):
            await store.record("key", SlidingWindowLog("2/s"), cost)
    assert (await store.peek("key", SlidingWindowLog("2/s"))).remaining == 2.0


@pytest.mark.parametrize("kind", ["redis", "mongodb", "sqlite"])
async def test_wrong_timeout_is_rejected(open_stores: Open, kind: str) -> None:
    async with open_stores(kind) as make:
        with pytest.raises(ValueError, match=r"timeout must be a .*of seconds"):
            make(timeout=0)


@pytest.mark.parametrize(
    ("module", "store", "client", "error"),
    [
        ("redis", "RedisStore", redis.Redis(), r"of redis\.asyncio"),
        ("redis", "RedisStore", "redis://localhost", r"of redis\.asyncio"),
        ("mongo", "MongoStore", None, "AsyncMongoClient"),
        ("memcached", "MemcachedStore", None, "emcache"),
    ],
)
def test_wrong_client_is_rejected(module: str, store: str, client: object, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        getattr(imported(f"aiothrottle.stores.{module}"), store)(client)
