"""Writes records to a file that survives an interrupted run, or to a pipe that may be slow."""

import asyncio
import json
import os
import select
import stat
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

from aiothrottle.cli.fetch.results.record import BEGINNING, Id, identity

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Done", "Output", "OutputError", "digest", "open_output"]

_STANDARD_OUTPUT = 1
# Windows has no such flag, and lets only administrators create links.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
# A pipe that is ready accepts this much without blocking (POSIX's PIPE_BUF).
_PIECE: int = getattr(select, "PIPE_BUF", 512)


class OutputError(Exception):
    """The output cannot be opened or written."""


class Done:
    """The identities in the output, by their digests, as there may be millions."""

    def __init__(self, identities: Iterable[str] = ()) -> None:
        self._counts = Counter(map(digest, identities))

    def take(self, identity: str) -> bool:
        """Return whether the identity is in the output, and remove one occurrence."""
        if not self._counts:
            return False
        found = digest(identity)
        left = self._counts[found]
        if left > 1:
            self._counts[found] = left - 1
        else:
            del self._counts[found]
        return left > 0

    def __len__(self) -> int:
        return self._counts.total()


class Output:
    """Writes lines. When `write` returns, the operating system has the whole line."""

    def __init__(self, descriptor: int, done: Done) -> None:
        self.done = done
        self._descriptor = descriptor
        self._turn = asyncio.Lock()
        self._at_once = stat.S_ISREG(os.fstat(descriptor).st_mode)
        # Even if it is a file, --resume cannot read the standard output.
        self.can_resume: bool = self._at_once and descriptor != _STANDARD_OUTPUT
        self.on_terminal: bool = os.isatty(descriptor)

    async def write(self, line: bytes) -> None:
        """Write a line, in the order of the calls.

        Raises:
            OutputError: The line cannot be written: the disk is full, or the reader is gone.
        """
        rest = memoryview(line)
        try:
            if not self._at_once:
                async with self._turn:
                    while rest and not self._at_once:
                        await self._ready()
                        rest = rest[os.write(self._descriptor, rest[:_PIECE]) :]
            while rest:  # without an await, so that lines do not interleave
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise OutputError(f"the output cannot be written: {error.strerror}") from error

    async def _ready(self) -> None:
        """Wait until a pipe has room, without blocking the requests."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        try:
            loop.add_writer(self._descriptor, ready.set_result, None)
        except (PermissionError, NotImplementedError):  # a device, or Windows: never waits
            self._at_once = True
            return
        try:
            await ready
        finally:
            loop.remove_writer(self._descriptor)

    def close(self) -> None:
        """Close the file, unless it is the standard output."""
        if self._descriptor != _STANDARD_OUTPUT:
            os.close(self._descriptor)


def open_output(path: Path | None, *, resume: bool, follow: bool = True) -> Output:
    """Open the file, or the standard output.

    With `resume` its records are read, and a last line that a crash cut off is removed.

    Args:
        path: The file; None: the standard output.
        resume: Whether the file may have records.
        follow: Whether the file may be a symbolic link, which is safe only if the user named it.

    Raises:
        OutputError: The file cannot be written; or it is not empty, without `resume`; or it
            contains other data than records.
    """
    if path is None:
        return Output(_STANDARD_OUTPUT, Done())
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (0 if follow else _NO_LINK)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if not follow and path.is_symlink():
            raise OutputError(
                f"{path} is a symbolic link: remove it, or name another file by --output"
            ) from None
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    try:
        return Output(descriptor, _begin(descriptor, path, resume=resume))
    except BaseException:
        os.close(descriptor)
        raise


def _begin(descriptor: int, path: Path, *, resume: bool) -> Done:
    _lock(descriptor, path)
    if not os.fstat(descriptor).st_size:
        return Done()
    if not resume:
        raise OutputError(f"{path} is not empty: continue it with --resume, or remove it")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        done = Done(_identities(file, path))
        end = file.tell()
    os.ftruncate(descriptor, end)
    return done


def _lock(descriptor: int, path: Path) -> None:
    """Lock the file, so that no two runs write to it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(f"another aiothrottle writes to {path}") from None
    except OSError:  # a file system without locks
        pass


def _identities(file: BinaryIO, path: Path) -> Iterable[str]:
    """Yield the identity of each record; leave the position after the last complete one."""
    number = 0
    while line := file.readline():
        number += 1
        whole = line.endswith(b"\n")
        found = _identity(line) if whole else None
        if found is not None:
            yield found
        elif not whole and line.startswith(BEGINNING[: len(line)]):
            file.seek(-len(line), os.SEEK_CUR)
            return
        else:
            raise OutputError(f"line {number} of {path} is no record of fetch; nothing was changed")


def _identity(line: bytes) -> str | None:
    try:
        record: object = json.loads(line)
    except ValueError:
        return None
    fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    url, own, number = (fields.get(name) for name in ("url", "id", "line"))
    fits = isinstance(own, Id | None) and isinstance(number, int | None)
    return identity(url, own, number) if isinstance(url, str) and fits else None


def digest(identity: str) -> bytes:
    """Return 16 bytes for an identity, which take less memory."""
    return blake2b(identity.encode(errors="surrogatepass"), digest_size=16).digest()
