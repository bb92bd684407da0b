"""Output to terminals: untrusted text cannot move the cursor, and passwords are hidden."""

import contextlib
import os
import re
import shutil
from typing import TextIO

__all__ = ["StatusLine", "printable", "without_credentials"]

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


class StatusLine:
    """The last line of a terminal, overwritten by each update.

    Nothing is written if the stream is no terminal.
    """

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._is_terminal = screen.isatty()

    def show(self, line: str) -> None:
        """Replace the line, cut off to one row: an update cannot overwrite a wrapped line."""
        if not self._is_terminal:
            return
        # A character in the last column would wrap the line.
        width = max(1, self._columns() - 1)
        # A terminal echoes Ctrl-C after the line: it must fit, and is overwritten too.
        line = line[: max(0, width - len("^C"))]
        print(f"\r{line:<{width}}\r{line}", end="", file=self._screen, flush=True)

    def clear(self) -> None:
        """Remove the line, and what was typed after it."""
        self.show("")

    def _columns(self) -> int:
        """Return the width of this screen; the standard output may be elsewhere."""
        with contextlib.suppress(OSError):
            if columns := os.get_terminal_size(self._screen.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns
