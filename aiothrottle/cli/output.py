"""What commands print: texts and tables that fit a terminal, and JSON documents.

Into a pipe a text is as wide as it is. Untrusted text cannot move the cursor, and passwords are
hidden.
"""

import json
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TextIO

Row = Sequence[str]

_GAP = "   "
# The part before the "@" of an authority, which ends at a "/", "?" or "#".
_CREDENTIALS = re.compile(r"(?<=//)[^/?#\s]*@")


def printable(text: str) -> str:
    r"""Escape characters that a terminal could take for a command, or would not show.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def without_credentials(text: str) -> str:
    """Hide the user and the password of all URLs in the text.

    >>> without_credentials("https://me:secret@example.org/@you")
    'https://***@example.org/@you'
    """
    return _CREDENTIALS.sub("***@", text) if "@" in text else text


def print_document(document: Mapping[str, object]) -> None:
    """Print one JSON document; a dataclass becomes an object. It must hold no NaN: JSON has none.

    >>> from aiothrottle import Rate
    >>> print_document({"rate": Rate(20, 1.0)})
    {
      "rate": {
        "limit": 20,
        "period": 1.0
      }
    }
    """
    to_object: Callable[..., object] = asdict
    print(json.dumps(document, indent=2, allow_nan=False, default=to_object), flush=True)


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

    The first form that fits is used: the table, its columns as rows, a block for each row.

    Args:
        rows: The head, then the others, each as long as the head.
        width: The width to fit; None: any.
    """
    for form in (rows, list(zip(*rows, strict=True))):
        lines = list(_aligned(form))
        if width is None or max(map(len, lines)) <= width:
            return lines
    return list(_blocks(rows))


def _aligned(rows: Sequence[Row]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield _GAP.join([first.ljust(widths[0]), *cells]).rstrip()


def _blocks(rows: Sequence[Row]) -> Iterator[str]:
    (title, *names), *others = rows
    size = max(map(len, names))
    for first, *cells in others:
        yield f"{title} {first}".strip()
        filled = ((name, cell) for name, cell in zip(names, cells, strict=True) if cell)
        yield from (f"  {name:<{size}}  {cell}" for name, cell in filled)
