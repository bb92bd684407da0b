"""`aiothrottle` at a terminal of a number of columns: here, or as a process with keys to press."""

import codecs
import os
import pty
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TextIO

import pyte

from tests.support.background import COMMAND, ENVIRONMENT, STRICT

CTRL_C = b"\x03"
# For keys to reach it, the process has to have the terminal as its own.
_AT_ITS_TERMINAL = "import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); "
_LONGEST = 60.0
# More than any command writes: nothing scrolls away.
LINES = 100


class Emulator:
    """A terminal of `columns`, whose rows can be read.

    Attributes:
        written: All that was written to it.
        widest: The columns of the longest row that it showed while its cursor was hidden; 0: that
            was never so.
    """

    def __init__(self, columns: int) -> None:
        self.written: str = ""
        self.widest: int = 0
        self._screen = pyte.Screen(columns, LINES)
        self._stream = pyte.Stream(self._screen)
        # The echo of a key may come between the bytes of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> None:
        text = self._decoder.decode(piece)
        self.written += text
        self._stream.feed(text)
        if self.cursor_is_hidden:
            self.widest = max(self.widest, *map(len, self.rows))

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self._screen.display[: self._screen.cursor.y + 1]]

    @property
    def cursor_is_hidden(self) -> bool:
        return bool(self._screen.cursor.hidden)


class Screen(Emulator):
    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int, columns: int) -> None:
        super().__init__(columns)
        self.process = process
        self._terminal = terminal

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            assert self._read(), f"it ended with {self.rows}"

    def finish(self) -> int:
        while self._read():
            pass
        return self.process.wait(_LONGEST)

    def _read(self) -> bool:
        """Read a piece of output; False: the process has closed the terminal."""
        ready, _, _ = select.select([self._terminal], [], [], _LONGEST)
        assert ready, f"no output came after {self.rows}"
        piece = _read(self._terminal)
        if piece:
            self.feed(piece)
        return bool(piece)


def _read(terminal: int) -> bytes:
    """Read a piece of output; none: no process has the terminal open."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux
        return b""


@contextmanager
def emulated(columns: int) -> Generator[tuple[TextIO, Emulator]]:
    """Open a terminal: the stream to write to, and what it has shown when the block has ended."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, columns))
    emulator = Emulator(columns)

    def read() -> None:
        while piece := _read(ours):
            emulator.feed(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as stream:
            yield stream, emulator
    finally:
        reader.join()
        os.close(ours)


@contextmanager
def at_terminal(
    *arguments: str,
    columns: int,
    stdout: int | None = None,
    code: str = COMMAND,
    variables: Mapping[str, str] | None = None,
) -> Generator[Screen, None, None]:
    """Start ``aiothrottle`` at a terminal; `stdout`, the code and variables may be others."""
    ours, theirs = pty.openpty()
    unset = {"COLUMNS", "LINES", "NO_COLOR"}
    environment = {name: it for name, it in ENVIRONMENT.items() if name not in unset}
    termios.tcsetwinsize(theirs, (LINES, columns))
    process = subprocess.Popen(
        [sys.executable, *STRICT, "-c", _AT_ITS_TERMINAL + code, *arguments],
        env=environment | {"TERM": "xterm-256color", **(variables or {})},
        start_new_session=True,
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
    )
    os.close(theirs)
    with process:
        try:
            yield Screen(process, ours, columns)
        finally:
            process.kill()
    os.close(ours)
