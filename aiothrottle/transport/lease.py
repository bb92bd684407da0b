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
    """The body of a response, that holds a slot until its end, or until it is closed or collected.

    What is read ahead of the caller, to judge the response, is given to the caller anew: first
    that, and then whatever still comes. A subclass for each library is an `AsyncByteStream` too.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        # One iterator for both: who leaves the first one early must not end the second one.
        self._source: AsyncIterator[bytes] | None = None
        self._ahead: list[bytes] = []
        self._error: Exception | None = None
        self._is_read_ahead = False

    async def read_ahead(self) -> bytes:
        """Read all of the body, without a trace in its response."""
        return b"".join([chunk async for chunk in self._read_ahead()])

    def begin_reading_ahead(self) -> None:
        """Keep what is read from now on, and stay open when it is closed."""
        self._is_read_ahead = True

    def end_reading_ahead(self) -> None:
        """Begin anew, with what was read."""
        self._is_read_ahead = False

    async def end(self) -> None:
        """Close the body, and give the slot back, whoever still reads."""
        await self._lease.end()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._read_ahead() if self._is_read_ahead else self._read()

    async def aclose(self) -> None:
        """Close the body, and give the slot back; not while it is read ahead."""
        if not self._is_read_ahead:
            await self._lease.end()

    def __del__(self) -> None:
        # The client's pool would keep the connection of a response that is dropped for ever.
        self._lease.abandon()

    async def _read_ahead(self) -> AsyncIterator[bytes]:
        for chunk in tuple(self._ahead):
            yield chunk
        while (more := await self._next()) is not None:
            self._ahead.append(more)
            yield more

    async def _read(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._ahead:
                yield chunk
            while (more := await self._next()) is not None:
                yield more
        except BaseException:  # also that of who leaves early
            self._source = None
            await self._lease.end()
            raise

    async def _next(self) -> bytes | None:
        """Give the next piece of the body, None at its end."""
        if self._error is not None:
            raise self._error
        if self._source is None:
            self._source = aiter(self._lease.stream)
        try:
            chunk = await anext(self._source, None)
        except BaseException as error:
            # The iterator has ended now, as if this were the end of the body.
            given_up = RuntimeError("reading the body was given up, and cannot be resumed")
            self._error = error if isinstance(error, Exception) else given_up
            await self._lease.end()
            raise
        if chunk is None:
            await self._lease.end()
        return chunk
