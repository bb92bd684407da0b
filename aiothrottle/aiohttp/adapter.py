"""The adapter of aiohttp: what the session and both middlewares share.

A response holds its slot as long as aiohttp counts its connection as in use. aiohttp calls the
callbacks of `Connection.add_callback` exactly once, however a response ends: read to its end,
released, closed, cut off or garbage-collected. It times its own `total` that way. The exception is
a response that is dropped, or abandoned by a cancelled task, while its body is still arriving:
aiohttp keeps it alive for ever, with its connection. Hence the option `max_hold`.

Invariant: a slot is released once; a hook sees a request of which nothing is consumed.
"""

import asyncio
import io
import weakref
from collections.abc import Awaitable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

import aiohttp
from aiohttp import (
    BytesPayload,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    FormData,
    StreamReader,
)
from aiohttp.base_protocol import BaseProtocol
from yarl import URL

from aiothrottle._http.loop import SHORT_BODY, SHORT_TIME, Failure, is_short, lacks_files
from aiothrottle._http.options import Options
from aiothrottle._http.terms import Settlement, origin
from aiothrottle._statuses import SWITCHING_PROTOCOLS
from aiothrottle.aiohttp.body import is_plain_form
from aiothrottle.permit import Permit

_Request_contra = TypeVar("_Request_contra", contravariant=True)
_Read = TypeVar("_Read")

_WRONG_CERTIFICATE = (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch)


class AiohttpAdapter(Generic[_Request_contra]):
    """Translates for aiohttp; a subclass for each integration knows its requests.

    Args:
        options: How long responses and websockets hold their slots.
    """

    def __init__(self, options: Options) -> None:
        self._max_hold = options.max_hold
        self._hold_websockets = options.hold_websockets

    def classify(self, error: Exception) -> Failure:
        """Classify a failed connection; a wrong certificate is not retryable."""
        # Of a websocket or a proxy; without headers there was no response, or too many redirects.
        if isinstance(error, aiohttp.ClientResponseError) and error.headers is not None:
            host = error.request_info.url.raw_host or ""
            return Failure(response=(host, error.status, error.headers))
        lost = isinstance(error, aiohttp.ClientConnectionError)
        return Failure(
            retryable=lost and not isinstance(error, _WRONG_CERTIFICATE),
            unanswered=(lost or isinstance(error, OSError)) and not lacks_files(error),
        )

    def receive(
        self, request: _Request_contra, response: ClientResponse, permit: Permit | None
    ) -> tuple[int, Mapping[str, str]]:
        """Return status and headers; the connection holds the permit."""
        status = response.status
        if permit is not None:
            switched = status == SWITCHING_PROTOCOLS
            # Mostly the whole body came with the headers, and there is no connection any more.
            if response.connection is None or (switched and not self._hold_websockets):
                permit._release()
            else:
                own = self._max_hold is not None or switched
                hold(permit, response, self._max_hold if own else self.total_of(request))
        return status, response.headers

    def total_of(self, request: _Request_contra) -> float | None:
        """Return the seconds after which aiohttp ends the response to a request, if it does."""
        timeout = getattr(request, "timeout", None)  # of a ClientRequest, since aiohttp 3.15
        return timeout.total if isinstance(timeout, ClientTimeout) else None

    def follow(self, response: ClientResponse, settlement: Settlement, /) -> None:
        """Feed the body to the settlement, as it is read, and end it when the body ends."""
        if response.status == SWITCHING_PROTOCOLS or response.content.at_eof():
            settlement.end(complete=True)
        else:
            response.content = SettledContent(response.content, settlement)

    def host(self, response: ClientResponse) -> str:
        """Return the host that sent a response, the last one of a chain of redirects."""
        return response.url.raw_host or ""

    async def read_body(self, response: ClientResponse, *, unsized: bool) -> bytes | None:
        """Read a short body, and put it back. What fails or stalls is left to the caller."""
        if not unsized and not is_short(response.headers):
            return None
        body = b""
        with self.replayed(response):
            try:
                # Not `response.read()`, which caches the body: the caller reads it again.
                async with asyncio.timeout(None if unsized else SHORT_TIME):
                    while chunk := await response.content.readany():
                        body += chunk
                        if len(body) > SHORT_BODY:
                            return None
            except (aiohttp.ClientError, OSError):
                return None
        return body

    @contextmanager
    def replayed(self, response: ClientResponse) -> Generator[ClientResponse]:
        """Put back at the end what is read of the body in the block, a part or all of it.

        Nothing is put back after an error, or if the response was closed or released.
        """
        source = response.content
        if source.at_eof():  # that of a HEAD request has not all attributes of a stream
            yield response
            return
        recorder = _Recorder(source)
        response.content = recorder
        try:
            yield response
        finally:
            response.content = source
        if recorder.chunks and source.exception() is None:
            response.content = _rewound(source, recorder.chunks)

    async def close(self, response: ClientResponse) -> None:
        """Close a response that is not returned."""
        response.close()

    async def discard(self, response: ClientResponse) -> None:
        """End a response that is not needed: read it if it is short, and release its connection."""
        try:
            if is_short(response.headers):
                with suppress(aiohttp.ClientError, OSError):
                    async with asyncio.timeout(SHORT_TIME):
                        await response.read()  # which also waits until the upload has ended
        finally:
            response.release()

    async def prepare_again(self, _: _Request_contra, /) -> None:
        """Do nothing: a session makes a new request for each attempt."""


def origin_of(url: URL) -> str:
    """Return the server of a URL."""
    return origin(url.scheme, url.raw_host or "", url.port)


def without_resending(session: ClientSession) -> ClientSession:
    """Make the session send no request twice by itself, and return it.

    When a connection is cut, even a new one, aiohttp sends an idempotent request once more (RFC
    9112, section 9.3.1): a server that cuts all of them would get twice the limit. A `Retry`
    decides about retries instead.
    """
    # There is no public way.
    session._retry_connection = False  # pyright: ignore[reportPrivateUsage]
    return session


# ---- holds ---------------------------------------------------------------------------------------


def hold(permit: Permit, response: ClientResponse, seconds: float | None) -> None:
    """Release the permit when aiohttp releases the connection, or after that many seconds.

    After the deadline the response is closed, and reading from it raises: one more request would be
    in flight if it went on beside the next holder of the slot.
    """
    connection = response.connection
    if connection is None:  # the whole body came with the headers, or there is none
        permit.release()
        return
    connection.add_callback(permit.release)
    if seconds is not None:
        loop = asyncio.get_running_loop()
        # A weak reference: a response that is dropped must be collected, which frees its slot.
        timer = loop.call_later(seconds, _expire, weakref.ref(response))
        connection.add_callback(partial(_cancel, timer, loop))


def _expire(response: weakref.ref[ClientResponse]) -> None:
    """Close a response. Closing only its connection would leave its reader waiting."""
    alive = response()
    if alive is not None:
        alive.close()


def _cancel(timer: asyncio.TimerHandle, loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the timer of a response, unless it was collected as garbage in another thread."""
    with suppress(RuntimeError):
        if asyncio.get_running_loop() is loop:
            timer.cancel()


# ---- what reads a body along with the caller -----------------------------------------------------
#
# A caller may read a response (`read`, `text`, `json`) or its `content`, by chunks, lines and
# iterators. All of that ends in five methods of the stream, so a stream in its place sees each
# chunk when the caller gets it, neither earlier nor copied. One feeds a settlement; another keeps
# what is read before the caller gets the response, so that it can be put back. The caller reads
# each byte once, and only public names of aiohttp are used.

# A line longer than twice this limit cannot be read; it is the default of aiohttp.
_LEAST_LIMIT = 1 << 16


class ReadAlong(StreamReader):
    """Reads from another stream, and shows each chunk to `seen`.

    Args:
        source: The other stream.
    """

    def __init__(self, source: StreamReader) -> None:
        # Without the base class's, which would hide the attributes of the source.
        self._source = source

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the source
        return getattr(self._source, name)

    def seen(self, chunk: bytes) -> None:
        """Take a chunk that was read, which may be empty."""
        raise NotImplementedError

    def failed(self) -> None:
        """Take note that reading raised."""

    def _shown(self, chunk: bytes) -> bytes:
        self.seen(chunk)
        return chunk

    async def _along(self, reading: Awaitable[_Read]) -> _Read:
        try:
            return await reading
        except BaseException:
            self.failed()
            raise

    async def read(self, n: int = -1) -> bytes:
        if n < 0:  # by `readany`: a cancelled reader must not lose the chunks that have arrived
            return await self._along(super().read())
        return self._shown(await self._along(self._source.read(n)))

    async def readany(self) -> bytes:
        return self._shown(await self._along(self._source.readany()))

    async def readuntil(self, *arguments: Any, **options: Any) -> bytes:  # noqa: ANN401 - as there
        return self._shown(await self._along(self._source.readuntil(*arguments, **options)))

    async def readchunk(self) -> tuple[bytes, bool]:
        chunk, ends = await self._along(self._source.readchunk())
        return self._shown(chunk), ends

    def read_nowait(self, n: int = -1) -> bytes:
        return self._shown(self._source.read_nowait(n))

    async def wait_eof(self) -> None:
        await self._source.wait_eof()

    def set_read_chunk_size(self, n: int) -> None:
        self._source.set_read_chunk_size(n)  # aiohttp calls it from 3.13.4 on

    def set_exception(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as there
        self._source.set_exception(*arguments, **options)


class SettledContent(ReadAlong):
    """The body of a response that a settlement needs.

    aiohttp sets an exception when a response is closed or released, however that happens; a
    response that is dropped takes this stream with it.
    """

    def __init__(self, source: StreamReader, settlement: Settlement) -> None:
        super().__init__(source)
        self._settlement = settlement
        self._known = 0

    def seen(self, chunk: bytes) -> None:
        """Feed a chunk, as far as it was not fed when it was read ahead."""
        new = chunk[self._known :]
        self._known -= len(chunk) - len(new)
        if new:
            self._settlement.feed(new)
        if self._source.at_eof():
            self._settlement.end(complete=True)

    def failed(self) -> None:
        """End the settlement if the body was lost."""
        if self._source.exception() is not None:  # else the caller may read on, after a timeout
            self._settlement.end(complete=False)

    def feed_data(self, data: bytes, size: int = 0) -> bool:  # noqa: ARG002 - aiohttp's own
        """Put back what was read ahead: it is read again, and not fed again."""
        self._known += len(data)
        return bool(self._source.feed_data(data))

    def unread_data(self, data: bytes) -> None:
        """Put back what was read, and is not fed again: aiohttp's multipart reader calls it."""
        self._known += len(data)
        self._source.unread_data(data)

    def set_exception(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as there
        """End the settlement: the response is closed or released."""
        self._settlement.end(complete=self._source.at_eof() and not self._source.exception())
        super().set_exception(*arguments, **options)

    def __del__(self) -> None:
        self._settlement.abandon()


def _rewound(source: StreamReader, chunks: list[bytes]) -> StreamReader:
    """Return a stream of these chunks and the rest of the source."""
    # Reading makes room for more data, so this may take several turns; none of them waits.
    while chunk := source.read_nowait():
        chunks.append(chunk)
    if not source.is_eof():
        for chunk in chunks:
            source.feed_data(chunk)
        return source
    loop = asyncio.get_running_loop()
    size = sum(map(len, chunks))
    # A stream above its limit asks its protocol to pause, and this one has no connection.
    stream = StreamReader(BaseProtocol(loop), max(_LEAST_LIMIT, size), loop=loop)
    stream.feed_data(b"".join(chunks))
    stream.feed_eof()
    return stream


class _Recorder(ReadAlong):
    """Reads from another stream, and keeps the chunks."""

    def __init__(self, source: StreamReader) -> None:
        super().__init__(source)
        self.chunks: list[bytes] = []

    def seen(self, chunk: bytes) -> None:
        if chunk:
            self.chunks.append(chunk)

    def unread_data(self, data: bytes) -> None:
        """Put back what was read: it is read again, and kept again."""
        self.chunks = [b"".join(self.chunks).removesuffix(data)]
        self._source.unread_data(data)


# ---- what a hook sees of a request ---------------------------------------------------------------


def content_of(data: object) -> bytes | None:
    """Return the bytes of a body that is in memory and can be sent again."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(cast("bytes", data))
    if isinstance(data, io.BytesIO):
        return None if data.closed else data.getvalue()[data.tell() :]
    if isinstance(data, BytesPayload):
        return _bytes_of(data)
    if data and is_plain_form(data):
        form = FormData(cast("Any", data))()
        return _bytes_of(form) if isinstance(form, BytesPayload) else None
    return None


def _bytes_of(payload: BytesPayload) -> bytes:
    # The only public way that does not wait; this encoding has each byte.
    return payload.decode("latin-1").encode("latin-1")
