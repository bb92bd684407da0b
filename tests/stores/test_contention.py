"""Compare and swap by many processes at once: few swaps are lost, and each process gets a turn."""

import asyncio

import pytest

from aiothrottle.algorithms import TokenBucket
from aiothrottle.stores import Key, Loaded
from aiothrottle.stores.contention import Contention
from aiothrottle.testing.store_contract import ManualClock
from tests.stores.test_stores import DictStore
from tests.virtually import now, virtual

ROUND_TRIP = 0.002
SECONDS = 4.0
ALGORITHM = TokenBucket("1000000/s")


class Distant(DictStore):
    """The store of one process: what it loads is old when it arrives."""

    won = lost = 0

    async def load(self, key: Key) -> Loaded:
        await asyncio.sleep(ROUND_TRIP / 2)
        loaded = await super().load(key)
        await asyncio.sleep(ROUND_TRIP / 2)
        return loaded

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:
        await asyncio.sleep(ROUND_TRIP / 2)
        swapped = await super().swap(key, mark, data, seconds)
        await asyncio.sleep(ROUND_TRIP / 2)
        self.won += swapped
        self.lost += not swapped
        return swapped


async def compete(processes: int) -> list[Distant]:
    """Have so many processes change one record all the time; return their stores."""
    records: dict[Key, bytes] = {}
    clock = ManualClock()
    stores = [Distant(records, clock) for _ in range(processes)]

    async def change(store: Distant) -> None:
        while now() < SECONDS:
            await store.record("key", ALGORITHM)

    async with asyncio.TaskGroup() as group:
        for store in stores:
            group.create_task(change(store))
    return stores


@virtual
async def test_eight_processes_lose_few_swaps_and_take_turns() -> None:
    stores = await compete(8)
    won = [store.won for store in stores]
    attempts = SECONDS / (2 * ROUND_TRIP)  # of one process alone
    assert sum(won) > 0.75 * attempts
    assert sum(store.lost for store in stores) < 1.6 * sum(won)
    assert sum(won) ** 2 / (8 * sum(count**2 for count in won)) > 0.95


@virtual
async def test_two_hundred_processes_never_give_up() -> None:
    stores = await compete(200)  # a `StoreUnavailable` would end the group
    assert sum(store.won for store in stores) > SECONDS / (2 * ROUND_TRIP)


@virtual
async def test_single_process_never_pauses() -> None:
    (store,) = await compete(1)
    assert store.won == pytest.approx(SECONDS / (2 * ROUND_TRIP), abs=2)


def test_contention_of_idle_keys_is_forgotten() -> None:
    contention = Contention()
    for number in range(10_000):
        contention.note(str(number), now=0.0, seconds=0.01, lost=True)
    assert len(contention) <= 4096
    assert contention.longest_pause("9999", now=0.0) == 0.01
    assert contention.longest_pause("9999", now=60.0) == 0.0
    assert len(contention) <= 4095
