"""A slot is held as long as aiohttp counts the connection as in use, however a response ends.

One table: what is done with a response, and when its slot has to be back. Each case runs at one
slot, with a session and with middlewares, without `max_hold` and with one.
"""

import asyncio
import contextlib
import gc
import io
import socket
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import pytest
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, ThrottleMiddleware, throttled_session
from tests.misbehaving_server import LARGE, UNREAD, MisbehavingServer
from tests.serving import until

pytestmark = [
    pytest.mark.uvloop,
    # aiohttp says so of a connection that is collected in one cycle with its response.
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),
]

ONCE = Retry(attempts=1)
Front: TypeAlias = Callable[..., Any]
FRONTS: list[Front] = [ThrottledSession, throttled_session]
# Before, a `raise_for_status` function that raised left the response open.
LEAVES_OPEN = tuple(map(int, aiohttp.__version__.split(".")[:2])) < (3, 14)


class Back(Enum):
    """When the slot has to be back."""

    HEADERS = "at the headers"
    END = "at the end of the case, though its response is still there"
    LATE = "when the response is dropped"
    NEVER = "never by aiohttp, so after max_hold"


class Scene(NamedTuple):
    """A server, a limiter of one slot, and a session that uses both."""

    server: MisbehavingServer
    limiter: RateLimiter
    session: Any
    connector: Any

    @property
    def in_flight(self) -> int:
        return self.limiter.statistics().in_flight

    @property
    def acquired(self) -> int:
        """How many connections aiohttp counts as in use."""
        return len(self.connector._acquired)

    async def get(self, path: str, **options: object) -> ClientResponse:
        response: ClientResponse = await self.session.get(self.server.url / path, **options)
        assert self.in_flight == self.acquired
        return response

    async def begin(self, path: str, **timeout: float) -> ClientResponse:
        """Get the headers alone, and see that they hold the slot; then let the body come.

        A timeout is for the body: a busy machine may need longer for the headers alone.
        """
        self.server.go.clear()
        while True:
            options = {"timeout": ClientTimeout(**timeout)} if timeout else {}
            sent = time.monotonic()
            with contextlib.suppress(TimeoutError):
                response = await self.get(path, **options)
                if all(time.monotonic() - sent < seconds / 2 for seconds in timeout.values()):
                    break
                response.close()
            timeout = {kind: 4 * seconds for kind, seconds in timeout.items()}
        assert self.in_flight == self.acquired == 1
        self.server.go.set()
        return response

    async def fail(self, path: str, error: type[BaseException], **options: object) -> None:
        with pytest.raises(error):
            await self.session.get(self.server.url / path, **options)

    async def granted(self) -> None:
        """See that the next one is granted, and that then nothing is in flight."""
        async with asyncio.timeout(5):
            permit = await self.limiter.acquire()
        permit.release()
        assert self.in_flight == 0


@asynccontextmanager
async def scene(front: Front, **options: object) -> AsyncGenerator[Scene]:
    limiter = RateLimiter(concurrency_limit=1)
    options = {"retry": ONCE, "timeout": ClientTimeout(total=None)} | options
    async with (
        MisbehavingServer() as server,
        front(limiter, hold_websockets=True, **options) as session,
        asyncio.timeout(10),  # a signal does not interrupt uvloop
    ):
        yield Scene(server, limiter, session, session.connector)


# ---- the cases ---------------------------------------------------------------------------------

Run: TypeAlias = Callable[[Scene], Awaitable[Any]]


@dataclass
class Case:
    run: Run
    back: Back
    options: dict[str, Any]


CASES: list[Case] = []


def case(back: Back, **options: object) -> Callable[[Run], Run]:
    """Add a case, with arguments for its session. It gives what its caller goes on to hold."""

    def add(run: Run) -> Run:
        CASES.append(Case(run, back, options))
        return run

    return add


async def read(response: ClientResponse) -> None:
    async for _ in response.content.iter_any():
        pass


async def cancel(work: Awaitable[Any]) -> None:
    """Cancel it once it waits for something that never comes."""
    task = asyncio.ensure_future(work)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@case(Back.HEADERS)
async def body_with_the_headers(scene: Scene) -> object:
    return await scene.get("whole")


@case(Back.HEADERS)
async def no_body(scene: Scene) -> object:
    return await scene.get("empty")


@case(Back.HEADERS)
async def status_204(scene: Scene) -> object:
    return await scene.get("no-content")


@case(Back.HEADERS)
async def status_304(scene: Scene) -> object:
    return await scene.get("not-modified")


@case(Back.HEADERS)
async def head(scene: Scene) -> object:
    return await scene.session.head(scene.server.url / "whole")


@case(Back.END)
async def body_read(scene: Scene) -> object:
    response = await scene.begin("later")
    assert await response.read() == b"xxxx"
    return response


@case(Back.END)
async def large_body_read(scene: Scene) -> object:
    response = await scene.begin("large")
    assert len(await response.read()) == LARGE
    return response


@case(Back.END)
async def large_body_streamed(scene: Scene) -> object:
    response = await scene.begin("large")
    await response.content.readexactly(100)
    assert scene.in_flight == scene.acquired == 1
    await read(response)
    return response


@case(Back.END)
async def unread_body_that_fits_into_the_buffers(scene: Scene) -> object:
    response = await scene.begin("unread")
    await until(response.content.is_eof)
    assert response.content.total_bytes == UNREAD
    return response


@case(Back.END)
async def block_left_early(scene: Scene) -> object:
    async with await scene.begin("large") as response:
        await response.content.readany()
    return response


@case(Back.END)
async def block_left_by_an_error(scene: Scene) -> object:
    response = await scene.begin("large")
    with pytest.raises(LookupError):
        async with response:
            raise LookupError
    return response


@case(Back.END)
async def released(scene: Scene) -> object:
    response = await scene.begin("large")
    response.release()
    return response


@case(Back.END)
async def released_before_the_body(scene: Scene) -> object:
    scene.server.go.clear()
    response = await scene.get("later")
    response.release()
    return response


@case(Back.END)
async def closed(scene: Scene) -> object:
    response = await scene.begin("large")
    response.close()
    return response


@case(Back.END)
async def raise_for_status(scene: Scene) -> object:
    response = await scene.begin("error")
    with pytest.raises(aiohttp.ClientResponseError):
        response.raise_for_status()
    return response


@case(Back.END)
async def raise_for_status_of_the_request(scene: Scene) -> None:
    await scene.fail("error", aiohttp.ClientResponseError, raise_for_status=True)


@case(Back.END, raise_for_status=True)
async def raise_for_status_of_the_session(scene: Scene) -> None:
    await scene.fail("error", aiohttp.ClientResponseError)


@case(Back.END)
async def raise_for_status_function(scene: Scene) -> None:
    async def check(_: ClientResponse) -> None:
        raise LookupError

    await scene.fail("error", LookupError, raise_for_status=check)


@case(Back.END)
async def redirect(scene: Scene) -> object:
    return await scene.get("redirect")


@case(Back.END)
async def redirect_with_a_large_body(scene: Scene) -> object:
    response = await scene.get("redirect-large")
    await response.read()
    return response


@case(Back.END)
async def too_many_redirects(scene: Scene) -> None:
    await scene.fail("redirect-loop", aiohttp.TooManyRedirects, max_redirects=3)


@case(Back.END)
async def chunked(scene: Scene) -> object:
    response = await scene.begin("chunked")
    assert await response.read() == b"body" * 3
    return response


@case(Back.END)
async def gzipped(scene: Scene) -> object:
    response = await scene.begin("gzipped")
    assert await response.read() == b"body" * 1000
    return response


@case(Back.END)
async def deflated(scene: Scene) -> object:
    response = await scene.begin("deflated")
    assert await response.read() == b"body" * 1000
    return response


@case(Back.END)
async def body_until_the_connection_ends(scene: Scene) -> object:
    response = await scene.begin("until-eof")
    assert await response.read() == b"body"
    return response


async def fail_to_read(scene: Scene, path: str, error: type[Exception], **timeout: float) -> object:
    response = await scene.begin(path, **timeout)
    with pytest.raises(error):
        await response.read()
    return response


@case(Back.END)
async def cut_off_in_read(scene: Scene) -> object:
    return await fail_to_read(scene, "cut", aiohttp.ClientPayloadError)


@case(Back.END)
async def reset_in_read(scene: Scene) -> object:
    return await fail_to_read(scene, "reset", aiohttp.ClientError)


@case(Back.END)
async def broken_gzip_in_read(scene: Scene) -> object:
    return await fail_to_read(scene, "broken-gzip", aiohttp.ClientPayloadError)


@case(Back.END)
async def bad_chunk_in_read(scene: Scene) -> object:
    # What parses in C waits for the rest until the timeout, what parses in Python raises.
    response = await scene.begin("bad-chunk", total=0.06)
    with pytest.raises((TimeoutError, aiohttp.ClientPayloadError)):
        await response.read()
    return response


@case(Back.END)
async def read_timeout_in_read(scene: Scene) -> object:
    return await fail_to_read(scene, "stall", aiohttp.ServerTimeoutError, sock_read=0.06)


@case(Back.END)
async def total_timeout_in_read(scene: Scene) -> object:
    return await fail_to_read(scene, "stall", TimeoutError, total=0.06)


async def iterate_in_a_block(scene: Scene, error: type[Exception], **timeout: float) -> object:
    response = await scene.begin("stall", **timeout)
    with pytest.raises(error):
        async with response:
            await read(response)
    return response


@case(Back.END)
async def read_timeout_in_a_block(scene: Scene) -> object:
    return await iterate_in_a_block(scene, aiohttp.ServerTimeoutError, sock_read=0.06)


@case(Back.END)
async def total_timeout_in_a_block(scene: Scene) -> object:
    return await iterate_in_a_block(scene, TimeoutError, total=0.06)


@case(Back.END)
async def cancelled_in_a_block(scene: Scene) -> object:
    response = await scene.begin("stall")

    async def iterate() -> None:
        async with response:
            await read(response)

    await cancel(iterate())
    return response


@case(Back.END)
async def cancelled_in_read(scene: Scene) -> object:
    response = await scene.begin("stall")
    await cancel(response.read())
    return response


@case(Back.END)
async def cancelled_before_the_headers(scene: Scene) -> None:
    task = asyncio.ensure_future(scene.session.get(scene.server.url / "silent"))
    await until(lambda: scene.server.open)
    assert scene.in_flight == scene.acquired == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@case(Back.END)
async def total_timeout_before_the_headers(scene: Scene) -> None:
    await scene.fail("silent", TimeoutError, timeout=ClientTimeout(total=0.06))


@case(Back.END)
async def read_timeout_before_the_headers(scene: Scene) -> None:
    await scene.fail("silent", aiohttp.ServerTimeoutError, timeout=ClientTimeout(sock_read=0.06))


@case(Back.END)
async def disconnected_before_the_headers(scene: Scene) -> None:
    await scene.fail("drop", aiohttp.ServerDisconnectedError)


@case(Back.END)
async def reset_before_the_headers(scene: Scene) -> None:
    await scene.fail("reset-early", aiohttp.ClientOSError)


@case(Back.END)
async def no_http(scene: Scene) -> None:
    await scene.fail("babble", aiohttp.ClientResponseError)


@case(Back.END)
async def connection_refused(scene: Scene) -> None:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        with pytest.raises(aiohttp.ClientConnectorError):
            await scene.session.get(f"http://127.0.0.1:{plug.getsockname()[1]}/")


@case(Back.END)
async def answered_during_the_upload(scene: Scene) -> object:
    response = await scene.session.post(
        scene.server.url / "too-large", data=io.BytesIO(bytes(LARGE))
    )
    assert response.status == 413
    await response.read()
    return response


@case(Back.END)
async def half_closed_during_the_upload(scene: Scene) -> object:
    url = scene.server.url / "half-closed-amid-upload"
    response = await scene.session.post(url, data=io.BytesIO(bytes(LARGE)))
    assert response.status == 413
    await response.read()
    response.release()
    await until(lambda: not scene.server.connected)
    return response


@case(Back.END)
async def total_timeout_while_the_headers_trickle(scene: Scene) -> None:
    await scene.fail("trickle-headers", TimeoutError, timeout=ClientTimeout(total=0.06))
    await until(lambda: not scene.server.connected)


@case(Back.END)
async def total_timeout_while_the_body_trickles(scene: Scene) -> object:
    response = await fail_to_read(scene, "trickle", TimeoutError, total=0.06, sock_read=30.0)
    await until(lambda: not scene.server.connected)
    return response


@case(Back.END)
async def let_go_during_the_upload(scene: Scene) -> object:
    response = await scene.session.post(
        scene.server.url / "too-large", data=io.BytesIO(bytes(LARGE))
    )
    response.release()
    return response


@case(Back.END)
async def refused_in_place_of_100_continue(scene: Scene) -> object:
    url = scene.server.url / "refused-expectation"
    response = await scene.session.post(url, data=b"body", expect100=True)
    assert response.status == 429
    return response


@case(Back.END)
async def websocket_closed(scene: Scene) -> object:
    scene.server.go.clear()
    websocket = await scene.session.ws_connect(scene.server.url / "websocket")
    assert scene.in_flight == scene.acquired == 1
    scene.server.go.set()
    assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
    return websocket


@case(Back.END)
async def websocket_aborted(scene: Scene) -> object:
    scene.server.go.clear()
    websocket = await scene.session.ws_connect(scene.server.url / "websocket-abort")
    assert scene.in_flight == scene.acquired == 1
    scene.server.go.set()
    await websocket.receive()
    return websocket


@case(Back.LATE)
async def websocket_collected(scene: Scene) -> object:
    scene.server.go.clear()
    return await scene.session.ws_connect(scene.server.url / "websocket")


@case(Back.LATE)
async def cut_off_while_iterating(scene: Scene) -> object:
    response = await scene.begin("cut")
    with pytest.raises(aiohttp.ClientPayloadError):
        await read(response)
    return response


@case(Back.LATE)
async def reset_while_iterating(scene: Scene) -> object:
    response = await scene.begin("reset")
    with pytest.raises(aiohttp.ClientError):
        await read(response)
    return response


@case(Back.LATE)
async def cut_off_and_nobody_reads(scene: Scene) -> object:
    response = await scene.begin("cut")
    await until(response.content.exception)
    return response


@case(Back.LATE)
async def bad_chunk_and_nobody_reads(scene: Scene) -> object:
    response = await scene.begin("bad-chunk")
    await until(lambda: response.connection is None or response.connection.closed)
    return response


@case(Back.LATE)
async def session_closed_under_an_open_response(scene: Scene) -> object:
    response = await scene.begin("large")
    await scene.session.close()
    return response


@case(Back.NEVER)
async def dropped_while_streaming(scene: Scene) -> None:
    await scene.begin("large")


@case(Back.NEVER)
async def dropped_in_a_cycle(scene: Scene) -> None:
    cycle: list[object] = [await scene.begin("stall")]
    cycle.append(cycle)


@case(Back.NEVER)
async def cancelled_while_iterating(scene: Scene) -> None:
    await cancel(read(await scene.begin("stall")))


@case(Back.NEVER)
async def broken_gzip_while_iterating(scene: Scene) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await read(await scene.begin("broken-gzip"))


@case(Back.NEVER)
async def read_timeout_while_iterating(scene: Scene) -> None:
    response = await scene.begin("stall", sock_read=0.06)
    with pytest.raises(aiohttp.ServerTimeoutError):
        await read(response)


@case(Back.NEVER)
async def total_timeout_while_iterating(scene: Scene) -> None:
    response = await scene.begin("stall", total=0.06)
    with pytest.raises(TimeoutError):
        await read(response)


# ---- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("max_hold", [None, 60.0], ids=["unlimited", "limited"])
@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.run.__name__)
async def test_the_slot_is_back_when_it_has_to_be(
    case: Case, front: Front, max_hold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer than the usual second to look.
    monkeypatch.setattr("aiothrottle.aiohttp.sender._GRACE", 60.0)
    back = case.back
    if case.run is raise_for_status_function and LEAVES_OPEN and front is throttled_session:
        back = Back.NEVER
    if back is Back.NEVER and max_hold is not None:
        max_hold = 0.1
    async with scene(front, max_hold=max_hold, **case.options) as at:
        held = await case.run(at)
        if back is Back.HEADERS:
            assert at.in_flight == 0
        if back is Back.LATE:
            await _still_held(at)
            held = None
            gc.collect()
        if back is Back.NEVER and max_hold is None:
            gc.collect()
            await _still_held(at)
            return
        await at.granted()
        if not (case.run is raise_for_status_function and LEAVES_OPEN):
            assert at.acquired == 0
        if back is Back.NEVER:
            await until(lambda: not at.server.connected)
        del held  # not before


async def _still_held(at: Scene) -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    assert at.in_flight == 1
    assert at.acquired == (0 if at.session.closed else 1)


# ---- max_hold ----------------------------------------------------------------------------------


@pytest.mark.parametrize("front", FRONTS)
async def test_who_still_listens_after_max_hold_is_told_that_the_websocket_is_closed(
    front: Front,
) -> None:
    async with scene(front, max_hold=0.05) as at:
        at.server.go.clear()
        websocket = await at.session.ws_connect(at.server.url / "websocket")
        async with asyncio.timeout(5):
            message = await websocket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        await at.granted()


@pytest.mark.parametrize("front", FRONTS)
async def test_a_connection_whose_response_has_ended_is_not_closed(front: Front) -> None:
    async with scene(front, max_hold=0.05) as at:
        await read(await at.begin("later"))
        await asyncio.sleep(0.1)
        await read(await at.begin("later"))
        assert at.server.connections == 1


async def test_what_has_ended_is_forgotten_at_once() -> None:
    async with scene(ThrottledSession, max_hold=60.0) as at:
        response = await at.begin("later")
        assert len(at.session._sender._adapter._holds._holds) == 1
        await response.read()
        assert not at.session._sender._adapter._holds._holds


async def test_each_response_has_the_time_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiothrottle.aiohttp.sender._GRACE", 0.0)
    limiter = RateLimiter(concurrency_limit=3)
    async with MisbehavingServer() as server, ThrottledSession(limiter, retry=ONCE) as session:
        for total in (60.0, 0.2, 0.3):
            await session.get(server.url / "stall", timeout=ClientTimeout(total=total))
        assert limiter.statistics().in_flight == 3
        await until(lambda: limiter.statistics().in_flight == 1)
        await until(lambda: len(server.connected) == 1)


@pytest.mark.parametrize("max_hold", [None, 60.0])
@pytest.mark.parametrize("front", FRONTS)
async def test_a_response_that_is_collected_in_another_thread_wakes_who_waits(
    front: Front, max_hold: float | None
) -> None:
    async with scene(front, max_hold=max_hold) as at:
        gc.disable()
        cycle: list[object] = [await cut_off_and_nobody_reads(at)]
        cycle.append(cycle)
        cycle = []
        thread = threading.Thread(target=collect_soon)
        start = time.monotonic()
        thread.start()
        await at.granted()
        thread.join()
        assert time.monotonic() - start < 4  # and not when the timeout wakes the loop


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.usefixtures("no_automatic_collection")
async def test_a_response_in_a_cycle_is_found_by_who_waits_for_its_slot(front: Front) -> None:
    async with scene(front, max_hold=None) as at:
        cycle: list[object] = [await cut_off_and_nobody_reads(at)]
        cycle.append(cycle)
        del cycle
        await at.granted()


def collect_soon() -> None:
    time.sleep(0.05)  # the loop is asleep by then
    gc.enable()
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
def test_what_a_loop_left_behind_does_not_disturb_the_next_one() -> None:
    limiter = RateLimiter(concurrency_limit=2)
    throttle = ThrottleMiddleware(limiter, max_hold=0.05)

    async def leave_it() -> None:
        async with MisbehavingServer() as server:
            session = ClientSession(middlewares=[throttle])
            await session.get(server.url / "stall")

    async def drop_it() -> None:
        async with MisbehavingServer() as server, ClientSession(middlewares=[throttle]) as session:
            await session.get(server.url / "stall")
            await until(lambda: not limiter.statistics().in_flight)

    asyncio.run(leave_it())
    asyncio.run(drop_it())
