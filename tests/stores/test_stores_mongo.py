"""`MongoStore`: one call for `WaitUntil`, and its records on the server."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, timedelta, timezone
from typing import Any, TypeAlias

import pytest
from pymongo import AsyncMongoClient
from pymongo.monitoring import CommandListener

from aiothrottle import SlidingWindowLog, WaitUntil
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.testing import store_contract

Client: TypeAlias = AsyncMongoClient[Any]
HOURLY = SlidingWindowLog("10/h")


class Recorded(CommandListener):
    def __init__(self) -> None:
        self.commands: list[str] = []

    def started(self, event: Any) -> None:
        self.commands.append(event.command_name)

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


@pytest.fixture
async def client(mongodb_uri: str) -> AsyncIterator[Client]:
    async with Client(mongodb_uri, retryWrites=False, serverSelectionTimeoutMS=3000) as client:
        await client.drop_database("aiothrottle_test")
        yield client


@pytest.fixture
def store(client: Client) -> MongoStore:
    return MongoStore(client, "aiothrottle_test", timeout=5)


@pytest.mark.usefixtures("client")
async def test_wait_until_is_one_call_on_server_clock(mongodb_uri: str) -> None:
    recorded, algorithm = Recorded(), WaitUntil(1000, 5000, 10_000)
    async with Client(mongodb_uri, retryWrites=False, event_listeners=[recorded]) as watched:
        store = MongoStore(watched, "aiothrottle_test", timeout=5)
        answers = [
            await store.reserve("key", algorithm, [1], max_reservation=algorithm.max_wait)
            for _ in range(8)
        ]
    first = ["createIndexes", "findAndModify", "insert"]
    assert recorded.commands == [*first, *["findAndModify"] * 8, "endSessions"]
    begin = answers[0].instants[0]
    instants = [answer.instants[0] - begin for answer in answers[:5]]
    assert instants == pytest.approx([0, 1000, 2000, 3000, 4000])
    assert 6000 < answers[-1].retry_after <= 7000, "the rejected one before counts"
    assert not answers[-1].instants


async def test_record_has_one_algorithm_expires_and_is_purged(
    client: Client, store: MongoStore
) -> None:
    await store.record("long", HOURLY)
    await store.reserve("slow", (slow := WaitUntil(3600, 5, 7200)), [1])
    records = client["aiothrottle_test"]["limits"]
    indexes = await records.index_information()
    assert any(index.get("expireAfterSeconds") == 0 for index in indexes.values())
    for key in ("long", "slow"):
        found = await records.find_one({"_id": key})
        assert found is not None
        expires = found["expires"].replace(tzinfo=UTC).timestamp()
        assert 3500 < expires - time.time() < 3700, key
    data, mark, _ = await store.load("slow")
    await store.reserve("slow", slow, [1], max_reservation=5000)
    assert not await store.swap("slow", mark, data, 1.0), "it has changed since"
    await store.record("short", SlidingWindowLog("10/10ms"))
    await asyncio.sleep(0.05)
    assert [await store.purge(), await store.purge()] == [1, 0]
    assert (await store.peek("long", HOURLY)).remaining == 9.0
    for first, second in ((HOURLY, WaitUntil(1, 5, 10)), (WaitUntil(1, 5, 10), HOURLY)):
        await store.reserve(repr(first), first, [1])
        with pytest.raises(ValueError, match="another algorithm"):
            await store.reserve(repr(first), second, [1])


async def test_options_of_the_client_change_no_record(mongodb_uri: str, store: MongoStore) -> None:
    # What programs give for their own documents.
    options: dict[str, dict[str, Any]] = {
        "times of a zone": {"tz_aware": True, "tzinfo": timezone(timedelta(hours=2))},
        "times as numbers": {"datetime_conversion": "DATETIME_MS"},
        "replicas": {"readPreference": "secondary", "directConnection": False},
        "no acknowledgements": {"w": 0},
    }
    for key, given in options.items():
        async with Client(mongodb_uri, retryWrites=False, **given) as other:
            others = MongoStore(other, "aiothrottle_test", timeout=5)
            for window in (HOURLY, WaitUntil(3600, 5, 36_000)):
                record = (key, repr(window))
                first = await store.reserve(record, window, [1])
                second = await others.record(record, window)
                assert 0 <= second.now - first.now < 5, key
                third = await store.peek(record, window)
                assert 0 <= third.now - second.now < 5, key
                assert third.reset_after == pytest.approx(second.reset_after, abs=5), key
        assert (await store.peek((key, repr(HOURLY)), HOURLY)).remaining == 8.0, key


async def test_server_decides_as_python_does(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithms = [WaitUntil(1, 5, 10), WaitUntil(0.1, 0.5, 0.7), WaitUntil(300, 0.5, 1200)]
    monkeypatch.setattr(store_contract, "ALGORITHMS", algorithms)
    clock = store_contract.ManualClock()
    store = MongoStore(client, "aiothrottle_test", timeout=5, clock=clock)
    await store_contract.it_decides_as_a_store_in_memory_does(lambda: store, clock)
