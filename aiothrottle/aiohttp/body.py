"""What of a request can be sent again, byte for byte, and what cannot: bodies, iterators.

aiohttp makes a payload of ``data=``, and closes it after each request. A file is then closed, a
stream or a generator is consumed, and a second request with the same object fails or, worse, sends
nothing and gets a 200. So the payload is made once, kept open for all attempts, and closed after
the last one.
"""

import asyncio
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast

import aiohttp
from aiohttp import BytesIOPayload, BytesPayload, ClientRequest, FormData, MultipartWriter, Payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import IOBasePayload
from aiohttp.payload import LookupError as NoSuchPayload

_PLAIN_DATA = str | bytes | bytearray | memoryview
_PLAIN_VALUE = str | int | float
# aiohttp accepts iterators for these, and consumes them. (`Body` is for bodies.)
_ITERABLE = frozenset(
    {"cookies", "headers", "json", "protocols", "proxy_headers", "skip_auto_headers"}
)
#: The options that could be used only once.
SINGLE_USE: frozenset[str] = _ITERABLE | {"data", "upload_tracker"}


def is_replayable(body: object) -> bool:
    """Return whether a request's body can be sent, or sent again, as a whole.

    It is an allow-list: what a second writing of an unknown class sends is unknown. Call it before
    the first attempt and after each one, as some bodies are consumed unnoticed.

    Args:
        body: A `aiohttp.ClientRequest.body`, or any payload.
    """
    if body is None or isinstance(body, bytes):
        return True
    if isinstance(body, Body):
        return is_replayable(body.content)
    if not isinstance(body, Payload) or body.consumed:
        return False
    if isinstance(body, MultipartWriter):  # before aiohttp 3.14 it did not ask its parts
        return all(is_replayable(part) for part, _, _ in body)
    if isinstance(body, IOBasePayload):
        return _can_rewind(body)
    return isinstance(body, BytesPayload)


class Body(Payload):
    """The body of one request, for all of its attempts.

    In aiohttp it stands for a payload: the same, but `close` is only remembered.

    >>> async def twice(session, url, data):
    ...     body = Body.of(data)
    ...     if body is None:  # aiohttp makes the same of it each time
    ...         await session.post(url, data=data)
    ...         await session.post(url, data=data)
    ...         return
    ...     try:
    ...         await session.post(url, data=body)
    ...         if is_replayable(body):
    ...             await session.post(url, data=body)
    ...     finally:
    ...         await body.finish()
    """

    def __init__(self, payload: Payload) -> None:
        super().__init__(
            payload,
            headers=payload.headers,
            filename=payload.filename,
            encoding=payload.encoding,
        )
        # Also when the content is partly consumed later, or read into memory.
        self._size = payload.size
        self._payload = payload
        self.content: Payload = payload
        self.closed: bool = False
        self._upload: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, data: object) -> Self | None:
        """Prepare `data`; return None if aiohttp makes the same body of it each time.

        Raises:
            TypeError: aiohttp cannot send it.
            ValueError: aiohttp cannot send it.
        """
        if data is None or isinstance(data, _PLAIN_DATA) or is_plain_form(data):
            return None
        return cls(_make_payload(data))

    async def buffer(self) -> None:
        """Read a body that can be sent only once into memory, so that it can be sent again.

        Call it before the first attempt. The headers about the body stay the same.
        """
        self.content = await read_into_memory(self._payload)

    async def finish(self) -> None:
        """Close what aiohttp would have closed, after the last attempt."""
        if self.closed:
            await self._payload.close()

    # ---- as a payload of aiohttp

    @property
    def consumed(self) -> bool:
        return self.content.consumed

    @property
    def autoclose(self) -> bool:
        return True  # or aiohttp warns when it is replaced without having been closed

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.content.decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return await self.content.as_bytes(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if is_replayable(self) and _is_read_by_threads(self.content):
            await self._upload_from_threads(writer, content_length)
        else:
            await self.content.write_with_length(writer, content_length)

    async def _upload_from_threads(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Write a file so that no thread reads it any more when another attempt rewinds it.

        Cancelling a task does not stop its thread, and what that thread reads would be missing in
        the next attempt.
        """
        if self._upload is not None:
            await asyncio.wait([self._upload])
        upload = _Upload(writer)
        self._upload = asyncio.create_task(self.content.write_with_length(upload, content_length))
        self._upload.add_done_callback(_take_error)
        try:
            await asyncio.shield(self._upload)
        except asyncio.CancelledError:
            upload.give_up(self._upload)
            raise

    async def close(self) -> None:
        self.closed = True


def check_open(request: ClientRequest) -> None:
    """Raise RuntimeError if the session was closed during a wait, as aiohttp does before one.

    After the middlewares have begun, aiohttp would raise an AssertionError without a text.
    """
    if request.session.closed:
        raise RuntimeError("Session is closed")


async def prepare_again(request: ClientRequest) -> None:
    """Make a request ready to be sent again, after its response was released.

    Not earlier: it waits until the upload has ended.

    Raises:
        RuntimeError: The session was closed meanwhile.
    """
    check_open(request)
    # aiohttp 4 makes both private.
    if hasattr(request, "close"):
        await request.close()  # the upload may have been cut short, but not be over yet
    if hasattr(request, "update_expect_continue"):
        request.update_expect_continue()  # the next "100 Continue" is another one


class _BodyWriter(AbstractStreamWriter):
    """The part of a writer that a payload uses."""

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)

    async def drain(self) -> None:
        pass

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        pass

    def enable_chunking(self) -> None:
        pass

    async def write_headers(self, status_line: str, headers: object) -> None:
        pass


class _Memory(_BodyWriter):
    def __init__(self) -> None:
        self.content = bytearray()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.content += chunk


class _Upload(_BodyWriter):
    """Passes a body on until it is given up; it ends between two reads, never during one."""

    def __init__(self, writer: AbstractStreamWriter) -> None:
        self._writer = writer
        self._is_writing = False
        self._is_given_up = False

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        if self._is_given_up:
            raise asyncio.CancelledError
        self._is_writing = True
        await self._writer.write(chunk)
        self._is_writing = False

    def give_up(self, task: asyncio.Task[None]) -> None:
        self._is_given_up = True
        if self._is_writing:
            task.cancel()


def _take_error(upload: asyncio.Task[None]) -> None:
    """Take the error of an upload that was given up: its file may be closed by then."""
    if not upload.cancelled():
        upload.exception()


def _make_payload(data: object) -> Payload:
    """Make the payload that aiohttp makes of ``data=``."""
    made = data() if isinstance(data, FormData) else data
    try:
        return aiohttp.get_payload(made, disposition=None)
    except NoSuchPayload:
        return FormData(cast("Any", made))()


async def read_into_memory(payload: Payload) -> Payload:
    """Write a payload to memory: `as_bytes` of aiohttp drops the encoding of parts."""
    memory = _Memory()
    await payload.write(memory)
    # Not bytes, which aiohttp sends in one piece of any length. A redirect takes the headers anew.
    return BytesIOPayload(io.BytesIO(memory.content), headers=payload.headers)


def _can_rewind(payload: IOBasePayload) -> bool:
    # The file has no public name. Without a file, the payload counts as one that is sent once.
    file: Any = getattr(payload, "_value", None)
    try:
        return bool(file.seekable())
    except (AttributeError, ValueError):  # a ValueError if it is closed
        return False


def _is_read_by_threads(payload: Payload) -> bool:
    if isinstance(payload, MultipartWriter):
        return any(_is_read_by_threads(part) for part, _, _ in payload)
    return isinstance(payload, IOBasePayload) and not isinstance(payload, BytesIOPayload)


def is_plain_form(data: object) -> bool:
    """Return whether it is a form without files: parts get a new boundary each time."""
    if isinstance(data, dict | Mapping):  # isinstance is fastest for the first
        return all(map(_is_plain, cast("Mapping[object, object]", data).values()))
    if isinstance(data, list | tuple):
        return all(map(_is_plain_field, cast("Sequence[object]", data)))
    return False


def _is_plain_field(field: object) -> bool:
    if not isinstance(field, list | tuple):
        return False
    pair = cast("Sequence[object]", field)
    return len(pair) == 2 and _is_plain(pair[1])


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN_VALUE)


# ---- other options that could be used only once --------------------------------------------------


def keep_iterators(options: dict[str, Any]) -> None:
    """Replace iterators by lists, in place: the second attempt would find an iterator empty."""
    for name in _ITERABLE.intersection(options):
        if isinstance(options[name], Iterator):
            options[name] = list(options[name])


class SharedTracker:
    """Stands for an `aiohttp.UploadTracker` in each attempt.

    A tracker counts attempts, but raises in a second call of aiohttp. So its beginning and its end
    are called here, once each; the other attributes are the tracker's.

    Raises:
        RuntimeError: The tracker belongs to another request.
    """

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Any) -> None:  # noqa: ANN401 - since aiohttp 3.14.4
        # There is no public way.
        tracker._bind()
        self._tracker = tracker

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the tracker
        return getattr(self._tracker, name)

    def _bind(self) -> None:
        """Do nothing at the beginning of a call of aiohttp."""

    def _finalize(self) -> None:
        """Do nothing at the end of a call of aiohttp."""

    def end(self) -> None:
        """End the tracker, with the outcome of the last attempt."""
        self._tracker._finalize()
