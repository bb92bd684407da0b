"""The store of one process: a dict. It answers as the shared stores do, and at once.

Invariant: each step on a record is taken under a lock, as loops in several threads may share it.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiothrottle.algorithms import Algorithm
from aiothrottle.stores.record import Record, other_algorithm, seal
from aiothrottle.stores.slots import Claim, Granted, SlotStore, SlotTable
from aiothrottle.stores.store import Answer, Key, Step, parts_of

# The number of records up to which none is checked for its expiry.
_FEW = 128


@dataclass(slots=True)
class _Entry:
    algorithm: Algorithm[Any]
    record: Record
    #: The effective instant from which on the record may be forgotten.
    expires: float = -math.inf

    def is_expired(self, clock: float) -> bool:
        """Return whether the record is equivalent to a fresh one."""
        return self.record.now(clock) >= self.expires


class MemoryStore(SlotStore):
    """Keeps the records in this process: for several limiters, on one event loop or on several.

    Args:
        clock: Returns the time in seconds. It may step back. On an event loop with a time of its
            own (`aiothrottle.testing.VirtualTimeLoop`) the default follows that time.

    >>> import asyncio
    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> store = MemoryStore(clock=lambda: 0.0)
    >>> mails = SlidingWindowLog("1/min")
    >>> asyncio.run(store.reserve(("mail", "ann"), mails, [1, 1], max_reservation=60)).delays
    (0.0, 60.0)
    """

    __slots__ = ("_clock", "_entries", "_lock", "_many", "_tables")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, ...], _Entry] = {}
        self._many = _FEW
        self._tables: dict[tuple[str, ...], SlotTable] = {}

    def _now(self) -> float:
        clock_for = getattr(asyncio.get_running_loop(), "clock_for", None)
        clock = self._clock if clock_for is None else clock_for(self._clock)
        return float(clock())

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        with self._lock:
            self._entries.pop(parts_of(key), None)

    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and return slots, in one atomic step."""
        parts = parts_of(key)
        with self._lock:
            table = self._tables.setdefault(parts, SlotTable())
            granted = table.claim(self._now(), claim)
            if not table.seconds():
                del self._tables[parts]
        return granted

    async def _execute(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        with self._lock:
            parts = parts_of(key)
            clock = self._now()
            entry = self._entries.get(parts)
            if entry is None or entry.is_expired(clock):
                if len(self._entries) >= self._many:
                    self._forget(clock)
                entry = self._entries[parts] = _Entry(algorithm, Record(algorithm.start()))
            elif entry.algorithm != algorithm:
                if seal(entry.algorithm) != seal(algorithm):
                    raise other_algorithm(key, algorithm)
                entry.algorithm = algorithm
            answer = entry.record.apply(algorithm, clock, step)
            # Not sooner than before: the limiter of this call may have a shorter period.
            entry.expires = max(entry.expires, answer.now + answer.reset_after)
            return answer

    def _forget(self, clock: float) -> None:
        """Drop the expired records; check again when there are twice as many as remain."""
        self._entries = {
            name: entry for name, entry in self._entries.items() if not entry.is_expired(clock)
        }
        self._many = max(_FEW, 2 * len(self._entries))
