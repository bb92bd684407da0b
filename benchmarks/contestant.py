"""The contestants: limiters in the three shapes of their libraries' interfaces.

The loops are written out in every shape, so that no contestant pays for a call that its users
would not make.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from promises import Promise

__all__ = ["Awaited", "Begin", "Contestant", "Entered", "Made", "MadeForKey"]

Begin = Callable[[], object]
Block = AbstractAsyncContextManager[Any, Any]


class Contestant(ABC):
    """One limiter, and its promise (None: nothing about a rate)."""

    def __init__(self, promise: Promise | None = None) -> None:
        self.promise = promise

    @abstractmethod
    async def once(self, begin: Begin) -> None:
        """Wait for a turn, and call `begin` in it."""

    @abstractmethod
    async def repeat(self, times: int) -> None:
        """Take so many turns, one after the other, with empty bodies."""

    async def saturate(self, begin: Begin, seconds: float, workers: int) -> None:
        """Ask for more than the limit allows, for so many seconds."""
        end = time.monotonic() + seconds

        async def work() -> None:
            while time.monotonic() < end:
                await self.once(begin)

        try:
            async with asyncio.timeout(seconds + 1):  # some sleep for a long time
                await asyncio.gather(*(work() for _ in range(workers)))
        except TimeoutError:
            pass


class Entered(Contestant):
    """One block for all entries: ``async with limiter:``."""

    def __init__(self, block: Block, promise: Promise | None = None) -> None:
        super().__init__(promise)
        self.block = block

    async def once(self, begin: Begin) -> None:
        """Enter the block once."""
        async with self.block:
            begin()

    async def repeat(self, times: int) -> None:
        """Enter the block `times` times."""
        for _ in range(times):
            async with self.block:
                pass


class Made(Contestant):
    """A block that is made for each entry: ``async with limiter.throttle():``."""

    def __init__(self, make: Callable[[], Block], promise: Promise | None = None) -> None:
        super().__init__(promise)
        self.throttle = make

    async def once(self, begin: Begin) -> None:
        """Make one and enter it."""
        async with self.throttle():
            begin()

    async def repeat(self, times: int) -> None:
        """Make and enter many."""
        for _ in range(times):
            async with self.throttle():
                pass


class MadeForKey(Contestant):
    """A block that is made for each entry of a key: ``async with limiter.throttle(key):``."""

    def __init__(self, make: Callable[[str], Block], key: str) -> None:
        super().__init__()
        self.throttle, self.key = make, key

    async def once(self, begin: Begin) -> None:
        """Make one and enter it."""
        async with self.throttle(self.key):
            begin()

    async def repeat(self, times: int) -> None:
        """Make and enter many."""
        for _ in range(times):
            async with self.throttle(self.key):
                pass


class Awaited(Contestant):
    """A call that returns at the grant: ``await limiter.acquire()``."""

    def __init__(
        self, acquire: Callable[[], Awaitable[object]], promise: Promise | None = None
    ) -> None:
        super().__init__(promise)
        self.acquire = acquire

    async def once(self, begin: Begin) -> None:
        """Call it once."""
        await self.acquire()
        begin()

    async def repeat(self, times: int) -> None:
        """Call it `times` times."""
        for _ in range(times):
            await self.acquire()
