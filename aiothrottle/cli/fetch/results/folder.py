"""Writes bodies to a folder, each to a file with a safe name."""

import contextlib
import mimetypes
import re
from collections.abc import AsyncIterator, Generator
from hashlib import blake2b
from io import FileIO
from pathlib import Path, PurePosixPath

from yarl import URL

from aiothrottle.cli.fetch.results.output import OutputError

__all__ = ["Folder", "file_name"]

# Readable, and well below the 255 bytes of file systems.
_LONGEST = 80
_UNFIT = re.compile(r"[^A-Za-z0-9.-]+")
_DOTS = re.compile(r"[_.]{2,}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")
_PART = ".part-"


def file_name(url: URL, content_type: str = "", identity: str = "") -> str:
    """Return a file name for a URL: readable, unique and portable.

    It has the host and the path, without separators, and a digest of the whole URL and of the
    identity, which distinguishes several requests to one URL.

    >>> file_name(URL("https://example.org/../../etc/passwd?user=me"), "text/html")
    'example.org_etc_passwd-bd637d580a.html'
    """
    suffix = PurePosixPath(url.path).suffix
    if not _SUFFIX.fullmatch(suffix):
        suffix = mimetypes.guess_extension(content_type) or ""
    words = _UNFIT.sub("_", f"{url.host}{url.path.removesuffix(suffix)}")
    words = _DOTS.sub("_", words).strip("._-")
    whole = f"{url}{identity}".encode(errors="surrogatepass")
    digest = blake2b(whole, digest_size=5).hexdigest()
    return f"{words[:_LONGEST]}-{digest}{suffix}"


class Folder:
    """Stores bodies. An incomplete one has a temporary name, and is removed at the end.

    Raises:
        OutputError: The folder does not exist, and cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{path} is no folder to write to: {error.strerror}") from error

    def tidy(self) -> None:
        """Remove the temporary files of a killed run. No other run may use the folder."""
        for part in self._path.glob(f"{_PART}*"):
            part.unlink(missing_ok=True)

    async def keep(self, name: str, worker: int, chunks: AsyncIterator[bytes]) -> str:
        """Write a body to a file; return the name of the file, which may differ from `name`.

        Raises:
            OutputError: The file cannot be written.
        """
        part = self._path / f"{_PART}{worker}"
        try:
            with self._output_errors():
                file = part.open("xb", buffering=0)  # unbuffered: a write fails here, not on close
            with file:
                async for chunk in chunks:
                    with self._output_errors():
                        _write(file, chunk)
            with self._output_errors():
                return self._become(part, name)
        finally:
            part.unlink(missing_ok=True)

    def _become(self, part: Path, name: str) -> str:
        """Rename the file to its name, or a similar one: no file is overwritten."""
        stem, dot, suffix = name.rpartition(".")
        number = 1
        free = name
        while (self._path / free).exists():
            number += 1
            free = f"{stem}-{number}{dot}{suffix}" if dot else f"{name}-{number}"
        part.rename(self._path / free)
        return free

    @contextlib.contextmanager
    def _output_errors(self) -> Generator[None, None, None]:
        """Convert an OSError of the disk, to distinguish it from one of the network."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written to: {error.strerror}") from error


def _write(file: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]
