"""Streams that read another one along with the caller: every way to read passes through here.

A caller may read a response (`read`, `text`, `json`) or its `content`, by chunks, lines and
iterators. All of that ends in five methods of the stream, so a stream in its place sees each chunk
when the caller gets it, neither earlier nor copied. One feeds a settlement; another keeps what is
read before the caller gets the response, so that it can be put back.

Invariant: the caller reads each byte once. Only public names of aiohttp are used (`unread_data` is
deprecated).
"""

import asyncio
import sys
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Any

from aiohttp import ClientResponse, StreamReader
from aiohttp.base_protocol import BaseProtocol

from aiothrottle._http.terms import Settlement

# A line longer than twice this limit cannot be read; it is the default of aiohttp.
_LEAST_LIMIT = 1 << 16


class ReadAlong(StreamReader):
    """Reads from another stream, and shows each chunk to `seen`.

    Args:
        source: The other stream.
    """

    def __init__(self, source: StreamReader) -> None:
        # Without the base class's, which would hide the attributes of the source.
        self._source = source

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the source
        return getattr(self._source, name)

    def seen(self, chunk: bytes) -> None:
        """Take a chunk that was read, which may be empty."""
        raise NotImplementedError

    def failed(self) -> None:
        """Take note that reading raised."""

    def _shown(self, chunk: bytes) -> bytes:
        self.seen(chunk)
        return chunk

    async def _along(self, reading: Awaitable[bytes]) -> bytes:
        try:
            chunk = await reading
        except BaseException:
            self.failed()
            raise
        self.seen(chunk)
        return chunk

    async def read(self, n: int = -1) -> bytes:
        if n >= 0:
            return await self._along(self._source.read(n))
        self.set_read_chunk_size(sys.maxsize)
        # One by one: a cancelled reader must not lose the chunks that have arrived.
        chunks: list[bytes] = []
        while chunk := await self.readany():
            chunks.append(chunk)
        return b"".join(chunks)

    async def readany(self) -> bytes:
        return await self._along(self._source.readany())

    async def readuntil(self, *arguments: Any, **options: Any) -> bytes:  # noqa: ANN401 - as there
        return await self._along(self._source.readuntil(*arguments, **options))

    async def readchunk(self) -> tuple[bytes, bool]:
        try:
            chunk, ends = await self._source.readchunk()
        except BaseException:
            self.failed()
            raise
        return self._shown(chunk), ends

    def read_nowait(self, n: int = -1) -> bytes:
        return self._shown(self._source.read_nowait(n))

    async def wait_eof(self) -> None:
        await self._source.wait_eof()

    def feed_data(self, data: bytes, size: int = 0) -> bool:  # noqa: ARG002 - aiohttp's own
        return bool(self._source.feed_data(data))

    def set_read_chunk_size(self, n: int) -> None:
        if hasattr(self._source, "set_read_chunk_size"):  # since aiohttp 3.13.4
            self._source.set_read_chunk_size(n)

    def set_exception(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as there
        self._source.set_exception(*arguments, **options)


class SettledContent(ReadAlong):
    """The body of a response that a settlement needs.

    aiohttp sets an exception when a response is closed or released, however that happens; a
    response that is dropped takes this stream with it.
    """

    def __init__(self, source: StreamReader, settlement: Settlement) -> None:
        super().__init__(source)
        self._settlement = settlement
        self._known = 0

    def seen(self, chunk: bytes) -> None:
        """Feed a chunk, as far as it was not fed when it was read ahead."""
        if self._known:
            known = min(self._known, len(chunk))
            self._known -= known
            chunk = chunk[known:]
        if chunk:
            self._settlement.feed(chunk)
        if self._source.at_eof():
            self._settlement.end(complete=True)

    def failed(self) -> None:
        """End the settlement if the body was lost."""
        if self._source.exception() is not None:  # else the caller may read on, after a timeout
            self._settlement.end(complete=False)

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        """Put back what was read ahead: it is read again, and not fed again."""
        self._known += len(data)
        return super().feed_data(data, size)

    def set_exception(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as there
        """End the settlement: the response is closed or released."""
        self._settlement.end(complete=self._source.at_eof() and not self._source.exception())
        super().set_exception(*arguments, **options)

    def __del__(self) -> None:
        self._settlement.abandon()


@contextmanager
def replayed(response: ClientResponse) -> Generator[None]:
    """Put back at the end what is read of the body in the block, a part or all of it.

    Nothing is put back after an error, or if the response was closed or released.
    """
    source = response.content
    recorder = _Recorder(source)
    response.content = recorder
    try:
        yield
    finally:
        response.content = source
    if recorder.chunks and source.exception() is None:
        response.content = _rewound(source, recorder.chunks)


def _rewound(source: StreamReader, chunks: list[bytes]) -> StreamReader:
    """Return a stream of these chunks and the rest of the source."""
    # Reading makes room for more data, so this may take several turns; none of them waits.
    while chunk := source.read_nowait():
        chunks.append(chunk)
    if not source.is_eof():
        for chunk in chunks:
            source.feed_data(chunk)
        return source
    loop = asyncio.get_running_loop()
    size = sum(map(len, chunks))
    # A stream above its limit asks its protocol to pause, and this one has no connection.
    stream = StreamReader(BaseProtocol(loop), max(_LEAST_LIMIT, size), loop=loop)
    stream.feed_data(b"".join(chunks))
    stream.feed_eof()
    return stream


class _Recorder(ReadAlong):
    """Reads from another stream, and keeps the chunks."""

    def __init__(self, source: StreamReader) -> None:
        super().__init__(source)
        self.chunks: list[bytes] = []

    def seen(self, chunk: bytes) -> None:
        if chunk:
            self.chunks.append(chunk)
