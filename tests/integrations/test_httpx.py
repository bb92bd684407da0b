"""What only the transports for httpx and httpx2 do, by the same tests for both.

The behaviour that they share with the other integrations is specified in `test_matrix_*.py`.
"""

# ruff: noqa: ANN401 - clients and responses of one library or of the other

import asyncio
import contextlib
import gc
import io
import random
import ssl
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import httpx2
import pytest
from aiohttp import web
from yarl import URL

import aiothrottle.httpx
import aiothrottle.httpx2
import aiothrottle.transport.adapter
from aiothrottle import RateLimiter
from aiothrottle.retry import Retry
from aiothrottle.testing import RateLimitedServer
from tests.integrations.clients import compressed_chunks, cut_off
from tests.serving import Handler, answer, endless, in_flight, serving, until
from tests.virtually import turns

QUICK = Retry(backoff=0.001)
ONCE = Retry(attempts=1)


class Lib(NamedTuple):
    """A library, and the transport for it."""

    httpx: Any
    transport: Any

    def client(self, limiter: object, *, retry: Retry = QUICK, **options: Any) -> Any:
        """Make a client with one connection, so that a lost connection is noticed."""
        limits = self.httpx.Limits(max_connections=1)
        inner = options.pop("transport", None) or self.sender(limits=limits)
        transport = self.transport(limiter, transport=inner, retry=retry, **options)
        return self.httpx.AsyncClient(transport=transport, timeout=5)

    def sender(self, **options: Any) -> Any:
        # One for all: making one takes longer than most tests.
        return self.httpx.AsyncHTTPTransport(**{"verify": CONTEXT, **options})

    def mock(self, handler: Callable[[Any], Any]) -> Any:
        return self.httpx.MockTransport(handler)


CONTEXT = ssl.create_default_context()
LIBS = {
    "httpx": Lib(httpx, aiothrottle.httpx.ThrottledTransport),
    "httpx2": Lib(httpx2, aiothrottle.httpx2.ThrottledTransport),
}


@pytest.fixture(params=LIBS)
def lib(request: pytest.FixtureRequest) -> Lib:
    return LIBS[request.param]


ERRORS = (httpx.HTTPError, httpx2.HTTPError)
kept: list[Any] = []


# ---- the slot ----------------------------------------------------------------------------------


async def get_whole(client: Any, url: str) -> None:
    assert (await client.get(url)).text == "body"


async def get_cut_off(client: Any, url: str) -> None:
    with pytest.raises(ERRORS):
        await client.get(url)


async def fail_and_keep_the_response(client: Any, url: str) -> None:
    response = await client.send(client.build_request("GET", url), stream=True)
    with pytest.raises(ERRORS):
        async for _ in response.aiter_raw():
            pass
    kept.append(response)


@pytest.mark.uvloop
@pytest.mark.parametrize(
    ("handler", "use"),
    [(answer(), get_whole), (cut_off, get_cut_off), (cut_off, fail_and_keep_the_response)],
)
async def test_ended_response_returns_slot_and_connection(
    lib: Lib, handler: Handler, use: Callable[[Any, str], Awaitable[None]]
) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(handler, answer()) as (url, _), lib.client(limiter, retry=ONCE) as client:
        await use(client, str(url))
        assert not in_flight(limiter)
        assert (await client.get(str(url))).text == "body"
    kept.clear()


@pytest.mark.uvloop
@pytest.mark.parametrize("half_read", [False, True])
@pytest.mark.parametrize("thread", [False, True])
async def test_dropped_response_returns_slot_and_connection(
    lib: Lib, half_read: bool, thread: bool
) -> None:
    asyncio.get_running_loop().set_debug(thread)  # it checks what the thread calls
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless, answer()) as (url, _), lib.client(limiter) as client:
        box = [await client.send(client.build_request("GET", str(url)), stream=True)]
        if half_read:
            box.append(box[0].aiter_raw())
            await anext(box[1])

        def drop() -> None:
            box.clear()
            gc.collect()

        gc.disable()
        try:
            if thread:
                await asyncio.to_thread(drop)
            else:
                drop()
        finally:
            gc.enable()
        await until(lambda: not in_flight(limiter))
        assert (await client.get(str(url))).text == "body"


@pytest.mark.usefixtures("no_automatic_collection")
async def test_abandoned_stream_in_a_cycle_returns_its_slot(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless, answer()) as (url, _), lib.client(limiter) as client:

        async def leave_early() -> None:
            response = await client.send(client.build_request("GET", str(url)), stream=True)
            response.itself = response
            async for _ in response.aiter_raw():
                break

        await leave_early()
        async with asyncio.timeout(10):
            assert (await client.get(str(url))).text == "body"


def test_response_collected_after_its_loop_returns_its_slot(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)

    async def body() -> AsyncIterator[bytes]:
        yield b""

    async def main() -> Any:
        client = lib.client(limiter, transport=lib.mock(lambda _: respond(lib, content=body())))
        return await client.send(client.build_request("GET", "http://host/"), stream=True)

    response = asyncio.run(main())
    assert in_flight(limiter)
    del response
    gc.collect()
    assert not in_flight(limiter)


def respond(lib: Lib, status: int = 200, **options: Any) -> Any:
    return lib.httpx.Response(status, **options)


@pytest.mark.uvloop
async def test_closed_client_holds_no_slot(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=2)
    async with serving(endless) as (url, _):
        for method in ("aclose", "__aexit__"):
            client = lib.client(limiter)
            response = await client.send(client.build_request("GET", str(url)), stream=True)
            assert in_flight(limiter)
            await (client.aclose() if method == "aclose" else client.__aexit__())
            assert not in_flight(limiter)
            await response.aclose()


async def some_body() -> AsyncIterator[bytes]:
    yield b"body"


async def failing_body() -> AsyncIterator[bytes]:
    yield b"body"
    raise LookupError


def closing_with(
    lib: Lib,
    aclose: Callable[[], Awaitable[None]],
    body: Callable[[], AsyncIterator[bytes]] = some_body,
) -> Any:
    """Make a transport whose responses have this `aclose`."""

    def handle(_: Any) -> Any:
        response = respond(lib, content=body())
        response.stream.aclose = aclose
        return response

    return lib.mock(handle)


@pytest.mark.parametrize("body", [some_body, failing_body])
async def test_response_is_closed_once(lib: Lib, body: Callable[[], AsyncIterator[bytes]]) -> None:
    closed: list[int] = []

    async def count() -> None:
        closed.append(1)
        await asyncio.sleep(0.01)

    transport = closing_with(lib, count, body)
    async with lib.client(
        RateLimiter(concurrency_limit=1), transport=transport, max_hold=0.005
    ) as client:
        with contextlib.suppress(LookupError):
            assert (await client.get("http://host/")).text == "body"
        await asyncio.sleep(0.01)
        assert closed == [1]


async def test_closed_stream_is_not_kept_until_max_hold(lib: Lib) -> None:
    streams = weakref.WeakSet[Any]()

    def handle(_: Any) -> Any:
        response = respond(lib, content=some_body())
        streams.add(response.stream)
        return response

    limiter = RateLimiter(concurrency_limit=1)
    async with lib.client(limiter, transport=lib.mock(handle), max_hold=1000) as client:
        assert (await client.get("http://host/")).text == "body"
        await turns(2)
        gc.collect()
        assert not streams


async def test_slot_is_returned_once_closing_has_ended(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    closed = asyncio.Event()

    async def wait() -> None:
        await closed.wait()

    async with lib.client(limiter, transport=closing_with(lib, wait)) as client:
        task = asyncio.create_task(client.get("http://host/"))
        await turns(20)
        assert in_flight(limiter)
        closed.set()
        assert (await task).text == "body"
        assert not in_flight(limiter)


async def test_error_in_closing_raises_and_returns_the_slot(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def fail() -> None:
        raise LookupError

    transport = closing_with(lib, fail)
    async with lib.client(limiter, transport=transport, max_hold=0.001) as client:
        with pytest.raises(LookupError):
            await client.get("http://host/")
        assert not in_flight(limiter)
        kept.append(await client.send(client.build_request("GET", "http://host/"), stream=True))
        assert in_flight(limiter)
        await until(lambda: not in_flight(limiter))
    kept.clear()
    await turns(3)
    gc.collect()
    assert logged == []


@pytest.mark.parametrize("status", [200, 429])
async def test_response_that_arrives_closed_holds_no_slot(lib: Lib, status: int) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    mock = lib.mock(lambda _: respond(lib, status, json={"a": 1}))
    async with lib.client(
        limiter, transport=mock, retry=Retry(attempts=2, backoff=0.001)
    ) as client:
        for _ in range(2):
            assert (await client.get("http://host/")).json() == {"a": 1}
            assert not in_flight(limiter)


async def test_websocket_holds_its_slot_for_the_handshake(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)

    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
        )
        await reader.read()

    headers = {"Connection": "upgrade", "Upgrade": "x"}
    async with (
        raw_server(switch) as url,
        lib.client(limiter) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        assert response.status_code == 101
        assert not in_flight(limiter)


@asynccontextmanager
async def raw_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[str]:
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        await handle(reader, writer)
        writer.close()
        await writer.wait_closed()
        writers.remove(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{port}/"
    await until(lambda: not writers)


async def test_request_cancelled_at_any_turn_returns_its_slot(lib: Lib) -> None:
    # No sockets: httpx 0.28 itself loses a connection that is cancelled at certain turns.
    limiter = RateLimiter(concurrency_limit=1)
    statuses: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield b"x"

    async def handle(_: Any) -> Any:
        await turns(2)
        # Every second request is throttled: its response is discarded, and there is a wait.
        statuses.append(429 if len(statuses) % 2 == 0 else 200)
        return respond(lib, statuses[-1], content=body(), headers={"Content-Length": "3"})

    async def verdict(_: Any) -> None:
        await asyncio.sleep(0)

    retry = Retry(backoff=1e-9, pause_jitter=0, should_retry=verdict)
    async with lib.client(limiter, retry=retry, transport=lib.mock(handle)) as client:
        for count in range(60):
            statuses.clear()
            task = asyncio.create_task(client.get("http://host/"))
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: not in_flight(limiter))
        assert statuses == [429, 200]


async def test_cancelled_closing_closes_the_response(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless, answer()) as (url, _), lib.client(limiter) as client:
        response = await client.send(client.build_request("GET", str(url)), stream=True)
        task = asyncio.create_task(response.aclose())
        await turns(1)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not in_flight(limiter))
        assert (await client.get(str(url))).text == "body"


@pytest.mark.uvloop
async def test_server_never_sees_more_than_the_limit(lib: Lib) -> None:
    async def some(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0)
        return await chance.choice(script)(request)

    at_once = answer(503, Retry_After="0")
    script = [answer(), at_once, answer(429), cut_off, compressed_chunks, endless]
    chance = random.Random(1)
    limiter = RateLimiter(concurrency_limit=4)
    retry = Retry(attempts=3, backoff=0.001, pause_jitter=0, max_retry_after=0.01)
    async with (
        RateLimitedServer(None, handler=some) as server,
        lib.client(limiter, retry=retry, transport=lib.sender()) as client,
    ):

        async def use(number: int) -> None:
            async with client.stream("GET", str(server.url)) as response:
                match number % 5:
                    case 0:
                        await response.aread() if response.status_code != 200 else None
                    case 1:
                        async for _ in response.aiter_raw():
                            break
                    case 2:
                        raise KeyError
                    case 3:
                        task = asyncio.current_task()
                        assert task is not None
                        task.cancel()
                        await anext(response.aiter_raw(), None)
                    case _:
                        await anext(response.aiter_raw(), None)

        tasks = [asyncio.create_task(use(number)) for number in range(120)]
        await until(lambda: limiter.statistics().waiting > 100)
        for task in chance.sample(tasks[10:], 20):
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        assert server.audit.greatest_concurrency <= 4
        assert server.audit.sent > 90
    gc.collect()
    await until(lambda: not in_flight(limiter))


# ---- timeouts ----------------------------------------------------------------------------------


async def slowly(_: web.Request) -> web.Response:
    await asyncio.sleep(0.03)
    return web.Response()


async def test_pool_timeout_does_not_run_in_the_queue(lib: Lib) -> None:
    timeout = lib.httpx.Timeout(5, pool=0.02)
    async with serving(slowly) as (url, _):

        async def several(limiter: RateLimiter) -> list[Any]:
            async with lib.client(limiter) as client:
                requests = (client.get(str(url), timeout=timeout) for _ in range(4))
                return await asyncio.gather(*requests, return_exceptions=True)

        # The client has one connection.
        answers = await several(RateLimiter(concurrency_limit=2))
        assert any(isinstance(each, lib.httpx.PoolTimeout) for each in answers)
        answers = await several(RateLimiter(concurrency_limit=1))
        assert [response.status_code for response in answers] == [200] * 4


# ---- authentication and errors -----------------------------------------------------------------


async def test_digest_authentication_needs_one_slot(lib: Lib) -> None:
    challenge = 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'
    limiter = RateLimiter("9/h", concurrency_limit=1)
    async with (
        serving(answer(401, WWW_Authenticate=challenge), answer()) as (url, seen),
        lib.client(limiter) as client,
    ):
        response = await client.get(str(url), auth=lib.httpx.DigestAuth("me", "secret"))
        assert response.status_code == 200
        assert len(seen) == 2
        assert (await limiter.peek()).remaining == 7


async def test_error_of_a_retried_request_names_it(lib: Lib) -> None:
    limiter = RateLimiter("9/h", concurrency_limit=1)
    async with raw_server(unreached) as url:
        pass
    async with lib.client(limiter, retry=Retry(attempts=3, backoff=0.001)) as client:
        with pytest.raises(lib.httpx.ConnectError) as caught:
            await client.get(url)
        assert str(caught.value.request.url) == url
    assert (await limiter.peek()).remaining == 6


async def unreached(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    pass


@pytest.mark.parametrize(
    ("name", "attempts"),
    [
        ("ConnectError", 2),
        ("ReadError", 2),
        ("WriteError", 2),
        ("CloseError", 2),
        ("RemoteProtocolError", 2),
        ("ConnectTimeout", 2),
        ("ReadTimeout", 2),
        ("WriteTimeout", 2),
        ("PoolTimeout", 1),
        ("ProxyError", 1),
        ("LocalProtocolError", 1),
        ("UnsupportedProtocol", 1),
        ("DecodingError", 1),
    ],
)
async def test_exceptions_that_are_retried_by_default(lib: Lib, name: str, attempts: int) -> None:
    kind = getattr(lib.httpx, name)
    limiter = RateLimiter(concurrency_limit=1)

    def fail(_: Any) -> Any:
        raise kind("no")

    retry = Retry(attempts=2, backoff=0.001)
    async with lib.client(limiter, transport=lib.mock(fail), retry=retry) as client:
        with pytest.raises(kind):
            await client.get("http://host/")
    assert limiter.statistics().granted == attempts
    assert not in_flight(limiter)


async def test_wrong_certificate_is_not_retried(lib: Lib, tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(SELF_SIGNED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")

    limiter = RateLimiter(concurrency_limit=1)
    async with raw_server(unreached, context) as url, lib.client(limiter) as client:
        with pytest.raises(lib.httpx.ConnectError, match="self-signed certificate"):
            await client.get(url)
    assert limiter.statistics().granted == 1
    assert not in_flight(limiter)


async def test_certificate_error_as_a_cause_is_not_retried(lib: Lib) -> None:
    def fail(_: Any) -> Any:
        raise lib.httpx.ConnectError("no") from ssl.SSLCertVerificationError()

    limiter = RateLimiter()
    async with lib.client(limiter, transport=lib.mock(fail)) as client:
        with pytest.raises(lib.httpx.ConnectError):
            await client.get("http://host/")
    assert limiter.statistics().granted == 1


@pytest.mark.parametrize(("length", "begun"), [("4", 1), ("100000", 0), ("no number", 0)])
async def test_throttled_response_is_read_if_short(
    lib: Lib, monkeypatch: pytest.MonkeyPatch, length: str, begun: int
) -> None:
    monkeypatch.setattr(aiothrottle.transport.adapter, "SHORT_TIME", 0.005)
    reads: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        reads.append(1)
        await asyncio.Event().wait()
        yield b"body"

    def handle(_: Any) -> Any:
        if limiter.statistics().granted > 1:
            return respond(lib)
        return respond(lib, 429, content=body(), headers={"Content-Length": length})

    limiter = RateLimiter(concurrency_limit=1)
    async with lib.client(limiter, transport=lib.mock(handle)) as client:
        assert (await client.get("http://host/")).status_code == 200
    assert len(reads) == begun


# ---- bodies ------------------------------------------------------------------------------------


async def generated() -> AsyncIterator[bytes]:
    yield b"only "
    yield b"once"


class Repeatable:
    """An async iterable, of which nothing shows whether it can be repeated."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"only "
        yield b"once"


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation


def on_disk() -> dict[str, Any]:
    return {"files": {"f": Path(__file__).open("rb")}}


BODIES: dict[str, tuple[Callable[[], dict[str, Any]], bytes | None, int]] = {
    "none": (dict, b"", 2),
    "bytes": (lambda: {"content": b"bytes"}, b"bytes", 2),
    "text": (lambda: {"content": "täxt"}, "täxt".encode(), 2),
    "json": (lambda: {"json": "text"}, b'"text"', 2),
    "form": (lambda: {"data": {"a": "1", "b": ["2", "3"]}}, b"a=1&b=2&b=3", 2),
    "files of bytes": (lambda: {"files": {"f": b"abc"}, "data": {"a": "1"}}, None, 2),
    "files of text": (lambda: {"files": {"f": ("name", "abc", "text/plain")}}, None, 2),
    "a file": (lambda: {"files": {"f": io.BytesIO(b"abc" * 100_000)}}, None, 2),
    "a file on disk": (on_disk, None, 2),
    "a pipe": (lambda: {"files": {"a": b"1", "f": Pipe(b"abc")}}, None, 1),
    "async generator": (lambda: {"content": generated()}, b"only once", 1),
    "async iterable": (lambda: {"content": Repeatable()}, b"only once", 1),
}


@pytest.fixture(params=BODIES)
def body(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, Any], bytes | None, int]]:
    make, sent, times = BODIES[request.param]
    options = make()
    yield options, sent, times
    for file in options.get("files", {}).values():
        if isinstance(file, io.IOBase):
            file.close()


@pytest.mark.parametrize("buffer_body", [False, True])
async def test_body_is_repeated_unchanged_or_not_at_all(
    lib: Lib, body: tuple[dict[str, Any], bytes | None, int], buffer_body: bool
) -> None:
    options, sent, times = body
    if buffer_body:
        times = 2
    async with (
        serving(answer(429), answer()) as (url, seen),
        lib.client(RateLimiter(concurrency_limit=1), buffer_body=buffer_body) as client,
    ):
        response = await client.post(str(url), **options)
        assert response.status_code == (200 if times == 2 else 429)
        assert len(seen) == times
        assert len(set(seen)) == 1
        assert seen[0][1] == sent or sent is None
        assert sent is not None or b"Content-Disposition" in seen[0][1]


async def test_closed_file_is_not_sent_again(lib: Lib) -> None:
    file = io.BytesIO(b"abc")

    async def throttle(_: web.Request) -> web.Response:
        file.close()
        return web.Response(status=429)

    async with (
        serving(throttle, answer()) as (url, seen),
        lib.client(RateLimiter(concurrency_limit=1)) as client,
    ):
        assert (await client.post(str(url), files={"f": file})).status_code == 429
        assert len(seen) == 1


async def test_buffered_body_is_sent_to_the_next_hop(lib: Lib) -> None:
    async with (
        serving(answer(307, Location="/there"), answer()) as (url, seen),
        lib.client(RateLimiter(), buffer_body=True) as client,
    ):
        response = await client.post(str(url), content=generated(), follow_redirects=True)
        assert response.status_code == 200
        assert seen == [("POST", b"only once")] * 2


# ---- the transport -----------------------------------------------------------------------------


class Sdk:
    """An API client that takes an HTTP client, and has timeouts of its own."""

    def __init__(self, http_client: Any) -> None:
        self._http = http_client

    async def stream(self, url: URL, **body: object) -> list[str]:
        request = self._http.build_request("POST", str(url), json=body, timeout=0.5)
        response = await self._http.send(request, stream=True)
        response.raise_for_status()
        return [line async for line in response.aiter_lines()]


async def test_client_of_an_api_client_is_throttled(lib: Lib) -> None:
    async def events(_: web.Request) -> web.Response:
        return web.Response(text="data: 1\n\ndata: 2\n\n")

    async with RateLimitedServer(None, concurrency_limit=2, handler=events) as server:
        limiter = RateLimiter(concurrency_limit=2)
        transport = lib.transport(limiter, transport=lib.sender(), retry=ONCE)
        async with lib.httpx.AsyncClient(transport=transport) as client:
            sdk = Sdk(client)
            answers = await asyncio.gather(*(sdk.stream(server.url, n=n) for n in range(10)))
        assert answers == [["data: 1", "", "data: 2", ""]] * 10
        assert (server.audit.sent, server.audit.refused) == (10, 0)


async def test_wrapped_transport_is_opened_and_closed(lib: Lib) -> None:
    calls: list[str] = []

    class Recorder:
        async def __aenter__(self) -> None:
            calls.append("enter")

        async def __aexit__(self, *_: object) -> None:
            calls.append("exit")

        async def aclose(self) -> None:
            calls.append("close")

    base: type[Any] = lib.httpx.AsyncBaseTransport
    sender = type("Sender", (Recorder, base), {})()
    transport = lib.transport(RateLimiter(), transport=sender)
    async with lib.httpx.AsyncClient(transport=transport):
        assert calls == ["enter"]
    assert calls == ["enter", "exit"]
    async with transport as entered:
        assert entered is transport
    await lib.httpx.AsyncClient(transport=transport).aclose()
    assert calls == ["enter", "exit"] * 2 + ["close"]


async def test_default_transport_is_of_the_library(lib: Lib) -> None:
    transport = lib.transport(RateLimiter())
    assert isinstance(transport, lib.httpx.AsyncBaseTransport)
    async with serving(answer()) as (url, _), lib.httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(str(url))).text == "body"


def test_repr_shows_the_limiter_and_no_secrets(lib: Lib) -> None:
    proxy = lib.httpx.Proxy("http://user:secret@proxy:1")
    limiter = RateLimiter("5/s", concurrency_limit=2)
    transport = lib.transport(limiter, transport=lib.sender(proxy=proxy))
    assert transport.limiter is limiter
    assert repr(limiter) in repr(transport)
    assert "secret" not in repr(transport)


@pytest.mark.parametrize("kind", ["text", "sync", "of the other library"])
def test_wrong_transport_is_named(lib: Lib, kind: str) -> None:
    other = LIBS["httpx2" if lib is LIBS["httpx"] else "httpx"]
    transport = {"text": "t", "sync": lib.httpx.HTTPTransport(verify=CONTEXT)}.get(kind)
    with pytest.raises(TypeError, match="AsyncBaseTransport"):
        lib.transport(RateLimiter(), transport=transport or other.sender())


@pytest.mark.parametrize(("one", "other"), [("httpx", "httpx2"), ("httpx2", "httpx")])
def test_neither_needs_the_other_or_aiohttp(one: str, other: str) -> None:
    code = (
        f"import sys; sys.modules[{other!r}] = sys.modules['aiohttp'] = None; "
        f"import aiothrottle.{one}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrtttLHBnwxIWlNgK
ajLXEK9XqaMeXFOeDb45WVrlo52hRANCAATIzB49AM0jm0d4tBN1vJPjjacitOZq
ACNbAI/n9EmKOm79u0TY+pfQcMprOp6qVG4YEdE0GhkSVacHjInT8gEl
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUWbRobpScHHOARTsSa/r2Ctk9N+8wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMDE4NDMyOVoYDzIxMDkwMTA5
MTg0MzI5WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATIzB49AM0jm0d4tBN1vJPjjacitOZqACNbAI/n9EmKOm79u0TY+pfQ
cMprOp6qVG4YEdE0GhkSVacHjInT8gElo2QwYjAdBgNVHQ4EFgQUe2YYA/hMvLCI
OlGiIYtfIxHf2HAwHwYDVR0jBBgwFoAUe2YYA/hMvLCIOlGiIYtfIxHf2HAwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0gAMEUC
IQDYxgpCGaf0dgXkMFor7QBzXzFoTelNdpR352l2LNdpkwIgOvxOvrSDAhekOAFF
Uf8GcG6RzSQZfPuU3Kyq8Cmfv70=
-----END CERTIFICATE-----
"""


async def test_unfinished_body_of_the_last_response_raises(
    lib: Lib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiothrottle.transport.adapter, "SHORT_TIME", 0.005)

    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429, headers={"Content-Length": "1000"})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    limiter, retry = RateLimiter(concurrency_limit=1), Retry(attempts=1)
    async with serving(stall) as (url, _), lib.client(limiter, retry=retry) as client:
        with pytest.raises(lib.httpx.TransportError):
            await client.get(str(url), timeout=0.1)
    assert limiter.statistics().in_flight == 0
