"""Bodies of every kind in aiohttp: repeated byte for byte, or not repeated."""

import asyncio
import gc
import io
import itertools
import os
import re
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import (
    ClientHandlerType,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    FormData,
    MultipartWriter,
    Payload,
    StringPayload,
    web,
)
from multidict import CIMultiDict
from yarl import URL

from aiothrottle import RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, throttled_session
from aiothrottle.aiohttp.body import Body, prepare_again
from aiothrottle.testing import RateLimitedServer
from tests.integrations.clients import ONCE, cancel
from tests.support.serving import generated, until
from tests.support.virtually import turns

pytestmark = pytest.mark.filterwarnings("ignore:In v4, passing bytes:DeprecationWarning")

QUICK = Retry(backoff=0.001, statuses={413, 429})
LINES = "".join(f"{number:08} dix-sept ans déjà\n" for number in range(8000))  # several chunks
CONTENT = LINES.encode()
LARGE = bytes(range(256)) * (32 << 10)  # 8 MiB, more than all buffers on the way hold
PIECES = [b"one ", b"two ", b"three"]


class Files:
    """Opens files of every kind, and closes at the end those that aiohttp has left open."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.path = directory / "lines.txt"
        self.path.write_bytes(CONTENT)
        self._stack = stack

    def open(self, mode: str = "rb", *, at: int = 0, **options: Any) -> IO[Any]:
        file = self._stack.enter_context(self.path.open(mode, **options))
        file.seek(at)
        return file

    def text(self) -> IO[str]:
        return self.open("r", at=30, encoding="utf-8", newline="")

    def large(self) -> IO[bytes]:
        self.path.write_bytes(LARGE)
        return self.open()

    def pipe(self) -> IO[bytes]:
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as file:
            file.writelines(PIECES)
        return self._stack.enter_context(os.fdopen(reading, "rb"))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    with ExitStack() as stack:
        yield Files(tmp_path, stack)


generate = partial(generated, *PIECES)


def form(value: object, **described: str) -> FormData:
    made = FormData()
    made.add_field("file", value, **described)
    return made


def multipart(*parts: object, encoding: str | None = None) -> MultipartWriter:
    headers = {} if encoding is None else {"Content-Transfer-Encoding": encoding}
    writer = MultipartWriter()
    for part in parts:
        writer.append(part, CIMultiDict(headers))
    return writer


#: How each is made, and further options of the request.
REPLAYABLE: dict[str, tuple[Callable[[Files], Any], dict[str, Any]]] = {
    "none": (lambda _: None, {}),
    "bytes": (lambda _: b"bytes", {}),
    "json": (lambda _: None, {"json": {"a": [1, 2]}}),
    "dict": (lambda _: {"a": "1", "b": 2, "c": 2.5}, {}),
    "form of parts": (lambda _: form("1", content_type="text/x-a"), {}),
    "multipart": (lambda _: multipart("text", b"bytes", io.BytesIO(CONTENT)), {}),
    "string payload": (lambda _: StringPayload("déjà", encoding="latin-1"), {}),
    "chunked file": (Files.open, {"chunked": True}),
    "expect100": (Files.open, {"expect100": True}),
    "own headers": (Files.open, {"headers": {"Content-Type": "x/y", "Content-Length": "9"}}),
    "seeked file": (lambda files: files.open(at=12345), {}),
    "text file": (Files.text, {}),
    "StringIO": (lambda _: io.StringIO(LINES), {}),
    "form of file": (lambda files: form(files.open(), filename="été", content_type="x/a"), {}),
    "multipart of file": (lambda files: multipart("text", files.open(at=12345)), {}),
}
SINGLE_USE: dict[str, tuple[Callable[[Files], Any], dict[str, Any]]] = {
    "generator": (lambda _: generate(), {}),
    "generator of a length": (lambda _: generate(), {"headers": {"Content-Length": "9"}}),
    "multipart of generator": (lambda _: multipart(generate(), encoding="base64"), {}),
    "pipe": (Files.pipe, {}),
    "dict of pipe": (lambda files: {"a": "1", "pipe": files.pipe()}, {}),
    "multipart of pipe and file": (lambda files: multipart(files.pipe(), files.open()), {}),
}


class Received(NamedTuple):
    headers: list[tuple[str, str]]
    body: bytes


@asynccontextmanager
async def serving(
    *statuses: int, then: Callable[[], object] = bool
) -> AsyncGenerator[tuple[URL, list[Received]]]:
    """Answer with these statuses, the last one for ever; yield the URL and the whole requests.

    A negative one is sent before the body is read; 0 cuts the connection instead.
    """
    script = itertools.chain(statuses, itertools.repeat(statuses[-1]))
    received: list[Received] = []

    async def handle(request: web.Request) -> web.Response:
        status = next(script)
        if status > 0:
            # Without the limit that `request.read` has.
            body = b"".join([chunk async for chunk in request.content.iter_any()])
            received.append(Received(list(request.headers.items()), body))
            then()
        elif status == 0:
            await request.content.readany()
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=abs(status) or 500, headers={"Location": "/there"})

    async with RateLimitedServer(None, handler=handle) as server:
        yield server.url, received


async def post_plainly(url: URL, data: object, **options: Any) -> None:
    async with ClientSession() as session, session.post(url, data=data, **options) as response:
        assert response.status == 200


Start = Callable[[bool], AbstractAsyncContextManager[ClientSession | ThrottledSession]]


def plain(_: bool) -> ClientSession:
    return ClientSession()


def throttled(buffer_body: bool) -> ThrottledSession:
    return ThrottledSession(RateLimiter(), retry=QUICK, buffer_body=buffer_body)


def with_middlewares(buffer_body: bool) -> ClientSession:
    return throttled_session(RateLimiter(), retry=QUICK, buffer_body=buffer_body)


def nested(buffer_body: bool) -> ThrottledSession:
    inner = ClientSession(middlewares=[RetryMiddleware(QUICK, buffer_body=buffer_body)])
    return ThrottledSession(RateLimiter(), session=inner, owns_session=True, retry=ONCE)


every_start = pytest.mark.parametrize("start", [throttled, with_middlewares, nested])


# ---- every kind --------------------------------------------------------------------------------


@pytest.mark.uvloop
@pytest.mark.parametrize("name", [*REPLAYABLE, *SINGLE_USE])
@every_start
async def test_body_is_repeated_unchanged_or_not_at_all(
    name: str, start: Start, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=1))  # the boundaries of aiohttp
    data, options = (REPLAYABLE | SINGLE_USE)[name]
    async with serving(200) as (plain, plainly):
        await post_plainly(plain, data(files), **options)
    for buffer_body in (False, True):
        is_repeated = buffer_body or name in REPLAYABLE
        async with (
            serving(429, 200) as (url, received),
            start(buffer_body) as session,
            session.post(url, data=data(files), **options) as response,
        ):
            assert response.status == (200 if is_repeated else 429)
        assert received == received[:1] * (2 if is_repeated else 1)
        assert received[0].body == plainly[0].body
        # But for the place of the server, and the order in a rewritten request.
        assert {*received[0].headers} ^ {*plainly[0].headers} <= {
            ("Host", at.authority) for at in (url, plain)
        }


@every_start
async def test_wrong_body_raises_as_in_aiohttp(start: Start) -> None:
    file = io.BytesIO()
    wrong: list[Any] = [5, {"a"}, ["ab"], [("a", "b", "c")], {"file": file, "a": object()}]
    async with serving(200) as (url, received), start(False) as session:
        for data in wrong:
            with pytest.raises((TypeError, ValueError)) as theirs:
                await post_plainly(url, data)
            with pytest.raises(theirs.type, match=re.escape(str(theirs.value))):
                await session.post(url, data=data)
    assert received == []


async def test_inner_middleware_can_read_the_body() -> None:
    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        assert isinstance(request.body, Payload)
        assert (await request.body.as_bytes(), request.body.decode()) == (b"file=1", "file=1")
        return await handler(request)

    async with (
        serving(200) as (url, received),
        ThrottledSession(RateLimiter(), middlewares=[middleware]) as session,
    ):
        assert (await session.post(url, data=form("1"))).status == 200
        assert received[0].body == b"file=1"


# ---- files -------------------------------------------------------------------------------------


OPEN: list[Callable[[Files], IO[Any]]] = [
    *(Files.open, Files.text, Files.pipe, lambda _: io.BytesIO(CONTENT))
]


@pytest.mark.parametrize("in_form", [False, True])
@every_start
async def test_file_is_left_as_in_plain_session(files: Files, start: Start, in_form: bool) -> None:
    opened = [[make(files) for _ in range(3)] for make in OPEN]
    for each in opened:
        plain, once, twice = [{"file": it} if in_form else it for it in each]
        async with serving(200, 200, 429, 200) as (url, _), start(False) as session:
            await post_plainly(url, plain)
            await session.post(url, data=once)
            await session.post(url, data=twice)
    await asyncio.get_running_loop().shutdown_default_executor()  # aiohttp closes files in a thread
    for each in opened:
        states = [it.closed or (it.seekable() and it.tell()) for it in each]
        assert states == states[:1] * 3, each[0]


@every_start
async def test_redirect_and_retry_keep_the_body(files: Files, start: Start) -> None:
    async with serving(307, 429, 307, 200) as (url, received), start(False) as session:
        assert (await session.post(url, data=files.open(at=12345))).status == 200
    assert {one.body for one in received} == {CONTENT[12345:]}
    assert len(received) >= 3


@every_start
async def test_redirect_keeps_the_type_of_a_buffered_body(start: Start) -> None:
    async with serving(307, 200) as (url, received), start(True) as session:
        assert (await session.post(url, data=multipart(generate()))).status == 200
    first, second = [(dict(it.headers)["Content-Type"], it.body) for it in received]
    assert first == second
    assert first[0].startswith("multipart/mixed; boundary=")


async def test_file_of_a_rejected_request_stays_open(files: Files) -> None:
    limiter, file = RateLimiter(concurrency_limit=1), files.open()
    async with limiter.throttle(), ThrottledSession(limiter, queue_timeout=0) as session:
        with pytest.raises(ThrottleTimeout):
            await session.post("http://127.0.0.1:9/", data=file)
    assert not file.closed


@every_start
async def test_redirect_of_a_consumed_body_ends_as_in_aiohttp(start: Start) -> None:
    """With an error, or in older versions with an empty body."""
    ends = list[object]()
    for make in (plain, start):
        async with serving(307, 200) as (url, received), make(False) as session:
            try:
                end = str((await session.post(url, data=generate())).status)
            except ClientPayloadError as error:
                end = str(error)
        ends.append((end, [it.body for it in received]))
    assert ends[1] == ends[0]


@pytest.mark.parametrize("in_form", [False, True])
@every_start
async def test_file_closed_meanwhile_is_not_sent_again(start: Start, in_form: bool) -> None:
    file = io.BytesIO(CONTENT)
    async with serving(429, then=file.close) as (url, received), start(False) as session:
        response = await session.post(url, data={"file": file} if in_form else file)
        assert (response.status, len(received)) == (429, 1)


@every_start
async def test_file_that_cannot_be_rewound_is_sent_once(start: Start, files: Files) -> None:
    """Although it is seekable."""
    file = files.text()
    next(file)  # from now on Python does not tell its position
    async with serving(429) as (url, received), start(False) as session:
        assert (await session.post(url, data=file)).status == 429
        assert len(received) == 1


# ---- throttled while the body is still sent ---------------------------------------------------


UPLOADS: dict[str, tuple[Callable[[Files], Any], int]] = {
    "file": (Files.large, -413),
    "file cut off": (Files.large, 0),
    "buffered generator": (lambda _: generated(LARGE), -429),
}


@pytest.mark.parametrize("upload", UPLOADS)
@every_start
async def test_large_body_is_repeated_whole(start: Start, files: Files, upload: str) -> None:
    data, status = UPLOADS[upload]
    async with (
        serving(status, status, 200) as (url, received),
        start(upload.startswith("buffered")) as session,
        session.put(url, data=data(files)) as response,
    ):
        assert response.status == 200
    assert [LARGE in one.body for one in received] == [True]


class SlowFile(io.FileIO):
    reads = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads == 1:
            self.go.wait(10)
        return super().read(size)


@pytest.mark.parametrize("in_form", [False, True])
async def test_thread_of_the_last_attempt_takes_nothing(files: Files, in_form: bool) -> None:
    with SlowFile(files.path) as file:
        async with serving(-429, 200) as (url, received), throttled(False) as session:
            data: Any = {"file": file} if in_form else file
            task = asyncio.ensure_future(session.post(url, data=data))
            await until(lambda: file.reads)
            await asyncio.sleep(0.05)  # the second attempt has begun by then
            await turns(50)
            assert (file.reads, task.done()) == (1, False)
            file.go.set()
            assert (await task).status == 200
        assert [CONTENT in one.body for one in received] == [True]


async def test_file_may_be_closed_before_a_cancelled_upload_reads(files: Files) -> None:
    seen = Mock()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen(context))
    file = SlowFile(files.path)
    body = Body.of(file)
    assert body is not None
    attempt = asyncio.create_task(body.write(AsyncMock()))
    await until(lambda: file.reads)
    await cancel(attempt)
    file.close()
    file.go.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    del attempt, body
    await turns(10)
    gc.collect()
    seen.assert_not_called()


async def test_stuck_attempt_does_not_delay_the_next(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    body, asked, sink = Body.of(files.open()), asyncio.Event(), AsyncMock()
    assert body is not None

    async def stick(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    attempt = asyncio.create_task(body.write(Mock(write=stick)))
    await asked.wait()
    await cancel(attempt)
    async with asyncio.timeout(5):
        await body.write(sink)
    assert b"".join(call.args[0] for call in sink.write.await_args_list) == CONTENT
    assert not caplog.records


async def test_attempt_that_was_cancelled_in_a_read_writes_no_more(files: Files) -> None:
    with SlowFile(files.path) as file:
        body, first, second = Body.of(file), AsyncMock(), AsyncMock()
        assert body is not None
        attempt = asyncio.create_task(body.write(first))
        await until(lambda: file.reads)
        await cancel(attempt)
        file.go.set()
        await body.write(second)
    first.write.assert_not_awaited()
    second.write.assert_awaited()


async def test_unfinished_upload_ends_before_the_next() -> None:
    has_ended = False

    async def endless() -> AsyncIterator[bytes]:
        nonlocal has_ended
        yield b"some"
        try:
            await asyncio.Event().wait()
        finally:
            has_ended = True

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        response.close()
        assert not has_ended
        await prepare_again(request)
        assert has_ended
        return response

    async with serving(-429) as (url, _), ClientSession(middlewares=[middleware]) as session:
        await session.post(url, data=endless())
