"""Reads lines of files, pipes and terminals as they come, of any number and length.

A thread reads, since no event loop can wait for a file, and a pipe may be silent for hours. It
reads at most one chunk ahead of the tasks that take the lines.

Invariant: the unfinished lines are few, or short all together, however many tasks take them.
"""

import asyncio
import io
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self

_CHUNK = 1 << 16
# Bytes of unfinished lines, unless they are few.
_MOST = 64 << 20
# The byte order mark of UTF-8, which some editors write. It is no part of the line.
_MARK = b"\xef\xbb\xbf"


class Source(NamedTuple):
    """A source of lines."""

    #: Shown in error messages; "" is not shown.
    name: str
    #: Gives at most so many bytes, as soon as there are some; none at the end.
    read: Callable[[int], bytes]
    #: The size in bytes, if it is known.
    size: int | None = None


def source_of(text: str) -> Source:
    """Return the source of one line that was an argument."""
    line = os.fsencode(text) + b"\n"  # with the bytes that Python could not decode
    return Source("", io.BytesIO(line).read, len(line))


def open_source(name: str) -> Source:
    """Open a file; - is the standard input.

    Raises:
        OSError: It cannot be opened.
    """
    descriptor = 0 if name == "-" else os.open(name, os.O_RDONLY)
    about = os.fstat(descriptor)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(21, "it is a folder", name)
    size = about.st_size if stat.S_ISREG(about.st_mode) else None
    # Unbuffered: a thread that reads would keep a buffer locked when the program ends.
    return Source("standard input" if name == "-" else name, partial(os.read, descriptor), size)


class Line(NamedTuple):
    """A line of a source, cut off if it is too long."""

    source: str
    number: int
    text: bytes
    #: Its bytes in the source.
    size: int
    #: The lines of the sources before this one.
    before: int = 0

    @property
    def place(self) -> int:
        """Its number among the lines of all sources."""
        return self.before + self.number


class Splitter:
    """Splits chunks into lines, each cut off one byte after `longest`. Pure."""

    def __init__(self, source: str, longest: int, before: int = 0) -> None:
        self._source = source
        self._before = before
        self._most = longest + 1
        self._number = 0
        self._rest = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines that the chunk completes; an empty chunk is the end of the source."""
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
        return Line(self._source, self._number, text[: self._most], size, self._before)

    @property
    def place(self) -> int:
        """The number of lines so far, with those of the sources before."""
        return self._before + self._number


class Lines:
    """The lines of all sources in order, for any number of tasks to iterate over.

    Args:
        sources: The sources.
        longest: Bytes; a longer line is cut off.
        few: How many lines may be unfinished, however long they are.
        most: Bytes; while the unfinished lines have as many, no other one beyond `few` is taken.

    Raises:
        OSError: During iteration: reading a source failed.
    """

    def __init__(
        self, sources: Sequence[Source], longest: int, *, few: int, most: int = _MOST
    ) -> None:
        sizes = [source.size for source in sources]
        self._size = None if None in sizes else sum(size or 0 for size in sizes)
        self._finished = 0
        self._few = few
        self._most = most
        # Those that are unfinished, and their bytes.
        self._count = self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._lines = deque[Line]()
        self._longest = longest
        self._splitter: Splitter | None = None
        self._before = 0
        self._chunks = asyncio.Queue[tuple[str, bytes] | OSError | None]()
        self._turn = asyncio.Lock()
        self._ended = False
        self._wanted = threading.Semaphore(1)
        loop = asyncio.get_running_loop()
        # A daemon: a read from a silent pipe must not block the exit of the process.
        threading.Thread(target=self._pump, args=(loop, sources), daemon=True).start()

    @property
    def fraction(self) -> float | None:
        """The finished part of all lines, from 0 to 1; None if the size is unknown."""
        if self._size is None:
            return None
        return min(1.0, self._finished / self._size) if self._size else 1.0

    def finish(self, line: Line) -> None:
        """Count a line as finished."""
        self._finished += line.size
        self._hold(-1, -line.size)

    def close(self) -> None:
        """End the iteration."""
        self._ended = True
        self._lines.clear()
        self._has_room.set()  # for good, as no line is taken any more
        self._wanted.release()  # wakes the thread, which ends

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Line:
        while not (self._lines and self._has_room.is_set()):
            await self._has_room.wait()
            async with self._turn:
                if not self._lines:
                    await self._read_more()
        line = self._lines.popleft()
        self._hold(1, line.size)
        return line

    def _hold(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size
        if self._ended or self._count < self._few or self._bytes < self._most:
            self._has_room.set()
        else:
            self._has_room.clear()

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
        splitter = self._splitter or Splitter(source, self._longest, self._before)
        self._lines.extend(splitter.feed(content))
        self._before = splitter.place
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
    """Yield the chunks of each source, an empty one at its end, and None at the end of all."""
    try:
        for source in sources:
            while chunk := source.read(_CHUNK):
                yield source.name, chunk
            yield source.name, b""
    except OSError as error:
        yield error
    yield None
