"""Unexpected contents of a store are replaced, or the limit holds; no crash, no free tokens.

`tests/fuzz_stores.py` does the same, guided by coverage, for as long as it runs.
"""

import asyncio
import math
import random
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from redis.asyncio import Redis

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    FixedWindow,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.ledger import HEAD, DamagedRecordError, Record, seal
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.request import read_answer
from aiothrottle.stores.store import Answer
from aiothrottle.testing.store_contract import ManualClock
from tests.servers import Valkey, connect_memcached, memcached, mongodb
from tests.stored import STORED

every_algorithm = pytest.mark.parametrize("algorithm", STORED, ids=repr)

NOW = 1000.5
NO_TIMES = [
    (math.nan, 0.0, NOW),
    (math.inf, 0.0, NOW),
    (NOW, math.nan, NOW),
    (NOW, math.inf, NOW),
    (NOW, -1.0, NOW),
    (NOW, 1e82, NOW),  # where time stands still: found by tests/fuzz_stores.py
    (1e17, 0.0, NOW),
    (NOW, 0.0, math.nan),
    (NOW, 0.0, math.inf),
]
NUMBERS = [math.nan, math.inf, -math.inf, -1.0, 0.5, 1e300, -1e300, 5e-324, 2.0**53 + 2]


def written(algorithm: Algorithm[Any], *times: float) -> bytes:
    """Return an exhausted record, with other times if they are given."""
    record = Record(algorithm.start())
    record.reserve(algorithm, NOW, [1, 1, 1], 0.0)
    data = record.dump(algorithm)
    return HEAD.pack(seal(algorithm), *times) + data[HEAD.size :] if times else data


@every_algorithm
@pytest.mark.parametrize("times", NO_TIMES, ids=repr)
def test_impossible_times_are_damage(
    algorithm: Algorithm[Any], times: tuple[float, float, float]
) -> None:
    with pytest.raises(DamagedRecordError):
        Record.load(algorithm, "key", written(algorithm, *times))


@every_algorithm
def test_truncated_record_is_damage(algorithm: Algorithm[Any]) -> None:
    whole = written(algorithm)
    for length in range(len(whole)):
        if isinstance(algorithm, SlidingWindowLog) and len(whole) - length in {8, 16, 24}:
            continue  # a log without its last entries is a log: the bytes do not count themselves
        with pytest.raises(DamagedRecordError):
            Record.load(algorithm, "key", whole[:length])


NO_REPLIES = [b"\0" * 31, b"", None, 7, b"1 2 3", "text", "1 2 3 4 5", [b"1 2 3 4"], b"\xff"]
WRONG_COUNTS = [
    "1 0 0 0 1 1e18",
    "1 0 0 0 1 inf",
    "1 0 0 0 1 nan",
    "1 0 0 0 1 -inf",
    "1 0 0 0 1 3",
    "1 0 0 0 1 2 1 1",
]


@pytest.mark.parametrize("reply", [*NO_REPLIES, *WRONG_COUNTS], ids=repr)
def test_malformed_reply_is_reported(reply: Any) -> None:  # noqa: ANN401
    with pytest.raises(StoreUnavailable, match="no reply of the script"):
        read_answer(reply, "key", TokenBucket(1), 2)


@pytest.mark.parametrize("reply", ["1 0 0.5 2 1 2", b"1 0 0.5 2 1 1 1 1"])
def test_text_and_bytes_are_read_alike(reply: str | bytes) -> None:
    answer = read_answer(reply, "key", TokenBucket(1), 2)
    assert answer == Answer(1.0, (1.0, 1.0), 0.0, 0.5, 2.0)


# ---- real servers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture
async def client(valkey: Valkey) -> AsyncIterator[Redis]:
    async with valkey.connect() as client:
        await client.flushall()
        yield client


def in_redis(algorithm: Algorithm[Any], *times: float) -> bytes:
    """What the script writes: the times and the state as doubles, whatever the algorithm."""
    at = [NOW] if not times else list(times)
    head = [*at, 0.0, NOW] if not times else at
    # Three tokens in all; when the last one was recorded, half a token remained.
    level = [3.0, NOW, NOW - 1, 1.0, NOW, 0.5]
    state: list[float]
    if isinstance(algorithm, FixedWindow):
        state = [float(int(NOW)), 3.0]
    elif isinstance(algorithm, SlidingWindowCounter):
        state = [float(int(NOW / algorithm._width)), 0.0, 0.0, 0.0, 3.0]
    elif isinstance(algorithm, AllOf):
        state = [*level, float(int(NOW / 60)), 3.0]
    else:
        state = [-1.0] if isinstance(algorithm, SlidingWindowLog) else level
    return seal(algorithm) + struct.pack(f"<{3 + len(state)}d", *head, *state)


@every_algorithm
@pytest.mark.parametrize("times", NO_TIMES, ids=repr)
async def test_redis_grants_nothing_for_impossible_times(
    client: Redis, algorithm: Algorithm[Any], times: tuple[float, float, float]
) -> None:
    store = RedisStore(client, clock=ManualClock(NOW), timeout=20)
    data = in_redis(algorithm, *times)
    await client.set("{aiothrottle:key}", data)
    assert (await store.reserve("key", algorithm, [1])).instants == ()
    assert await client.get("{aiothrottle:key}") != data
    await store.clear("key")
    assert (await store.reserve("key", algorithm, [1])).instants == (NOW,)


@every_algorithm
async def test_redis_survives_any_record(client: Redis, algorithm: Algorithm[Any]) -> None:
    """Torn, longer, with any number in any place: an answer in order, or a clear error."""
    lots = random.Random(8)
    store = RedisStore(client, clock=ManualClock(NOW), timeout=20)
    whole = in_redis(algorithm)
    await client.set("{aiothrottle:key}", whole)
    await store.peek("key", algorithm)  # a record, or nothing here could fail
    forms = [whole[:length] for length in range(len(whole))] + [
        whole + b"\0" * 8,
        b"",
        b"\xff" * 64,
    ]
    for place in range(8, len(whole), 8):
        forms += [whole[:place] + struct.pack("<d", n) + whole[place + 8 :] for n in NUMBERS]
    forms += [seal(algorithm) + lots.randbytes(lots.randrange(80)) for _ in range(100)]
    for data in forms:
        await client.set("{aiothrottle:key}", data)
        try:
            answer = await store.reserve("key", algorithm, [1, 1, 1, 1, 1])
        except ValueError as error:
            assert "another algorithm" in str(error)  # noqa: PT017
            continue
        assert all(math.isfinite(instant) for instant in answer.instants)
        assert sum(instant == NOW for instant in answer.instants) <= algorithm.capacity
        assert not math.isnan(answer.retry_after + answer.remaining + answer.reset_after)


async def test_mongodb_record_with_foreign_fields_is_replaced(uri: str) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(
        uri, retryWrites=False, serverSelectionTimeoutMS=3000
    )
    async with client:
        await client.drop_database("aiothrottle_test")
        store = MongoStore(client, "aiothrottle_test", timeout=10)
        records = client["aiothrottle_test"]["limits"]
        wait_until, bucket = WaitUntil(1, 5, 10), TokenBucket(1)
        for fields in (
            {},
            {"data": None},
            {"data": "text"},
            {"data": b"short"},
            {"data": 10**12},
            {"data": written(bucket, math.nan, 0.0, 0.0)},
            {"level": "soon", "level_at": 0.0, "seen": 0.0, "ahead": 0.0, "last": 0.0},
            {"level": 0.0},
            {"level": 0.0, "seen": 0.0, "ahead": 0.0, "last": 0.0},
            {"level": 0.0, "level_at": 0.0, "seen": math.nan, "ahead": 0.0, "last": 0.0},
            {"level": 0.0, "level_at": 0.0, "seen": 0.0, "ahead": 1e82, "last": 0.0},
            {"level": 0.0, "level_at": math.nan, "seen": 0.0, "ahead": 0.0, "last": 0.0},
            {"level": math.inf, "level_at": 0.0, "seen": 0.0, "ahead": 0.0, "last": 0.0},
            {"level": -1.0, "level_at": 0.0, "seen": 0.0, "ahead": 0.0, "last": 0.0},
            {"stamp": 0.0, "seen": 0.0, "ahead": 0.0, "last": 0.0},
        ):
            for algorithm in (wait_until, bucket):
                await records.replace_one(
                    {"_id": "key"}, {"mark": b"m", "seal": seal(algorithm), **fields}, upsert=True
                )
                assert (await store.reserve("key", algorithm, [1])).instants == ()
                await store.clear("key")
                assert len((await store.reserve("key", algorithm, [1])).instants) == 1


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    server = mongodb()
    yield f"mongodb://127.0.0.1:{server.port}"
    server.stop()


async def test_memcached_value_with_foreign_bytes_is_replaced() -> None:
    server = memcached()
    from aiothrottle.stores.memcached import MemcachedStore

    try:
        async with connect_memcached(server.port) as client:
            store = MemcachedStore(client, "app", clock=lambda: NOW)
            algorithm = TokenBucket("3/s", burst=2)
            for data in (
                b"x",
                b"\xff" * 100,
                written(algorithm, math.nan, 0.0, 0.0),
                written(algorithm)[:-1],
            ):
                await client.set(b"app:key", data)
                assert (await store.reserve("key", algorithm, [1])).instants == ()
    finally:
        await asyncio.to_thread(server.stop)
