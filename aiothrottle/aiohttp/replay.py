"""Puts back what was read of a response's body before the caller gets the response.

A caller may read the response (`read`, `text`, `json`) or its `content`, which is a stream: chunks
taken out of it are gone. So they are put back, with public names of aiohttp only (`unread_data` is
deprecated).
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import ClientResponse, StreamReader
from aiohttp.base_protocol import BaseProtocol

from aiothrottle.aiohttp.content import ReadAlong

__all__ = ["replayed"]

# A line longer than twice this limit cannot be read; it is the default of aiohttp.
_LEAST_LIMIT = 1 << 16


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
