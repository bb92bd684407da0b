"""The lines of files, pipes and terminals, as they come, however many and however long they are.

A thread reads, since no event loop can wait for a file, and a pipe may be silent for hours. It
reads no further than one chunk ahead of who takes the lines.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

__all__ = ["Line", "Lines", "Source", "Splitter"]

_CHUNK = 1 << 16
# What some editors begin a file with. It is no part of the line.
_MARK = b"\xef\xbb\xbf"


class Source(NamedTuple):
    """Where lines come from."""

    #: Told with what is wrong in it; "" goes without saying.
    name: str
    #: Gives at most so many bytes, as soon as there are some; none at the end.
    read: Callable[[int], bytes]
    #: All bytes, where that is known.
    size: int | None = None


class Line(NamedTuple):
    """A line of a source; of one that is too long, its beginning."""

    source: str
    number: int
    text: bytes
    #: Bytes that it took in the source.
    size: int


class Splitter:
    """Cuts chunks into lines, and keeps no more than `longest` bytes (and one) of any. Pure."""

    def __init__(self, source: str, longest: int) -> None:
        self._source = source
        self._most = longest + 1
        self._number = 0
        self._rest = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Give the lines that the chunk completes; an empty chunk is the end, and completes all."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = b""
        for line in lines:
            yield self._line(line, len(line) + 1)
        if not chunk and (rest or self._dropped):
            yield self._line(rest, len(rest))
        else:
            keep = self._most + len(_MARK)
            self._dropped += max(0, len(rest) - keep)
            self._rest = rest[:keep]

    def _line(self, text: bytes, size: int) -> Line:
        self._number += 1
        size += self._dropped
        self._dropped = 0
        if self._number == 1:
            text = text.removeprefix(_MARK)
        return Line(self._source, self._number, text[: self._most], size)


class Lines:
    """The lines of all sources, one after the other, for any number of tasks that take them.

    Raises:
        OSError: On taking: a source could not be read any further.
    """

    def __init__(self, sources: Sequence[Source], longest: int) -> None:
        sizes = [source.size for source in sources]
        self._size = None if None in sizes else sum(size or 0 for size in sizes)
        self._finished = 0
        self._lines = deque[Line]()
        self._longest = longest
        self._splitter: Splitter | None = None
        self._chunks = asyncio.Queue[tuple[str, bytes] | OSError | None]()
        self._turn = asyncio.Lock()
        self._ended = False
        self._wanted = threading.Semaphore(1)
        loop = asyncio.get_running_loop()
        # As a daemon: a read that waits for a silent pipe keeps nobody from leaving.
        threading.Thread(target=self._pump, args=(loop, sources), daemon=True).start()

    @property
    def fraction(self) -> float | None:
        """How much of all is finished, from 0 to 1; None: nobody knows how much there is."""
        if self._size is None:
            return None
        return min(1.0, self._finished / self._size) if self._size else 1.0

    def finish(self, line: Line) -> None:
        """Count a line as finished."""
        self._finished += line.size

    def close(self) -> None:
        """Give no more lines."""
        self._ended = True
        self._lines.clear()
        self._wanted.release()  # for the thread to see it

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Line:
        while not self._lines:
            async with self._turn:
                if not self._lines:
                    await self._read_more()
        return self._lines.popleft()

    async def _read_more(self) -> None:
        if self._ended:
            raise StopAsyncIteration
        chunk = await self._chunks.get()
        self._wanted.release()
        if isinstance(chunk, OSError):
            raise chunk
        if chunk is None:
            self._ended = True
            return
        source, content = chunk
        splitter = self._splitter or Splitter(source, self._longest)
        self._lines.extend(splitter.feed(content))
        self._splitter = splitter if content else None  # the next source begins at line 1

    def _pump(self, loop: asyncio.AbstractEventLoop, sources: Sequence[Source]) -> None:
        for chunk in _read(sources):
            self._wanted.acquire()
            if self._ended:
                return
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed
                return


def _read(sources: Sequence[Source]) -> Iterator[tuple[str, bytes] | OSError | None]:
    """Give the chunks of each source, an empty one at its end, None at the end of all."""
    try:
        for source in sources:
            while chunk := source.read(_CHUNK):
                yield source.name, chunk
            yield source.name, b""
    except OSError as error:
        yield error
    yield None
