"""The transports for httpx and httpx2, both by the same tests, against real servers on loopback."""

# ruff: noqa: ANN401 - clients and responses of one library or of the other

import asyncio
import contextlib
import gc
import gzip
import io
import random
import ssl
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
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
from aiothrottle import KeyedRateLimiter, LimiterClosed, RateLimiter, ThrottleTimeout
from aiothrottle.retry import Retry, RetryBudget
from aiothrottle.testing import RateLimitedServer
from tests.serving import Handler, answer, endless, hang_up, in_flight, never, serving, until

QUICK = Retry(backoff=0.001)
ONCE = Retry(attempts=1)


class Lib(NamedTuple):
    """A library, and the transport for it."""

    httpx: Any
    transport: Any

    def client(self, limiter: object, *, retry: Retry = QUICK, **options: Any) -> Any:
        """Make a client that has one connection, so that one which is not given back is missed."""
        limits = self.httpx.Limits(max_connections=1)
        inner = options.pop("transport", None) or self.sender(limits=limits)
        transport = self.transport(limiter, transport=inner, retry=retry, **options)
        return self.httpx.AsyncClient(transport=transport, timeout=5)

    def sender(self, **options: Any) -> Any:
        # One context for all: to make one takes longer than most tests here.
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


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- the slot ----------------------------------------------------------------------------------


def plain(
    status: int = 200, body: bytes = b"body", headers: Mapping[str, str] | None = None
) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return handle


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"x" * 10)
    assert request.transport is not None
    request.transport.close()
    return response


async def stuck(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x" * 10)
    return await never(request)


async def chunked(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_compression()
    await response.prepare(request)
    for _ in range(3):
        await response.write(b"x" * 1000)
    return response


async def until_closed(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.force_close()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(b"x" * 1000)
    return response


async def no_gzip(_: web.Request) -> web.Response:
    return web.Response(body=b"no gzip at all", headers={"Content-Encoding": "gzip"})


async def read(client: Any, url: str) -> None:
    await client.get(url)


async def head(client: Any, url: str) -> None:
    await client.head(url)


async def stream_whole(client: Any, url: str) -> None:
    async with client.stream("GET", url) as response:
        await response.aread()


async def iterate_to_the_end(client: Any, url: str) -> None:
    response = await client.send(client.build_request("GET", url), stream=True)
    async for _ in response.aiter_bytes():
        pass


async def leave_unread(client: Any, url: str) -> None:
    async with client.stream("GET", url):
        pass


async def leave_early(client: Any, url: str) -> None:
    async with client.stream("GET", url) as response:
        async for _ in response.aiter_bytes():
            break


async def close(client: Any, url: str) -> None:
    response = await client.send(client.build_request("GET", url), stream=True)
    await response.aclose()
    await response.aclose()


async def fail_in_the_block(client: Any, url: str) -> None:
    with contextlib.suppress(KeyError):
        async with client.stream("GET", url):
            raise KeyError


async def meet_an_error(client: Any, url: str) -> None:
    with pytest.raises(ERRORS):
        await client.get(url)


async def meet_an_error_and_keep_the_response(client: Any, url: str) -> None:
    response = await client.send(client.build_request("GET", url), stream=True)
    with pytest.raises(ERRORS):
        async for _ in response.aiter_raw():
            pass
    kept.append(response)


async def run_into_the_time_out(client: Any, url: str) -> None:
    with pytest.raises((httpx.ReadTimeout, httpx2.ReadTimeout)):
        await client.get(url, timeout=(5, 0.02, 5, 5))


async def cancel(client: Any, url: str) -> None:
    begun = asyncio.Event()

    async def consume() -> None:
        async with client.stream("GET", url) as response:
            async for _ in response.aiter_raw():
                begun.set()

    task = asyncio.create_task(consume())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])


AT_ONCE: dict[str, tuple[Handler, Callable[[Any, str], Awaitable[None]]]] = {
    "read": (plain(), read),
    "read, compressed in chunks": (chunked, read),
    "read, until the server closes": (until_closed, read),
    "read, an error status": (plain(500), read),
    "read, 204": (plain(204, b""), read),
    "read, 304": (plain(304, b""), read),
    "read, a redirect not followed": (plain(302, headers={"Location": "/"}), read),
    "head": (plain(), head),
    "stream read whole": (plain(), stream_whole),
    "iterated to the end": (chunked, iterate_to_the_end),
    "left unread": (endless, leave_unread),
    "left early": (endless, leave_early),
    "closed twice": (endless, close),
    "error in the block": (endless, fail_in_the_block),
    "cut off": (cut_off, meet_an_error),
    "cut off, response kept": (cut_off, meet_an_error_and_keep_the_response),
    "not what it says": (no_gzip, meet_an_error),
    "timeout": (never, run_into_the_time_out),
    "timeout in mid-body": (stuck, run_into_the_time_out),
    "cancelled in mid-body": (endless, cancel),
}


@pytest.mark.uvloop
@pytest.mark.parametrize("way", AT_ONCE)
async def test_whichever_way_a_response_ends_its_slot_comes_back(lib: Lib, way: str) -> None:
    handler, use = AT_ONCE[way]
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(handler, plain()) as (url, _),
        lib.client(limiter, retry=ONCE) as client,
    ):
        await use(client, str(url))
        assert not in_flight(limiter)
        assert (await client.get(str(url))).text == "body"
    kept.clear()


@pytest.mark.uvloop
@pytest.mark.parametrize("half_read", [False, True])
@pytest.mark.parametrize("thread", [False, True])
async def test_a_response_that_is_dropped_gives_back_slot_and_connection(
    lib: Lib, half_read: bool, thread: bool
) -> None:
    asyncio.get_running_loop().set_debug(thread)  # it sees what the thread may not do
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless, plain()) as (url, _), lib.client(limiter) as client:
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
async def test_a_stream_that_is_left_early_in_a_cycle_does_not_block_the_next(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless, plain()) as (url, _), lib.client(limiter) as client:

        async def leave_early() -> None:
            response = await client.send(client.build_request("GET", str(url)), stream=True)
            response.itself = response
            async for _ in response.aiter_raw():
                break

        await leave_early()
        async with asyncio.timeout(10):
            assert (await client.get(str(url))).text == "body"


async def test_a_slot_is_held_while_the_body_is_read(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless) as (url, _), lib.client(limiter) as client:
        async with client.stream("GET", str(url)) as response:
            chunks = response.aiter_raw()
            for _ in range(3):
                await anext(chunks)
            gc.collect()
            await turns(3)
            assert in_flight(limiter)
        assert not in_flight(limiter)


def test_a_response_that_outlives_its_loop_gives_its_slot_back_when_collected(lib: Lib) -> None:
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
async def test_a_closed_client_holds_no_slot(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=2)
    async with serving(endless) as (url, _):
        for way in ("aclose", "__aexit__"):
            client = lib.client(limiter)
            response = await client.send(client.build_request("GET", str(url)), stream=True)
            assert in_flight(limiter)
            await (client.aclose() if way == "aclose" else client.__aexit__())
            assert not in_flight(limiter)
            await response.aclose()


@pytest.mark.uvloop
async def test_after_max_hold_the_response_is_closed(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(stuck, plain()) as (url, _), lib.client(limiter, max_hold=0.03) as client:
        response = await client.send(client.build_request("GET", str(url)), stream=True)
        assert in_flight(limiter)
        with pytest.raises(lib.httpx.ReadError):
            await response.aread()
        await until(lambda: not in_flight(limiter))
        assert (await client.get(str(url))).text == "body"
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
    """Make a transport whose responses are closed by that."""

    def handle(_: Any) -> Any:
        response = respond(lib, content=body())
        response.stream.aclose = aclose
        return response

    return lib.mock(handle)


@pytest.mark.parametrize("body", [some_body, failing_body])
async def test_a_response_is_closed_once(
    lib: Lib, body: Callable[[], AsyncIterator[bytes]]
) -> None:
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


async def test_nothing_keeps_what_is_closed_until_max_hold(lib: Lib) -> None:
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


async def test_the_slot_comes_back_when_the_response_is_closed_and_no_sooner(lib: Lib) -> None:
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


async def test_an_error_in_closing_is_told_if_anybody_asks_and_costs_no_slot(lib: Lib) -> None:
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
async def test_a_response_that_comes_closed_holds_nothing(lib: Lib, status: int) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    mock = lib.mock(lambda _: respond(lib, status, json={"a": 1}))
    async with lib.client(
        limiter, transport=mock, retry=Retry(attempts=2, backoff=0.001)
    ) as client:
        for _ in range(2):
            assert (await client.get("http://host/")).json() == {"a": 1}
            assert not in_flight(limiter)


async def test_a_websocket_holds_its_slot_for_the_handshake(lib: Lib) -> None:
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
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        await handle(reader, writer)
        writer.close()
        await writer.wait_closed()
        open_ones.remove(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{port}/"
    await until(lambda: not open_ones)


async def test_cancelled_at_any_turn_a_request_gives_its_slot_back(lib: Lib) -> None:
    # No sockets: httpx 0.28 itself loses a connection that is cancelled at certain turns.
    limiter = RateLimiter(concurrency_limit=1)
    statuses: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield b"x"

    async def handle(_: Any) -> Any:
        await turns(2)
        # Each second answer is a refusal, so that there is something to discard and to wait for.
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


async def test_a_response_whose_closing_is_cancelled_is_closed_all_the_same(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(endless, plain()) as (url, _), lib.client(limiter) as client:
        response = await client.send(client.build_request("GET", str(url)), stream=True)
        task = asyncio.create_task(response.aclose())
        await turns(1)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not in_flight(limiter))
        assert (await client.get(str(url))).text == "body"


async def test_cancelled_while_it_waits_for_its_turn_or_the_headers_it_leaves_nothing(
    lib: Lib,
) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(never, plain()) as (url, seen), lib.client(limiter) as client:
        first, second = (asyncio.create_task(client.get(str(url))) for _ in range(2))
        await until(lambda: seen)
        second.cancel()
        await asyncio.wait([second])
        assert limiter.statistics().waiting == 0
        first.cancel()
        await asyncio.wait([first])
        assert not in_flight(limiter)
        assert (await client.get(str(url))).text == "body"


@pytest.mark.uvloop
async def test_the_server_never_counts_more_than_the_limit(lib: Lib) -> None:
    async def some(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0)
        return await lots.choice(script)(request)

    soon = plain(503, headers={"Retry-After": "0"})
    script = [plain(), soon, plain(429), cut_off, chunked, endless]
    lots = random.Random(1)
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
        for task in lots.sample(tasks[10:], 20):
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        assert server.audit.greatest_concurrency <= 4
        assert server.audit.sent > 90
    gc.collect()
    await until(lambda: not in_flight(limiter))


# ---- timeouts ---------------------------------------------------------------------------------


async def test_the_wait_for_the_limiter_is_outside_of_all_time_outs(lib: Lib) -> None:
    limiter = RateLimiter("1/300ms")
    async with serving(plain()) as (url, _), lib.client(limiter) as client:
        answers = [await client.get(str(url), timeout=lib.httpx.Timeout(0.2)) for _ in range(2)]
    assert [response.status_code for response in answers] == [200] * 2


async def slowly(_: web.Request) -> web.Response:
    await asyncio.sleep(0.03)
    return web.Response()


async def test_a_limiter_spares_the_pool_its_time_out(lib: Lib) -> None:
    timeout = lib.httpx.Timeout(5, pool=0.02)
    async with serving(slowly) as (url, _):

        async def several(limiter: RateLimiter) -> list[Any]:
            async with lib.client(limiter) as client:
                requests = (client.get(str(url), timeout=timeout) for _ in range(4))
                return await asyncio.gather(*requests, return_exceptions=True)

        # The client has one connection.
        answers = await several(RateLimiter(concurrency_limit=2))
        assert any(isinstance(one, lib.httpx.PoolTimeout) for one in answers)
        answers = await several(RateLimiter(concurrency_limit=1))
        assert [response.status_code for response in answers] == [200] * 4


async def test_the_queue_time_out_bounds_the_wait(lib: Lib) -> None:
    limiter = RateLimiter("1/h")
    async with serving(plain()) as (url, seen), lib.client(limiter, queue_timeout=0.01) as client:
        await client.get(str(url))
        with pytest.raises(ThrottleTimeout) as caught:
            await client.get(str(url))
        assert caught.value.retry_after > 3000
        assert len(seen) == 1


async def test_a_closed_limiter_refuses_and_the_transport_says_so(lib: Lib) -> None:
    limiter = RateLimiter(1)
    await limiter.aclose()
    async with lib.client(limiter) as client:
        with pytest.raises(LimiterClosed):
            await client.get("http://127.0.0.1:9/")


# ---- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://Example.ORG/x", "example.org"),
        ("https://example.org:443/", "example.org"),
        ("http://example.org:443/", "example.org:443"),
        ("http://localhost:8080/", "localhost:8080"),
        ("http://bücher.example/", "xn--bcher-kva.example"),
        ("http://[::1]:8080/", "[::1]:8080"),
        ("http://user:secret@example.org/", "example.org"),
    ],
)
async def test_the_key_is_the_host_as_dns_has_it(lib: Lib, url: str, key: str) -> None:
    limiter = KeyedRateLimiter("100/s", concurrency_limit=1)
    async with lib.client(limiter, transport=lib.mock(lambda _: respond(lib))) as client:
        await client.get(url)
        assert key in limiter
        assert len(limiter) == 1


async def test_the_key_may_be_any_function_of_method_and_url(lib: Lib) -> None:
    limiter = KeyedRateLimiter("100/s", concurrency_limit=1)

    def key(method: str, url: Any) -> object:
        assert isinstance(url, lib.httpx.URL)
        return (method, url.path)

    mock = lib.mock(lambda _: respond(lib))
    async with lib.client(limiter, transport=mock, key=key) as client:
        await client.post("http://host/path")
        assert ("POST", "/path") in limiter


async def test_a_key_that_raises_is_told_and_costs_nothing(lib: Lib) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)

    def key(_method: str, url: Any) -> object:
        raise LookupError(url.host)

    mock = lib.mock(lambda _: respond(lib))
    async with lib.client(limiter, transport=mock, key=key) as client:
        with pytest.raises(LookupError, match="example"):
            await client.get("http://example.org/")


async def test_each_hop_of_a_redirect_pays_and_has_its_own_key(lib: Lib) -> None:
    async def redirect(request: web.Request) -> web.Response:
        if request.path == "/":
            raise web.HTTPFound(f"http://localhost:{request.url.port}/there")
        if request.path == "/there":
            raise web.HTTPFound("/end")
        return web.Response(text="end")

    limiter = KeyedRateLimiter("9/h", concurrency_limit=1)
    async with serving(redirect) as (url, _), lib.client(limiter) as client:
        response = await client.get(str(url), follow_redirects=True)
        assert response.text == "end"
        assert (await limiter.peek(f"127.0.0.1:{url.port}")).remaining == 8
        assert (await limiter.peek(f"localhost:{url.port}")).remaining == 7


async def test_digest_authentication_does_not_wait_for_itself_at_one_slot(lib: Lib) -> None:
    challenge = {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'}
    limiter = RateLimiter("9/h", concurrency_limit=1)
    async with (
        serving(plain(401, headers=challenge), plain()) as (url, seen),
        lib.client(limiter) as client,
    ):
        response = await client.get(str(url), auth=lib.httpx.DigestAuth("me", "secret"))
        assert response.status_code == 200
        assert len(seen) == 2
        assert (await limiter.peek()).remaining == 7


# ---- it tries again ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_tried_again_for_any_method(lib: Lib, method: str, status: int) -> None:
    refuse = plain(status, headers={"Retry-After": "0"})
    limiter = RateLimiter("3/h", concurrency_limit=1)
    async with (
        serving(refuse, refuse, plain()) as (url, seen),
        lib.client(limiter) as client,
    ):
        response = await client.request(method, str(url), content=b"same body")
        assert response.status_code == 200
        assert seen == [(method, b"same body")] * 3
        assert not in_flight(limiter)
        # Every attempt has paid.
        assert not (await limiter.try_acquire())


async def test_the_last_refusal_is_given_back_readable(lib: Lib) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    retry = Retry(attempts=3, backoff=0.001)
    async with serving(answer(429)) as (url, seen), lib.client(limiter, retry=retry) as client:
        response = await client.get(str(url))
        assert (response.status_code, response.text) == (429, "body")
        assert len(seen) == 3
    assert not in_flight(limiter)


async def test_a_longer_wait_than_allowed_gives_the_response_back(lib: Lib) -> None:
    refuse = plain(429, headers={"Retry-After": "3600"})
    limiter = RateLimiter()
    async with serving(refuse) as (url, seen), lib.client(limiter) as client:
        assert (await client.get(str(url))).status_code == 429
        assert len(seen) == 1
        assert 0 < limiter.statistics().paused_for <= 132


async def test_the_whole_limiter_pauses_and_siblings_wait(lib: Lib) -> None:
    limiter = RateLimiter(100, concurrency_limit=2)
    refuse = plain(429, headers={"Retry-After": "30"})
    async with serving(refuse, plain()) as (url, seen), lib.client(limiter) as client:
        tasks = [asyncio.create_task(client.get(str(url)))]
        await until(lambda: limiter.statistics().paused_for > 29)
        tasks.append(asyncio.create_task(client.get(str(url))))
        await until(lambda: limiter.statistics().waiting == 2)
        assert not in_flight(limiter)
        assert len(seen) == 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_failed_connection_is_tried_again_for_idempotent_methods_alone(lib: Lib) -> None:
    limiter = RateLimiter("5/h", concurrency_limit=1)
    async with serving(hang_up, hang_up, plain()) as (url, _), lib.client(limiter) as client:
        assert (await client.get(str(url))).status_code == 200
    async with serving(hang_up, plain()) as (url, seen), lib.client(limiter) as client:
        with pytest.raises(lib.httpx.TransportError):
            await client.post(str(url), content=b"once")
        assert len(seen) == 1
    assert not in_flight(limiter)
    assert (await limiter.peek()).remaining == 1


async def test_a_refused_connection_is_tried_again(lib: Lib) -> None:
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
async def test_what_means_a_failed_connection(lib: Lib, name: str, attempts: int) -> None:
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


async def test_after_a_failure_only_the_request_itself_waits(lib: Lib) -> None:
    def fail(_: Any) -> Any:
        raise lib.httpx.ConnectError("no")

    limiter = RateLimiter(concurrency_limit=1)
    retry = Retry(backoff=30, max_backoff=60, jitter="decorrelated")
    async with lib.client(limiter, transport=lib.mock(fail), retry=retry) as client:
        task = asyncio.create_task(client.get("http://host/"))
        await turns(20)
        assert limiter.statistics().granted == 1
        assert limiter.statistics().paused_for == 0
        assert not in_flight(limiter)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def test_the_exceptions_may_be_named(lib: Lib) -> None:
    def fail(_: Any) -> Any:
        raise LookupError

    retry = Retry(attempts=3, backoff=0.001, exceptions=(LookupError,))
    limiter = RateLimiter()
    async with lib.client(limiter, transport=lib.mock(fail), retry=retry) as client:
        with pytest.raises(LookupError):
            await client.get("http://host/")
    assert limiter.statistics().granted == 3


async def test_a_certificate_is_as_bad_the_second_time(lib: Lib, tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(SELF_SIGNED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")

    limiter = RateLimiter(concurrency_limit=1)
    async with raw_server(unreached, context) as url, lib.client(limiter) as client:
        with pytest.raises(lib.httpx.ConnectError, match="self-signed certificate"):
            await client.get(url)
    assert limiter.statistics().granted == 1
    assert not in_flight(limiter)


async def test_the_budget_fails_fast(lib: Lib) -> None:
    retry = Retry(backoff=0.001, budget=RetryBudget(capacity=28, cost=14))
    async with serving(plain(502)) as (url, seen), lib.client(RateLimiter(), retry=retry) as client:
        assert (await client.get(str(url))).status_code == 502
        assert len(seen) == 3


async def test_a_success_fills_the_budget_up(lib: Lib) -> None:
    retry = Retry(backoff=0.001, budget=RetryBudget(capacity=14, cost=14))
    script = [plain(502), plain(), plain(502), plain()]
    async with serving(*script) as (url, _), lib.client(RateLimiter(), retry=retry) as client:
        for _ in range(2):
            assert (await client.get(str(url))).status_code == 200


async def test_a_certificate_may_be_told_as_a_cause(lib: Lib) -> None:
    def fail(_: Any) -> Any:
        raise lib.httpx.ConnectError("no") from ssl.SSLCertVerificationError()

    limiter = RateLimiter()
    async with lib.client(limiter, transport=lib.mock(fail)) as client:
        with pytest.raises(lib.httpx.ConnectError):
            await client.get("http://host/")
    assert limiter.statistics().granted == 1


async def test_a_long_refusal_is_closed_before_the_wait(lib: Lib) -> None:
    async def big_refusal(_: web.Request) -> web.Response:
        return web.Response(status=429, body=b"x" * 8_000_000)

    async with (
        serving(big_refusal, endless_refusal, plain()) as (url, seen),
        lib.client(RateLimiter(concurrency_limit=1)) as client,
        asyncio.timeout(5),
    ):
        assert (await client.get(str(url))).status_code == 200
        assert len(seen) == 3


async def endless_refusal(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=429)
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


@pytest.mark.parametrize(("length", "begun"), [("4", 1), ("100000", 0), ("no number", 0)])
async def test_a_refusal_is_read_if_it_is_short_and_does_not_take_long(
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


async def test_the_connection_of_a_short_refusal_is_used_again(lib: Lib) -> None:
    ports: set[int] = set()

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.Response(status=200 if len(seen) == 3 else 429, text="refused")

    async with (
        serving(handle) as (url, seen),
        lib.client(RateLimiter(concurrency_limit=1)) as client,
    ):
        assert (await client.get(str(url))).status_code == 200
    assert len(ports) == 1


async def test_a_refusal_that_breaks_off_is_tried_again_all_the_same(lib: Lib) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429, headers={"Content-Length": "1000"})
        await response.prepare(request)
        assert request.transport is not None
        request.transport.close()
        return response

    limiter = RateLimiter(concurrency_limit=1)
    async with serving(broken, plain()) as (url, _), lib.client(limiter) as client:
        assert (await client.get(str(url))).status_code == 200


@pytest.mark.parametrize("hostile", ["1000000000000", "-1", "nan", "1e999", "x" * 5000, "0, 0"])
async def test_no_retry_after_can_hurt(lib: Lib, hostile: str) -> None:
    refuse = plain(429, headers={"Retry-After": hostile})
    async with (
        serving(refuse, plain()) as (url, _),
        lib.client(RateLimiter(concurrency_limit=1)) as client,
        asyncio.timeout(5),
    ):
        assert (await client.get(str(url))).status_code in {200, 429}


async def test_should_retry_may_read_the_body_and_so_may_the_caller(lib: Lib) -> None:
    async def verdict(response: Any) -> bool | None:
        assert response.url.path == "/"
        return True if b"slow down" in await response.aread() else None

    limiter = RateLimiter(concurrency_limit=1)
    retry = Retry(backoff=0.001, should_retry=verdict)
    refuse = plain(200, b"slow down")
    async with (
        serving(refuse, plain()) as (url, seen),
        lib.client(limiter, retry=retry) as client,
    ):
        assert (await client.get(str(url))).text == "body"
        async with client.stream("GET", str(url)) as response:
            assert [chunk async for chunk in response.aiter_bytes()] == [b"body"]
        assert len(seen) == 3
    assert not in_flight(limiter)


async def test_a_should_retry_that_raises_costs_no_slot_and_no_connection(lib: Lib) -> None:
    def verdict(response: Any) -> None:
        if response.status_code == 201:
            raise LookupError

    limiter = RateLimiter(concurrency_limit=1)
    retry = Retry(should_retry=verdict)
    async with (
        serving(plain(201), plain()) as (url, _),
        lib.client(limiter, retry=retry) as client,
    ):
        with pytest.raises(LookupError):
            await client.get(str(url))
        assert not in_flight(limiter)
        assert (await client.get(str(url))).text == "body"


# ---- bodies ------------------------------------------------------------------------------------


async def generated() -> AsyncIterator[bytes]:
    yield b"only "
    yield b"once"


class Repeatable:
    """An async iterable: whether it can be repeated, nobody knows."""

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
async def test_a_body_is_sent_again_byte_for_byte_or_not_at_all(
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


async def test_file_that_is_closed_by_now_is_not_sent_again(lib: Lib) -> None:
    file = io.BytesIO(b"abc")

    async def refuse(_: web.Request) -> web.Response:
        file.close()
        return web.Response(status=429)

    async with (
        serving(refuse, answer()) as (url, seen),
        lib.client(RateLimiter(concurrency_limit=1)) as client,
    ):
        assert (await client.post(str(url), files={"f": file})).status_code == 429
        assert len(seen) == 1


async def test_a_buffered_body_is_buffered_for_the_next_hop_too(lib: Lib) -> None:
    async with (
        serving(plain(307, headers={"Location": "/there"}), plain()) as (url, seen),
        lib.client(RateLimiter(), buffer_body=True) as client,
    ):
        response = await client.post(str(url), content=generated(), follow_redirects=True)
        assert response.status_code == 200
        assert seen == [("POST", b"only once")] * 2


async def test_a_body_that_fails_while_it_is_buffered_or_sent_costs_no_slot(lib: Lib) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError

    for buffer_body in (False, True):
        limiter = RateLimiter(concurrency_limit=1)
        async with (
            serving(plain()) as (url, _),
            lib.client(limiter, buffer_body=buffer_body) as client,
        ):
            with pytest.raises(LookupError):
                await client.post(str(url), content=broken())
            assert not in_flight(limiter)
            assert (await client.get(str(url))).text == "body"


# ---- it is a transport -------------------------------------------------------------------------


class Sdk:
    """An API client, as many are: it is given an HTTP client, and has its own timeouts."""

    def __init__(self, http_client: Any) -> None:
        self._http = http_client

    async def stream(self, url: URL, **body: object) -> list[str]:
        request = self._http.build_request("POST", str(url), json=body, timeout=0.5)
        response = await self._http.send(request, stream=True)
        response.raise_for_status()
        return [line async for line in response.aiter_lines()]


async def test_an_api_client_that_takes_an_http_client_is_throttled(lib: Lib) -> None:
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


async def test_it_opens_and_closes_the_transport_that_it_wraps(lib: Lib) -> None:
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


async def test_by_default_it_sends_with_a_transport_of_the_library(lib: Lib) -> None:
    transport = lib.transport(RateLimiter())
    assert isinstance(transport, lib.httpx.AsyncBaseTransport)
    async with serving(plain()) as (url, _), lib.httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(str(url))).text == "body"


async def test_several_clients_share_a_limiter(lib: Lib) -> None:
    limiter = RateLimiter("9/h", concurrency_limit=1)
    async with (
        serving(plain()) as (url, _),
        lib.client(limiter) as one,
        LIBS["httpx"].client(limiter) as other,
    ):
        await asyncio.gather(one.get(str(url)), other.get(str(url)))
        assert (await limiter.peek()).remaining == 7


def test_it_tells_its_limiter_and_no_secrets(lib: Lib) -> None:
    proxy = lib.httpx.Proxy("http://user:secret@proxy:1")
    limiter = RateLimiter("5/s", concurrency_limit=2)
    transport = lib.transport(limiter, transport=lib.sender(proxy=proxy))
    assert transport.limiter is limiter
    assert repr(limiter) in repr(transport)
    assert "secret" not in repr(transport)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"limiter": 20}, TypeError, "limiter"),
        ({"retry": 5}, TypeError, "retry"),
        ({"transport": "t"}, TypeError, "AsyncBaseTransport"),
        ({"transport": "sync"}, TypeError, "AsyncBaseTransport"),
        ({"transport": "other"}, TypeError, "AsyncBaseTransport"),
        ({"key": "host"}, TypeError, "key"),
        ({"key": repr}, ValueError, "KeyedRateLimiter"),
        ({"queue_timeout": -1}, ValueError, "queue_timeout"),
        ({"queue_timeout": "1"}, TypeError, "queue_timeout"),
        ({"max_hold": float("nan")}, ValueError, "max_hold"),
        (
            {"max_hold": 0},
            ValueError,
            "max_hold must be a finite number of seconds, above 0, or None",
        ),
        ({"max_hold": True}, TypeError, "max_hold"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(
    lib: Lib, arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    other = LIBS["httpx2" if lib is LIBS["httpx"] else "httpx"]
    if arguments.get("transport") == "sync":
        arguments = {"transport": lib.httpx.HTTPTransport(verify=CONTEXT)}
    elif arguments.get("transport") == "other":
        arguments = {"transport": other.sender()}
    with pytest.raises(error, match=named):
        lib.transport(**{"limiter": RateLimiter(), **arguments})


@pytest.mark.parametrize(("one", "other"), [("httpx", "httpx2"), ("httpx2", "httpx")])
def test_neither_needs_the_other_nor_aiohttp(one: str, other: str) -> None:
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


async def test_a_refusal_is_not_unpacked(lib: Lib) -> None:
    """A few kilobytes of it may be gigabytes: nobody has asked for its body yet."""
    packed = gzip.compress(bytes(50_000_000))
    refuse = plain(429, body=packed, headers={"Content-Encoding": "gzip"})
    limiter = RateLimiter(concurrency_limit=1)
    async with serving(refuse, plain()) as (url, _), lib.client(limiter) as client:
        tracemalloc.start()
        try:
            assert (await client.get(str(url))).status_code == 200
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 10_000_000


async def test_a_refusal_whose_body_never_comes_ends_as_without_us(
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
