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
from collections.abc import Callable, Generator, Iterator, Sequence
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
    if name == "-":
        os.read(descriptor, 0)  # fails now if it was closed
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


def split(source: Source, longest: int, before: int = 0) -> Generator[list[Line], None, int]:
    """Yield the lines that each chunk of a source completes, cut off one byte after `longest`.

    Args:
        source: The source.
        longest: Bytes.
        before: The number of lines of the sources before.

    Returns:
        The number of lines.

    Raises:
        OSError: Reading the source failed.
    """
    keep = longest + 1 + len(_MARK)
    count, rest, dropped = 0, b"", 0
    ended = False
    while not ended:
        chunk = source.read(_CHUNK)
        ended = not chunk
        *texts, rest = (rest + chunk).split(b"\n")
        sizes = [len(text) + 1 for text in texts]
        if ended and (rest or dropped):  # the last line has no end
            texts, sizes = [rest], [len(rest)]
        lines: list[Line] = []
        for text, size in zip(texts, sizes, strict=True):
            count += 1
            text = text.removeprefix(_MARK) if count == 1 else text  # noqa: PLW2901
            lines.append(Line(source.name, count, text[: longest + 1], size + dropped, before))
            dropped = 0
        yield lines
        dropped += max(0, len(rest) - keep)
        rest = rest[:keep]
    return count


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
        # Of each chunk, an error, or None at the end.
        self._chunks = asyncio.Queue[list[Line] | OSError | None]()
        self._turn = asyncio.Lock()
        self._ended = False
        self._wanted = threading.Semaphore(1)
        loop = asyncio.get_running_loop()
        # A daemon: a read from a silent pipe must not block the exit of the process.
        threading.Thread(target=self._pump, args=(loop, sources, longest), daemon=True).start()

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
        lines = await self._chunks.get()
        self._wanted.release()
        if isinstance(lines, OSError):
            raise lines
        if lines is None:
            self._ended = True
            return
        self._lines.extend(lines)

    def _pump(
        self, loop: asyncio.AbstractEventLoop, sources: Sequence[Source], longest: int
    ) -> None:
        for lines in _read(sources, longest):
            self._wanted.acquire()
            if self._ended:
                return
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, lines)
            except RuntimeError:  # the loop is closed
                return


def _read(sources: Sequence[Source], longest: int) -> Iterator[list[Line] | OSError | None]:
    """Yield the lines of all sources, chunk by chunk, and None at the end."""
    count = 0
    try:
        for source in sources:
            count += yield from split(source, longest, count)
    except OSError as error:
        yield error
    yield None
