"""`aiothrottle` in a terminal of a number of columns, with keys to press."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tests.background import COMMAND, ENVIRONMENT, STRICT

CTRL_C = b"\x03"
# For keys to reach it, the process has to have the terminal as its own.
_AT_ITS_TERMINAL = f"import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); {COMMAND}"
_LONGEST = 60.0


def rows_of(written: str, columns: int) -> list[str]:
    """Return the rows that a terminal shows, without the spaces at their ends."""
    rows, row, column = [[" "] * columns], 0, 0
    for character in written:
        if character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            column = 0
        else:
            assert character.isprintable(), f"{character!r} is not supported by this terminal"
            if column == columns:  # it wraps at the first character that does not fit
                row += 1
                column = 0
            while len(rows) <= row:
                rows.append([" "] * columns)
            rows[row][column] = character
            column += 1
        while len(rows) <= row:
            rows.append([" "] * columns)
    return ["".join(cells).rstrip() for cells in rows]


class Screen:
    """A process at a terminal: what it wrote there, and the keys."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int, columns: int) -> None:
        self.process = process
        self.written: str = ""
        self._terminal = terminal
        self._columns = columns

    @property
    def rows(self) -> list[str]:
        """The rows that it shows now."""
        return rows_of(self.written, self._columns)

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
        self.written += piece.decode()
        return bool(piece)


@contextmanager
def at_terminal(
    *arguments: str, columns: int, stdout: int | None = None
) -> Generator[Screen, None, None]:
    """Start ``aiothrottle`` at a terminal; `stdout` may be redirected."""
    ours, theirs = pty.openpty()
    environment = {
        name: value for name, value in ENVIRONMENT.items() if name not in {"COLUMNS", "LINES"}
    }
    try:
        termios.tcsetwinsize(theirs, (24, columns))
        with subprocess.Popen(
            [sys.executable, *STRICT, "-c", _AT_ITS_TERMINAL, *arguments],
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
