"""`MongoStore` on a substitute for MongoDB, or on the one of AIOTHROTTLE_TEST_MONGODB_URI."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC
from itertools import pairwise
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from aiothrottle.algorithms import SlidingWindowLog, TokenBucket, WaitUntil
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock
from tests.servers import mongodb
from tests.stores.test_stores import DictStore


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    given = os.environ.get("AIOTHROTTLE_TEST_MONGODB_URI")
    if given:
        yield given
        return
    server = mongodb()
    yield f"mongodb://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture
async def client(uri: str) -> AsyncIterator[AsyncMongoClient[Any]]:
    async with AsyncMongoClient[Any](
        uri, retryWrites=False, serverSelectionTimeoutMS=3000
    ) as client:
        await client.drop_database("aiothrottle_test")
        yield client


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_store_keeps_the_contract(client: AsyncMongoClient[Any], check: Check) -> None:
    clock = ManualClock()
    await check(lambda: MongoStore(client, "aiothrottle_test", clock=clock, timeout=5), clock)


class Recorded(CommandListener):
    """Records the commands that the driver sends."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...


async def test_wait_until_is_one_call_on_server_clock(
    client: AsyncMongoClient[Any], uri: str
) -> None:
    recorded, algorithm = Recorded(), WaitUntil(1000, 5000, 10_000)
    async with AsyncMongoClient[Any](uri, retryWrites=False, event_listeners=[recorded]) as watched:
        store = MongoStore(watched, client["aiothrottle_test"].name, timeout=5)
        answers = [await store.reserve("key", algorithm, [1], horizon=5000) for _ in range(8)]
    first = ["createIndexes", "findAndModify", "insert"]
    assert recorded.commands == [*first, *["findAndModify"] * 8, "endSessions"]
    begin = answers[0].instants[0]
    instants = [answer.instants[0] - begin for answer in answers[:5]]
    assert instants == pytest.approx([0, 1000, 2000, 3000, 4000])
    assert 5000 < answers[-1].retry_after <= 6000
    assert not answers[-1].instants


async def test_server_update_equals_the_python_of_wait_until(
    client: AsyncMongoClient[Any],
) -> None:
    dice, clock = random.Random(7), ManualClock()
    mongo = MongoStore(client, "aiothrottle_test", clock=clock, timeout=5)
    memory = DictStore({}, clock)
    for algorithm in (WaitUntil(1, 5, 10), WaitUntil(0.1, 0.5, 0.7)):
        key, granted = repr(algorithm), list[tuple[float, float]]()
        for _ in range(150):
            clock.advance(dice.choice([0.0, 0.05, 0.3, dice.random(), -0.2]))
            cost = dice.choice([1.0, 1.0, 2.0, 0.5, 0.0])
            method: str = dice.choice(["reserve", "reserve", "reserve", "record", "peek", "refund"])
            arguments: tuple[Any, ...] = (cost,)
            options = {}
            if method == "reserve":
                arguments, options = ([cost],), {"horizon": dice.choice([0.0, 0.2, 5.0])}
            elif method == "refund":
                if not granted:
                    continue
                arguments = granted.pop()
            expected = await getattr(memory, method)(key, algorithm, *arguments, **options)
            found = await getattr(mongo, method)(key, algorithm, *arguments, **options)
            if method == "refund":
                continue
            assert found.now == pytest.approx(expected.now, abs=1e-9)
            assert found.instants == pytest.approx(expected.instants, abs=1e-9)
            assert found.retry_after == pytest.approx(expected.retry_after, abs=1e-9)
            assert found.reset_after == pytest.approx(expected.reset_after, abs=1e-9)
            granted += [(cost, instant) for instant in expected.instants if cost]


async def test_concurrent_first_calls_get_one_instant_each(
    client: AsyncMongoClient[Any], uri: str
) -> None:
    async with AsyncMongoClient[Any](uri, retryWrites=False) as other:
        stores = [MongoStore(each, "aiothrottle_test", timeout=5) for each in (client, other)]
        algorithm = WaitUntil(100, 10_000, 10_000)
        answers = await asyncio.gather(
            *(
                stores[place % 2].reserve("key", algorithm, [1], horizon=10_000)
                for place in range(20)
            )
        )
    instants = sorted(instant for answer in answers for instant in answer.instants)
    gaps = [later - first for first, later in pairwise(instants)]
    assert gaps == pytest.approx([100.0] * 19)


async def test_wait_until_and_other_algorithms_are_not_mixed(
    client: AsyncMongoClient[Any],
) -> None:
    store = MongoStore(client, "aiothrottle_test", timeout=5)
    await store.record("window", SlidingWindowLog(1))
    with pytest.raises(ValueError, match="another algorithm"):
        await store.reserve("window", WaitUntil(1, 5, 10), [1])
    await store.reserve("wait until", WaitUntil(1, 5, 10), [1])
    with pytest.raises(ValueError, match="another algorithm"):
        await store.reserve("wait until", SlidingWindowLog(1), [1])


async def test_concurrent_first_calls_get_exactly_the_limit(
    client: AsyncMongoClient[Any], uri: str
) -> None:
    """On the server's clock; each with a client of its own, as processes have."""
    async with AsyncMongoClient[Any](uri, retryWrites=False) as other:
        stores = [MongoStore(each, "aiothrottle_test", timeout=5) for each in (client, other)]
        window = SlidingWindowLog("10/h")
        answers = await asyncio.gather(
            *(stores[place % 2].reserve("key", window, [1]) for place in range(40))
        )
        assert sum(len(answer.instants) for answer in answers) == 10


async def test_time_is_the_servers_since_2026(client: AsyncMongoClient[Any]) -> None:
    store = MongoStore(client, "aiothrottle_test")
    before = await store.record("key", TokenBucket(1))
    after = await store.peek("key", TokenBucket(1))
    assert 0.0 <= after.now - before.now < 5.0
    assert abs(time.time() - 1767225600 - after.now) < 60.0


async def test_only_expired_records_are_purged(client: AsyncMongoClient[Any]) -> None:
    store = MongoStore(client, "aiothrottle_test")
    await store.record("short", SlidingWindowLog("10/10ms"))
    await store.record("long", SlidingWindowLog("10/h"))
    await asyncio.sleep(0.05)
    assert await store.purge() == 1
    assert await store.purge() == 0
    assert (await store.peek("long", SlidingWindowLog("10/h"))).remaining == 9.0


async def test_record_has_its_expiry_on_the_server(client: AsyncMongoClient[Any]) -> None:
    store = MongoStore(client, "aiothrottle_test")
    await store.record("key", SlidingWindowLog("10/h"))
    records = client["aiothrottle_test"]["limits"]
    indexes = await records.index_information()
    assert any(index.get("expireAfterSeconds") == 0 for index in indexes.values())
    found = await records.find_one({"_id": "key"})
    assert found is not None
    expires = found["expires"].replace(tzinfo=UTC).timestamp()
    assert 3500 < expires - time.time() < 3700


async def test_slow_call_is_given_up_next_call_works(
    client: AsyncMongoClient[Any],
) -> None:
    store = MongoStore(client, "aiothrottle_test")
    impatient = MongoStore(client, "aiothrottle_test", timeout=0.2)
    window = SlidingWindowLog("10/h")
    await impatient.record("key", window)
    fail = {"configureFailPoint": "failCommand", "mode": {"times": 1}}
    stall = {"failCommands": ["aggregate"], "blockConnection": True, "blockTimeMS": 500}
    await client.admin.command({**fail, "data": stall})
    with pytest.raises(StoreUnavailable) as caught:
        await impatient.peek("key", window)
    assert isinstance(caught.value.__cause__, TimeoutError)
    await store.peek("key", window)
    close = {"failCommands": ["update"], "closeConnection": True}
    await client.admin.command({**fail, "data": close})
    with pytest.raises(StoreUnavailable) as caught:
        await store.record("key", window)
    assert isinstance(caught.value.__cause__, PyMongoError)
    assert (await store.peek("key", window)).remaining in {8.0, 9.0}


def test_wrong_client_is_rejected() -> None:
    with pytest.raises(TypeError, match="AsyncMongoClient"):
        MongoStore(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "1"])
async def test_invalid_timeout_is_rejected(timeout: Any) -> None:  # noqa: ANN401
    async with AsyncMongoClient[Any](connect=False) as client:
        with pytest.raises((TypeError, ValueError), match=r"timeout must be a .*number of seconds"):
            MongoStore(client, timeout=timeout)
