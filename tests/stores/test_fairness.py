"""Processes that compete for one key: each gets its turn, few calls are in vain, and none gives up.

Also the guard that makes up for answers that come late.
"""

import asyncio
from typing import Any

import pytest

from aiothrottle import FixedWindow, LeakyBucket, RateLimiter
from aiothrottle.algorithms import SlidingWindowCounter, SlidingWindowLog, TokenBucket
from aiothrottle.stores import Key, Loaded
from aiothrottle.stores.swap import Contention
from aiothrottle.testing.store_contract import ManualClock
from tests.support.failing import Client, Server
from tests.support.stored import DictStore
from tests.support.virtually import now, work_for
from tests.support.watching import Watched


def evenness(counts: list[int]) -> float:
    """Return Jain's index: 1 if all are equal."""
    return float(sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)))


async def granted(limiters: list[RateLimiter], seconds: float, tasks: int = 1) -> list[int]:
    """Have each limiter ask all the time; return how often each was granted."""
    counts = [0] * len(limiters)

    async def work(place: int) -> None:
        while True:
            async with limiters[place].throttle():
                counts[place] += 1

    await work_for(seconds, (work(place) for place in range(len(limiters)) for _ in range(tasks)))
    for limiter in limiters:
        await limiter.aclose()
    return counts


# ---- more processes than tokens of a second ------------------------------------------------------


async def test_many_processes_are_granted_in_turn_and_one_left_alone_reserves_less() -> None:
    store = Watched(latency=0.001)
    limiters = [RateLimiter(10, store=store, key="k") for _ in range(65)]
    alone = asyncio.create_task(granted(limiters[:1], 100.0))
    counts = await granted(limiters[1:], 65.0)
    assert sum(counts) >= 10 * 63
    assert max(counts) - min(counts) <= 3
    assert len(store.horizons) < 1.6 * 650
    assert store.horizons[-1] > 5.0
    await asyncio.sleep(30.0)
    assert store.horizons[-1] < 3.0
    await alone


# ---- compare and swap ----------------------------------------------------------------------------

ROUND_TRIP, SECONDS = 0.002, 2.0
ATTEMPTS = SECONDS / (2 * ROUND_TRIP)  # of one process alone


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


async def compete(processes: int, seconds: float = SECONDS) -> tuple[list[int], int]:
    """Have so many processes change one record; return the swaps that each won, and those lost."""
    records: dict[Key, bytes] = {}
    clock = ManualClock()
    stores = [Distant(records, clock) for _ in range(processes)]

    end = now() + seconds

    async def change(store: Distant) -> None:
        while now() < end:
            await store.record("key", TokenBucket("1000000/s"))

    async with asyncio.TaskGroup() as group:  # a `StoreUnavailable` would end it
        for store in stores:
            group.create_task(change(store))
    return [store.won for store in stores], sum(store.lost for store in stores)


async def test_processes_lose_few_swaps_take_turns_and_never_give_up() -> None:
    (won,), lost = await compete(1)
    assert won == pytest.approx(ATTEMPTS, abs=2), "one alone never pauses"
    assert not lost
    each_won, lost = await compete(8)
    assert sum(each_won) > 0.75 * ATTEMPTS
    assert lost < 1.6 * sum(each_won)
    assert evenness(each_won) > 0.95
    each_won, _ = await compete(60, SECONDS / 2)
    assert sum(each_won) > ATTEMPTS / 2


def test_contention_of_idle_keys_is_forgotten() -> None:
    contention = Contention()
    for number in range(10_000):
        contention.note(str(number), now=0.0, seconds=0.01, lost=True)
    assert len(contention) <= 4096
    assert contention.longest_pause("9999", now=0.0) == 0.01
    assert contention.longest_pause("9999", now=60.0) == 0.0
    assert len(contention) <= 4095


def test_key_may_be_forgotten_in_another_thread_meanwhile() -> None:
    contention = Contention()
    contention.note("key", now=0.0, seconds=0.01, lost=True)

    class Interrupted(float):
        """When it is compared, the other thread has its turn."""

        def __gt__(self, other: float) -> bool:
            assert contention.longest_pause("key", float(self)) == 0.0
            return float(self) > other

    assert contention.longest_pause("key", Interrupted(60.0)) == 0.0
    assert not len(contention)


# ---- the guard -----------------------------------------------------------------------------------


class Seeing(Client):
    seen: Any = None

    async def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        self.seen = arguments[1]
        return await super().ask(method, *arguments, **options)


async def periods(limiter: RateLimiter, store: Seeing) -> list[float]:
    await limiter.peek()
    return [part.rate.period for part in getattr(store.seen, "algorithms", [store.seen])]


@pytest.mark.parametrize(
    ("rate", "options", "expected"),
    [
        ("10/s", {}, [1.045]),
        *(("10/s", {"algorithm": it}, [1.045]) for it in (SlidingWindowCounter, TokenBucket)),
        ("10/s", {"algorithm": LeakyBucket}, [1.045]),
        ("10/s", {"algorithm": FixedWindow}, [1.0]),
        ("10/100ms", {}, [0.1045]),
        ("10/min", {}, [60.05]),
        (["10/s", "100/min"], {}, [1.045, 60.045]),
        (None, {"algorithm": SlidingWindowLog("10/s")}, [1.0]),  # given numbers get none
        ("10/s", {"guard": 0.0}, [1.0]),
        ("10/s", {"guard": 0.2}, [1.2]),
    ],
)
async def test_default_guard_is_a_part_of_the_shortest_period(
    rate: Any, options: dict[str, Any], expected: list[float]
) -> None:
    store = Seeing(Server())
    limiter = RateLimiter(rate, store=store, key="k", **options)
    assert await periods(limiter, store) == pytest.approx(expected)
    if isinstance(rate, str):
        limiter.update(rate_limit="20/s")
        updated = expected[0] if rate == "10/s" else 1.045
        assert await periods(limiter, store) == [pytest.approx(updated)]
