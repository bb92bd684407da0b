"""Bodies of every kind in aiohttp: repeated byte for byte, or not repeated."""

import asyncio
import io
import itertools
import os
import re
import threading
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import aiohttp
import pytest
from aiohttp import (
    BytesPayload,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    FormData,
    JsonPayload,
    MultipartWriter,
    Payload,
    StringPayload,
    web,
)
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from multidict import MultiDict
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, throttled_session
from aiothrottle.aiohttp.body import Body, buffer_request, is_replayable, prepare_again
from aiothrottle.testing import RateLimitedServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.uvloop,
    pytest.mark.filterwarnings("ignore:In v4, passing bytes:DeprecationWarning"),
]

QUICK = Retry(backoff=0.001, statuses={413, 429})
LINES = "".join(f"{number:08} dix-sept ans déjà\n" for number in range(20_000))  # several chunks
CONTENT = LINES.encode()
PIECES = [b"one ", b"two ", b"three"]  # few enough for a pipe

Options = dict[str, Any]
_File = TypeVar("_File", io.BytesIO, io.StringIO)


# ---- the kinds ---------------------------------------------------------------------------------


class Files:
    """Opens files of every kind, and closes at the end those that aiohttp has left open."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        (directory / "lines.txt").write_bytes(CONTENT)

    def open(self, mode: str = "rb", *, at: int = 0, **options: Any) -> IO[Any]:  # noqa: ANN401 - as open has
        file = (self._directory / "lines.txt").open(mode, **options)
        file.seek(at)
        return self._closing(file)

    def pipe(self) -> IO[bytes]:
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as file:
            file.writelines(PIECES)
        return self._closing(os.fdopen(reading, "rb"))

    def zipped(self) -> IO[bytes]:
        """A file that can be rewound, but is none to the operating system."""
        archive = self._stack.enter_context(zipfile.ZipFile(io.BytesIO(), "w"))
        archive.writestr("lines.txt", CONTENT)
        return self._closing(archive.open("lines.txt"))

    def _closing(self, file: IO[Any]) -> IO[Any]:
        return self._stack.enter_context(file)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    with ExitStack() as stack:
        yield Files(tmp_path, stack)


class Custom(Payload):
    """A payload of another package, which can be written once only."""

    @property
    def autoclose(self) -> bool:
        return True  # or aiohttp warns when it is replaced

    def __init__(self) -> None:
        super().__init__(list(PIECES), content_type="text/x-custom")

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002
        raise TypeError("cannot be decoded")

    async def write(self, writer: AbstractStreamWriter) -> None:
        while self._value:
            await writer.write(self._value.pop(0))


async def generate() -> AsyncGenerator[bytes]:
    for piece in PIECES:
        yield piece


def stream() -> aiohttp.StreamReader:
    loop = asyncio.get_running_loop()
    reader = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    for piece in PIECES:
        reader.feed_data(piece)
    reader.feed_eof()
    return reader


def form(*fields: tuple[str, object], **described: str) -> FormData:
    made = FormData()
    for name, value in fields:
        made.add_field(name, value, **described)
    return made


def multipart(*parts: object, boundary: str = "~~", **headers: str) -> MultipartWriter:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    writer = MultipartWriter(boundary=boundary)
    for part in parts:
        writer.append(part, MultiDict(named))
    return writer


class Kind(NamedTuple):
    options: Callable[[Files], Options]
    is_single_use: bool = False


def kind(data: Callable[[Files], Any], **options: object) -> Kind:
    def make(files: Files) -> Options:
        return {"data": data(files), **options}

    return Kind(make)


def single_use(data: Callable[[Files], Any], **options: object) -> Kind:
    return kind(data, **options)._replace(is_single_use=True)


def no_data(_: Files) -> None:
    return None


KINDS = {
    "none": kind(no_data),
    "bytes": kind(lambda _: b"bytes"),
    "no-bytes": kind(lambda _: b""),
    "bytearray": kind(lambda _: bytearray(b"bytearray")),
    "memoryview": kind(lambda _: memoryview(b"memoryview")),
    "str": kind(lambda _: "déjà"),
    "json": kind(no_data, json={"a": [1, 2]}),
    "dict": kind(lambda _: {"a": "1", "b": 2, "c": 2.5}),
    "dict-of-lists": kind(lambda _: {"a": ["1", "2"], "b": None}),
    "dict-of-bytes": kind(lambda _: {"a": b"1", "b": b"2"}),
    "list": kind(lambda _: [("a", "1"), ("a", "2")]),
    "multidict": kind(lambda _: MultiDict([("a", "1"), ("a", "2")])),
    "form": kind(lambda _: form(("a", "1"), ("b", "2"))),
    "multipart-form": kind(lambda _: form(("a", "1"), ("b", "2"), content_type="text/x-a")),
    "multipart": kind(lambda _: multipart("text", b"bytes", io.BytesIO(CONTENT))),
    "multipart-encoded": kind(
        lambda _: multipart(b"bytes", Content_Encoding="gzip", Content_Transfer_Encoding="base64")
    ),
    "multipart-of-multipart": kind(lambda _: multipart(multipart("text", boundary="=="))),
    "bytes-payload": kind(lambda _: BytesPayload(b"bytes", content_type="text/x-bytes")),
    "string-payload": kind(lambda _: StringPayload("déjà", encoding="latin-1")),
    "json-payload": kind(lambda _: JsonPayload({"a": 1}, headers={"X-Part": "1"})),
    "compress": kind(lambda _: b"bytes" * 1000, compress="gzip"),
    "compress-file": kind(Files.open, compress=True),
    "compress-nothing": kind(lambda _: {}, compress=True),
    "chunked": kind(lambda _: b"bytes" * 1000, chunked=True),
    "chunked-file": kind(Files.open, chunked=True),
    "expect100": kind(lambda _: b"bytes", expect100=True),
    "expect100-file": kind(Files.open, expect100=True),
    "skip-headers": kind(Files.open, skip_auto_headers=["Content-Type", "User-Agent"]),
    "own-headers": kind(Files.open, headers={"Content-Type": "text/x-own", "Content-Length": "9"}),
    "file": kind(Files.open),
    "file-text": kind(lambda files: files.open("r", encoding="utf-8", newline="")),
    "file-raw": kind(lambda files: files.open(buffering=0)),
    "file-writable": kind(lambda files: files.open("rb+")),
    "file-seeked": kind(lambda files: files.open(at=12345)),
    "file-text-seeked": kind(lambda files: files.open("r", encoding="utf-8", newline="", at=30)),
    "file-zipped": kind(Files.zipped),
    "bytes-io": kind(lambda _: io.BytesIO(CONTENT)),
    "bytes-io-seeked": kind(lambda _: seeked(io.BytesIO(CONTENT), 12345)),
    "string-io": kind(lambda _: io.StringIO(LINES)),
    "string-io-seeked": kind(lambda _: seeked(io.StringIO(LINES), 12345)),
    "dict-of-file": kind(lambda files: {"a": "1", "file": files.open()}),
    "list-of-file": kind(lambda files: [("a", "1"), ("file", files.open(at=12345))]),
    "form-of-file": kind(
        lambda files: form(("file", files.open()), filename="été.txt", content_type="text/x-a")
    ),
    "form-of-bytes-io": kind(lambda _: form(("file", seeked(io.BytesIO(CONTENT), 12345)))),
    "form-of-string-io": kind(lambda _: form(("file", io.StringIO(LINES)))),
    "multipart-of-file": kind(lambda files: multipart("text", files.open(at=12345))),
    "generator": single_use(lambda _: generate()),
    "generator-compress": single_use(lambda _: generate(), compress=True),
    "generator-of-length": single_use(lambda _: generate(), headers={"Content-Length": "13"}),
    "generator-longer": single_use(lambda _: generate(), headers={"Content-Length": "9"}),
    "stream": single_use(lambda _: stream()),
    "pipe": single_use(Files.pipe),
    "dict-of-pipe": single_use(lambda files: {"a": "1", "pipe": files.pipe()}),
    "form-of-generator": single_use(lambda _: form(("a", generate()), content_type="text/x-a")),
    "multipart-of-generator": single_use(
        lambda _: multipart(generate(), Content_Transfer_Encoding="base64")
    ),
    "multipart-of-pipe-and-file": single_use(lambda fs: multipart(fs.pipe(), fs.open())),
    "custom": single_use(lambda _: Custom()),
    "multipart-of-custom": single_use(lambda _: multipart(Custom())),
}


def seeked(file: _File, position: int) -> _File:
    file.seek(position)
    return file


@pytest.fixture(params=KINDS)
def each(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


# ---- the server --------------------------------------------------------------------------------


class Received(NamedTuple):
    headers: list[tuple[str, str]]
    body: bytes

    def without_boundary(self) -> "Received":
        """Aiohttp draws a boundary by lot, 32 digits long."""
        found = re.search(r"boundary=(\w{32})", str(self.headers))
        if found is None:
            return self
        boundary = found.group(1)
        headers = [(name, value.replace(boundary, "~")) for name, value in self.headers]
        return Received(headers, self.body.replace(boundary.encode(), b"~"))


@asynccontextmanager
async def serving(*statuses: int) -> AsyncGenerator[tuple[URL, list[Received]]]:
    """Answer with these statuses, the last one for ever; yields the URL and the whole requests.

    A negative one is sent before the body is read; 0 cuts the connection instead.
    """
    script = itertools.chain(statuses, itertools.repeat(statuses[-1]))
    received: list[Received] = []

    async def handle(request: web.Request) -> web.Response:
        status = next(script)
        if status > 0:
            received.append(Received(list(request.headers.items()), await whole(request)))
        elif status == 0:
            await request.content.readany()
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=abs(status) or 500, headers={"Location": "/there"})

    async with RateLimitedServer(None, handler=handle) as server:
        yield server.url, received


async def whole(request: web.Request) -> bytes:
    """Read without the limit that `request.read` has."""
    return b"".join([chunk async for chunk in request.content.iter_any()])


def assert_sent(received: list[Received], times: int, content: bytes | None = None) -> None:
    assert len(received) == times
    assert received == received[:1] * times
    if content is not None:
        assert received[0].body == content


async def post_plainly(url: URL, options: Options) -> None:
    async with ClientSession() as session, session.post(url, **options) as response:
        assert response.status == 200


async def post_twice(url: URL, options: Options, *, buffer_body: bool) -> ClientResponse:
    """Send a `Body` as a session does whose first attempt is throttled."""
    body = Body.of(options.get("data"))
    async with ClientSession() as session:
        if body is None:
            await session.post(url, **options)
            return await session.post(url, **options)
        options["data"] = body.data
        try:
            if buffer_body:
                await body.buffer()
            response = await session.post(url, **options)
            if body.is_replayable():
                response = await session.post(url, **options)
            return response
        finally:
            await body.close()


async def send_twice(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Send as a middleware does whose first attempt is throttled."""
    response = await handler(request)
    if response.status == 429 and is_replayable(request.body):
        await response.read()
        await prepare_again(request)
        response = await handler(request)
    return response


async def buffer_and_send_twice(
    request: ClientRequest, handler: ClientHandlerType
) -> ClientResponse:
    await buffer_request(request)
    return await send_twice(request, handler)


# ---- every kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_body", [False, True])
async def test_server_receives_the_body_of_a_plain_session(
    each: Kind, files: Files, buffer_body: bool
) -> None:
    async with serving(200) as (url, received):
        await post_plainly(url, each.options(files))
        await post_twice(url, each.options(files), buffer_body=buffer_body)
    plain, ours, *_ = [one.without_boundary() for one in received]
    assert ours == plain


async def test_body_is_repeated_unchanged_or_not_at_all(each: Kind, files: Files) -> None:
    async with serving(429, 200) as (url, received):
        response = await post_twice(url, each.options(files), buffer_body=False)
    assert_sent(received, 1 if each.is_single_use else 2)
    assert response.status == (429 if each.is_single_use else 200)


async def test_buffered_body_is_always_repeated(each: Kind, files: Files) -> None:
    async with serving(429, 200) as (url, received):
        response = await post_twice(url, each.options(files), buffer_body=True)
    assert_sent(received, 2)
    assert response.status == 200


@pytest.mark.parametrize("buffer_body", [False, True])
async def test_request_is_repeated_unchanged_or_not_at_all(
    each: Kind, files: Files, buffer_body: bool
) -> None:
    middleware = buffer_and_send_twice if buffer_body else send_twice
    async with serving(200) as (url, plainly):
        await post_plainly(url, each.options(files))
    async with (
        serving(429, 200) as (url, received),
        ClientSession(middlewares=[middleware]) as session,
        session.post(url, **each.options(files)) as response,
    ):
        assert response.status == (429 if each.is_single_use and not buffer_body else 200)
    assert_sent(received, 1 if each.is_single_use and not buffer_body else 2)
    assert essence(received[0]) == essence(plainly[0])


def essence(received: Received) -> Received:
    """Leave out the differences between two servers, and of a rewritten request."""
    headers = sorted(pair for pair in received.headers if pair[0] != "Host")
    return received._replace(headers=headers).without_boundary()


Start = Callable[[bool], AbstractAsyncContextManager[ClientSession | ThrottledSession]]


@asynccontextmanager
async def nested(buffer_body: bool) -> AsyncGenerator[ThrottledSession]:
    """A throttled session around one that retries by itself."""
    async with (
        ClientSession(middlewares=[RetryMiddleware(QUICK, buffer_body=buffer_body)]) as inner,
        ThrottledSession(RateLimiter(), session=inner, retry=Retry(attempts=1)) as session,
    ):
        yield session


INTEGRATIONS: dict[str, Start] = {
    "session": lambda buffer_body: ThrottledSession(
        RateLimiter(), retry=QUICK, buffer_body=buffer_body
    ),
    "middleware": lambda buffer_body: throttled_session(
        RateLimiter(), retry=QUICK, buffer_body=buffer_body
    ),
    "nested": nested,
}


@pytest.fixture(params=INTEGRATIONS)
def start(request: pytest.FixtureRequest) -> Start:
    return INTEGRATIONS[request.param]


@pytest.mark.parametrize("buffer_body", [False, True])
async def test_each_kind_with_each_integration(
    each: Kind, start: Start, files: Files, buffer_body: bool
) -> None:
    async with serving(200) as (url, plainly):
        await post_plainly(url, each.options(files))
    is_sent_twice = buffer_body or not each.is_single_use
    async with (
        serving(429, 200) as (url, received),
        start(buffer_body) as session,
        session.post(url, **each.options(files)) as response,
    ):
        assert response.status == (200 if is_sent_twice else 429)
    assert_sent(received, 2 if is_sent_twice else 1)
    assert essence(received[0]) == essence(plainly[0])


# ---- files after the request -------------------------------------------------------------------


FILES: dict[str, Callable[[Files], IO[Any]]] = {
    "file": Files.open,
    "text": lambda files: files.open("r", encoding="utf-8"),
    "raw": lambda files: files.open(buffering=0),
    "pipe": Files.pipe,
    "bytes-io": lambda _: io.BytesIO(CONTENT),
    "string-io": lambda _: io.StringIO(LINES),
}


def alone(file: IO[Any]) -> object:
    return file


def in_a_form(file: IO[Any]) -> object:
    return {"file": file}


async def state(file: IO[Any]) -> tuple[bool, int | None]:
    """Return whether it is closed, which aiohttp does in a thread, and otherwise its position."""
    await asyncio.get_running_loop().shutdown_default_executor()
    return file.closed, file.tell() if not file.closed and file.seekable() else None


@pytest.mark.parametrize("wrap", [alone, in_a_form])
@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
@pytest.mark.parametrize("statuses", [[200], [429, 200]])
async def test_file_is_left_as_in_a_plain_session(
    files: Files,
    start: Start,
    make: Callable[[Files], IO[Any]],
    wrap: Callable[[IO[Any]], Any],
    statuses: list[int],
) -> None:
    plain, ours = make(files), make(files)
    async with serving(200) as (url, _):
        await post_plainly(url, {"data": wrap(plain)})
    async with serving(*statuses) as (url, _), start(False) as session:
        await session.post(url, data=wrap(ours))
    assert await state(ours) == await state(plain)


async def test_unsent_file_stays_open(files: Files) -> None:
    file = files.open(at=5)
    async with ThrottledSession(RateLimiter()) as session:
        with pytest.raises(aiohttp.NonHttpUrlClientError):
            await session.post("ftp://127.0.0.1", data=file)
    assert await state(file) == (False, 5)


async def test_buffered_pipe_is_left_as_in_aiohttp(files: Files) -> None:
    plain, ours = files.pipe(), files.pipe()
    async with (
        serving(200) as (url, _),
        ThrottledSession(RateLimiter(), buffer_body=True) as session,
    ):
        await post_plainly(url, {"data": plain})
        await session.post(url, data=ours)
    assert await state(ours) == await state(plain)


async def test_redirect_and_retry_keep_the_body(files: Files, start: Start) -> None:
    async with (
        serving(307, 429, 307, 200) as (url, received),
        start(False) as session,
        session.post(url, data=files.open(at=12345)) as response,
    ):
        assert response.status == 200
    assert [one.body for one in received] == [CONTENT[12345:]] * len(received)
    assert len(received) >= 3


async def test_redirected_spent_body_fails_as_in_aiohttp(files: Files, start: Start) -> None:
    async def outcome(session: ClientSession | ThrottledSession) -> tuple[Any, list[bytes]]:
        async with serving(307, 200) as (url, received):
            try:
                ended: Any = (await session.post(url, data=files.pipe())).status
            except aiohttp.ClientError as error:
                ended = type(error)
        return ended, [one.body for one in received]

    async with ClientSession() as plain, start(False) as session:
        assert await outcome(session) == await outcome(plain)


# ---- throttled while the body is still sent ---------------------------------------------------


LARGE = bytes(range(256)) * (80 << 10)  # 20 MiB


@pytest.fixture
def large_file(tmp_path: Path) -> Iterator[IO[bytes]]:
    (tmp_path / "large").write_bytes(LARGE)
    with (tmp_path / "large").open("rb") as file:
        yield file


@pytest.mark.parametrize("status", [-413, -429, 0])
async def test_large_file_is_repeated_whole(
    large_file: IO[bytes], start: Start, status: int
) -> None:
    async with (
        serving(status, status, 200) as (url, received),
        start(False) as session,
        session.put(url, data=large_file) as response,
    ):
        assert response.status == 200
    assert [one.body == LARGE for one in received] == [True]


@pytest.mark.parametrize("wrap", [io.BytesIO, bytearray])
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_large_body_in_memory_is_repeated_whole(
    start: Start, wrap: Callable[[bytes], Any]
) -> None:
    async with (
        serving(-429, -429, 200) as (url, received),
        start(False) as session,
        session.post(url, data=wrap(LARGE)) as response,
    ):
        assert response.status == 200
    assert [one.body == LARGE for one in received] == [True]


async def test_large_form_is_repeated_whole(large_file: IO[bytes], start: Start) -> None:
    async with (
        serving(-429, 200) as (url, received),
        start(False) as session,
        session.post(url, data={"file": large_file}) as response,
    ):
        assert response.status == 200
    assert [LARGE in one.body for one in received] == [True]


async def generate_for_long() -> AsyncIterator[bytes]:
    for start in range(0, len(LARGE), 1 << 20):
        yield LARGE[start : start + (1 << 20)]


async def test_partly_read_generator_is_not_repeated(
    start: Start,
) -> None:
    async with (
        serving(-429, 200) as (url, received),
        start(False) as session,
        session.post(url, data=generate_for_long()) as response,
    ):
        assert response.status == 429
    assert received == []


async def test_large_buffered_generator_is_repeated_whole(start: Start) -> None:
    async with (
        serving(-429, 200) as (url, received),
        start(True) as session,
        session.post(url, data=generate_for_long()) as response,
    ):
        assert response.status == 200
    assert [one.body == LARGE for one in received] == [True]


class Endless(Payload):
    """Its writing ends soon after it was cancelled."""

    has_ended = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002
        return ""

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(b"some")
        try:
            await asyncio.Event().wait()
        finally:
            self.has_ended = True


async def test_unfinished_upload_ends_before_the_next() -> None:
    payload = Endless(None)

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        response.close()
        assert not payload.has_ended
        await prepare_again(request)
        assert payload.has_ended
        return response

    async with serving(-429) as (url, _), ClientSession(middlewares=[middleware]) as session:
        await session.post(url, data=payload)


class SlowFile(io.FileIO):
    """Its first reading takes until `go`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.started = threading.Event()
        self.go = threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.started.is_set():
            self.started.set()
            self.go.wait(10)
        return super().read(size)


class CountingExecutor(ThreadPoolExecutor):
    """Knows at once that a thread will read, which the thread itself may find out late."""

    jobs = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        self.jobs += 1
        return super().submit(fn, *args, **kwargs)


class Sink(AbstractStreamWriter):
    """Takes all bytes that are written, or none."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.content = b""
        self.is_stuck = is_stuck
        self.is_asked = asyncio.Event()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.is_asked.set()
        if self.is_stuck:
            await asyncio.Event().wait()
        self.content += chunk

    async def write_eof(self, chunk: bytes = b"") -> None: ...
    async def drain(self) -> None: ...
    def enable_compression(self, encoding: str = "", strategy: int | None = None) -> None: ...
    def enable_chunking(self) -> None: ...
    async def write_headers(self, status_line: str, headers: object) -> None: ...


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("wrap", [alone, in_a_form])
async def test_thread_of_the_last_attempt_takes_nothing(
    tmp_path: Path, wrap: Callable[[IO[bytes]], Any]
) -> None:
    executor = CountingExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    with SlowFile(tmp_path / "lines.txt") as file:
        body = Body.of(wrap(file))
        assert body is not None
        first, second = Sink(), Sink()
        attempt = asyncio.create_task(body.data.write_with_length(first, None))
        await asyncio.to_thread(file.started.wait)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        jobs = executor.jobs
        attempt = asyncio.create_task(body.data.write_with_length(second, None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert executor.jobs == jobs
        file.go.set()
        await attempt
    assert CONTENT[:100] not in first.content
    assert CONTENT in second.content


async def test_growing_file_is_repeated_unchanged(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one")
    with (tmp_path / "log").open("rb") as file:
        body = Body.of(file)
        assert body is not None
        for _ in range(2):
            sink = Sink()
            await body.data.write_with_length(sink, body.data.size)
            assert sink.content == b"one"
            (tmp_path / "log").write_bytes(b"one two")


async def test_stuck_attempt_does_not_delay_the_next(files: Files) -> None:
    body = Body.of(files.open())
    assert body is not None
    stuck, sink = Sink(is_stuck=True), Sink()
    attempt = asyncio.create_task(body.data.write(stuck))
    await stuck.is_asked.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await body.data.write(sink)
    assert sink.content == CONTENT


# ---- Expect: 100-continue ----------------------------------------------------------------------


async def test_429_instead_of_100_continue_is_retried(start: Start) -> None:
    """The server throttles twice before it asks for the body, and then asks for it."""
    answers = iter(["HTTP/1.1 429 No\r\n", "HTTP/1.1 429 No\r\n", "HTTP/1.1 200 OK\r\n"])
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = next(answers)
        if "200" in answer:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            received.append(await reader.readexactly(4))
        writer.write(f"{answer}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, start(False) as session:
        url = f"http://127.0.0.1:{port}/"
        async with session.post(url, data=b"body", expect100=True) as response:
            assert response.status == 200
    assert received == [b"body"]


# ---- bodies that cannot be sent -----------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        object(),
        5,
        {"a", "b"},
        ["ab"],
        [("a", "b", "c")],
        {"file": io.BytesIO(), "a": object()},
        {5: io.BytesIO()},
        (piece for piece in PIECES),
    ],
    ids=lambda data: type(data).__name__,
)
async def test_wrong_body_raises_as_in_aiohttp(data: object, start: Start) -> None:
    async with serving(200) as (url, received):
        with pytest.raises((TypeError, ValueError)) as theirs:
            await post_plainly(url, {"data": data})
        async with start(False) as session:
            with pytest.raises(theirs.type, match=re.escape(str(theirs.value))):
                await session.post(url, data=data)
    assert received == []


async def test_generator_failing_while_buffered_raises_its_error() -> None:
    async def fail() -> AsyncIterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    async with (
        serving(200) as (url, received),
        ThrottledSession(RateLimiter(), buffer_body=True) as session,
    ):
        with pytest.raises(ZeroDivisionError):
            await session.post(url, data=fail())
    assert received == []


# ---- is_replayable -----------------------------------------------------------------------------


@pytest.mark.parametrize("body", [None, b"", b"bytes"])
def test_none_and_bytes_are_replayable(body: object) -> None:
    assert is_replayable(body)


@pytest.mark.parametrize("body", ["str", object(), iter(PIECES)])
def test_other_than_a_payload_is_not_replayable(body: object) -> None:
    assert not is_replayable(body)


async def test_replayability_is_known_before_the_first_attempt(each: Kind, files: Files) -> None:
    body = Body.of(each.options(files).get("data"))
    assert each.is_single_use == (body is not None and not body.is_replayable())


async def test_closed_file_is_not_replayable(files: Files) -> None:
    for file in (files.open(), io.BytesIO(CONTENT)):
        body = Body.of(file)
        assert body is not None
        assert body.is_replayable()
        file.close()
        assert not body.is_replayable()


async def test_closed_payload_is_not_replayable(files: Files) -> None:
    for data in (files.open(), {"file": files.open()}):
        body = Body.of(data)
        assert body is not None
        await body.data.close()
        assert body.is_replayable()
        await body.close()
        assert not body.is_replayable()


@pytest.mark.parametrize("data", [None, b"a", {"a": "1", "b": 2.5}, [("a", "1")], {}, []])
def test_body_that_aiohttp_rebuilds_is_not_wrapped(data: object) -> None:
    assert Body.of(data) is None


async def test_buffering_a_replayable_body_reads_nothing() -> None:
    file = io.BytesIO(CONTENT)
    body = Body.of(file)
    assert body is not None
    await body.buffer()
    assert file.tell() == 0


async def test_body_can_be_read_like_its_payload() -> None:
    body = Body.of(FormData({"a": "é"}))
    assert body is not None
    assert await body.data.as_bytes() == b"a=%C3%A9"
    assert body.data.decode() == "a=%C3%A9"
    assert body.data.content_type == "application/x-www-form-urlencoded"
