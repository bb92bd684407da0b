"""Damaged records and replies: reported once, replaced by spent records, and no free tokens.

`tests/fuzz/stores.py` does the same, guided by coverage, for as long as it runs.
"""

import json
import logging
import math
import random
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from aiothrottle import StoreUnavailable, TokenBucket, WaitUntil
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Claim, Key, SlotStore
from aiothrottle.stores import redis_scripts as of_redis
from aiothrottle.stores import swap as of_swap
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.record import DamageLog, seal
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.slots import SlotTable, slots_key
from aiothrottle.testing.store_contract import ManualClock
from tests.support.servers import Process, Valkey, connect_memcached
from tests.support.stored import STORED, DictStore

every_algorithm = pytest.mark.parametrize("algorithm", STORED, ids=repr)

NOW, LEASE = 1000.5, 30.0
NAME = "{aiothrottle:key}"
BAD = [math.nan, math.inf, -1e300, 1e300, -5e9 - 5e10, 2.0**53 + 2]
ODD = [*BAD, -math.inf, -1.0, 0.5, 5e-324]
# The first numbers of a record: the fields `seen`, `ahead` and `last`.
NO_TIMES = [
    *((bad, 0.0, NOW) for bad in (math.nan, math.inf, 1e17)),
    # Time stands still at 1e82: found by tests/fuzz/stores.py.
    *((NOW, bad, NOW) for bad in (math.nan, math.inf, -1.0, 1e82)),
    *((NOW, 0.0, bad) for bad in (math.nan, math.inf)),
]


@dataclass
class Kept:
    """A store, and its record of the key as bytes."""

    store: SlotStore
    clock: ManualClock
    lines: list[str]  # about damage, without a bound on their number
    read: Callable[[], Awaitable[bytes]]
    write: Callable[[bytes], Awaitable[object]]

    def check_reported(self) -> None:
        (line,) = self.lines
        assert "'key'" in line
        self.lines.clear()

    async def spend(self, algorithm: Algorithm[Any]) -> bytes:
        await self.store.clear("key")
        for _ in range(3):
            await self.store.record("key", algorithm, 0.5)
            await self.store.record("key", algorithm, 1)
            self.clock.advance(0.01)
        return await self.read()

    async def check_replaced(self, algorithm: Algorithm[Any]) -> None:
        """Check that a damaged record is reported once, grants nothing now, and later does."""
        answer = await self.store.reserve("key", algorithm, [1, 1, 1, 1])
        assert answer.instants == ()
        assert answer.retry_after > 0.0
        assert not (await self.store.peek("key", algorithm)).remaining
        self.check_reported()
        self.clock.advance(61.0)
        assert len((await self.store.reserve("key", algorithm, [1])).instants) == 1
        assert self.lines == []

    async def check_slots_replaced(self, poison: Callable[[], Awaitable[object]]) -> None:
        """Poison the record of slots in use: no more than the limit, none is lost for ever."""
        held, number = {"ann": 0, "bob": 0, "cid": 0}, 0

        async def claim(*wanted: tuple[str, int]) -> int:
            nonlocal number
            granted = 0
            for owner, count in wanted:
                number += 1
                wants = Claim(owner, 3, held[owner], count, LEASE, number)
                answer = await self.store.claim("key", wants)
                held[owner] += answer.granted
                granted += answer.granted
                assert answer.lost == 0
                assert 0 < answer.retry_after <= LEASE
                assert sum(held.values()) <= 3
            return granted

        assert await claim(("ann", 2), ("bob", 2)) == 3
        await poison()
        assert await claim(("cid", 1), ("bob", 1), ("ann", 0), ("cid", 1)) == 0
        self.check_reported()
        for _ in range(4):  # all of them live
            self.clock.advance(LEASE / 3)
            await claim(("ann", 0), ("bob", 1), ("cid", 1))
        held["ann"] = 0
        await claim(("ann", 0), ("bob", 1), ("cid", 1), ("bob", 0))
        assert held == {"ann": 0, "bob": 2, "cid": 1}
        assert self.lines == []


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines: list[str] = []

    def report(store: str, key: object, reason: str) -> None:
        DamageLog().report(store, key, reason)
        lines.append(caplog.records[-1].getMessage())

    monkeypatch.setattr(of_redis, "report_damage", report)
    monkeypatch.setattr(of_swap, "report_damage", report)
    with caplog.at_level(logging.WARNING, "aiothrottle"):
        yield lines


@pytest.fixture
async def client(valkey: Valkey) -> AsyncGenerator[Any]:
    async with valkey.connect() as client:
        yield client


@pytest.fixture
def script(client: Any, lines: list[str]) -> Kept:
    clock = ManualClock(NOW)
    store = RedisStore(client, clock=clock, timeout=20)
    return Kept(store, clock, lines, lambda: client.get(NAME), lambda data: client.set(NAME, data))


@pytest.fixture
def python(lines: list[str]) -> Kept:
    clock, records = ManualClock(NOW), dict[Key, Any]()

    async def read() -> bytes:
        data: bytes = records["key"]
        return data

    async def write(data: bytes) -> None:
        records["key"] = data

    return Kept(DictStore(records, clock), clock, lines, read, write)


# ---- records of tokens ---------------------------------------------------------------------------


@every_algorithm
async def test_impossible_numbers_are_replaced(
    script: Kept, python: Kept, algorithm: Algorithm[Any]
) -> None:
    """The times; and any number, by the script. Python's states know what is possible."""
    for kept in (script, python):
        data = await kept.spend(algorithm)
        harms = [(8, struct.pack("<3d", *times)) for times in NO_TIMES]
        if kept is script:
            places = range(8, len(data), 8)
            harms += [(at, struct.pack("<d", BAD[at // 8 % len(BAD)])) for at in places]
        for place, numbers in harms:
            data = await kept.spend(algorithm)
            await kept.write(data[:place] + numbers + data[place + len(numbers) :])
            await kept.check_replaced(algorithm)


@every_algorithm
async def test_any_record_keeps_the_limit(
    script: Kept, python: Kept, algorithm: Algorithm[Any]
) -> None:
    """Torn, longer, with any number in any place, or any bytes after the seal."""
    lots = random.Random(8)
    for kept, step in ((script, 8), (python, 1)):
        whole = await kept.spend(algorithm)
        forms = [whole[:length] for length in range(len(whole))]
        forms += [whole + b"\0" * 8, b"\xff" * 64]
        for place in range(8, len(whole) - 7, step):
            forms += [whole[:place] + struct.pack("<d", n) + whole[place + 8 :] for n in ODD]
        forms += [seal(algorithm) + lots.randbytes(lots.randrange(80)) for _ in range(50)]
        for data in forms:
            await kept.write(data)
            try:
                answer = await kept.store.reserve("key", algorithm, [1, 1, 1, 1, 1])
            except ValueError as error:
                assert "another algorithm" in str(error)  # noqa: PT017
                continue
            assert all(math.isfinite(instant) for instant in answer.instants)
            assert len(answer.instants) <= algorithm.capacity
            assert not (kept.lines and answer.instants), data
            assert not math.isnan(answer.retry_after + answer.remaining + answer.reset_after)
            assert len(kept.lines) <= 1
            kept.lines.clear()


class Own(TokenBucket):
    """The script does not know it: it is swapped."""


@pytest.mark.parametrize("algorithm", [STORED[0], STORED[8], Own("3/s", burst=3)], ids=repr)
async def test_redis_replaces_other_types_and_torn_records(
    client: Any, script: Kept, algorithm: Algorithm[Any]
) -> None:
    data = await script.spend(algorithm)
    texts = [b"", b"12", b"a text that some other program has put here"]
    if not isinstance(algorithm, Own):
        texts += [data[:-1], data[:-8], data[:31], data + b"\0" * 8]
    others = [("RPUSH", "x"), ("HSET", "x", "y"), ("SADD", "x"), ("ZADD", 1, "x")]
    for name, *arguments in [*(("SET", text) for text in texts), *others]:
        await script.spend(algorithm)
        await client.unlink(NAME)
        await client.execute_command(name, NAME, *arguments)
        await script.check_replaced(algorithm)


async def test_redis_replaces_a_damaged_log(client: Any, script: Kept) -> None:
    window, log = STORED[0], f"{NAME}:0"
    entries = [b"odd", b""]
    entries += [struct.pack("<d", bad) for bad in (math.nan, math.inf, 1e300, NOW + 1e6)]
    entries += [struct.pack("<dd", NOW, bad) for bad in (math.nan, math.inf, -1.0, 1e300)]
    harms: list[list[tuple[Any, ...]]] = [[("LSET", log, 0, entry)] for entry in entries]
    for commands in [*harms, [("DEL", log)], [("DEL", log), ("SET", log, "x")]]:
        await script.spend(window)
        for command in commands:
            await client.execute_command(*command)
        await script.check_replaced(window)


# ---- records of slots ----------------------------------------------------------------------------


async def test_redis_replaces_damaged_slots(client: Any, script: Kept) -> None:
    leases, parts, queue = (f"{NAME}:{part}" for part in ("leases", "slots", "queue"))
    await script.store.claim("key", Claim("bob", 3, 0, 1, LEASE, 1))
    (bob,) = [name.decode() for name in await client.zrange(leases, 0, -1)]
    texts = ("nan", "inf", "-inf", "-1e11", "1e300", "0.5e", "abc", "")
    harms: list[list[tuple[Any, ...]]] = [
        *(
            [("HSET", parts, f, it)]
            for f in (".seen", ".ahead", ".taken", ".sharing", bob)
            for it in texts
        ),
        *([("HSET", parts, ".counted", text)] for text in texts),
        *([("HSET", parts, f, it)] for f in (".taken", ".sharing") for it in ("-1e9", "0")),
        [("HSET", parts, bob, "1 -1 1")],
        *([("HDEL", parts, field)] for field in (".seen", ".ahead", ".taken", ".sharing", bob)),
        *([("ZADD", leases, score, bob)] for score in ("inf", "-inf", "1e300", "-1e9")),
        *([("ZADD", leases, NOW + 1e6, "foreign")], [("ZREM", leases, bob)]),
        *([("LPUSH", queue, "foreign")], [("DEL", queue)]),
        *([("DEL", *keys)] for keys in ([leases], [parts], [queue], [leases, parts])),
        *([("DEL", key), ("SET", key, "x")] for key in (leases, parts, queue)),
        *([("DEL", key), ("SADD", key, "x")] for key in (leases, parts, queue)),
    ]
    for commands in harms:

        async def poison(commands: list[tuple[Any, ...]] = commands) -> None:
            for command in commands:
                await client.execute_command(*command)
            script.clock.advance(1.0)  # the whole record is checked once a second

        await client.flushall()
        await script.check_slots_replaced(poison)


async def test_swapped_slots_are_replaced(python: Kept) -> None:
    table = SlotTable()
    for owner in ("ann", "bob"):
        table.claim(NOW, Claim(owner, 3, 0, 2, LEASE, 1))
    whole = table.dump()
    parts, queue, seen, ahead = json.loads(whole[8:])
    bad: list[Any] = [math.nan, math.inf, -1e11, 1e300, "text", None, [], {}]
    no_parts: list[Any] = [7, [], "x", None]
    no_queues: list[Any] = [7, ["foreign"], None, {"a": 1}]
    forms: list[Any] = [
        *([value, queue, seen, ahead] for value in no_parts),
        *([parts, value, seen, ahead] for value in no_queues),
        *([parts, queue, value, ahead] for value in bad),
        *([parts, queue, seen, value] for value in (*bad, -1.0)),
        *([parts | {"bob": [value, NOW + 1]}, queue, seen, ahead] for value in (*bad, -1, 0.5)),
        *([parts | {"bob": [1, value]}, queue, seen, ahead] for value in (*bad, NOW - 1)),
        *([parts | {"bob": 7}, queue, seen, ahead], [], 7, None),
    ]
    dumps = [b"slots 1 " + json.dumps(form).encode() for form in forms]
    assert isinstance(python.store, DictStore)
    records = python.store.records
    for dump in [*dumps, *(whole[:length] for length in range(len(whole)))]:

        async def poison(dump: bytes = dump) -> None:
            records[slots_key("key")] = dump

        records.clear()
        await python.check_slots_replaced(poison)


# ---- other stores --------------------------------------------------------------------------------


async def test_memcached_replaces_damaged_values(memcached_server: Process, python: Kept) -> None:
    from aiothrottle.stores.memcached import MemcachedStore

    async with connect_memcached(memcached_server.port) as client:
        python.store = MemcachedStore(client, "app", clock=python.clock)
        for data in (b"x", b"a text of another program" * 5, b"\xff" * 60):
            await client.set(b"app:key", data)
            await python.check_replaced(STORED[0])
        await python.check_slots_replaced(lambda: client.set(b"app:key:%00slots", b"x"))


# Of a document in MongoDB, without those that only the last update has used.
FIELDS = {"data", "level", "level_at", "seen", "ahead", "last"}


async def test_mongodb_replaces_damaged_documents(mongodb: Process, python: Kept) -> None:
    uri = f"mongodb://127.0.0.1:{mongodb.port}"
    async with AsyncMongoClient[Any](uri, retryWrites=False) as client:
        python.store = MongoStore(client, clock=python.clock, timeout=10)
        records = client["aiothrottle"]["limits"]
        for algorithm in (STORED[0], WaitUntil(1, 5, 10)):
            await python.store.record("key", algorithm)
            document: Any = await records.find_one({"_id": "key"})
            bare = {"mark": b"m", "seal": seal(algorithm)}
            forms: list[Any] = [bare, bare | {"level": 0.0}, bare | {"data": b"short"}]
            for name in document.keys() & FIELDS:
                bad: list[Any] = ["text", None, [1], {"a": 1}, True]
                bad += BAD if name != "data" else []
                forms += [document | {name: value} for value in bad]
            for form in forms:
                await records.replace_one({"_id": "key"}, form)
                await python.check_replaced(algorithm)
            await python.store.clear("key")
        fields = {"$set": {"data": "x"}, "$unset": {"mark": 1}}
        name = {"_id": "key:%00slots"}
        await python.check_slots_replaced(lambda: records.update_one(name, fields))


# ---- replies, and the log ------------------------------------------------------------------------


def test_malformed_reply_of_the_script_is_an_outage() -> None:
    wrong: list[Any] = [b"\0" * 31, b"", None, 7, b"1 2", "text", "1 2 3 4 5", [b"1 2 3 4"]]
    wrong += [b"\xff"]
    wrong += [f"1 0 0 0 1 {count}" for count in ("1e18", "inf", "nan", "-inf", "3", "2 1 1")]
    for reply in wrong:
        readers: list[Callable[[Any], object]] = [
            partial(of_redis.read_answer, key="key", algorithm=TokenBucket(1), most=2),
            partial(of_redis.read_granted, key="key"),
            of_redis.read_loaded,
        ]
        for read in readers:
            with pytest.raises(StoreUnavailable, match="no reply of the script"):
                read(reply)
    for good in ("1 0 0.5 2 1 2", b"1 0 0.5 2 1 1 1 1"):
        answer = of_redis.read_answer(good, "key", TokenBucket(1), 2)
        assert answer == Answer(1.0, (1.0, 1.0), 0.0, 0.5, 2.0)


def test_reports_are_ten_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = DamageLog(clock)
    for number in range(1000):
        log.report("Redis", number, "x\nforged")
    assert len(caplog.records) == 10
    assert "\n" not in caplog.text.strip().replace("\nWARNING", "")
    clock.advance(60.0)
    log.report("Redis", "ann", "x")
    assert caplog.records[-1].getMessage().endswith("(990 more)")
