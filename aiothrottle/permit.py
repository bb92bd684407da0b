"""A permit: one slot and the tokens of one request, from the moment they are granted."""

from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from aiothrottle.line import Line

__all__ = ["Permit"]


class Permit:
    """The right to do one thing: what ``async with limiter.throttle()`` waits for and gives.

    Leaving the block, or `release`, gives the slot back; the tokens are spent. A permit is good
    for one block.
    """

    __slots__ = ("_held", "_line", "cost", "waited")

    #: Tokens that it cost.
    cost: float
    #: Seconds that it was waited for.
    waited: float

    # Made by RateLimiter.throttle, which sets `_line`, `cost` and `_held`: an __init__ would be
    # a sixth of what a permit costs.
    _line: "Line"
    _held: bool | None  # None: not asked for yet

    async def __aenter__(self) -> Self:
        line = self._line
        # The fast path, spelt out, since every request of every user goes through it: nobody
        # waits, there is a slot, and the bucket has room. No future, no task, no timer.
        if (
            line.clear_on is get_running_loop()
            and line.free
            and self._held is None
            and line.admit(line.state, line.clock(), self.cost)
        ):
            line.free -= 1
            self._held = True
            self.waited = 0.0
            return self
        await line.join(self)
        return self

    async def __aexit__(
        self,
        exc_type: "type[BaseException] | None",
        exc: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if self._held:
            self._held = False
            line = self._line
            line.free += 1
            if line.starved:
                line.wake()

    def release(self) -> None:
        """Give the slot back, if that has not been done. Idempotent; any thread may call it."""
        line = self._line
        if get_ident() == line.thread or line.loop is None or line.loop.is_closed():
            self._release()
        else:
            # A garbage collection that runs in some thread ends up here.
            line.loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._line.free_slot()

    def __repr__(self) -> str:
        state = {None: "not acquired", True: "held", False: "released"}[self._held]
        return f"<Permit of {self.cost:g}, {state}>"
