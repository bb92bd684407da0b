"""What is said to a person: nothing a stranger wrote may move the cursor, nor tell a password."""

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
    """The last line of a terminal, written again and again, below all others."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._length = 0

    def show(self, line: str) -> None:
        """Replace the line. One that is too long would leave a trail of its first parts."""
        line = line[: shutil.get_terminal_size().columns - 1]
        print(f"\r{line:<{self._length}}\r{line}", end="", file=self._screen, flush=True)
        self._length = len(line)

    def clear(self) -> None:
        """Take the line away."""
        if self._length:
            self.show("")
