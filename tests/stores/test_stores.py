"""Stores that need no server: the contract, on a dict and on one that compares and swaps."""

# ruff: noqa: ARG002 - a store need not use each argument

import pytest

from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores import Key, Loaded, MemoryStore, SwapStore
from aiothrottle.stores.slots import slots_key
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock


class DictStore(SwapStore):
    """A custom store, as small as they come."""

    def __init__(self, records: dict[Key, bytes], clock: ManualClock) -> None:
        self.records = records
        self.clock = clock

    async def load(self, key: Key) -> Loaded:
        data = self.records.get(key)
        return data, data, self.clock()

    async def swap(
        self,
        key: Key,
        mark: bytes | None,
        data: bytes | None,
        seconds: float,
    ) -> bool:
        if self.records.get(key) != mark:
            return False
        if data is None:
            self.records.pop(key, None)
        else:
            self.records[key] = data
        return True

    async def clear(self, key: Key) -> None:
        for each in (key, slots_key(key)):
            self.records.pop(each, None)


every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@every_check
async def test_memory_store_keeps_the_contract(check: Check) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await check(lambda: store, clock)


@every_check
async def test_custom_store_keeps_the_contract(check: Check) -> None:
    clock = ManualClock()
    records: dict[Key, bytes] = {}
    await check(lambda: DictStore(records, clock), clock)


async def test_memory_store_drops_expired_records() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for number in range(5000):
        await store.record(str(number), SlidingWindowLog("10/s"))
        clock.advance(0.01)  # a hundred keys in a second
    assert 100 <= len(store) <= 300


class Beaten(DictStore):
    """A store in which another process always writes first."""

    rounds = 0

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:
        self.rounds += 1
        return False


async def test_repeated_conflict_gives_up() -> None:
    store = Beaten({}, ManualClock())
    with pytest.raises(StoreUnavailable, match="64 times in a row"):
        await store.record("key", SlidingWindowLog(1))
    assert store.rounds == 64


async def test_rejection_and_peek_write_nothing() -> None:
    clock, window = ManualClock(), SlidingWindowLog(1)
    records: dict[Key, bytes] = {}
    await DictStore(records, clock).reserve("key", window, [1])
    store = Beaten(records, clock)
    await store.reserve("key", window, [1])
    await store.peek("key", window)
    await store.record("other", window, 0)
    await store.refund("nobody", window, 1, 0.0)
    assert store.rounds == 0
