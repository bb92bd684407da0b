"""Decodes a body along with the caller: a transport sees it as it was sent, a body reader does not.

Invariant: no more than a piece of the decoded body is in memory here. Gzip and deflate are decoded
chunk by chunk. Anything else is decoded by the library at the end of the body, if that is short
enough; else the body counts as incomplete, and the cost stays as it was charged.
"""

import zlib
from typing import Any, Final

from aiothrottle._http.settlement import BodySink

__all__ = ["DecodedBody"]

# Bytes: of decoded pieces, of the encoded body that is kept, and of what becomes of it.
_PIECE: Final = 1 << 16
_LONGEST_ENCODED: Final = 1 << 20
_LONGEST_DECODED: Final = 1 << 24
# Bytes of an encoded piece: it may be a thousand times as long when it is decoded.
_ENCODED_PIECE: Final = 1 << 10


class DecodedBody:
    """Feeds a settlement with the decoded body.

    Args:
        settlement: The settlement.
        encoding: The Content-Encoding of the body.
        library: The module of the client, which decodes what is neither gzip nor deflate.
    """

    __slots__ = ("_begun", "_encoding", "_has_ended", "_kept", "_library", "_settlement", "_zlib")

    def __init__(
        self,
        settlement: BodySink,
        encoding: str,
        library: Any,  # noqa: ANN401 - a module
    ) -> None:
        self._settlement = settlement
        self._encoding = encoding.strip().lower()
        self._library = library
        self._begun = self._has_ended = False
        self._kept = bytearray()
        self._zlib: Any = None  # a zlib.decompressobj
        if self._encoding in ("gzip", "x-gzip"):
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
        elif self._encoding == "deflate":
            self._zlib = zlib.decompressobj()

    def feed(self, chunk: bytes, /) -> None:
        """Take a chunk of the encoded body."""
        if self._has_ended:
            return
        if self._zlib is not None:
            self._inflate(chunk)
            return
        self._kept += chunk
        if len(self._kept) > _LONGEST_ENCODED:
            self.end(complete=False)

    def end(self, *, complete: bool) -> None:
        """Take the end of the encoded body."""
        if self._has_ended:
            return
        self._has_ended = True
        if complete and self._zlib is not None:
            complete = self._zlib.eof or not self._begun  # there is no body of a HEAD request
        elif complete:
            complete = self._decode()
        self._kept.clear()
        self._settlement.end(complete=complete)

    def _inflate(self, chunk: bytes) -> None:
        if self._zlib.eof:
            return  # what follows is no part of the body, and the libraries ignore it
        try:
            self._inflate_with(chunk)
        except zlib.error:
            if self._encoding != "deflate" or self._begun:
                self.end(complete=False)
                return
            # Some servers send it without its header, as the libraries know too.
            self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
            self._begun = True
            self._inflate(chunk)

    def _inflate_with(self, chunk: bytes) -> None:
        while decoded := self._zlib.decompress(chunk, _PIECE):
            self._begun = True
            self._settlement.feed(decoded)
            chunk = self._zlib.unconsumed_tail
        self._begun = self._begun or bool(chunk)

    def _decode(self) -> bool:
        """Feed what was kept; return whether that is the whole body."""
        kept = bytes(self._kept)
        pieces = (kept[at : at + _ENCODED_PIECE] for at in range(0, len(kept), _ENCODED_PIECE))
        response = self._library.Response(
            200, headers={"Content-Encoding": self._encoding}, content=pieces
        )
        size = 0
        try:
            for decoded in response.iter_bytes():
                size += len(decoded)
                if size > _LONGEST_DECODED:
                    return False
                self._settlement.feed(decoded)
        except self._library.DecodingError:
            return False  # the caller's reading raises it too
        return True
