"""What is read of a response's body before its reader has it, given back to every way of reading.

A reader of aiohttp may ask the response (`read`, `text`, `json`) or its `content`, which is a
stream: what was taken out of that one is gone. So it is put back, with public names of aiohttp
only (`unread_data` is deprecated).
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from aiohttp import ClientResponse, StreamReader
from aiohttp.base_protocol import BaseProtocol

__all__ = ["replayed"]

# A reader of lines takes none that is longer than twice this; it is what aiohttp began with.
_LEAST_LIMIT = 1 << 16


@contextmanager
def replayed(response: ClientResponse) -> Generator[None]:
    """Put back at the end whatever is read of the body meanwhile, be it a part or all of it.

    Nothing is put back where an error ends it, or where the response was closed or released.
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
    """Give a stream of these chunks and whatever the source still has, or will get."""
    # Taking out what is there lets more in, so this may take several turns; none of them waits.
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


class _Recorder(StreamReader):
    """Reads from another stream, and keeps what it gave."""

    def __init__(self, source: StreamReader) -> None:
        # Not that of the base class: it would hide the attributes of the source.
        self._source = source
        self.chunks: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the source has
        return getattr(self._source, name)

    def _kept(self, chunk: bytes) -> bytes:
        if chunk:
            self.chunks.append(chunk)
        return chunk

    async def read(self, n: int = -1) -> bytes:
        if n >= 0:
            return self._kept(await self._source.read(n))
        # One by one: who gives up reading must not lose what had come by then.
        chunks: list[bytes] = []
        while chunk := await self.readany():
            chunks.append(chunk)
        return b"".join(chunks)

    async def readany(self) -> bytes:
        return self._kept(await self._source.readany())

    async def readuntil(self, *arguments: Any, **options: Any) -> bytes:  # noqa: ANN401 - as there
        return self._kept(await self._source.readuntil(*arguments, **options))

    async def readchunk(self) -> tuple[bytes, bool]:
        chunk, ends = await self._source.readchunk()
        return self._kept(chunk), ends

    def read_nowait(self, n: int = -1) -> bytes:
        return self._kept(self._source.read_nowait(n))

    async def wait_eof(self) -> None:
        await self._source.wait_eof()

    def set_exception(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as there
        self._source.set_exception(*arguments, **options)
