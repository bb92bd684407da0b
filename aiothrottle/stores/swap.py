"""The loop for stores that can only compare and swap: it runs any algorithm in them."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

from aiothrottle.algorithms import Algorithm
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.contention import Contention
from aiothrottle.stores.damage import report_damage
from aiothrottle.stores.keeper import Keeper, Step
from aiothrottle.stores.ledger import DamagedRecordError, Record
from aiothrottle.stores.slots import Claim, Granted, SlotStore, SlotTable, slots_key
from aiothrottle.stores.store import Answer, Key, check_key

__all__ = ["Loaded", "SwapStore"]

_Result = TypeVar("_Result")
# Returns the new bytes, the seconds after which they may be forgotten, and the answer, from the old
# bytes and the time.
_Change: TypeAlias = Callable[[bytes | None, float], tuple[bytes | None, float, _Result]]

# In a simulation of two hundred writers of one key nobody lost more than 32 swaps in a row.
_ATTEMPTS = 64
Loaded: TypeAlias = tuple[bytes | None, Any, float]
"""The bytes under a key, a mark by which `swap` recognises them, and the time in seconds."""


class SwapStore(Keeper, SlotStore):
    """A store that loads bytes, and swaps them if no other process has changed them meanwhile.

    The base for a store of your own: it needs `load`, `swap` and `clear`, and has all algorithms
    and shared slots.
    """

    __slots__ = ("_contention",)

    _contention: Contention

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
                report_damage(key, str(error))
                table = SlotTable.exhausted(clock, claim)
            if not self.one_clock:
                clock = max(clock, table.seen)
            granted = table.claim(clock, claim)
            seconds = table.seconds()
            return table.dump() if seconds > 0.0 else None, seconds, granted

        return await self._change(slots_key(key), change)

    def _lost_swaps(self) -> Contention:
        # Made here: a class that derives from this one need not call `__init__`.
        try:
            return self._contention
        except AttributeError:
            self._contention = Contention()
            return self._contention

    async def _apply(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        def change(data: bytes | None, clock: float) -> tuple[bytes | None, float, Answer]:
            before = None
            try:
                record = Record(algorithm.start())
                if data is not None:
                    record = Record.load(algorithm, key, data)
                before = record.dump(algorithm)
            except DamagedRecordError as error:
                report_damage(key, str(error))
                record = Record.exhausted(algorithm, clock)
            if not self.one_clock:
                clock = max(clock, record.seen)
            answer = step(record, clock)
            after = record.dump(algorithm)
            if after == before:
                return data, answer.reset_after, answer
            return after if answer.reset_after > 0.0 else None, answer.reset_after, answer

        return await self._change(key, change)

    async def _change(self, key: Key, change: _Change[_Result]) -> _Result:
        """Change the bytes under the key; try again if another process was faster."""
        check_key(key)  # so `load` and `swap` need not
        contention, clock = self._lost_swaps(), asyncio.get_running_loop().time
        for lost in range(_ATTEMPTS):
            if pause := contention.pause(key, clock(), lost):
                await asyncio.sleep(pause)
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
        raise StoreUnavailable(f"{key!r} was changed by others {_ATTEMPTS} times in a row")
