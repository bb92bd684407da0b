"""How long a response holds its slot: as long as aiohttp counts its connection as in use.

aiohttp calls what `Connection.add_callback` was given exactly once, whichever way a response ends:
read to its end, released, closed, cut off, collected. It times its own `total` so. The exception is
a response that is dropped, or left by a cancelled task, while its body is still coming in: aiohttp
itself keeps that one alive, with its connection, for ever. So there is `max_hold`.
"""

import asyncio
import weakref
from typing import TYPE_CHECKING

from aiohttp import ClientResponse

if TYPE_CHECKING:
    from aiothrottle.permit import Permit

__all__ = ["Leases"]


class Leases:
    """The slots that responses hold for a limited time, and the timer that looks after them."""

    __slots__ = ("__weakref__", "_leases", "_loop", "_timer")

    def __init__(self) -> None:
        self._leases: set[_Lease] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, permit: "Permit", response: ClientResponse, seconds: float | None) -> None:
        """Release the permit when aiohttp lets the connection go, or after so many seconds.

        After those the response is closed: whoever still reads it gets an error, since to go on
        reading beside whoever gets the slot next would be one too many.
        """
        connection = response.connection
        if connection is None:  # the whole body came with the headers, or there is none
            permit.release()
            return
        if seconds is None:
            connection.add_callback(permit.release)
            return
        loop = asyncio.get_running_loop()
        lease = _Lease(self, permit, response, loop.time() + seconds)
        self._leases.add(lease)
        connection.add_callback(lease.end)
        if self._timer is None or self._loop is not loop or self._timer.when() > lease.deadline:
            self._look_at(lease.deadline, loop)

    def forget(self, lease: "_Lease") -> None:
        """Look after it no longer: it has ended."""
        self._leases.discard(lease)

    def _look_at(self, instant: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop = loop
        # A weak reference: a timer is no reason to live on. What is held is one.
        leases: weakref.ref[Leases] = weakref.ref(self)
        self._timer = loop.call_at(instant, _sweep, leases)

    def sweep(self) -> None:
        """Close what has been held for too long, and look again when the next one will have."""
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        for lease in self._now():
            # A timer may fire a little early: its own clock is coarser.
            if lease.deadline <= now + 0.001:
                lease.expire()
        if left := self._now():
            self._look_at(min(lease.deadline for lease in left), self._loop)

    def _now(self) -> "list[_Lease]":
        # In one step: another thread may end a lease in between.
        return list(self._leases)


class _Lease:
    """A slot that a response holds."""

    __slots__ = ("_leases", "_permit", "_response", "deadline")

    def __init__(
        self, leases: Leases, permit: "Permit", response: ClientResponse, deadline: float
    ) -> None:
        self._leases = leases
        self._permit = permit
        # A weak reference: a response that is dropped must be collected, and its slot come back.
        self._response = weakref.ref(response)
        self.deadline: float = deadline

    def end(self) -> None:
        """Release the permit. Any thread may call it, as the garbage is collected in any."""
        self._leases.forget(self)
        self._permit.release()

    def expire(self) -> None:
        """Close the response. To close its connection alone would leave who reads it waiting."""
        response = self._response()
        if response is not None:
            response.close()
        self.end()  # aiohttp does nothing where the loop of the response is closed


def _sweep(leases: "weakref.ref[Leases]") -> None:
    alive = leases()
    if alive is not None:
        alive.sweep()
