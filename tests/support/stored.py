"""The algorithms of which stores keep records, one of each kind; and a store on a dict."""

from typing import Any

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.stores import Key, Loaded, SwapStore
from aiothrottle.testing.store_contract import ManualClock

# Three tokens at the most. The corpus of `tests/fuzz/stores.py` names them by their place.
STORED: list[Algorithm[Any]] = [
    SlidingWindowLog("3/s"),
    TokenBucket("3/s", burst=3),
    LeakyBucket("3/s"),
    FixedWindow("3/s"),
    SlidingWindowCounter("3/s", buckets=4),
    WaitUntil(1, 5, 10),
    Cooldown(3, 1),
    AllOf(SlidingWindowLog("3/s"), FixedWindow("20/min")),
    PerResource(("requests", SlidingWindowLog("3/s")), ("tokens", TokenBucket("20/min"))),
    PerResource(("tokens", SlidingWindowLog("3/s")), ("requests", FixedWindow("3/s"))),
]


class DictStore(SwapStore):
    def __init__(self, records: dict[Key, bytes], clock: ManualClock) -> None:
        self.records = records
        self.clock = clock

    async def load(self, key: Key) -> Loaded:
        data = self.records.get(key)
        return data, data, self.clock()

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:  # noqa: ARG002 - nothing expires
        if self.records.get(key) != mark:
            return False
        if data is None:
            self.records.pop(key, None)
        else:
            self.records[key] = data
        return True

    async def clear(self, key: Key) -> None:
        self.records.pop(key, None)
