"""What commands print: texts and tables that fit a terminal, JSON documents, and pictures.

Into a pipe a text is as wide as it is. Untrusted text cannot move the cursor, and passwords are
hidden. A picture shows what a server saw: bars of the arrivals, and their count against the limit.
"""

# matplotlib leaves the types of its keyword arguments open.
# pyright: reportUnknownMemberType=false

import asyncio
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from aiothrottle._checks import number
from aiothrottle.rate import Rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Sequence[str]

_GAP = "   "
# The part before the "@" of an authority, which ends at a "/", "?" or "#".
_CREDENTIALS = re.compile(r"(?<=//)[^/?#\s]*@")


def printable(text: str) -> str:
    r"""Escape characters that a terminal could take for a command, or would not show.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def without_credentials(text: str) -> str:
    """Hide the user and the password of all URLs in the text.

    >>> without_credentials("https://me:secret@example.org/@you")
    'https://***@example.org/@you'
    """
    return _CREDENTIALS.sub("***@", text) if "@" in text else text


def described(error: BaseException) -> str:
    """Return why there is no complete response, without credentials."""
    from aiohttp import ClientResponseError, ServerDisconnectedError  # only fetch and probe need it

    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncio.CancelledError):
        return "aborted"
    if isinstance(error, ServerDisconnectedError):  # its text may be the headers so far
        return "Server disconnected"
    text = str(error) or type(error).__name__
    if type(error) is ClientResponseError:  # of the parser, which marks the place below its text
        text = f"the answer is no valid HTTP: {' '.join(error.message.split()).removesuffix(' ^')}"
    return without_credentials(text)


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


def chosen(found: object, *names: str) -> dict[str, object]:
    """Return some attributes of an object, for a document."""
    return {name: getattr(found, name) for name in names}


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


def print_texts(texts: Iterable[str]) -> None:
    """Print texts as they come, broken to fit a terminal.

    One that begins with a space is a row, or code to copy, and stays as it is.
    """
    width = columns_of(sys.stdout)
    for text in map(printable, texts):
        print(text if text.startswith(" ") else paragraph(text, width), flush=True)


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


# ---- pictures ------------------------------------------------------------------------------------

#: The valid endings of a picture's name.
SUFFIXES = (".png", ".svg")

# Bars per period, and in total: more would be too narrow to see.
_BARS, _MOST_BARS = 10, 400


@dataclass(frozen=True, slots=True)
class Panel:
    """The requests of one crawl, as the server saw them.

    Attributes:
        arrivals: The time of each arrival, in seconds since the start, and whether the request
            was throttled.
        seconds: The length of the crawl.
        rate: The rate limit of the server.
    """

    title: str
    arrivals: Sequence[tuple[float, bool]]
    seconds: float
    rate: Rate

    @property
    def edges(self) -> list[float]:
        """The edges of the bars."""
        width = max(self.rate.period / _BARS, self.seconds / _MOST_BARS)
        return [bar * width for bar in range(int(self.seconds / width) + 2)]

    def rolling_count(self) -> tuple[list[float], list[int]]:
        """Give the instants at which the count of the last period changes, and to what."""
        arrivals = [at for at, _ in self.arrivals]
        leaves = [at + self.rate.period for at in arrivals]
        # At the same instant the old leave first: the window is half-open.
        changes = sorted(
            [*((at, 1) for at in arrivals), *((at, -1) for at in leaves if at < self.seconds)]
        )
        counts = accumulate((change for _, change in changes), initial=0)
        return [0.0, *(at for at, _ in changes)], list(counts)


def save_picture(panels: Sequence[Panel], title: str, picture: Path, messages: TextIO) -> bool:
    """Draw the panels below each other into the file, and return success.

    Its path is printed to `messages`, an error to the standard error.
    """
    from matplotlib.figure import Figure  # large, and only for the picture

    figure = Figure(figsize=(10, 1 + 2.7 * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for panel, axes in zip(panels, rows, strict=True):
        _draw_panel(panel, axes)
    rows[-1].set_xlabel("seconds since the beginning")
    figure.suptitle(title)
    try:
        figure.savefig(picture, dpi=150)
    except OSError as error:
        print(f"The picture cannot be written: {error}.", file=sys.stderr)
        return False
    print(f"The picture is in {picture}.", file=messages)
    return True


def _draw_panel(panel: Panel, axes: "Axes") -> None:
    rate, edges = panel.rate, panel.edges
    instants, counts = panel.rolling_count()
    axes.hist(
        [[at for at, throttled in panel.arrivals if throttled == kind] for kind in (False, True)],
        edges,
        stacked=True,
        color=["#0072b2", "#d55e00"],
        label=[f"{kind} per {number(edges[1], 3)} s" for kind in ("admitted", "throttled")],
    )
    axes.step(
        instants, counts, "#555555", where="post", label=f"sent in the last {number(rate.period)} s"
    )
    axes.axhline(
        rate.limit,
        color="#009e73",
        linestyle="--",
        label=f"the limit, {number(rate.limit)} in {number(rate.period)} s",
    )
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel("requests")
    axes.set_ylim(0, 1.15 * max(rate.limit, *counts))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
