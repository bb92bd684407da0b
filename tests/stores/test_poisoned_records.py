"""Records that a hand or another program has damaged: reported once, replaced, and no free tokens.

On real servers: each field of the record of each algorithm, and of the slots, with each bad value.
"""

import asyncio
import json
import logging
import math
import struct
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from aiothrottle.algorithms import (
    Algorithm,
    FixedWindow,
    TokenBucket,
)
from aiothrottle.stores import Claim, Key, MemoryStore, damage
from aiothrottle.stores import request as of_redis
from aiothrottle.stores import swap as of_swap
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.slots import SlotStore, SlotTable, slots_key
from aiothrottle.stores.store import Store
from aiothrottle.testing.store_contract import ManualClock
from tests.servers import Valkey, connect_memcached, memcached, mongodb
from tests.stored import STORED
from tests.stores.test_stores import DictStore

every_algorithm = pytest.mark.parametrize("algorithm", STORED, ids=repr)

NOW = 1000.5
BAD = [math.nan, math.inf, -1e300, 1e300, -5e9 - 5e10, 2.0**53 + 2]
TEXTS = ["nan", "inf", "-inf", "-1e11", "1e300", "0.5e", "abc", ""]
NAME = "{aiothrottle:key}"
# Of a document in MongoDB, without those that only the last update has used.
FIELDS = {"data", "level", "level_at", "seen", "ahead", "last"}


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture
async def client(server: Valkey) -> AsyncGenerator[Any]:
    async with server.connect() as client:
        await client.flushall()
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines about damage that were logged, without a bound on their number."""
    lines: list[str] = []

    def report(key: object, reason: str) -> None:
        damage.DamageLog().report(key, reason)
        lines.append(caplog.records[-1].getMessage())

    monkeypatch.setattr(of_redis, "report_damage", report)
    monkeypatch.setattr(of_swap, "report_damage", report)
    with caplog.at_level(logging.WARNING, "aiothrottle"):
        yield lines


async def replaced(store: Store, algorithm: Algorithm[Any], lines: list[str], clock: Any) -> None:  # noqa: ANN401
    """Check that a damaged record is reported once, grants nothing now, and later does."""
    assert not (await store.peek("key", algorithm)).remaining
    answer = await store.reserve("key", algorithm, [1, 1, 1, 1])
    assert answer.instants == ()
    assert answer.retry_after > 0.0
    assert len(lines) == 1
    assert "'key'" in lines[0]
    lines.clear()
    clock.advance(61.0)
    assert len((await store.reserve("key", algorithm, [1])).instants) == 1
    assert lines == []


async def spend(store: Store, algorithm: Algorithm[Any], clock: ManualClock) -> None:
    await store.clear("key")
    for _ in range(3):
        await store.record("key", algorithm, 0.5)
        await store.record("key", algorithm, 1)
        clock.advance(0.01)


@every_algorithm
async def test_redis_replaces_a_record_with_any_bad_number(
    client: Any,  # noqa: ANN401 - the driver's
    algorithm: Algorithm[Any],
    lines: list[str],
    clock: ManualClock,
) -> None:
    store = RedisStore(client, clock=clock, timeout=20)
    for bad in BAD:
        await spend(store, algorithm, clock)
        for place in range(8, len(await client.get(NAME)), 8):
            await spend(store, algorithm, clock)
            data = await client.get(NAME)
            await client.set(NAME, data[:place] + struct.pack("<d", bad) + data[place + 8 :])
            await replaced(store, algorithm, lines, clock)


@every_algorithm
async def test_redis_replaces_other_types_and_torn_records(
    client: Any,  # noqa: ANN401
    algorithm: Algorithm[Any],
    lines: list[str],
    clock: ManualClock,
) -> None:
    store = RedisStore(client, clock=clock, timeout=20)
    await spend(store, algorithm, clock)
    data = await client.get(NAME)
    for command in (
        ("RPUSH", NAME, "x"),
        ("HSET", NAME, "x", "y"),
        ("SADD", NAME, "x"),
        ("ZADD", NAME, 1, "x"),
        ("SET", NAME, ""),
        ("SET", NAME, "12"),
        ("SET", NAME, "a text that some other program has put here"),
        ("SET", NAME, data[:-1]),
        ("SET", NAME, data[:-8]),
        ("SET", NAME, data[:31]),
        ("SET", NAME, data + b"\0" * 8),
    ):
        await spend(store, algorithm, clock)
        await client.unlink(NAME)
        await client.execute_command(*command)
        await replaced(store, algorithm, lines, clock)


async def test_redis_replaces_a_damaged_log(
    client: Any,  # noqa: ANN401
    lines: list[str],
    clock: ManualClock,
) -> None:
    store, window, log = RedisStore(client, clock=clock, timeout=20), STORED[0], f"{NAME}:0"
    entry = [struct.pack("<d", bad) for bad in (math.nan, math.inf, 1e300, NOW + 1e6)]
    cost = [struct.pack("<dd", NOW, bad) for bad in (math.nan, math.inf, -1.0, 1e300)]
    for bad in (b"odd", b"", *entry, *cost):
        await spend(store, window, clock)
        await client.lset(log, 0, bad)
        await replaced(store, window, lines, clock)
    for command in (("DEL", log), ("SET", log, "x")):
        await spend(store, window, clock)
        await client.unlink(log)
        await client.execute_command(*command)
        await replaced(store, window, lines, clock)


@every_algorithm
async def test_script_and_python_replace_alike(
    client: Any,  # noqa: ANN401
    algorithm: Algorithm[Any],
    lines: list[str],
    clock: ManualClock,
) -> None:
    records = dict[Key, Any]({"key": b"junk"})
    script, python = RedisStore(client, clock=clock, timeout=20), DictStore(records, clock)
    await client.set(NAME, b"junk")
    for step in range(30):
        theirs = await script.reserve("key", algorithm, [1, 1], horizon=0.3)
        assert theirs == await python.reserve("key", algorithm, [1, 1], horizon=0.3), step
        clock.advance(0.37)
    assert len(lines) == 2


async def test_redis_replaces_the_record_of_a_custom_algorithm(
    client: Any,  # noqa: ANN401
    lines: list[str],
    clock: ManualClock,
) -> None:
    class Own(TokenBucket):
        """The script does not know it: it is swapped."""

    store = RedisStore(client, clock=clock, timeout=20)
    for command in (("RPUSH", NAME, "x"), ("SET", NAME, ""), ("SET", NAME, "x")):
        await client.unlink(NAME)
        await client.execute_command(*command)
        await replaced(store, Own("3/s", burst=3), lines, clock)


@every_algorithm
async def test_redis_record_of_another_algorithm_is_not_replaced(
    client: Any,  # noqa: ANN401
    algorithm: Algorithm[Any],
    lines: list[str],
) -> None:
    store = RedisStore(client, clock=ManualClock(NOW), timeout=20)
    await store.record("key", algorithm)
    data = await client.get(NAME)
    with pytest.raises(ValueError, match="another algorithm"):
        await store.reserve("key", FixedWindow("7/d"), [1])
    assert await client.get(NAME) == data
    assert lines == []


# ---- compare and swap ----------------------------------------------------------------------------


@every_algorithm
async def test_swapped_record_with_any_bad_number_keeps_the_limit(
    algorithm: Algorithm[Any], lines: list[str], clock: ManualClock
) -> None:
    records = dict[Key, Any]()
    store = DictStore(records, clock)
    for poison in (*(struct.pack("<d", bad) for bad in BAD), b""):
        await spend(store, algorithm, clock)
        for place in range(8, len(records["key"]) - 7):
            await spend(store, algorithm, clock)
            data = records["key"]
            records["key"] = data[:place] + poison + data[place + len(poison) or len(data) :]
            answer = await store.reserve("key", algorithm, [1] * 5)
            assert len(answer.instants) <= algorithm.capacity
            assert len(lines) <= 1
            assert not (lines and answer.instants)
            lines.clear()


async def test_memcached_replaces_damaged_records_and_slots(
    lines: list[str], clock: ManualClock
) -> None:
    server = memcached()
    from aiothrottle.stores.memcached import MemcachedStore

    try:
        async with connect_memcached(server.port) as client:
            store = MemcachedStore(client, "app", clock=clock)
            for algorithm in STORED:
                for data in (b"x", b"a text of another program" * 5, b"\xff" * 60):
                    await client.set(b"app:key", data)
                    await replaced(store, algorithm, lines, clock)
            await slots_survive(store, lines, clock, lambda: client.set(b"app:key:%00slots", b"x"))
    finally:
        await asyncio.to_thread(server.stop)


async def test_mongodb_replaces_damaged_documents_and_slots(
    lines: list[str], clock: ManualClock
) -> None:
    server = mongodb()
    try:
        uri = f"mongodb://127.0.0.1:{server.port}"
        async with AsyncMongoClient[Any](uri, retryWrites=False) as client:
            store = MongoStore(client, clock=clock, timeout=10)
            records = client["aiothrottle"]["limits"]
            for algorithm in STORED:
                await store.record("key", algorithm)
                document: Any = await records.find_one({"_id": "key"})
                for name in document.keys() & FIELDS:
                    for bad in (*BAD, "text", None, [1], {"a": 1}, True):
                        if name == "data" and isinstance(bad, float):
                            continue
                        await records.replace_one({"_id": "key"}, document | {name: bad})
                        await replaced(store, algorithm, lines, clock)
                await store.clear("key")

            async def poison() -> None:
                await records.update_one(
                    {"_id": "key:%00slots"}, {"$set": {"data": "x"}, "$unset": {"mark": 1}}
                )

            await slots_survive(store, lines, clock, poison)
    finally:
        await asyncio.to_thread(server.stop)


# ---- slots ---------------------------------------------------------------------------------------

LEASE = 30.0


async def slots_survive(store: SlotStore, lines: list[str], clock: Any, poison: Any) -> None:  # noqa: ANN401
    """Poison the record of slots in use: no more than the limit, and no slot is lost for ever."""
    held = {"ann": 0, "bob": 0, "cid": 0}
    numbers = iter(range(1, 100))

    async def claim(owner: str, wanted: int) -> int:
        answer = await store.claim(
            "key", Claim(owner, 3, held[owner], wanted, LEASE, next(numbers))
        )
        held[owner] += answer.granted
        assert answer.lost == 0
        assert 0 < answer.retry_after <= LEASE
        assert sum(held.values()) <= 3
        return answer.granted

    await store.clear("key")
    assert await claim("ann", 2) == 2
    assert await claim("bob", 2) == 1
    await poison()
    for owner, wanted in (("cid", 1), ("bob", 1), ("ann", 0), ("cid", 1)):
        assert await claim(owner, wanted) == 0
    assert len(lines) == 1
    assert "'key'" in lines[0]
    lines.clear()
    for _ in range(4):  # all of them live
        clock.advance(LEASE / 3)
        await claim("ann", 0)
        await claim("bob", 1)
        await claim("cid", 1)
    held["ann"] = 0
    await claim("ann", 0)
    await claim("bob", 1)
    await claim("cid", 1)
    await claim("bob", 0)
    assert held == {"ann": 0, "bob": 2, "cid": 1}
    assert lines == []


async def test_redis_replaces_damaged_slots(
    client: Any,  # noqa: ANN401
    lines: list[str],
    clock: ManualClock,
) -> None:
    store = RedisStore(client, clock=clock, timeout=20)
    leases, parts, queue = (f"{NAME}:{part}" for part in ("leases", "slots", "queue"))
    bob = f"{store._wakes.id}.bob"
    commands: list[list[tuple[Any, ...]]] = [
        [("HSET", parts, field, text)]
        for field in (".seen", ".ahead", ".taken", ".counted", bob)
        for text in TEXTS
    ]
    commands += [[("HSET", parts, ".taken", "-1e9")], [("HSET", parts, bob, "1 -1 1")]]
    commands += [[("HDEL", parts, field)] for field in (".seen", ".ahead", ".taken", bob)]
    commands += [[("ZADD", leases, score, bob)] for score in ("inf", "-inf", "1e300", "-1e9")]
    commands += [[("ZADD", leases, NOW + 1e6, "foreign")], [("ZREM", leases, bob)]]
    commands += [[("LPUSH", queue, "foreign")], [("DEL", queue)]]
    for key in (leases, parts, queue):
        commands += [[("DEL", key)], [("DEL", key), ("SET", key, "x")]]
        commands += [[("DEL", key), ("SADD", key, "x")]]

    for several in commands:

        async def poison(several: list[tuple[Any, ...]] = several) -> None:
            for command in several:
                await client.execute_command(*command)
            clock.advance(1.0)  # the whole record is checked once a second

        await slots_survive(store, lines, clock, poison)


def slot_dumps() -> list[bytes]:
    table = SlotTable()
    table.claim(NOW, Claim("ann", 3, 0, 2, LEASE, 1))
    table.claim(NOW, Claim("bob", 3, 0, 2, LEASE, 1))
    whole = table.dump()
    parts, queue, seen, ahead = json.loads(whole[8:])
    bad: list[Any] = [math.nan, math.inf, -1e11, 1e300, "text", None, [], {}]
    no_parts: list[Any] = [7, [], "x", None]
    no_queues: list[Any] = [7, ["foreign"], None, {"a": 1}]
    forms: list[Any] = [[value, queue, seen, ahead] for value in no_parts]
    forms += [[parts, value, seen, ahead] for value in no_queues]
    forms += [[parts, queue, value, ahead] for value in bad]
    forms += [[parts, queue, seen, value] for value in (*bad, -1.0)]
    forms += [[parts | {"bob": [value, NOW + 1]}, queue, seen, ahead] for value in (*bad, -1, 0.5)]
    forms += [[parts | {"bob": [1, value]}, queue, seen, ahead] for value in (*bad, NOW - 1)]
    forms += [[parts | {"bob": 7}, queue, seen, ahead], [], 7, None]
    torn = [whole[:length] for length in range(len(whole))]
    return [b"slots 1 " + json.dumps(form).encode() for form in forms] + torn


async def test_swapped_slots_are_replaced(lines: list[str], clock: ManualClock) -> None:
    for dump in slot_dumps():
        records = dict[Key, Any]()
        store = DictStore(records, clock)

        async def poison(dump: bytes = dump, records: dict[Key, Any] = records) -> None:
            records[slots_key("key")] = dump

        await slots_survive(store, lines, clock, poison)


async def test_script_and_python_replace_slots_alike(
    client: Any,  # noqa: ANN401
    lines: list[str],
    clock: ManualClock,
) -> None:
    script = RedisStore(client, clock=clock, timeout=20)
    python = DictStore({slots_key("key"): b"junk"}, clock)
    await client.set(f"{NAME}:slots", b"junk")
    for number in range(30):
        for owner in ("ann", "bob"):
            claim = Claim(owner, 3, 0, number % 3, LEASE, number)
            theirs, ours = await script.claim("key", claim), await python.claim("key", claim)
            assert (theirs.granted, theirs.lost) == (ours.granted, ours.lost)
        clock.advance(2.0)
    assert len(lines) == 2


# ---- clear, and the log --------------------------------------------------------------------------


async def test_clear_forgets_slots_in_each_store(
    client: Any,  # noqa: ANN401
    clock: ManualClock,
) -> None:
    redis = RedisStore(client, clock=clock, timeout=20)
    stores: list[SlotStore] = [redis, MemoryStore(clock=clock), DictStore({}, clock)]
    for store in stores:
        assert (await store.claim("key", Claim("ann", 1, 0, 1, LEASE, 1))).granted == 1
        await store.clear("key")
        assert (await store.claim("key", Claim("bob", 1, 0, 1, LEASE, 1))).granted == 1
    async with client.pipeline() as pipe:
        redis.pipeline(pipe).clear("key")
        await pipe.execute()
    assert await client.keys("*") == []


def test_reports_are_ten_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = damage.DamageLog(clock)
    for number in range(1000):
        log.report(number, "x\nforged")
    assert len(caplog.records) == 10
    assert "\n" not in caplog.text.strip().replace("\nWARNING", "")
    clock.advance(60.0)
    log.report("ann", "x")
    assert caplog.records[-1].getMessage().endswith("(990 more)")
