"""A permit: one slot and the tokens of one request, from the moment they are granted."""

import asyncio
import math
from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Self

from aiothrottle.errors import ThrottleTimeout

if TYPE_CHECKING:
    from types import TracebackType

    from aiothrottle.line import Line

__all__ = ["ParticularPermit", "Permit", "make_permit"]

# Seconds. A time-out that is as long as the wait must not come first, and timers are no finer.
_GRACE = 0.001


class Permit:
    """The right to do one thing: what ``async with limiter.throttle()`` waits for and gives.

    Leaving the block, or `release`, gives the slot back; the tokens are spent. A permit is good
    for one block.
    """

    __slots__ = ("_at", "_held", "_line", "_waited", "cost")

    #: Tokens that it costs; after `settle`, that it has cost.
    cost: float
    # Made by RateLimiter.throttle, which sets `_line`, `cost` and `_held`: an __init__ would be
    # a sixth of what a permit costs.
    _line: "Line"
    _held: bool | None  # None: not asked for yet; False: in line, given up or released
    _at: float  # the instant at which it came, then the one at which its tokens went
    _waited: float  # set for those who had to

    # What few permits have; those are a `ParticularPermit`.
    _priority: float = 0.0
    _timeout: float | None = None

    async def __aenter__(self) -> Self:
        line = self._line
        # The fast path, spelt out, since every request of every user goes through it: nobody
        # waits, there is a slot, and the bucket has room. No future, no task, no timer.
        if (
            line.clear_on is get_running_loop()
            and line.free
            and line.uncounted
            and self._held is None
            and line.admit(line.state, now := line.clock(), self.cost)
        ):
            line.free -= 1
            line.uncounted -= 1
            self._held = True
            self._at = now
            return self
        # All that is decided is decided in synchronous code; here it is only waited.
        future = line.arrive(self)
        try:
            while future is not None:
                await future
                future = line.resume(self)
        except BaseException:
            line.give_up(self)
            raise
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
            if line.watched:
                line.slot_freed(self)

    @property
    def waited(self) -> float:
        """Seconds that it was waited for."""
        return getattr(self, "_waited", 0.0)

    def release(self) -> None:
        """Give the slot back, if that has not been done. Idempotent; any thread may call it."""
        line = self._line
        if get_ident() == line.thread or line.loop is None or line.loop.is_closed():
            self._release()
        else:
            # A garbage collection that runs in some thread ends up here.
            line.loop.call_soon_threadsafe(self._release)

    def settle(self, cost: float) -> None:
        """Say what it has really cost: the difference is given back, or charged.

        More than was reserved makes a debt: those who come later wait for it. What is given back
        counts from when it was granted, so a window gets back what that window lost.

        Args:
            cost: Tokens, 0 or more; there is no upper bound.

        Raises:
            TypeError: The cost is no number.
            ValueError: The cost is below zero or not finite.
            RuntimeError: The permit is not held: not entered yet, or released.

        >>> async def ask(limiter, model, prompt):
        ...     async with limiter.throttle(cost=1000) as permit:  # tokens, by a guess
        ...         answer = await model(prompt)
        ...         permit.settle(answer.tokens_used)
        """
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            raise TypeError(f"a cost is a number of tokens, not {cost!r}")
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"a cost is a finite number of tokens, 0 or more, not {cost!r}")
        if not self._held:
            raise RuntimeError(f"{self!r} cannot be settled: settle it while it is held")
        self._line.settle(self, cost)

    def _release(self) -> None:
        if self._held:
            self._held = False
            line = self._line
            line.free += 1
            if line.watched:
                line.slot_freed(self)

    def __repr__(self) -> str:
        state = {None: "not acquired", True: "held", False: "released"}[self._held]
        if self._line.holds_place_of(self):
            state = "waiting"
        return f"<Permit of {self.cost:g}, {state}>"


class ParticularPermit(Permit):
    """A permit with a priority or a time-out."""

    __slots__ = ("_priority", "_timeout")

    _priority: float
    _timeout: float | None

    async def __aenter__(self) -> Self:
        if self._timeout is None:
            return await super().__aenter__()
        try:
            async with asyncio.timeout(self._timeout + _GRACE):
                return await super().__aenter__()
        except ThrottleTimeout:
            raise
        except TimeoutError:
            raise self._line.timed_out(self) from None


def make_permit(
    line: "Line", cost: float, priority: float, timeout: float | None = None
) -> ParticularPermit:
    """Make a permit that is not just any."""
    permit = ParticularPermit()
    permit._line = line
    permit.cost = cost
    permit._held = None
    permit._priority = priority
    permit._timeout = timeout
    return permit
