"""A folder of bodies: a file for each, under a name that no URL can abuse."""

import contextlib
import mimetypes
import re
from collections.abc import AsyncIterator, Generator
from hashlib import blake2b
from io import FileIO
from pathlib import Path, PurePosixPath

from yarl import URL

from aiothrottle.fetch.output import OutputError

__all__ = ["Folder", "file_name"]

# Long names are no use, and 255 bytes is where file systems end.
_LONGEST = 80
_UNFIT = re.compile(r"[^A-Za-z0-9.-]+")
_DOTS = re.compile(r"[_.]{2,}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")
_PART = ".part-"


def file_name(url: URL, content_type: str = "") -> str:
    """Give the name for what is at that URL: readable, its own, in letters that all systems know.

    Of host and path, in letters of which none leads anywhere; the end is a digest of all the URL.

    >>> file_name(URL("https://example.org/../../etc/passwd?user=me"), "text/html")
    'example.org_etc_passwd-bd637d580a.html'
    """
    suffix = PurePosixPath(url.path).suffix
    if not _SUFFIX.fullmatch(suffix):
        suffix = mimetypes.guess_extension(content_type) or ""
    words = _UNFIT.sub("_", f"{url.host}{url.path.removesuffix(suffix)}")
    words = _DOTS.sub("_", words).strip("._-")
    digest = blake2b(str(url).encode(errors="surrogatepass"), digest_size=5).hexdigest()
    return f"{words[:_LONGEST]}-{digest}{suffix}"


class Folder:
    """Keeps bodies. One that is not complete has a name of its own, and is gone at the end.

    Raises:
        OutputError: There is no such folder, and it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{path} is no folder to write to: {error.strerror}") from error

    def tidy(self) -> None:
        """Take away what a killed run has left. Nobody else may be at work here."""
        for part in self._path.glob(f"{_PART}*"):
            part.unlink(missing_ok=True)

    async def keep(self, name: str, worker: int, chunks: AsyncIterator[bytes]) -> str:
        """Write a body to a file, which it becomes at its end. Gives the name, which may differ.

        Raises:
            OutputError: It cannot be written.
        """
        part = self._path / f"{_PART}{worker}"
        try:
            with self._telling():
                file = part.open("xb", buffering=0)  # what can fail fails where it is written
            with file:
                async for chunk in chunks:
                    with self._telling():
                        _write(file, chunk)
            with self._telling():
                return self._become(part, name)
        finally:
            part.unlink(missing_ok=True)

    def _become(self, part: Path, name: str) -> str:
        """Give the file its name, or one like it: nothing is overwritten."""
        stem, dot, suffix = name.rpartition(".")
        number = 1
        free = name
        while (self._path / free).exists():
            number += 1
            free = f"{stem}-{number}{dot}{suffix}" if dot else f"{name}-{number}"
        part.rename(self._path / free)
        return free

    @contextlib.contextmanager
    def _telling(self) -> Generator[None, None, None]:
        """Tell a disk that fails from a network that does."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written to: {error.strerror}") from error


def _write(file: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]
