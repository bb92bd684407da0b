"""`MongoStore` on a stand-in for MongoDB, or on the one of AIOTHROTTLE_TEST_MONGODB_URI."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from aiothrottle.algorithms import RollingWindow, TokenBucket
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock
from tests.servers import mongodb


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
async def test_the_contract(client: AsyncMongoClient[Any], check: Check) -> None:
    clock = ManualClock()
    await check(lambda: MongoStore(client, "aiothrottle_test", clock=clock, timeout=5), clock)


async def test_many_that_begin_with_the_same_key_get_the_limit_and_no_more(
    client: AsyncMongoClient[Any], uri: str
) -> None:
    """On the server's clock; each with a client of its own, as processes have."""
    async with AsyncMongoClient[Any](uri, retryWrites=False) as other:
        stores = [MongoStore(each, "aiothrottle_test", timeout=5) for each in (client, other)]
        window = RollingWindow("10/h")
        answers = await asyncio.gather(
            *(stores[place % 2].reserve("key", window, [1]) for place in range(40))
        )
        assert sum(len(answer.instants) for answer in answers) == 10


async def test_the_time_is_the_servers_and_counts_from_2026(client: AsyncMongoClient[Any]) -> None:
    store = MongoStore(client, "aiothrottle_test")
    before = await store.record("key", TokenBucket(1))
    after = await store.peek("key", TokenBucket(1))
    assert 0.0 <= after.now - before.now < 5.0
    assert abs(time.time() - 1767225600 - after.now) < 60.0


async def test_what_is_over_is_purged_and_the_rest_is_not(client: AsyncMongoClient[Any]) -> None:
    store = MongoStore(client, "aiothrottle_test")
    await store.record("short", RollingWindow("10/10ms"))
    await store.record("long", RollingWindow("10/h"))
    await asyncio.sleep(0.05)
    assert await store.purge() == 1
    assert await store.purge() == 0
    assert (await store.peek("long", RollingWindow("10/h"))).remaining == 9.0


async def test_the_server_is_told_when_to_remove_a_record(client: AsyncMongoClient[Any]) -> None:
    store = MongoStore(client, "aiothrottle_test")
    await store.record("key", RollingWindow("10/h"))
    records = client["aiothrottle_test"]["limits"]
    indexes = await records.index_information()
    assert any(index.get("expireAfterSeconds") == 0 for index in indexes.values())
    found = await records.find_one({"_id": "key"})
    assert found is not None
    expires = found["expires"].replace(tzinfo=UTC).timestamp()
    assert 3500 < expires - time.time() < 3700


async def test_a_call_that_takes_too_long_is_given_up_and_the_next_one_works(
    client: AsyncMongoClient[Any],
) -> None:
    store = MongoStore(client, "aiothrottle_test")
    impatient = MongoStore(client, "aiothrottle_test", timeout=0.2)
    window = RollingWindow("10/h")
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


def test_what_is_no_asynchronous_client_is_refused() -> None:
    with pytest.raises(TypeError, match="AsyncMongoClient"):
        MongoStore(None)  # type: ignore[arg-type]
