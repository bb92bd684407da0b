"""How long a response holds its slot: as long as aiohttp counts its connection as in use.

aiohttp calls the callbacks of `Connection.add_callback` exactly once, however a response ends:
read to its end, released, closed, cut off or garbage-collected. It times its own `total` that way.
The exception is a response that is dropped, or abandoned by a cancelled task, while its body is
still arriving: aiohttp keeps it alive for ever, with its connection. Hence the option `max_hold`.
"""

import asyncio
import weakref
from typing import TYPE_CHECKING

from aiohttp import ClientResponse

if TYPE_CHECKING:
    from aiothrottle.permit import Permit

__all__ = ["Holds"]


class Holds:
    """The holds of a session that have a deadline, and the one timer for all of them."""

    __slots__ = ("__weakref__", "_holds", "_loop", "_timer")

    def __init__(self) -> None:
        self._holds: set[_Hold] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, permit: "Permit", response: ClientResponse, seconds: float | None) -> None:
        """Release the permit when aiohttp releases the connection, or after that many seconds.

        After the deadline the response is closed, and reading from it raises: one more request
        would be in flight if it went on beside the next holder of the slot.
        """
        connection = response.connection
        if connection is None:  # the whole body came with the headers, or there is none
            permit.release()
            return
        if seconds is None:
            connection.add_callback(permit.release)
            return
        loop = asyncio.get_running_loop()
        hold = _Hold(self, permit, response, loop.time() + seconds)
        self._holds.add(hold)
        connection.add_callback(hold.end)
        if self._timer is None or self._loop is not loop or self._timer.when() > hold.deadline:
            self._sweep_at(hold.deadline, loop)

    def forget(self, hold: "_Hold") -> None:
        """Remove a hold that has ended."""
        self._holds.discard(hold)

    def sweep(self) -> None:
        """End the holds whose deadline has passed, and set the timer for the next one."""
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        for hold in self._now():
            # A timer may fire a little early: its own clock is coarser.
            if hold.deadline <= now + 0.001:
                hold.expire()
        if left := self._now():
            self._sweep_at(min(hold.deadline for hold in left), self._loop)

    def _sweep_at(self, instant: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop = loop
        # A weak reference: a timer keeps nothing alive. The connections refer to their holds.
        holds: weakref.ref[Holds] = weakref.ref(self)
        self._timer = loop.call_at(instant, _sweep, holds)

    def _now(self) -> "list[_Hold]":
        # In one step: another thread may end a hold in between.
        return list(self._holds)


class _Hold:
    """A slot that a response holds."""

    __slots__ = ("_holds", "_permit", "_response", "deadline")

    def __init__(
        self, holds: Holds, permit: "Permit", response: ClientResponse, deadline: float
    ) -> None:
        self._holds = holds
        self._permit = permit
        # A weak reference: a response that is dropped must be collected, which frees its slot.
        self._response = weakref.ref(response)
        self.deadline: float = deadline

    def end(self) -> None:
        """Release the permit. Thread-safe, as garbage is collected in any thread."""
        self._holds.forget(self)
        self._permit.release()

    def expire(self) -> None:
        """Close the response. Closing only its connection would leave its reader waiting."""
        response = self._response()
        if response is not None:
            response.close()
        self.end()  # aiohttp does nothing where the loop of the response is closed


def _sweep(holds: "weakref.ref[Holds]") -> None:
    alive = holds()
    if alive is not None:
        alive.sweep()
