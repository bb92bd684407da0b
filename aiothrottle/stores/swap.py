"""The loop for stores that can compare and swap, and no more: any algorithm lives in them."""

import asyncio
import random
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

from aiothrottle.algorithms import Algorithm
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.keeper import Keeper, Step
from aiothrottle.stores.ledger import Record
from aiothrottle.stores.slots import Claim, Granted, SlotStore, SlotTable, slots_key
from aiothrottle.stores.store import Answer, Key, check_key

__all__ = ["Loaded", "SwapStore"]

_Result = TypeVar("_Result")
# Of what is there and the time it makes what is to be there, the seconds for that, and the answer.
_Change: TypeAlias = Callable[[bytes | None, float], tuple[bytes | None, float, _Result]]

# At twenty writers of one key the unluckiest of ten thousand needed 31 attempts.
_ATTEMPTS = 64
# Seconds. The first pause is up to this, and doubles up to the longest.
_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05

Loaded: TypeAlias = tuple[bytes | None, Any, float]
"""What is under a key, a mark by which `swap` knows it again, and the store's clock in seconds."""


class SwapStore(Keeper, SlotStore):
    """A store that can load bytes and swap them, if nobody else has in the meantime.

    Who writes a store of one's own gives `load`, `swap` and `clear`; the algorithms come with it.
    """

    __slots__ = ()

    #: Whether the time that `load` gives is always that of one clock. If it is not, who is behind
    #: waits until he has caught up; if it is, nobody waits for a clock that was set back.
    one_clock: ClassVar[bool] = True

    @abstractmethod
    async def load(self, key: Key) -> Loaded:
        """Give what is there, a mark of it, and the time.

        The time is that of the store, in seconds, if it can tell; else that of this machine,
        by a clock that the others have too.
        """

    @abstractmethod
    async def swap(self, key: Key, mark: Any, data: bytes | None, seconds: float) -> bool:  # noqa: ANN401 - the store's own
        """Put `data` there if nothing has changed since the mark was given. Tells whether it did.

        Args:
            key: Of the record.
            mark: What `load` gave.
            data: The new bytes; None to delete what is there.
            seconds: After so many the bytes may be forgotten.
        """

    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and give back slots, in one atomic step."""

        def change(data: bytes | None, clock: float) -> tuple[bytes | None, float, Granted]:
            table = SlotTable() if data is None else SlotTable.load(data)
            if not self.one_clock:
                clock = max(clock, table.seen)
            granted = table.claim(clock, claim)
            seconds = table.seconds()
            return table.dump() if seconds > 0.0 else None, seconds, granted

        return await self._change(slots_key(key), change)

    async def _apply(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        def change(data: bytes | None, clock: float) -> tuple[bytes | None, float, Answer]:
            record = Record(algorithm.start())
            if data is not None:
                record = Record.load(algorithm, key, data)
            if not self.one_clock:
                clock = max(clock, record.seen)
            before = record.dump(algorithm)
            answer = step(record, clock)
            after = record.dump(algorithm)
            if after == before:
                return data, answer.reset_after, answer
            return after if answer.reset_after > 0.0 else None, answer.reset_after, answer

        return await self._change(key, change)

    async def _change(self, key: Key, change: _Change[_Result]) -> _Result:
        """Change what is under the key, if nobody else has in the meantime; or try again."""
        check_key(key)  # so `load` and `swap` need not
        pause = _PAUSE
        for _ in range(_ATTEMPTS):
            data, mark, clock = await self.load(key)
            changed, seconds, result = change(data, clock)
            if changed == data or await self.swap(key, mark, changed, seconds):
                return result
            # All who lost this round must not meet again in the next.
            await asyncio.sleep(random.uniform(0.0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise StoreUnavailable(f"{key!r} was changed by others {_ATTEMPTS} times in a row")
