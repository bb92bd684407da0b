"""`aiothrottle` in a terminal of a number of columns, with keys to press."""

import codecs
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import pyte

from tests.background import COMMAND, ENVIRONMENT, STRICT

CTRL_C = b"\x03"
# For keys to reach it, the process has to have the terminal as its own.
_AT_ITS_TERMINAL = "import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); "
_LONGEST = 60.0
# More than any command writes: nothing scrolls away.
LINES = 100


class Emulator:
    """A terminal of `columns`, whose rows can be read."""

    def __init__(self, columns: int) -> None:
        self._screen = pyte.Screen(columns, LINES)
        self._stream = pyte.Stream(self._screen)

    def feed(self, written: str) -> None:
        self._stream.feed(written)

    @property
    def rows(self) -> list[str]:
        """The rows down to the cursor, without the spaces at their ends."""
        return [row.rstrip() for row in self._screen.display[: self._screen.cursor.y + 1]]

    @property
    def cursor_is_hidden(self) -> bool:
        return bool(self._screen.cursor.hidden)


class Screen:
    """A process at a terminal: what it wrote there, and the keys."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int, columns: int) -> None:
        self.process = process
        self.written: str = ""
        self._terminal = terminal
        self._emulator = Emulator(columns)
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    @property
    def rows(self) -> list[str]:
        """The rows that it shows now."""
        return self._emulator.rows

    @property
    def cursor_is_hidden(self) -> bool:
        """Whether the cursor is hidden now."""
        return self._emulator.cursor_is_hidden

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._terminal, keys)

    def wait(self, until: Callable[[], bool]) -> None:
        """Read the output until the condition holds."""
        end = time.monotonic() + _LONGEST
        while not until():
            assert self._read(end), f"it ended with {self.rows}"

    def finish(self) -> int:
        """Read all output, and return the exit status."""
        end = time.monotonic() + _LONGEST
        while self._read(end):
            pass
        return self.process.wait(_LONGEST)

    def _read(self, end: float) -> bool:
        """Read a piece of output; False: the process has closed the terminal."""
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"no output came after {self.rows}"
        try:
            piece = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux: no process has the terminal open
            return False
        text = self._decoder.decode(piece)
        self.written += text
        self._emulator.feed(text)
        return bool(piece)


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
    environment = {
        name: value
        for name, value in ENVIRONMENT.items()
        if name not in {"COLUMNS", "LINES", "NO_COLOR"}
    }
    environment |= {"TERM": "xterm-256color", **(variables or {})}
    try:
        termios.tcsetwinsize(theirs, (LINES, columns))
        with subprocess.Popen(
            [sys.executable, *STRICT, "-c", _AT_ITS_TERMINAL + code, *arguments],
            env=environment,
            start_new_session=True,
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            theirs = -1
            try:
                yield Screen(process, ours, columns)
            finally:
                process.kill()
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
