"""The loop for stores that can only compare and swap: it runs any algorithm in them.

Strategy. Of the processes that load a record together one swaps it, and the attempts of the others
were in vain. So each lost swap makes the pause of the next attempts longer, by about the duration
of an attempt; and it fades with time (`Contention`). A process that wins pauses as well, as it has
lost swaps too: where only losers paused, one process would be served and the others hardly ever.

Invariant: a key without a lost swap in the last while has no pause and is not remembered.
"""

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

from aiothrottle.algorithms import Algorithm
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.record import DamagedRecordError, Record, report_damage
from aiothrottle.stores.slots import Claim, Granted, SlotStore, SlotTable, slots_key
from aiothrottle.stores.store import Answer, Key, Step, parts_of

_Result = TypeVar("_Result")
# Returns the new bytes, the seconds after which they may be forgotten, and the answer, from the old
# bytes and the time.
_Change: TypeAlias = Callable[[bytes | None, float], tuple[bytes | None, float, _Result]]

# In a simulation of two hundred writers of one key nobody lost more than 32 swaps in a row.
_ATTEMPTS = 64
Loaded: TypeAlias = tuple[bytes | None, Any, float]
"""The bytes under a key, a mark by which `swap` recognises them, and the time in seconds."""


class SwapStore(SlotStore):
    """A store that loads bytes, and swaps them if no other process has changed them meanwhile.

    The base for a store of your own: it needs `load`, `swap` and `clear`, and has all algorithms
    and shared slots.
    """

    #: Whether the time that `load` returns is always that of one clock. Otherwise a process whose
    #: clock is behind waits until it has caught up. With one clock, which may be set back, no
    #: process waits for it.
    one_clock: ClassVar[bool] = True

    @abstractmethod
    async def load(self, key: Key) -> Loaded:
        """Return the bytes under the key, a mark of them, and the time.

        The time is that of the store, in seconds; if the store has no clock it is that of this
        machine, by a clock that the other machines share.

        Args:
            key: The key of the record.
        """

    @abstractmethod
    async def swap(self, key: Key, mark: Any, data: bytes | None, seconds: float) -> bool:  # noqa: ANN401 - the store's own
        """Replace the bytes under the key if they have not changed since `load` returned the mark.

        Args:
            key: The key of the record.
            mark: The mark that `load` returned.
            data: The new bytes; None to delete the record.
            seconds: Seconds after which the bytes may be forgotten.

        Returns:
            Whether the bytes were replaced.
        """

    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and return slots, in one atomic step."""

        def change(data: bytes | None, clock: float) -> tuple[bytes | None, float, Granted]:
            try:
                table = SlotTable() if data is None else SlotTable.load(data)
            except ValueError as error:
                report_damage(type(self).__name__, key, str(error))
                table = SlotTable.exhausted(clock, claim)
            if not self.one_clock:
                clock = max(clock, table.seen)
            granted = table.claim(clock, claim)
            seconds = table.seconds()
            return table.dump() if seconds > 0.0 else None, seconds, granted

        return await self._change(slots_key(key), change)

    @cached_property
    def _contention(self) -> "Contention":
        # Made here: a class that derives from this one need not call `__init__`.
        return Contention()

    async def _execute(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        def change(data: bytes | None, clock: float) -> tuple[bytes | None, float, Answer]:
            before = None  # of the data a lower limit may not load all, and a peek keeps it
            try:
                record = Record(algorithm.start())
                if data is not None:
                    record = Record.load(algorithm, key, data)
                before = record.dump(algorithm)
            except DamagedRecordError as error:
                report_damage(type(self).__name__, key, str(error))
                record = Record.exhausted(algorithm, clock)
            if not self.one_clock:
                clock = max(clock, record.seen)
            answer = record.apply(algorithm, clock, step)
            after = record.dump(algorithm)
            if after == before:
                return data, answer.reset_after, answer
            return after if answer.reset_after > 0.0 else None, answer.reset_after, answer

        return await self._change(key, change)

    async def _change(self, key: Key, change: _Change[_Result]) -> _Result:
        """Change the bytes under the key; try again if another process was faster."""
        parts_of(key)  # checks it, so `load` and `swap` need not
        contention, clock = self._contention, asyncio.get_running_loop().time
        for lost in range(_ATTEMPTS):
            if longest := contention.longest_pause(key, clock(), lost):
                await asyncio.sleep(random.uniform(0.0, longest))  # the others pause as long
            begun = clock()
            data, mark, there = await self.load(key)
            changed, seconds, result = change(data, there)
            if changed == data:
                return result
            swapped = await self.swap(key, mark, changed, seconds)
            now = clock()
            contention.note(key, now, now - begun, lost=not swapped)
            if swapped:
                return result
        raise StoreUnavailable(
            f"{type(self).__name__}: the record of {key!r} was changed by others {_ATTEMPTS} times "
            "in a row"
        )


# ---- lost swaps ----------------------------------------------------------------------------------

# A lost swap counts half after so many attempts.
_HALF_LIFE = 16
# Fewer lost swaps are as good as none.
_FEWEST = 0.1
# Of the pause, with each swap that one call loses: of hundreds of processes none loses for ever.
_GROWTH = 1.2
# Seconds of a pause, at the most.
_LONGEST = 0.5
# Keys that are remembered, at the most.
_MOST_KEYS = 4096
# Of the last attempt, in the average of their durations.
_WEIGHT = 0.25


@dataclass(slots=True)
class _Lost:
    """The lost swaps of one key: how many count at the timestamp, and the seconds of an attempt."""

    at: float
    count: float
    seconds: float

    def fade(self, now: float) -> None:
        if now > self.at:
            self.count *= 0.5 ** ((now - self.at) / (_HALF_LIFE * self.seconds))
        self.at = now


class Contention:
    """The lost swaps of the keys of one store.

    >>> contention = Contention()
    >>> contention.longest_pause("key", now=0.0)
    0.0
    >>> for _ in range(8):
    ...     contention.note("key", now=0.0, seconds=0.01, lost=True)
    >>> contention.longest_pause("key", now=0.0), contention.longest_pause("key", now=0.16)
    (0.08, 0.04)
    >>> contention.longest_pause("key", now=10.0), len(contention)
    (0.0, 0)
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[Key, _Lost] = {}

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._keys)

    def longest_pause(self, key: Key, now: float, lost: int = 0) -> float:
        """Return the most seconds to pause before the next attempt.

        Args:
            key: The key of the record.
            now: The time, in seconds.
            lost: How many swaps this call has lost.
        """
        known = self._keys.get(key)
        if known is None:
            return 0.0
        known.fade(now)
        if known.count < _FEWEST:
            self._keys.pop(key, None)  # a loop in another thread may have done so
            return 0.0
        return min(known.count * _GROWTH**lost * known.seconds, _LONGEST)

    def note(self, key: Key, now: float, seconds: float, *, lost: bool) -> None:
        """Record an attempt.

        Args:
            key: The key of the record.
            now: The time, in seconds.
            seconds: From the begin of the load to the end of the swap.
            lost: Whether another process was faster.
        """
        known = self._keys.get(key)
        if known is None:
            if not lost or not seconds:
                return
            if len(self._keys) >= _MOST_KEYS:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = known = _Lost(now, 0.0, seconds)
        known.fade(now)
        if seconds:
            known.seconds += _WEIGHT * (seconds - known.seconds)
        if lost:
            known.count += 1.0
