"""Decompresses a list in gzip as it is read, of any number of members, in bounded memory.

Not by `gzip.GzipFile`, whose buffer a reading thread keeps locked when the program ends.
"""

import errno
import zlib
from collections.abc import Callable, Iterator

__all__ = ["decompressed"]

_GZIP = 16 + zlib.MAX_WBITS


def decompressed(name: str, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a function that reads the content of a file in gzip.

    Args:
        name: The name of the file, for error messages.
        read: Reads at most so many compressed bytes; none at the end.

    Returns:
        A function like `read`. It raises an `OSError` where the file cannot be read, is no gzip, is
        damaged, or is cut off.
    """
    chunks: Iterator[bytes] | None = None

    def read_content(size: int) -> bytes:
        nonlocal chunks
        chunks = chunks or _chunks(name, read, size)
        return next(chunks, b"")

    return read_content


def _chunks(name: str, read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Yield chunks of at most `size` bytes, none of them empty."""
    member = zlib.decompressobj(_GZIP)
    inside = False
    try:
        while chunk := read(size):
            while (
                chunk := chunk if inside else chunk.lstrip(b"\0")
            ):  # some are filled up with zeros
                inside = True
                if content := member.decompress(chunk, size):
                    yield content
                chunk = member.unconsumed_tail
                if member.eof:
                    chunk = member.unused_data
                    member, inside = zlib.decompressobj(_GZIP), False
    except zlib.error as error:
        raise OSError(errno.EINVAL, f"{name} is damaged, or is no gzip: {error}") from error
    if inside:
        raise OSError(errno.EINVAL, f"{name} is cut off: the end of its gzip is missing")
