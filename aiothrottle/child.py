"""A line with a parent: another line that has to let each of its waiters go as well.

It grants to one at a time, and that one goes on to wait in the parent's line. So each child has one
in the parent's line, which makes turns fair between the children, and the tokens of both are taken
when both are to be had.
"""

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from aiothrottle.consumer import fail
from aiothrottle.errors import LimiterClosed, QueueFull, ThrottleTimeout
from aiothrottle.line import Line
from aiothrottle.permit import make_permit

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle.algorithms import Algorithm
    from aiothrottle.permit import Permit

__all__ = ["Child"]


class Child(Line):
    """A waiting line whose waiters need a permit of the parent too."""

    __slots__ = ("_above", "_parent")

    one_by_one: ClassVar[bool] = True

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
        *,
        parent: Line,
        max_queue: int | None = None,
    ) -> None:
        super().__init__(algorithm, concurrency_limit, clock, max_queue=max_queue)
        self._parent = parent
        # For each permit here, the one that it needs of the parent.
        self._above: dict[Permit, Permit] = {}
        self.watch()

    @property
    def parent(self) -> Line:
        """The line that has to let each go as well."""
        return self._parent

    @property
    def capacity(self) -> float:
        """The greatest cost that can ever be admitted, here and above."""
        return min(super().capacity, self._parent.capacity)

    # ---- coming and going ----------------------------------------------------------------------

    def resume(self, permit: "Permit") -> "asyncio.Future[None] | None":
        """Go on in the parent's line, and then let the permit start, as `Line.resume` does."""
        if not self._rejects_waiters:
            future = self._resume_above(permit)
            if future is not None:
                return future
        return super().resume(permit)

    def _resume_above(self, permit: "Permit") -> "asyncio.Future[None] | None":
        above = self._above.get(permit)
        try:
            if above is None:
                return self._parent.arrive(self._ask_above(permit), as_head=True)
            return None if above._held else self._parent.resume(above)
        except (ThrottleTimeout, QueueFull) as error:
            self.refuse("timeout" if isinstance(error, ThrottleTimeout) else "queue full")
            raise

    def _ask_above(self, permit: "Permit") -> "Permit":
        """Make the permit that this one needs of the parent."""
        above = self._above[permit] = make_permit(self._parent, permit._tokens, permit._priority)
        return above

    def start(self, permit: "Permit", now: float) -> None:
        """Take the tokens, here and above."""
        self._parent.try_now(self._ask_above(permit), self._parent.now())
        self.take(permit, now)

    def slot_freed(self, permit: "Permit") -> None:
        """See to a slot that the permit has just made free, and to its slot above."""
        super().slot_freed(permit)
        above = self._above.pop(permit, None)
        if above is not None:
            above._release()

    def watch(self) -> None:
        """Each slot that comes free is of interest, as there is one above."""
        super().watch()
        self.watched = True

    def undo(self, permit: "Permit") -> None:
        """Take back a permit that was held, but not used, here and above."""
        if permit._held:
            self._parent.undo(self._above[permit])
        super().undo(permit)

    def _take_back(self, permit: "Permit") -> None:
        super()._take_back(permit)
        above = self._above.get(permit)
        if above is not None:
            self._parent.give_up(above)
            self._parent.undo(above)
            del self._above[permit]

    # ---- what is said and asked ----------------------------------------------------------------

    def settle(self, permit: "Permit", cost: float) -> None:
        """Charge the permit `cost` in place of what it was charged, here and above."""
        super().settle(permit, cost)
        self._parent.settle(self._above[permit], cost)

    def record(self, cost: float) -> None:
        """Count what has happened already, here and above."""
        super().record(cost)
        self._parent.record(cost)

    def succeeded(self, permit: "Permit", now: float, age: float) -> None:
        """Hear of a request that was not refused, here and above."""
        super().succeeded(permit, now, age)
        self._parent.succeeded(permit, self._parent.clock(), age)

    def hear_refusal(self, age: float, pause: float) -> None:
        """Hear of a request that was refused, here and above."""
        super().hear_refusal(age, pause)
        self._parent.hear_refusal(age, pause)

    def delay(self, now: float, permit: "Permit", *, ahead: float | None = None) -> float:
        """Seconds until the pauses and the rates let the permit go, here and above."""
        if ahead is None:
            ahead = self._waiters.cost_ahead(permit)
        wait = super().delay(now, permit, ahead=ahead)
        # One of ours is in the parent's line already.
        for above in self._above.values():
            ahead -= 0.0 if above._held else above._tokens
        above = make_permit(self._parent, permit._tokens, permit._priority)
        above._at = permit._at
        ahead = max(0.0, ahead) + self._parent._waiters.cost_ahead(above)
        return max(wait, self._parent.delay(self._parent.now(), above, ahead=ahead))

    def decide_at_once(self, permit: "Permit", now: float) -> float:
        """Decide for a newcomer, here and above."""
        wait = super().decide_at_once(permit, now)
        return wait or self._parent.decide_at_once(permit, self._parent.now())

    # ---- the end, and loops --------------------------------------------------------------------

    async def close(self, *, drain: bool) -> None:
        """Close this one: who waits for it in the parent's line leaves that too."""
        self.check_loop(asyncio.get_running_loop())
        if not drain:
            for above in self._above.values():
                fail(above, LimiterClosed(key=self.key))
        await super().close(drain=drain)

    def bind(self) -> None:
        """Belong to the running loop with all above, or refuse and change nothing."""
        super().bind()
        self._parent.bind()

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse to serve the loop while another one lives that this or one above serves."""
        super().check_loop(loop)
        self._parent.check_loop(loop)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._move_to(loop)
        self._above = {permit: above for permit, above in self._above.items() if permit._held}
