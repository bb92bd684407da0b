"""Splits a stream of server-sent events into the data of each event.

Invariant: the result depends on the bytes alone, not on the chunks in which they come, and at most
`longest` bytes are kept. It works on bytes, as no part of a character is a line end in UTF-8.
"""

import re
from collections.abc import Iterator

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventStream:
    r"""Reads server-sent events (WHATWG HTML, section 9.2) incrementally.

    Args:
        longest: Bytes. The data of a longer event is skipped.

    >>> events = EventStream()
    >>> list(events.feed(b"event: a\r\ndata: {}\r\n\r")), list(events.feed(b"\ndata: 1"))
    ([b'{}'], [])
    """

    __slots__ = ("_after_return", "_data", "_first", "_line", "_longest", "_lost", "_size")

    def __init__(self, longest: int = 1 << 20) -> None:
        self._longest = longest
        self._line = bytearray()
        self._data: list[bytes] = []  # the lines of data of the event so far
        self._size = 0  # of these lines
        self._lost = False  # the event is too long, and is skipped up to the next blank line
        self._after_return = False  # a line feed that follows is of the same line end
        self._first = True

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that ends in this chunk."""
        if not chunk:
            return
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_return = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        for part in ended:
            self._extend(part)
            if (data := self._end_line()) is not None:
                yield data
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        if self._size + len(self._line) + len(part) > self._longest:
            self._lost = True
        if self._lost:
            # Only whether the line is blank is still of interest.
            self._data.clear()
            self._size = 0
            self._line[:] = (self._line + part[:1])[:1]
        else:
            self._line += part

    def _end_line(self) -> bytes | None:
        """End the line, and return the data of the event if the line is blank and ends one."""
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            data = b"\n".join(self._data) if self._data else None
            self._data.clear()
            self._size = 0
            self._lost = False
            return data
        name, _, value = line.partition(b":")
        if name == b"data" and not self._lost:
            self._data.append(value.removeprefix(b" "))
            self._size += len(line) + 1
        return None
