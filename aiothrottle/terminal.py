"""What is said to a person: nothing a stranger wrote may move the cursor, nor tell a password."""

import contextlib
import os
import re
import shutil
from typing import TextIO

__all__ = ["StatusLine", "printable", "without_credentials"]

# What stands before the "@" of an authority. A "/", "?" or "#" ends the authority.
_CREDENTIALS = re.compile(r"(?<=//)[^/?#\s]*@")


def printable(text: str) -> str:
    r"""Escape what a terminal could take for a command, or would not show.

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
    """The last line of a terminal, written again and again, below all others.

    Nothing is written to what is no terminal.
    """

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._is_terminal = screen.isatty()

    def show(self, line: str) -> None:
        """Replace the line. One that is too long would leave a trail of its first parts."""
        if not self._is_terminal:
            return
        # A character in the last column would wrap the line.
        width = max(1, self._columns() - 1)
        # A terminal echoes Ctrl-C behind the line: it has to fit in, and is overwritten too.
        line = line[: max(0, width - len("^C"))]
        print(f"\r{line:<{width}}\r{line}", end="", file=self._screen, flush=True)

    def clear(self) -> None:
        """Take the line away, and what was typed behind it."""
        self.show("")

    def _columns(self) -> int:
        """Return the width of this screen; the standard output may be elsewhere."""
        with contextlib.suppress(OSError):
            if columns := os.get_terminal_size(self._screen.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns
