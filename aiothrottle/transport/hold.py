"""How long a response holds its slot, and what reads its body along with the caller.

A slot is held until the stream is closed, fails, or is collected; the settlement of the body ends
then too, if there is one. The stream has the body as it was sent: it is decoded for a settlement.

Invariant: a slot is released once, after its stream is closed; no more than a piece of a decoded
body is in memory here. Gzip and deflate are decoded chunk by chunk. Anything else is decoded by the
library at the end of the body, if that is short enough; else the body counts as incomplete, and the
cost stays as it was charged.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any, Final, TypeAlias

from aiothrottle._http.terms import Settlement
from aiothrottle.permit import Permit

#: The module of a library; all of them have the same names.
AnyLibrary: TypeAlias = Any
_AnyStream: TypeAlias = Any


class Hold:
    """The slot of a response, and the stream that is closed before the slot is released.

    It knows no `HeldStream`: a timer and the transport refer to it, and a dropped response must be
    collected all the same.
    """

    __slots__ = ("_all", "_loop", "_permit", "_timer", "settlement", "stream")

    def __init__(
        self, permit: Permit, stream: _AnyStream, seconds: float | None, holds: "set[Hold]"
    ) -> None:
        self.stream: _AnyStream = stream
        #: What gets each chunk of the body, once, when it is first read, if anything does.
        self.settlement: Settlement | DecodedBody | None = None
        self._permit = permit
        self._loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._expire)
        self._all = holds
        holds.add(self)

    async def end(self) -> None:
        """Close the stream, then release the slot. Idempotent.

        The caller may be cancelled during the call. A stream whose closing is interrupted stays
        open, and counts as closed, so a task of its own closes it.
        """
        if self in self._all:
            await asyncio.shield(self._close_soon())

    def release(self) -> None:
        """Release the slot: the connection is closed, or about to be."""
        self._all.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._permit.release()
        if self.settlement is not None:
            self.settlement.end(complete=False)  # unless the body has ended

    def abandon(self) -> None:
        """End the hold of a dropped response, on its loop. Thread-safe."""
        if self not in self._all:
            return
        try:
            self._loop.call_soon_threadsafe(self._expire)
        except RuntimeError:  # the loop is closed, and the stream stays open
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
        task.exception()  # `end` raises it; where no caller awaits that, it is not reported


class HeldStream:
    """The body of a response. It holds a slot until its end, or until it is closed or collected.

    Chunks that were read ahead, to judge the response, are kept: the caller reads them first, then
    the rest. The subclass for each library is an `AsyncByteStream` too.

    Args:
        hold: What is held.
        given_up: The library's error for a body whose reading was interrupted.
    """

    def __init__(self, hold: Hold, given_up: type[Exception]) -> None:
        self.hold = hold
        self._given_up = given_up
        # One iterator for both: ending `read_ahead` early must not end the body.
        self._source: AsyncIterator[bytes] | None = None
        self._ahead: list[bytes] = []
        self._error: Exception | None = None

    async def read_ahead(self) -> AsyncIterator[bytes]:
        """Yield the body, which can still be read from its beginning."""
        for chunk in tuple(self._ahead):
            yield chunk
        while (more := await self._next()) is not None:
            self._ahead.append(more)
            yield more

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._ahead:
                yield chunk
            while (more := await self._next()) is not None:
                yield more
        except BaseException:  # also the GeneratorExit of a reader that stops early
            self._source = None
            await self.hold.end()
            raise

    async def aclose(self) -> None:
        """Close the body and release the slot."""
        await self.hold.end()

    def __del__(self) -> None:
        # The client's pool would keep the connection of a dropped response for ever.
        self.hold.abandon()

    async def _next(self) -> bytes | None:
        """Return the next chunk of the body, or None at its end."""
        if self._error is not None:
            raise self._error
        if self._source is None:
            self._source = aiter(self.hold.stream)
        try:
            chunk = await anext(self._source, None)
        except BaseException as error:
            # The iterator has ended now, as if this were the end of the body.
            given_up = self._given_up("reading the body was given up, and cannot be resumed")
            self._error = error if isinstance(error, Exception) else given_up
            await self.hold.end()
            raise
        settlement = self.hold.settlement
        if chunk is None:
            if settlement is not None:
                settlement.end(complete=True)
            await self.hold.end()
        elif settlement is not None:
            settlement.feed(chunk)
        return chunk


@cache  # a class for each transport would be garbage in cycles
def stream_of(library: AnyLibrary) -> type[HeldStream]:
    """Return the class of the streams that a client of the library accepts."""
    return type("HeldStream", (HeldStream, library.AsyncByteStream), {})


# Bytes: of decoded pieces, of the encoded body that is kept, and of what becomes of it.
_PIECE: Final = 1 << 16
_LONGEST_ENCODED: Final = 1 << 20
_LONGEST_DECODED: Final = 1 << 24
# Bytes of an encoded piece: it may be a thousand times as long when it is decoded.
_ENCODED_PIECE: Final = 1 << 10


def decode(library: AnyLibrary, encoding: str, body: bytes, longest: int) -> Iterator[bytes]:
    """Yield the pieces of a body without its Content-Encoding.

    Raises:
        DecodingError: The library's: the body cannot be decoded, or gets longer than `longest`.
    """
    encoded = (body[at : at + _ENCODED_PIECE] for at in range(0, len(body), _ENCODED_PIECE))
    headers = {"Content-Encoding": encoding.encode()}  # a text would have to be ASCII
    for piece in library.Response(200, headers=headers, content=encoded).iter_bytes():
        longest -= len(piece)
        if longest < 0:
            raise library.DecodingError("the decoded body is too long")
        yield piece


class DecodedBody:
    """Feeds a settlement with the decoded body.

    Args:
        settlement: The settlement.
        encoding: The Content-Encoding of the body.
        library: The module of the client, which decodes what is neither gzip nor deflate.
    """

    __slots__ = ("_begun", "_encoding", "_has_ended", "_kept", "_library", "_settlement", "_zlib")

    def __init__(self, settlement: Settlement, encoding: str, library: AnyLibrary) -> None:
        self._settlement = settlement
        self._encoding = encoding.strip().lower()
        self._library = library
        self._begun = self._has_ended = False
        self._kept = bytearray()
        self._zlib: Any = None  # a zlib.decompressobj
        if self._encoding in ("gzip", "x-gzip"):
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
        elif self._encoding == "deflate":
            self._zlib = zlib.decompressobj()

    def feed(self, chunk: bytes, /) -> None:
        """Take a chunk of the encoded body."""
        if self._has_ended:
            return
        if self._zlib is not None:
            self._inflate(chunk)
            return
        self._kept += chunk
        if len(self._kept) > _LONGEST_ENCODED:
            self.end(complete=False)

    def end(self, *, complete: bool) -> None:
        """Take the end of the encoded body."""
        if self._has_ended:
            return
        self._has_ended = True
        if complete and self._zlib is not None:
            complete = self._zlib.eof or not self._begun  # there is no body of a HEAD request
        elif complete:
            try:
                pieces = decode(self._library, self._encoding, bytes(self._kept), _LONGEST_DECODED)
                for piece in pieces:
                    self._settlement.feed(piece)
            except self._library.DecodingError:  # the caller's reading raises it too
                complete = False
        self._kept.clear()
        self._settlement.end(complete=complete)

    def _inflate(self, chunk: bytes) -> None:
        begun, self._begun = self._begun, self._begun or bool(chunk)
        try:
            # What follows the end is no part of the body, and the libraries ignore it.
            while not self._zlib.eof and (decoded := self._zlib.decompress(chunk, _PIECE)):
                begun = True
                self._settlement.feed(decoded)
                chunk = self._zlib.unconsumed_tail
        except zlib.error:
            if self._encoding != "deflate" or begun:
                self.end(complete=False)
                return
            # Some servers send it without its header, as the libraries know too.
            self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
            self._inflate(chunk)
