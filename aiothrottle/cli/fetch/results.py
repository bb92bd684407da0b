"""The results of a run: a record of each URL, a line of JSON, and bodies there or in a folder.

A file of records survives any end of the run: a last line that was cut off is removed, and all
others are whole. A pipe may be slow.
"""

import argparse
import asyncio
import base64
import codecs
import contextlib
import itertools
import json
import mimetypes
import os
import re
import select
import stat
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias, cast

from aiohttp import ClientResponse
from yarl import URL

from aiothrottle._statuses import LEAST_ERROR
from aiothrottle.cli.options import flag, named_path, option

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Id: TypeAlias = str | int
"""What a line of JSON names itself."""

#: The beginning of every line. It distinguishes a line that a crash cut off from other data.
_BEGINNING = b'{"url": "'

# Encoding a whole record as a dict takes more than twice as long.
_quoted = json.encoder.encode_basestring_ascii
_CHARSET = re.compile(r';[ \t]*charset[ \t]*=[ \t]*"?([^\s";]+)', re.IGNORECASE)
# The codecs of text that take linear time. The server chooses one of all that Python has, and idna
# and punycode take a minute for a megabyte.
_TEXT_CODEC = re.compile(
    r"utf-(?:8|8-sig|(?:16|32)(?:-[bl]e)?)|ascii|iso8859-[0-9]+|cp[0-9]+|koi8-[rtu]|kz1048|ptcp154"
    r"|tis-620|hp-roman8|mac-[a-z]+|big5\w*|gb\w+|hz|johab|euc_\w+|shift_jis\w*|iso2022_\w+"
)


@dataclass(slots=True, kw_only=True)
class Record:
    """The result of one URL.

    Attributes:
        url: The URL in the list, without credentials.
        id: What the line in the list named itself; None: nothing.
        number: The number of the line in the whole list, if that identifies the request.
        status: The status of the last response; None: there was none.
        final_url: The URL after redirects, if any were followed.
        headers: The kept headers of the response; None: none are kept.
        body: The body of the response, unless it is in a file.
        charset: The charset that the response declares.
        file: The name of the file with the body.
        attempts: The number of attempts; a followed redirect is no attempt.
        waited: Seconds in the queue and before retries.
        error: Why there is no complete response.
    """

    url: str
    id: Id | None = None
    number: int | None = None
    status: int | None = None
    final_url: str | None = None
    headers: Mapping[str, str] | None = None
    body: bytes | None = None
    charset: str | None = None
    file: str | None = None
    attempts: int = 0
    waited: float = 0.0
    error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether there is no response, or one with a status of an error."""
        return self.error is not None or self.status is None or self.status >= LEAST_ERROR

    @property
    def name(self) -> str:
        """The URL, with the id or the line if that identifies the request, for messages."""
        if self.id is not None:
            return f"{self.url} (id {self.id})".lstrip()
        return f"{self.url} (line {self.number})" if self.url and self.number else self.url

    def line(self) -> bytes:
        """Return the record as a line of JSON, in ASCII, so that it is safe for terminals."""
        status = "null" if self.status is None else self.status
        parts = [f'"url": {_quoted(self.url)}']
        if self.id is not None:
            parts.append(f'"id": {json.dumps(self.id)}')
        if self.number is not None:
            parts.append(f'"line": {self.number}')
        parts.append(f'"status": {status}')
        if self.final_url is not None:
            parts.append(f'"final_url": {_quoted(self.final_url)}')
        if self.headers is not None:
            parts.append(f'"headers": {json.dumps(self.headers)}')
        if self.body is not None:
            parts.append(_body(self.body, self.charset))
        if self.file is not None:
            parts.append(f'"file": {_quoted(self.file)}')
        error = "null" if self.error is None else _quoted(self.error)
        parts.append(f'"attempts": {self.attempts}, "waited": {self.waited:.3f}, "error": {error}')
        return f"{{{', '.join(parts)}}}\n".encode()


def identity(url: str, own: Id | None, number: int | None) -> str:
    """Return the text by which `--resume` identifies a request: its id, its line or its URL."""
    if own is not None:
        return json.dumps({"id": own})
    return url if number is None else json.dumps({"line": number})


def digest(identity: str) -> bytes:
    """Return 16 bytes for an identity, which take less memory."""
    return blake2b(identity.encode(errors="surrogatepass"), digest_size=16).digest()


def _body(body: bytes, charset: str | None) -> str:
    """Return the body as text if it can be decoded, else in Base64."""
    with contextlib.suppress(LookupError, ValueError):
        codec = codecs.lookup(charset or "utf-8").name
        if _TEXT_CODEC.fullmatch(codec):
            return f'"body": {_quoted(body.decode(codec))}'
    return f'"body_base64": "{base64.b64encode(body).decode()}"'


# ---- what is saved -------------------------------------------------------------------------------

_SIZE = re.compile(r"(\d+)([kmg]?)", re.IGNORECASE)
# A whole record is kept in memory.
_LONGEST_BODY = 16 << 20
_CHUNK = 1 << 16


class OutputError(Exception):
    """The output cannot be opened or written."""


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 100k, got {text!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


@dataclass(kw_only=True)
class Saved:
    """What is saved of each response, and where.

    Attributes:
        output: write the records to this file (default: standard output)
        output_dir: write each body to a file in this folder; the records name it, and are written
            to index.jsonl there unless -o is given (default: the records have the bodies)
        resume: continue the output: URLs with a record, failures too, are not fetched again
        save_header: keep this header of the responses; * keeps all; may be repeated (default: none)
        max_filesize: a longer body is a failure; 1k, 1m, 1g (default: 16m, unlimited with
            --output-dir)
    """

    output: Path | None = option("-o FILE", named_path)
    output_dir: Path | None = option("FOLDER", named_path)
    resume: bool = flag()
    save_header: list[str] = option("NAME", str.lower)
    max_filesize: int | None = option("BYTES", _size)

    def __post_init__(self) -> None:
        """Reject a resume of nothing, and what curl takes for the standard output."""
        if self.output == Path("-"):
            raise ValueError("--output - would be a file named -: leave it out for standard output")
        if self.resume and self.output is None and self.output_dir is None:
            raise ValueError("--resume needs a file to continue: give --output or --output-dir")

    def check(self, name: str) -> None:
        """Reject a list that is the output.

        Raises:
            ValueError: It is.
        """
        with contextlib.suppress(OSError):  # one of them does not exist
            found = os.stat(0 if name == "-" else name)  # noqa: PTH116 - of a descriptor, too
            there = os.stat(self._file or _STANDARD_OUTPUT)  # noqa: PTH116
            # A terminal may be both.
            if stat.S_ISREG(found.st_mode) and os.path.samestat(found, there):
                raise ValueError(f"the list {name} is the output, too: name another output")

    @property
    def _file(self) -> Path | None:
        """The file of the records; None: they are written to the standard output."""
        return self.output or (self.output_dir and self.output_dir / "index.jsonl")

    def open(self) -> "Results":
        """Open the output, and the folder.

        Raises:
            OutputError: One of them cannot be opened, or has other data.
        """
        folder = None if self.output_dir is None else Folder(self.output_dir)
        # Another user may be able to put a link into the folder. The path of --output is explicit.
        output = open_output(self._file, resume=self.resume, follow=self.output is not None)
        if folder is not None:
            try:
                folder.take()
            except OutputError:
                folder.close()
                output.close()
                raise
        longest = self.max_filesize or (_LONGEST_BODY if folder is None else None)
        return Results(output, folder, frozenset(self.save_header), longest)


@dataclass(frozen=True, slots=True)
class Results:
    """Keeps of each response what is wanted.

    Attributes:
        output: Receives a record of each URL.
        folder: Receives the bodies; None: they are in the records.
        headers: Names of response headers, in lower case; ``"*"`` keeps all.
        longest: The most bytes of a body; None: no limit.
    """

    output: "Output"
    folder: "Folder | None"
    headers: frozenset[str]
    longest: int | None

    def close(self) -> None:
        """Close the output, and unlock the folder."""
        self.output.close()
        if self.folder is not None:
            self.folder.close()

    async def keep(
        self, response: ClientResponse, record: Record, url: URL, identity: str, worker: int
    ) -> None:
        """Put a response into its record, and its body there or into the folder.

        Args:
            response: The response.
            record: Its record.
            url: The URL that was requested.
            identity: Distinguishes several requests to one URL, in the names of files.
            worker: The number of the task: no other one keeps a response under it.

        Raises:
            OutputError: The body cannot be written.
            ValueError: The body is too long.
        """
        # Not `response.charset` and the like: Python's parser raises IndexError at some headers.
        kind = response.headers.get("Content-Type", "application/octet-stream")
        if self.headers:
            record.headers = _chosen(response, self.headers)
        if self.folder is None:
            record.body = await self._read(response)
            record.charset = found[1] if (found := _CHARSET.search(kind)) else None
            return
        async with aclosing(self._chunks(response)) as chunks:
            name = file_name(url, kind.partition(";")[0].strip(), identity)
            record.file = await self.folder.keep(name, worker, chunks)

    async def _read(self, response: ClientResponse) -> bytes:
        async with aclosing(self._chunks(response)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def _chunks(self, response: ClientResponse) -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in response.content.iter_chunked(_CHUNK):
            size += len(chunk)
            self._check_size(size)
            yield chunk

    def _check_size(self, size: int) -> None:
        if self.longest is not None and size > self.longest:
            raise ValueError(f"the body is longer than {self.longest} bytes (--max-filesize)")


def _chosen(response: ClientResponse, names: frozenset[str]) -> dict[str, str]:
    """Return the headers with these names; repeated ones are joined (RFC 9110, 5.3)."""
    chosen: dict[str, list[str]] = {}
    for name, value in response.headers.items():
        key = name.lower()
        if "*" in names or key in names:
            # aiohttp decodes invalid UTF-8 to surrogates, which some JSON readers reject.
            text = value.encode(errors="surrogateescape").decode(errors="replace")
            chosen.setdefault(key, []).append(text)
    return {name: ", ".join(values) for name, values in chosen.items()}


# ---- the output ----------------------------------------------------------------------------------

_STANDARD_OUTPUT = 1
_CREATE: int = os.O_CREAT | os.O_APPEND
# Windows has no such flag, and lets only administrators create links.
_CREATE_NO_LINK: int = _CREATE | getattr(os, "O_NOFOLLOW", 0)
# A pipe that is ready accepts this much without blocking (POSIX's PIPE_BUF).
_PIECE: int = getattr(select, "PIPE_BUF", 512)


class Output:
    """Writes lines. When `write` returns, the operating system has the whole line.

    Args:
        descriptor: The file, pipe or terminal.
        done: The identities that it has, by their digests, as there may be millions.
    """

    def __init__(self, descriptor: int, done: Counter[bytes]) -> None:
        self.done = done
        self._descriptor = descriptor
        self._turn = asyncio.Lock()
        self._at_once = stat.S_ISREG(os.fstat(descriptor).st_mode)
        # Even if it is a file, --resume cannot read the standard output.
        self.can_resume: bool = self._at_once and descriptor != _STANDARD_OUTPUT
        self.on_terminal: bool = os.isatty(descriptor)

    def take(self, identity: str) -> bool:
        """Return whether the output has the identity, and remove one occurrence from `done`."""
        found = digest(identity)
        if not self.done[found]:
            return False
        self.done[found] -= 1
        return True

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
            _write(self._descriptor, rest)  # without an await, so that lines do not interleave
        except OSError as error:
            raise OutputError(f"the output cannot be written: {error.strerror}") from error

    async def _ready(self) -> None:
        """Wait until a pipe has room, without blocking the requests."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_writer(self._descriptor, ready.set)
        except (PermissionError, NotImplementedError):  # a device, or Windows: never waits
            self._at_once = True
            return
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._descriptor)

    def close(self) -> None:
        """Close the file, unless it is the standard output."""
        if self._descriptor != _STANDARD_OUTPUT:
            os.close(self._descriptor)


def _write(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of the content: the operating system may take a part of it."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


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
        try:
            os.write(_STANDARD_OUTPUT, b"")  # fails now if it was closed
            return Output(_STANDARD_OUTPUT, Counter())
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror}") from error
    try:
        # A pipe that is open for reading, too, would neither wait for its reader nor miss it.
        flags = os.O_WRONLY if path.is_fifo() else os.O_RDWR
        descriptor = os.open(path, flags | (_CREATE if follow else _CREATE_NO_LINK), 0o666)
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


def _begin(descriptor: int, path: Path, *, resume: bool) -> Counter[bytes]:
    _lock(descriptor, path)
    if not os.fstat(descriptor).st_size:
        return Counter()
    if not resume:
        raise OutputError(f"{path} is not empty: continue it with --resume, or remove it")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        done = Counter(map(digest, _identities(file, path)))
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
    for number, line in enumerate(iter(file.readline, b""), 1):
        whole = line.endswith(b"\n")
        found = _identity(line) if whole else None
        begun = line.rstrip(b"\0")  # after a loss of power zeros may be in place of the end
        if found is not None:
            yield found
        elif not whole and begun.startswith(_BEGINNING[: len(begun)]):
            file.seek(-len(line), os.SEEK_CUR)
            return
        else:
            raise OutputError(f"line {number} of {path} is no record of fetch; nothing was changed")


def _identity(line: bytes) -> str | None:
    try:
        record: object = json.loads(line)
    except (RecursionError, ValueError):
        return None
    fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    url, own, number = (fields.get(name) for name in ("url", "id", "line"))
    fits = isinstance(own, Id | None) and isinstance(number, int | None)
    return identity(url, own, number) if isinstance(url, str) and fits else None


# ---- a folder of bodies --------------------------------------------------------------------------

# Readable, and well below the 255 bytes of file systems.
_LONGEST_NAME = 80
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
    return f"{words[:_LONGEST_NAME]}-{digest}{suffix}"


class Folder:
    """Stores bodies. An incomplete one has a temporary name, and is removed at the end.

    Raises:
        OutputError: The folder does not exist, and cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        # Of each name that was in use, the numbers that were not tried yet.
        self._numbers = defaultdict[str, Iterator[int]](lambda: itertools.count(2))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{path} is no folder to write to: {error.strerror}") from error

    def take(self) -> None:
        """Lock the folder, try to write, and remove the temporary files of a killed run.

        Raises:
            OutputError: Another run writes to the folder, or this one may not.
        """
        if fcntl is not None:  # else a folder cannot be opened either
            self._descriptor = os.open(self._path, os.O_RDONLY)
            _lock(self._descriptor, self._path)
        with self._output_errors():
            # With the records elsewhere, the first body would be lost.
            (self._path / f"{_PART}0").touch()
            for part in self._path.glob(f"{_PART}*"):
                part.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other runs write to the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

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
                        _write(file.fileno(), chunk)
            with self._output_errors():
                return self._become(part, name)
        finally:
            part.unlink(missing_ok=True)

    def _become(self, part: Path, name: str) -> str:
        """Rename the file to its name, or a similar one: no file is overwritten."""
        path = self._path / name
        if path.exists():
            others = (path.with_stem(f"{path.stem}-{number}") for number in self._numbers[name])
            path = next(it for it in others if not it.exists())
        part.rename(path)
        return path.name

    @contextlib.contextmanager
    def _output_errors(self) -> Generator[None, None, None]:
        """Convert an OSError of the disk, to distinguish it from one of the network."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written to: {error.strerror}") from error
