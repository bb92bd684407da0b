"""Where records go: a file that an interrupted run leaves in order, or a pipe that may be slow."""

import asyncio
import json
import os
import select
import stat
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, cast

from aiothrottle.fetch.record import BEGINNING

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Done", "Output", "OutputError", "open_output"]

_STANDARD_OUTPUT = 1
# Windows has no such flag, and lets none but administrators make links.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
# A pipe that is ready takes so much at once without making anybody wait (POSIX's PIPE_BUF).
_PIECE: int = getattr(select, "PIPE_BUF", 512)


class OutputError(Exception):
    """The output cannot be used, or not any more."""


class Done:
    """What the output has already. Knows a URL by 16 bytes, for there may be millions."""

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._counts = Counter(map(_digest, urls))

    def take(self, url: str) -> bool:
        """Tell whether it is there; what is twice in a list has to be there twice."""
        if not self._counts:
            return False
        digest = _digest(url)
        left = self._counts[digest]
        if left > 1:
            self._counts[digest] = left - 1
        else:
            del self._counts[digest]
        return left > 0

    def __len__(self) -> int:
        return self._counts.total()


class Output:
    """Takes lines. Every one is with the operating system when `write` returns."""

    def __init__(self, descriptor: int, done: Done) -> None:
        self.done = done
        self._descriptor = descriptor
        self._turn = asyncio.Lock()
        self._at_once = stat.S_ISREG(os.fstat(descriptor).st_mode)
        # Also into a file, the standard output is nothing that --resume could read.
        self.can_resume: bool = self._at_once and descriptor != _STANDARD_OUTPUT

    async def write(self, line: bytes) -> None:
        """Write a line, after those that came before.

        Raises:
            OutputError: It cannot be written: the disk is full, the reader is gone.
        """
        rest = memoryview(line)
        try:
            if not self._at_once:
                async with self._turn:
                    while rest and not self._at_once:
                        await self._ready()
                        rest = rest[os.write(self._descriptor, rest[:_PIECE]) :]
            while rest:  # without an await: no other line comes between
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise OutputError(f"the output cannot be written: {error.strerror}") from error

    async def _ready(self) -> None:
        """Wait until a pipe has room, and let the requests go on meanwhile."""
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
        """Close it, unless it is the standard output."""
        if self._descriptor != _STANDARD_OUTPUT:
            os.close(self._descriptor)


def open_output(path: Path | None, *, resume: bool, follow: bool = True) -> Output:
    """Open the file, or the standard output.

    With `resume` its records are read, and a last line that a crash has cut off is taken away.

    Args:
        path: The file; None: the standard output.
        resume: Whether it may have records in it.
        follow: Whether it may be a symbolic link; it must not be where the user has not named it.

    Raises:
        OutputError: It cannot be written; or it has something in it, and `resume` is not said; or
            it has something in it that is none of ours.
    """
    if path is None:
        return Output(_STANDARD_OUTPUT, Done())
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (0 if follow else _NO_LINK)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if not follow and path.is_symlink():
            raise OutputError(
                f"{path} is a symbolic link: take it away, or name another file by --output"
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
        raise OutputError(f"{path} is not empty: go on with it by --resume, or take it away")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        done = Done(_urls(file, path))
        end = file.tell()
    os.ftruncate(descriptor, end)
    return done


def _lock(descriptor: int, path: Path) -> None:
    """See to it that no two runs write to one file."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(f"another aiothrottle writes to {path}") from None
    except OSError:  # a file system without locks
        pass


def _urls(file: BinaryIO, path: Path) -> Iterable[str]:
    """Give the URL of each record, and leave the file behind the last whole one."""
    number = 0
    while line := file.readline():
        number += 1
        whole = line.endswith(b"\n")
        url = _url(line) if whole else None
        if url is not None:
            yield url
        elif not whole and line.startswith(BEGINNING[: len(line)]):
            file.seek(-len(line), os.SEEK_CUR)
            return
        else:
            raise OutputError(f"line {number} of {path} is no record of fetch: not touched")


def _url(line: bytes) -> str | None:
    try:
        record: object = json.loads(line)
    except ValueError:
        return None
    url = cast("dict[str, object]", record).get("url") if isinstance(record, dict) else None
    return url if isinstance(url, str) else None


def _digest(url: str) -> bytes:
    return blake2b(url.encode(errors="surrogatepass"), digest_size=16).digest()
