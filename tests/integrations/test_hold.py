"""A slot is held as long as aiohttp counts the connection as in use, however a response ends.

One table: what is done with a response, and when its slot has to be back. Each case has one
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
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
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
    # aiohttp warns of a connection that is collected in one cycle with its response.
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),
]

ONCE = Retry(attempts=1)
Make: TypeAlias = Callable[..., Any]
MAKES: list[Make] = [ThrottledSession, throttled_session]
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
        """Get the headers alone, and check that they hold the slot; then have the body sent.

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
        """Check that the next request is granted, and that then nothing is in flight."""
        async with asyncio.timeout(5):
            permit = await self.limiter.acquire()
        permit.release()
        assert self.in_flight == 0


@asynccontextmanager
async def scene(make: Make, **options: object) -> AsyncGenerator[Scene]:
    limiter = RateLimiter(concurrency_limit=1)
    options = {"retry": ONCE, "timeout": ClientTimeout(total=None)} | options
    async with (
        MisbehavingServer() as server,
        make(limiter, hold_websockets=True, **options) as session,
        asyncio.timeout(10),  # a signal does not interrupt uvloop
    ):
        yield Scene(server, limiter, session, session.connector)


# ---- the cases ---------------------------------------------------------------------------------

Run: TypeAlias = Callable[[Scene], Awaitable[Any]]


@dataclass
class Case:
    name: str
    run: Run
    back: Back
    options: dict[str, Any] = field(default_factory=dict[str, Any])


CASES: list[Case] = []


def case(back: Back, **options: object) -> Callable[[Run], Run]:
    """Add a case, with arguments for its session. It returns what the test keeps a reference to."""

    def add(run: Run) -> Run:
        CASES.append(Case(run.__name__, run, back, options))
        return run

    return add


async def read(response: ClientResponse) -> None:
    async for _ in response.content.iter_any():
        pass


async def cancel(work: Awaitable[Any]) -> None:
    """Cancel it once it waits for something that never arrives."""
    task = asyncio.ensure_future(work)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


CASES.extend(
    Case(f"{path} got", partial(Scene.get, path=path), Back.HEADERS)
    for path in ("whole", "empty", "no-content", "not-modified")
)


async def read_body(scene: Scene, path: str, body: bytes) -> object:
    response = await scene.begin(path)
    assert await response.read() == body
    return response


for path, body in {
    "later": b"xxxx",
    "chunked": b"body" * 3,
    "gzipped": b"body" * 1000,
    "deflated": b"body" * 1000,
    "until-eof": b"body",
}.items():
    CASES.append(Case(f"{path} read", partial(read_body, path=path, body=body), Back.END))


async def fail_to_read(scene: Scene, path: str, error: type[Exception], **timeout: float) -> object:
    response = await scene.begin(path, **timeout)
    with pytest.raises(error):
        await response.read()
    return response


async def fail_in_a_block(
    scene: Scene, path: str, error: type[Exception], **timeout: float
) -> object:
    response = await scene.begin(path, **timeout)
    with pytest.raises(error):
        async with response:
            await read(response)
    return response


async def fail_to_iterate(
    scene: Scene, path: str, error: type[Exception], **timeout: float
) -> ClientResponse:
    response = await scene.begin(path, **timeout)
    with pytest.raises(error):
        await read(response)
    return response


async def fail_to_iterate_and_drop(
    scene: Scene, path: str, error: type[Exception], **timeout: float
) -> None:
    await fail_to_iterate(scene, path, error, **timeout)


BROKEN: list[tuple[str, type[Exception], dict[str, float], Back]] = [
    ("cut", aiohttp.ClientPayloadError, {}, Back.LATE),
    ("reset", aiohttp.ClientError, {}, Back.LATE),
    ("broken-gzip", aiohttp.ClientPayloadError, {}, Back.NEVER),
    ("stall", aiohttp.ServerTimeoutError, {"sock_read": 0.06}, Back.NEVER),
    ("stall", TimeoutError, {"total": 0.06}, Back.NEVER),
    ("trickle", TimeoutError, {"total": 0.06, "sock_read": 30.0}, Back.NEVER),
]
for path, error, timeout, back in BROKEN:
    iterate = fail_to_iterate if back is Back.LATE else fail_to_iterate_and_drop
    ways: list[tuple[Callable[..., Awaitable[object]], Back]] = [
        (fail_to_read, Back.END),
        (fail_in_a_block, Back.END),
        (iterate, back),
    ]
    for run, when in ways:
        name = f"{path} {getattr(run, '__name__', '')} {' '.join(timeout)}"
        fail: Run = partial(run, path=path, error=error, **timeout)
        CASES.append(Case(name, fail, when))

FAILING: list[tuple[str, type[Exception], dict[str, Any]]] = [
    ("error", aiohttp.ClientResponseError, {"raise_for_status": True}),
    ("redirect-loop", aiohttp.TooManyRedirects, {"max_redirects": 3}),
    ("silent", TimeoutError, {"timeout": ClientTimeout(total=0.06)}),
    ("silent", aiohttp.ServerTimeoutError, {"timeout": ClientTimeout(sock_read=0.06)}),
    ("trickle-headers", TimeoutError, {"timeout": ClientTimeout(total=0.06)}),
    ("drop", aiohttp.ServerDisconnectedError, {}),
    ("reset-early", aiohttp.ClientOSError, {}),
    ("babble", aiohttp.ClientResponseError, {}),
]
for path, error, options in FAILING:
    fail = partial(Scene.fail, path=path, error=error, **options)
    CASES.append(Case(f"{path} {error.__name__}", fail, Back.END))


@case(Back.HEADERS)
async def head(scene: Scene) -> object:
    return await scene.session.head(scene.server.url / "whole")


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
async def bad_chunk_in_read(scene: Scene) -> object:
    # The parser in C waits for the rest until the timeout, the one in Python raises.
    response = await scene.begin("bad-chunk", total=0.06)
    with pytest.raises((TimeoutError, aiohttp.ClientPayloadError)):
        await response.read()
    return response


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
async def released_during_the_upload(scene: Scene) -> object:
    response = await scene.session.post(
        scene.server.url / "too-large", data=io.BytesIO(bytes(LARGE))
    )
    response.release()
    return response


@case(Back.END)
async def throttled_in_place_of_100_continue(scene: Scene) -> object:
    url = scene.server.url / "throttled-expectation"
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
async def cut_off_and_is_not_read(scene: Scene) -> object:
    response = await scene.begin("cut")
    await until(response.content.exception)
    return response


@case(Back.LATE)
async def bad_chunk_and_is_not_read(scene: Scene) -> object:
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


# ---- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("max_hold", [None, 60.0], ids=["unlimited", "limited"])
@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_slot_is_returned_in_time(
    case: Case, make: Make, max_hold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer than the usual second.
    monkeypatch.setattr("aiothrottle.aiohttp.sender._GRACE", 60.0)
    back = case.back
    if case.run is raise_for_status_function and LEAVES_OPEN and make is throttled_session:
        back = Back.NEVER
    if back is Back.NEVER and max_hold is not None:
        max_hold = 0.1
    async with scene(make, max_hold=max_hold, **case.options) as at:
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
        if back is Back.NEVER or case.name.startswith("trickle"):
            await until(lambda: not at.server.connected)
        del held  # not before


async def _still_held(at: Scene) -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    assert at.in_flight == 1
    assert at.acquired == (0 if at.session.closed else 1)


# ---- max_hold ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKES)
async def test_websocket_is_closed_after_max_hold(
    make: Make,
) -> None:
    async with scene(make, max_hold=0.05) as at:
        at.server.go.clear()
        websocket = await at.session.ws_connect(at.server.url / "websocket")
        async with asyncio.timeout(5):
            message = await websocket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        await at.granted()


@pytest.mark.parametrize("make", MAKES)
async def test_connection_of_an_ended_response_is_not_closed(make: Make) -> None:
    async with scene(make, max_hold=0.05) as at:
        await read(await at.begin("later"))
        await asyncio.sleep(0.1)
        await read(await at.begin("later"))
        assert at.server.connections == 1


async def test_ended_response_is_forgotten_at_once() -> None:
    async with scene(ThrottledSession, max_hold=60.0) as at:
        response = await at.begin("later")
        assert len(at.session._sender._adapter._holds._holds) == 1
        await response.read()
        assert not at.session._sender._adapter._holds._holds


async def test_each_response_has_the_timeout_of_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiothrottle.aiohttp.sender._GRACE", 0.0)
    limiter = RateLimiter(concurrency_limit=3)
    async with MisbehavingServer() as server, ThrottledSession(limiter, retry=ONCE) as session:
        for total in (60.0, 0.2, 0.3):
            await session.get(server.url / "stall", timeout=ClientTimeout(total=total))
        assert limiter.statistics().in_flight == 3
        await until(lambda: limiter.statistics().in_flight == 1)
        await until(lambda: len(server.connected) == 1)


@pytest.mark.parametrize("max_hold", [None, 60.0])
@pytest.mark.parametrize("make", MAKES)
async def test_response_collected_in_a_thread_wakes_a_waiter(
    make: Make, max_hold: float | None
) -> None:
    async with scene(make, max_hold=max_hold) as at:
        gc.disable()
        cycle: list[object] = [await cut_off_and_is_not_read(at)]
        cycle.append(cycle)
        cycle = []
        thread = threading.Thread(target=collect_soon)
        start = time.monotonic()
        thread.start()
        await at.granted()
        thread.join()
        assert time.monotonic() - start < 4  # and not when the timeout wakes the loop


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.usefixtures("no_automatic_collection")
async def test_waiter_collects_a_response_in_a_cycle(make: Make) -> None:
    async with scene(make, max_hold=None) as at:
        cycle: list[object] = [await cut_off_and_is_not_read(at)]
        cycle.append(cycle)
        del cycle
        await at.granted()


def collect_soon() -> None:
    time.sleep(0.05)  # the loop is asleep by then
    gc.enable()
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
def test_response_of_an_ended_loop_disturbs_no_other() -> None:
    limiter = RateLimiter(concurrency_limit=2)
    throttle = ThrottleMiddleware(limiter, max_hold=0.05)

    async def leave_it_open() -> None:
        async with MisbehavingServer() as server:
            session = ClientSession(middlewares=[throttle])
            await session.get(server.url / "stall")

    async def wait_for_max_hold() -> None:
        async with MisbehavingServer() as server, ClientSession(middlewares=[throttle]) as session:
            await session.get(server.url / "stall")
            await until(lambda: not limiter.statistics().in_flight)

    asyncio.run(leave_it_open())
    asyncio.run(wait_for_max_hold())
