"""Tables and texts that fit the width of a terminal; into a pipe they are as wide as they are."""

import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

__all__ = ["columns_of", "fitted", "paragraph"]

Row = Sequence[str]

_GAP = "   "


def columns_of(stream: TextIO) -> int | None:
    """Return the width of a terminal; None: the stream is none."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:  # an object that only says that it is one
        columns = 0
    return columns or shutil.get_terminal_size().columns


def paragraph(text: str, width: int | None) -> str:
    """Break a text at its spaces; a longer word stays whole, as it may be copied.

    >>> print(paragraph("a server on this machine", 12))
    a server on
    this machine
    """
    if width is None or len(text) <= width:
        return text
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def fitted(rows: Sequence[Row], width: int | None) -> list[str]:
    """Return the lines of a table: texts are aligned left, the other columns right.

    The first form that fits is used: heads in one line, heads in several lines, the columns as
    rows, and at last a block for each row.

    Args:
        rows: The head, then the others, each as long as the head.
        width: The width to fit; None: any.
    """
    for form in (_plain, _folded, _turned):
        lines = list(form(rows))
        if width is None or max(map(len, lines)) <= width:
            return lines
    return list(_blocks(rows))


def _plain(rows: Sequence[Row]) -> Iterator[str]:
    return _aligned(rows)


def _folded(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table with the words of the head below each other, where that is narrower."""
    head, *others = rows
    bodies = [max(map(len, column)) for column in zip(*others, strict=True)]
    names = [
        textwrap.wrap(name, max([1, body, *map(len, name.split())]), break_on_hyphens=False)
        for name, body in zip(head, bodies, strict=True)
    ]
    height = max(map(len, names))
    heads = ([*[""] * (height - len(name)), *name] for name in names)
    return _aligned([*zip(*heads, strict=True), *others])


def _turned(rows: Sequence[Row]) -> Iterator[str]:
    return _folded(list(zip(*rows, strict=True)))


def _blocks(rows: Sequence[Row]) -> Iterator[str]:
    (title, *names), *others = rows
    size = max(map(len, names))
    for first, *cells in others:
        yield f"{title} {first}".strip()
        filled = ((name, cell) for name, cell in zip(names, cells, strict=True) if cell)
        yield from (f"  {name:<{size}}  {cell}" for name, cell in filled)


def _aligned(rows: Iterable[Row]) -> Iterator[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield _GAP.join([first.ljust(widths[0]), *cells]).rstrip()
