"""A body that the retry loop or `should_retry` has read is read once more by every method.

The loop reads the short body of a response that may be throttled for reported limits, and
`should_retry` may read the body of any response, or a part of it.
"""

# ruff: noqa: ANN401 - sessions and clients of four kinds

import asyncio
import contextlib
import gzip
import itertools
import json
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import ClientResponse, ClientSession, StreamReader, web
from yarl import URL

import aiothrottle.httpx
import aiothrottle.httpx2
from aiothrottle import RateLimiter
from aiothrottle.aiohttp import (
    Retry,
    RetryMiddleware,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_session,
)
from aiothrottle.cli import main
from aiothrottle.testing import RateLimitedServer
from tests.background import background
from tests.integrations.clients import collected, cut_off
from tests.serving import in_flight, serving

MAY_BE_THROTTLED = [403, 420, 429, 503, 529]
SHORT = json.dumps({"message": ["nope"] * 5}, indent=1).encode()
LONG = json.dumps({str(row): "." * 90 for row in range(1000)}, indent=1).encode()  # some 100 kB
#: How a body is sent.
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "chunked": bytes,
}


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer with the status, the form and the body that stand in the path."""
    status, form, size = request.path.strip("/").split("/")
    body = FORMS[form](LONG if size == "long" else SHORT)
    packed = {"Content-Encoding": form} if form in {"gzip", "deflate"} else {}
    headers = {"Content-Type": "application/json", **packed}
    if form != "chunked":
        return web.Response(status=int(status), body=body, headers=headers)
    response = web.StreamResponse(status=int(status), headers=headers)
    await response.prepare(request)
    for start in range(0, len(body), 1000):
        await response.write(body[start : start + 1000])
    return response


@pytest.fixture
async def url() -> AsyncGenerator[URL]:
    async with RateLimitedServer(None, handler=answer) as server:
        yield server.url


# ---- aiohttp -----------------------------------------------------------------------------------


def plain(_: RateLimiter, *, retry: Retry, **options: Any) -> ClientSession:  # noqa: ARG001
    return ClientSession(**options)


def throttling(limiter: RateLimiter, *, retry: Retry, **options: Any) -> ClientSession:
    return ClientSession(middlewares=[ThrottleMiddleware(limiter, retry=retry)], **options)


def retrying(_: RateLimiter, *, retry: Retry, **options: Any) -> ClientSession:
    return ClientSession(middlewares=[RetryMiddleware(retry)], **options)


SESSIONS: list[Callable[..., Any]] = [
    ThrottledSession,
    throttled_session,
    throttling,
    retrying,
]
Way = Callable[[ClientResponse], Awaitable[bytes]]


async def called(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Call it until it returns nothing."""
    found = b""
    while chunk := await read():
        found += chunk
    return found


async def by_chunks(content: StreamReader) -> bytes:
    return b"".join([chunk async for chunk, _ in content.iter_chunks()])


async def until_at_eof(content: StreamReader) -> bytes:
    found = b""
    while not content.at_eof():
        found += await content.readany()
    return found


async def without_waiting(content: StreamReader) -> bytes:
    await content.wait_eof()
    assert content.is_eof()
    return content.read_nowait()


async def in_two(content: StreamReader) -> bytes:
    return await content.readexactly(3) + await content.read()


async def too_much(content: StreamReader) -> bytes:
    with pytest.raises(asyncio.IncompleteReadError) as raised:
        await content.readexactly(1 << 20)
    return raised.value.partial


OF_RESPONSE: dict[str, Way] = {
    "read": lambda it: it.read(),
    "text": lambda it: encoded(it.text()),
    "json": lambda it: dumped(it.json()),
}
OF_CONTENT: dict[str, Way] = {
    "content.read": lambda it: it.content.read(),
    "content.read(700)": lambda it: called(lambda: it.content.read(700)),
    "content.readany": lambda it: called(it.content.readany),
    "content.readline": lambda it: called(it.content.readline),
    "content.readuntil": lambda it: called(lambda: it.content.readuntil(b"99")),
    "content.readexactly": lambda it: in_two(it.content),
    "content.readexactly(more)": lambda it: too_much(it.content),
    "content.read_nowait": lambda it: without_waiting(it.content),
    "content.iter_chunked": lambda it: collected(it.content.iter_chunked(700)),
    "content.iter_any": lambda it: collected(it.content.iter_any()),
    "content.iter_chunks": lambda it: by_chunks(it.content),
    "content.at_eof": lambda it: until_at_eof(it.content),
    "lines": lambda it: collected(aiter(it.content)),
}
WAYS = OF_RESPONSE | OF_CONTENT


async def encoded(text: Awaitable[str]) -> bytes:
    return (await text).encode()


async def dumped(value: Awaitable[Any]) -> bytes:
    return json.dumps(await value, indent=1).encode()


async def reads_nothing(response: ClientResponse) -> None:
    assert not response.content.at_eof()
    assert response.content.exception() is None


async def reads(response: ClientResponse) -> None:
    assert await response.read() == await response.read()


async def reads_content(response: ClientResponse) -> None:
    assert await response.content.read()
    assert response.content.at_eof()


async def reads_a_line(response: ClientResponse) -> None:
    assert await response.content.readline()


async def reads_a_chunk(response: ClientResponse) -> None:
    await response.content.wait_eof()
    async for chunk in response.content.iter_chunked(5):
        assert len(chunk) == 5
        break
    assert response.content.read_nowait(3)
    assert await response.content.readchunk() != (b"", False)


Judge = Callable[[Any], Awaitable[None]] | None
JUDGES: list[Judge] = [None, reads_nothing, reads, reads_content, reads_a_line, reads_a_chunk]


def once(judge: Judge) -> Retry:
    return Retry(attempts=1, max_backoff=0.001, should_retry=judge)


async def assert_read(
    make: Callable[..., Any], url: URL, way: Way, judge: Judge, statuses: list[int]
) -> None:
    """Read bodies of all statuses, forms and sizes that way; each comes out whole."""
    limiter = RateLimiter(concurrency_limit=1)
    sizes = {"short": SHORT, "long": LONG}
    for unpacks in (True, False):
        async with make(limiter, retry=once(judge), auto_decompress=unpacks) as session:
            for status, form, size in itertools.product(statuses, FORMS, sizes):
                is_packed = form in {"gzip", "deflate"} and not unpacks
                if is_packed and way in (WAYS["text"], WAYS["json"]):
                    continue
                expected = FORMS[form](sizes[size]) if is_packed else sizes[size]
                async with session.get(url / str(status) / form / size) as response:
                    assert response.status == status
                    found = await way(response)
                    if form == "gzip" and is_packed:  # there is a time in it
                        found, expected = gzip.decompress(found), sizes[size]
                    assert found == expected, (status, form, size, unpacks)
                    if way in OF_CONTENT.values():
                        assert response.content.at_eof()
                    assert response.connection is None
                assert not in_flight(limiter)


@pytest.mark.parametrize("way", WAYS)
async def test_plain_aiohttp_reads_the_whole_body(way: str, url: URL) -> None:
    await assert_read(plain, url, WAYS[way], None, [200, 429])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", SESSIONS)
async def test_throttled_response_is_read_whole(
    make: Callable[..., Any], way: str, url: URL
) -> None:
    await assert_read(make, url, WAYS[way], None, [200, *MAY_BE_THROTTLED])


@pytest.mark.parametrize("judge", JUDGES[1:])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", SESSIONS)
async def test_body_that_should_retry_read_is_read_whole(
    make: Callable[..., Any], way: str, judge: Judge, url: URL
) -> None:
    await assert_read(make, url, WAYS[way], judge, [200, 429])


@pytest.mark.parametrize("judge", [None, reads, reads_content, reads_a_line])
@pytest.mark.parametrize("end", [ClientResponse.release, ClientResponse.close])
@pytest.mark.parametrize("make", SESSIONS)
async def test_released_response_is_not_read(
    make: Callable[..., Any], end: Callable[[ClientResponse], object], judge: Judge, url: URL
) -> None:
    async with make(RateLimiter(concurrency_limit=1), retry=once(judge)) as session:
        response = await session.get(url / "429/plain/short")
        end(response)
        assert response.closed
        with pytest.raises(aiohttp.ClientConnectionError, match="Connection closed"):
            await response.content.read()
        with pytest.raises(aiohttp.ClientConnectionError, match="Connection closed"):
            await response.read()


@pytest.mark.parametrize("make", SESSIONS)
async def test_context_manager_ends_a_throttled_response(
    make: Callable[..., Any], url: URL
) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with make(limiter, retry=once(None)) as session:
        async with session.get(url / "429/plain/short") as response:
            pass
        with pytest.raises(aiohttp.ClientConnectionError, match="Connection closed"):
            await response.content.read()
    assert not in_flight(limiter)


@pytest.mark.parametrize("make", SESSIONS)
async def test_traces_see_each_body_once(make: Callable[..., Any], url: URL) -> None:
    seen: list[bytes] = []

    async def received(_: ClientSession, __: object, chunk: Any) -> None:
        seen.append(chunk.chunk)

    trace = aiohttp.TraceConfig()
    trace.on_response_chunk_received.append(received)
    limiter = RateLimiter(concurrency_limit=1)
    async with make(limiter, retry=once(None), trace_configs=[trace]) as session:
        async with session.get(url / "429/plain/short") as response:
            assert seen == []
            await response.read()
        assert seen == [SHORT]


@pytest.mark.uvloop
@pytest.mark.parametrize("make", SESSIONS)
async def test_read_part_of_a_stream_is_put_back(make: Callable[..., Any]) -> None:
    go = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first\nsecond\n")
        await go.wait()
        await response.write(b"third\n" + bytes(2 << 20))  # more than aiohttp takes in unread
        return response

    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(stream) as (url, _),
        make(limiter, retry=once(reads_a_line)) as session,
        session.get(url) as response,
    ):
        content = response.content
        assert [await content.readline(), await content.readline()] == [b"first\n", b"second\n"]
        go.set()
        assert await content.read() == b"third\n" + bytes(2 << 20)
    assert not in_flight(limiter)


@pytest.mark.uvloop
@pytest.mark.parametrize("make", SESSIONS)
async def test_large_part_is_put_back_before_the_rest(make: Callable[..., Any]) -> None:
    body = b"".join(b"%07d\n" % number for number in range(1 << 18))

    async def send(_: web.Request) -> web.Response:
        return web.Response(body=body)

    async def reads_half(response: ClientResponse) -> None:
        assert await response.content.readexactly(1 << 20) == body[: 1 << 20]

    async with (
        serving(send) as (url, _),
        make(RateLimiter(concurrency_limit=1), retry=once(reads_half)) as session,
        session.get(url) as response,
    ):
        found = [line async for line in response.content]
    assert b"".join(found) == body
    assert len(found) == 1 << 18


@pytest.mark.uvloop
@pytest.mark.parametrize("make", SESSIONS)
async def test_body_read_before_a_timeout_is_put_back(
    make: Callable[..., Any],
) -> None:
    go = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await go.wait()
        await response.write(b" second")
        return response

    async def reads_for_a_while(response: ClientResponse) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await response.content.read()

    async with (
        serving(stream) as (url, _),
        make(RateLimiter(concurrency_limit=1), retry=once(reads_for_a_while)) as session,
        session.get(url) as response,
    ):
        go.set()
        assert await response.read() == b"first second"


@pytest.mark.parametrize("make", SESSIONS)
async def test_discarded_response_may_have_been_read(make: Callable[..., Any], url: URL) -> None:
    verdicts = itertools.chain([True], itertools.repeat(None))

    async def should_retry(response: ClientResponse) -> bool | None:
        assert await response.json()
        return next(verdicts)

    retry = Retry(attempts=2, backoff=0.001, should_retry=should_retry)
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        make(limiter, retry=retry) as session,
        session.get(url / "200/gzip/long") as response,
    ):
        assert await response.content.read() == LONG
    assert not in_flight(limiter)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("status", MAY_BE_THROTTLED)
def test_fetch_writes_the_body_of_a_throttled_response(
    status: int, folder: bool, form: str, tmp_path: Any
) -> None:
    out = tmp_path / "out"
    with background(handler=answer) as server:
        options = ["--output-dir" if folder else "-o", str(out), "--retries", "0", "-s"]
        assert main(["fetch", f"{server.url}{status}/{form}/short", *options]) == 1
    if folder:
        (file,) = (path for path in out.iterdir() if path.name != "index.jsonl")
        assert file.read_bytes() == SHORT
    else:
        assert json.loads(out.read_bytes())["body"] == SHORT.decode()


# ---- httpx and httpx2 --------------------------------------------------------------------------


async def lines_of(response: Any) -> bytes:
    return "\n".join([line async for line in response.aiter_lines()]).encode()


async def text_of(response: Any) -> bytes:
    return "".join([part async for part in response.aiter_text()]).encode()


async def of_stream(response: Any) -> bytes:
    found = await collected(aiter(response.stream))
    await response.aclose()
    return found


async def read_twice(response: Any) -> bytes:
    body: bytes = await response.aread()
    assert response.read() == response.content == await response.aread() == body
    assert response.text.encode() == body
    assert json.dumps(response.json(), indent=1).encode() == body
    return body


#: With a stream, of a body that is unpacked, and as it is sent.
UNPACKED: dict[str, Callable[[Any], Awaitable[bytes]]] = {
    "aread": read_twice,
    "aiter_bytes": lambda it: collected(it.aiter_bytes()),
    "aiter_bytes(700)": lambda it: collected(it.aiter_bytes(700)),
    "aiter_text": text_of,
    "aiter_lines": lines_of,
}
PACKED: dict[str, Callable[[Any], Awaitable[bytes]]] = {
    "aiter_raw": lambda it: collected(it.aiter_raw()),
    "aiter_raw(700)": lambda it: collected(it.aiter_raw(700)),
    "stream": of_stream,
}


async def areads(response: Any) -> None:
    assert await response.aread() == await response.aread()


async def reads_raw(response: Any) -> None:
    assert await collected(response.aiter_raw())


async def reads_the_stream(response: Any) -> None:
    assert await collected(aiter(response.stream))


async def begins_lines(response: Any) -> None:
    async for line in response.aiter_lines():
        assert line
        break


async def begins_and_closes(response: Any) -> None:
    async with contextlib.aclosing(response.aiter_raw()) as chunks:
        assert await anext(chunks)
    await response.aclose()


async def closes(response: Any) -> None:
    await response.aclose()


LIBRARIES: dict[str, tuple[Any, Any]] = {
    "httpx": (httpx, aiothrottle.httpx.ThrottledTransport),
    "httpx2": (httpx2, aiothrottle.httpx2.ThrottledTransport),
}


@asynccontextmanager
async def client_of(library: str, limiter: RateLimiter, judge: Judge) -> AsyncGenerator[Any]:
    """A client with one connection, so that a lost connection is noticed."""
    module, transport = LIBRARIES[library]
    inner = module.AsyncHTTPTransport(verify=False, limits=module.Limits(max_connections=1))
    throttled = transport(limiter, transport=inner, retry=once(judge))
    async with module.AsyncClient(transport=throttled, timeout=5) as client:
        yield client


OF_HTTPX: list[Judge] = [
    None,
    areads,
    reads_raw,
    reads_the_stream,
    begins_lines,
    begins_and_closes,
    closes,
]


@pytest.mark.parametrize("judge", OF_HTTPX)
@pytest.mark.parametrize("way", UNPACKED | PACKED)
@pytest.mark.parametrize("library", LIBRARIES)
async def test_response_of_a_transport_is_read_whole(
    library: str, way: str, judge: Judge, url: URL
) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    sizes: Mapping[str, bytes] = {"short": SHORT, "long": LONG}
    statuses = [200, *MAY_BE_THROTTLED] if judge is None else [200, 429]
    read = (UNPACKED | PACKED)[way]
    async with client_of(library, limiter, judge) as client:
        for status, form, size in itertools.product(statuses, FORMS, sizes):
            at = str(url / str(status) / form / size)
            async with client.stream("GET", at) as response:
                assert response.status_code == status
                found = await read(response)
                if way in PACKED and form == "gzip":
                    found = gzip.decompress(found)
                elif way in PACKED and form == "deflate":
                    found = zlib.decompress(found)
                assert found == sizes[size], (status, form, size)
            assert not in_flight(limiter)
            response = await client.get(at)
            assert response.read() == response.content == sizes[size]
            assert response.elapsed.total_seconds() > 0
            assert response.url == at
            assert response.is_closed


@pytest.mark.parametrize("judge", [None, areads, begins_lines])
@pytest.mark.parametrize("library", LIBRARIES)
async def test_unread_response_of_a_transport_returns_its_slot(
    library: str, judge: Judge, url: URL
) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with client_of(library, limiter, judge) as client:
        for status in (200, 429):
            for _ in range(3):
                async with client.stream("GET", str(url / f"{status}/plain/long")) as response:
                    assert response.status_code == status
                assert not in_flight(limiter)
            assert (await client.get(str(url / f"{status}/plain/long"))).content == LONG


@pytest.mark.parametrize("library", LIBRARIES)
async def test_error_in_should_retry_is_raised_again(library: str) -> None:
    module, _ = LIBRARIES[library]

    async def tries(response: Any) -> None:
        with pytest.raises(module.RemoteProtocolError):
            await response.aread()

    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(cut_off) as (url, _),
        client_of(library, limiter, tries) as client,
        client.stream("GET", str(url)) as response,
    ):
        chunks = response.aiter_bytes()
        assert await anext(chunks) == b"x" * 10
        with pytest.raises(module.RemoteProtocolError):
            await anext(chunks)
    assert not in_flight(limiter)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_body_that_should_retry_abandoned_raises(library: str) -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await asyncio.Event().wait()
        return response

    async def reads_for_a_while(response: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await response.aread()

    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(stall) as (url, _),
        client_of(library, limiter, reads_for_a_while) as client,
        client.stream("GET", str(url)) as response,
    ):
        with pytest.raises(RuntimeError, match="given up"):
            await response.aread()
    assert not in_flight(limiter)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_raising_should_retry_returns_the_slot(library: str, url: URL) -> None:
    async def reads_and_raises(response: Any) -> None:
        await begins_and_closes(response)
        raise LookupError

    limiter = RateLimiter(concurrency_limit=1)
    async with client_of(library, limiter, reads_and_raises) as client:
        for _ in range(3):
            with pytest.raises(LookupError):
                await client.get(str(url / "200/plain/long"))
            assert not in_flight(limiter)
