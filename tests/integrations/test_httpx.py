"""What only the transports for httpx and httpx2 do, by the same tests for both."""

import asyncio
import contextlib
import gc
import io
import ssl
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import httpx
import pytest
from aiohttp import web

from aiothrottle import AdaptiveConcurrency, RateLimiter
from aiothrottle.headers import Profile
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.retry import Retry
from tests.integrations.clients import (
    INTEGRATIONS,
    ONCE,
    TLS,
    Client,
    Integration,
    Readers,
    Scene,
    cancel,
    transports,
)
from tests.support.misbehaving_server import BOMB
from tests.support.serving import answer, endless, generated, in_flight, until
from tests.support.virtually import now, turns, virtual

OTHER = dict(zip(INTEGRATIONS[3:], INTEGRATIONS[:2:-1], strict=True))

# ---- the slot ----------------------------------------------------------------------------------


@pytest.mark.uvloop
@pytest.mark.usefixtures("no_automatic_collection")
@transports
async def test_response_dropped_in_a_thread_frees_its_slot(integration: Integration) -> None:
    asyncio.get_running_loop().set_debug(True)  # it checks what the thread calls
    async with integration.serve(endless, answer()) as at:
        box = [await at.open()]

        def drop() -> None:
            box.clear()
            gc.collect()

        await asyncio.to_thread(drop)
        await until(lambda: not at.held)
        assert (await at.send()).body == b"body"


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.usefixtures("no_automatic_collection")
@transports
async def test_abandoned_stream_in_a_cycle_returns_its_slot(
    integration: Integration, is_kept: bool
) -> None:
    """Also one that is kept, but is not read any more."""
    kept: list[Any] = []
    async with integration.serve(endless, answer()) as at:

        async def leave_early() -> None:
            response = (await at.open()).raw
            response.itself = response
            kept.extend([response] * is_kept)
            async for _ in response.aiter_raw():
                break

        await leave_early()
        async with asyncio.timeout(10):
            assert (await at.send()).body == b"body"


some_body = partial(generated, b"body")
failing_body = partial(generated, b"body", LookupError())


@virtual
async def test_transports_make_no_class_each() -> None:
    kinds = set[type]()
    for _ in range(2):
        network = httpx.MockTransport(lambda _: httpx.Response(200, content=some_body()))
        async with ThrottledTransport(RateLimiter(), transport=network) as transport:
            response = await transport.handle_async_request(httpx.Request("GET", "http://server"))
            kinds.add(type(response.stream))
            await response.aread()
    assert len(kinds) == 1


async def stalling_body() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def responding(
    integration: Integration,
    status: int = 200,
    body: Callable[[], AsyncIterator[bytes]] = some_body,
    aclose: Callable[[], Awaitable[None]] | None = None,
    **options: Any,
) -> Callable[[object], Any]:
    """Return what makes a response with this body, whose stream has this `aclose`."""

    def respond(_: object) -> Any:
        response = integration.library.Response(status, content=body(), **options)
        if aclose is not None:
            response.stream.aclose = aclose
        return response

    return respond


@transports
def test_response_collected_after_its_loop_returns_its_slot(integration: Integration) -> None:
    limiter, readers = RateLimiter(concurrency_limit=1), Readers()

    async def main() -> Any:
        mock = integration.library.MockTransport(responding(integration))
        make = integration.module.ThrottledTransport
        transport = make(limiter, transport=mock, settle=readers)
        client = Client(integration.library.AsyncClient(transport=transport))
        return await client.open("http://host/")

    response = asyncio.run(main())
    assert in_flight(limiter)
    del response
    gc.collect()
    assert not in_flight(limiter)
    assert readers.ends == [[False]]


@pytest.mark.uvloop
@pytest.mark.parametrize("method", ["aclose", "__aexit__"])
@transports
async def test_closed_client_holds_no_slot(integration: Integration, method: str) -> None:
    async with integration.serve(endless) as at, await at.open():
        assert at.held
        await getattr(at.client.raw, method)()
        assert not at.held


@pytest.mark.parametrize("body", [some_body, failing_body], ids=["whole", "failing"])
@transports
@virtual
async def test_response_is_closed_once(
    integration: Integration, body: Callable[[], AsyncIterator[bytes]]
) -> None:
    closed: list[int] = []

    async def aclose() -> None:
        closed.append(1)
        await asyncio.sleep(2)

    async with integration.mock(responding(integration, 200, body, aclose), max_hold=1) as at:
        task = at.start()
        await asyncio.sleep(1)
        assert at.held  # until the closing has ended
        with contextlib.suppress(LookupError):
            assert (await task).body == b"body"
        assert not at.held
        await asyncio.sleep(2)
        assert closed == [1]


@transports
@virtual
async def test_closing_goes_on_although_its_reader_is_cancelled(integration: Integration) -> None:
    ended: list[int] = []

    async def aclose() -> None:
        await asyncio.sleep(2)
        ended.append(1)

    async with integration.mock(responding(integration, aclose=aclose)) as at:
        task = at.start()
        await asyncio.sleep(1)
        await cancel(task)
        await asyncio.sleep(2)
        assert ended == [1]


@transports
async def test_error_in_closing_raises_and_returns_the_slot(integration: Integration) -> None:
    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def aclose() -> None:
        raise LookupError

    respond = responding(integration, aclose=aclose)
    async with integration.mock(respond, max_hold=0.001) as at:
        with pytest.raises(LookupError):
            await at.send()
        assert not at.held
        response = await at.open()
        assert at.held
        await until(lambda: not at.held)
        del response
    await turns(3)
    gc.collect()
    assert logged == []


@transports
async def test_closed_response_or_websocket_holds_no_slot(integration: Integration) -> None:
    """What was closed unread is settled as such; what was read is discarded all the same."""
    closed: Any = integration.library.Response(200, text="body")
    unread, websocket = (responding(integration, status)(None) for status in (200, 101))
    await unread.aclose()
    throttled = integration.library.Response(429, text="slow down")
    readers, script = Readers(), [throttled, closed, unread, websocket]

    def judge(response: Any) -> bool | None:  # not called for a websocket
        return None if response.status_code == 429 else response.status_code == 101

    retry = Retry(attempts=2, backoff=0.001, pause_jitter=0, should_retry=judge)
    async with integration.mock(lambda _: script.pop(0), retry=retry, settle=readers) as at:
        assert await at.send() == (200, b"body")
        assert (await at.open()).raw.is_closed
        async with await at.open() as stream:
            assert (stream.status, at.held) == (101, 0)
        assert (readers[1].body, readers.ends) == (b"body", [[True], [True], [False], [True]])
        at.assert_granted(4)


@transports
async def test_request_cancelled_at_any_turn_returns_its_slot(integration: Integration) -> None:
    # No sockets: httpx 0.28 itself loses a connection that is cancelled at certain turns.
    statuses: list[int] = []
    body = partial(generated, 0.0, b"x", 0.0, b"x", 0.0, b"x")

    async def handle(request: object) -> Any:
        await turns(2)
        # Every second request is throttled: its response is discarded, and there is a wait.
        statuses.append(429 if len(statuses) % 2 == 0 else 200)
        headers = {"Content-Length": "3"}
        return responding(integration, statuses[-1], body, headers=headers)(request)

    async def verdict(_: Any) -> None:
        await asyncio.sleep(0)

    retry = Retry(backoff=1e-9, pause_jitter=0, should_retry=verdict)
    limiter = RateLimiter(concurrency_limit=1, learn_rate=False)  # so many 429s are a limit
    async with integration.mock(handle, retry=retry, limiter=limiter) as at:
        for count in range(60):
            statuses.clear()
            task = at.start()
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: not at.held)
        assert statuses == [429, 200]


# ---- errors ------------------------------------------------------------------------------------


RETRIED = [
    *("ConnectError", "ReadError", "WriteError", "CloseError", "RemoteProtocolError"),
    *("ConnectTimeout", "ReadTimeout", "WriteTimeout"),
]
RAISED = ["PoolTimeout", "ProxyError", "DecodingError", "LocalProtocolError"]


@transports
async def test_exceptions_that_are_retried_by_default(integration: Integration) -> None:
    library = integration.library
    errors: dict[Any, int] = {getattr(library, name)(name): 2 for name in RETRIED}
    errors |= {getattr(library, name)(name): 1 for name in RAISED}
    for link in ("__cause__", "__context__"):
        wrong_certificate = library.ConnectError("no")
        setattr(wrong_certificate, link, ssl.SSLCertVerificationError())
        errors[wrong_certificate] = 1
    for error, attempts in errors.items():
        fail = Mock(side_effect=error)
        async with integration.mock(fail, retry=Retry(attempts=2, backoff=0.001)) as at:
            with pytest.raises(cast("Any", type(error))):
                await at.send()
        assert fail.call_count == attempts, error


@pytest.mark.parametrize(("length", "begun"), [("4", 1), ("100000", 0), ("no number", 0)])
@transports
@virtual
async def test_throttled_body_is_read(integration: Integration, length: str, begun: int) -> None:
    reads: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        reads.append(1)
        async for chunk in stalling_body():
            yield chunk

    throttled = responding(integration, 429, body, headers={"Content-Length": length})
    script = [throttled(None), responding(integration)(None)]
    async with integration.mock(lambda _: script.pop(0)) as at:
        assert (await at.send()).status == 200
    assert len(reads) == begun


@transports
async def test_body_is_unpacked_only_as_far_as_it_is_short(integration: Integration) -> None:
    bomb = partial(generated, BOMB)
    headers = {"Content-Type": "application/json", "X-RateLimit-Reset": "60"}
    respond = responding(integration, 403, bomb, headers=headers | {"Content-Encoding": "gzip"})
    async with integration.mock(respond, retry=ONCE) as at:
        tracemalloc.start()
        try:
            await at.open()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8 << 20


@transports
@virtual
async def test_error_in_a_throttled_body_is_raised(integration: Integration) -> None:
    headers = {"Content-Length": "9"}
    lost = responding(integration, 429, failing_body, headers=headers)
    script = [responding(integration)(None), lost(None)]
    async with integration.mock(lambda _: script.pop()) as at:
        with pytest.raises(LookupError):
            await at.send()


OURS: dict[str, Any] = {
    "profiles": [Profile("ours", hosts=("host",), body_statuses=frozenset({400}))],
    "retry": ONCE,
}


@transports
@virtual
async def test_late_json_is_returned_and_lost_json_is_a_failure(integration: Integration) -> None:
    late = partial(generated, 5.0, b"{}")
    lost = partial(generated, b"{", integration.library.ReadError("lost"))
    headers = {"Content-Type": "application/json"}
    async with integration.mock(responding(integration, 400, late, headers=headers), **OURS) as at:
        assert await at.send() == (400, b"{}")
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(4, 1, 4))
    respond = responding(integration, 400, lost, headers=headers)
    async with integration.mock(respond, limiter=limiter, **OURS) as at:
        for _ in range(12):
            with pytest.raises(integration.library.ReadError):
                await at.send()
            await asyncio.sleep(1)
    assert limiter.statistics().concurrency_limit == 2


@transports
async def test_should_retry_sees_the_whole_response(integration: Integration) -> None:
    seen: list[Any] = []
    options: dict[str, Any] = {
        "headers": {"X-One": "1", "Content-Encoding": "identity"},
        "extensions": {"http_version": b"HTTP/2"},
    }
    respond = responding(integration, **options)
    async with integration.mock(respond, retry=Retry(should_retry=seen.append)) as at:
        returned = (await at.open()).raw
        assert seen[0] is not returned
        for name in ("headers", "http_version", "status_code", "request"):
            assert getattr(seen[0], name) == getattr(returned, name), name
        await returned.aclose()


@transports
@virtual
async def test_unfinished_body_is_needed_only_without_retry_after(integration: Integration) -> None:
    headers = {"Content-Length": "1000"}
    respond = responding(integration, 429, stalling_body, headers=headers)
    async with integration.mock(respond, retry=ONCE) as at:
        with pytest.raises(integration.library.ReadTimeout):
            await at.send()
        assert not at.held
        headers["Retry-After"] = "1"
        async with await at.open() as response:
            assert response.status == 429


@transports
@virtual
async def test_body_is_not_awaited_if_should_retry_raises(integration: Integration) -> None:
    respond = responding(integration, 200, stalling_body, headers={"Content-Length": "1000"})
    retry = Retry(should_retry=Mock(side_effect=LookupError))
    async with integration.mock(respond, retry=retry) as at:
        with pytest.raises(LookupError):
            await at.send()
        assert now() == 0.0
        assert not at.held


# ---- bodies ------------------------------------------------------------------------------------


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation


#: The options of a request, its body or a part of that, and how often it is sent.
BODIES: dict[str, tuple[Callable[[], dict[str, Any]], bytes, int]] = {
    "none": (dict, b"", 2),
    "json": (lambda: {"json": "text"}, b'"text"', 2),
    "files of bytes": (lambda: {"files": {"f": b"abc"}, "data": {"a": "1"}}, b"\r\nabc\r\n", 2),
    "a file": (lambda: {"files": {"f": io.BytesIO(b"abc" * 100_000)}}, b"abc" * 100_000, 2),
    "a pipe": (lambda: {"files": {"a": b"1", "f": Pipe(b"abc")}}, b"abc", 1),
    "async generator": (lambda: {"content": some_body()}, b"body", 1),
}


async def post(at: Scene, **options: Any) -> int:
    response = await at.client.raw.post(str(at.url), follow_redirects=True, **options)
    return cast("int", response.status_code)


@pytest.mark.parametrize("buffer_body", [False, True])
@transports
async def test_body_is_repeated_unchanged_or_not_at_all(
    integration: Integration, buffer_body: bool
) -> None:
    for name, (make, sent, times) in BODIES.items():
        expected = 2 if buffer_body else times
        async with integration.serve(answer(429), answer(), buffer_body=buffer_body) as at:
            assert await post(at, **make()) == (200 if expected == 2 else 429), name
        assert at.seen == at.seen[:1] * expected, name
        assert sent in at.seen[0][1], name


@transports
async def test_closed_file_is_not_sent_buffered_body_is(integration: Integration) -> None:
    file, redirect = io.BytesIO(b"abc"), answer(307, Location="/there")

    async def throttle(_: web.Request) -> web.Response:
        file.close()
        return web.Response(status=429)

    async with integration.serve(throttle, redirect, answer(), buffer_body=True) as at:
        # Not even buffered: a form is sent from its files.
        assert await post(at, files={"f": file}) == 429
        assert await post(at, content=some_body()) == 200
        assert at.seen[1:] == [("POST", b"body")] * 2


@transports
async def test_empty_body_in_a_stream_is_sent_again(integration: Integration) -> None:
    """As below the transport of hishel, which makes an iterator of each body."""
    async with integration.serve(answer(429), answer(503), answer()) as at:
        make, url = integration.library.Request, str(at.url)
        # A body that can be read once is not sent again.
        assert (await at.client.raw.send(make("POST", url, content=some_body()))).status_code == 429
        request = make("GET", url, content=generated(b""))
        del request.headers["Transfer-Encoding"]
        assert (await at.client.raw.send(request)).status_code == 200


# ---- the transport -----------------------------------------------------------------------------


@transports
async def test_wrapped_transport_is_opened_and_closed(integration: Integration) -> None:
    cache = type("Cache", (integration.library.AsyncBaseTransport,), {"__len__": len})
    library, sender = integration.library, MagicMock(cache)  # its length is 0
    transport = integration.module.ThrottledTransport(RateLimiter(), transport=sender)
    async with library.AsyncClient(transport=transport):
        sender.__aenter__.assert_awaited_once_with()
    sender.__aexit__.assert_awaited_once_with(None, None, None)
    await library.AsyncClient(transport=transport).aclose()
    sender.aclose.assert_awaited_once_with()


@transports
def test_transport_names_a_wrong_one_and_needs_no_other(integration: Integration) -> None:
    limiter, make = RateLimiter("5/s"), integration.module.ThrottledTransport
    of_the_other = OTHER[integration].library.AsyncHTTPTransport(verify=TLS)
    for wrong in ("text", of_the_other):
        with pytest.raises(TypeError, match="AsyncBaseTransport"):
            make(limiter, transport=wrong)
    transport = integration.library.AsyncHTTPTransport(verify=TLS)
    assert repr(limiter) in repr(make(limiter, transport=transport))
    other = OTHER[integration].name
    code = (
        f"import sys; sys.modules[{other!r}] = sys.modules['aiohttp'] = None; "
        f"import aiothrottle.{integration.name}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@transports
async def test_transport_in_a_wrong_client_names_the_right_one(integration: Integration) -> None:
    ours, theirs = integration.name, OTHER[integration].name
    transport = integration.module.ThrottledTransport(limiter := RateLimiter(1))
    text = f"is for {ours}.AsyncClient, and got a request of {theirs}: write `from aiothrottle."
    async with OTHER[integration].library.AsyncClient(transport=transport) as other:
        with pytest.raises(TypeError, match=f"{text}{theirs} import ThrottledTransport`$"):
            await other.get("http://127.0.0.1:9/")
    make: Any = integration.library.Client
    with pytest.raises(TypeError, match=rf"is for {ours}.AsyncClient, not"):
        make(transport=transport).get("http://host/")
    with pytest.raises(TypeError, match="AsyncClient"), make(transport=transport):
        pass
    assert limiter.statistics().granted == 0
