"""The slot of a response: until its stream is closed, fails, or is collected."""

import asyncio
from collections.abc import AsyncIterator

from aiothrottle.permit import Permit
from aiothrottle.transport.library import Stream

__all__ = ["HeldStream", "Lease"]


class Lease:
    """The slot of a response, and the stream that has to be closed before it is given back."""

    __slots__ = ("_all", "_loop", "_permit", "_timer", "stream")

    def __init__(
        self, permit: Permit, stream: Stream, seconds: float | None, leases: "set[Lease]"
    ) -> None:
        self.stream: Stream = stream
        self._permit = permit
        self._loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._expire)
        self._all = leases
        leases.add(self)

    async def end(self) -> None:
        """Close the stream, then give the slot back. Idempotent.

        Who asks may be cancelled meanwhile. A stream whose closing is interrupted is lost: it stays
        open, and counts as closed. So that is left to a task.
        """
        if self in self._all:
            await asyncio.shield(self._close_soon())

    def release(self) -> None:
        """Give the slot back: the connection is closed, or as good as."""
        self._all.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._permit.release()

    def abandon(self) -> None:
        """End it on its loop, as nobody else will. Any thread may call it."""
        if self not in self._all:
            return
        try:
            self._loop.call_soon_threadsafe(self._expire)
        except RuntimeError:  # the loop is closed, and cannot close the stream any more
            self.release()

    def _expire(self) -> None:
        if self in self._all:
            self._close_soon()

    def _close_soon(self) -> asyncio.Task[None]:
        self._all.discard(self)
        task = self._loop.create_task(self._close())
        _closing.add(task)
        task.add_done_callback(_closed)
        return task

    async def _close(self) -> None:
        try:
            await self.stream.aclose()
        finally:
            self.release()


# The loop itself refers to its tasks only weakly.
_closing: set[asyncio.Task[None]] = set()


def _closed(task: asyncio.Task[None]) -> None:
    _closing.discard(task)
    if not task.cancelled():
        task.exception()  # who waits for it is told; often nobody does


class HeldStream:
    """The body of a response, that holds a slot until it is closed, fails, or is collected.

    A subclass for each library is an `AsyncByteStream` too.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._lease.stream:
                yield chunk
        except BaseException:  # also that of who leaves early
            await self._lease.end()
            raise

    async def aclose(self) -> None:
        """Close the body, and give the slot back."""
        await self._lease.end()

    def __del__(self) -> None:
        # The client's pool would keep the connection of a response that is dropped for ever.
        self._lease.abandon()
