"""A slot is held as long as aiohttp counts the connection as in use, however a response ends.

The endings that all integrations share are in `test_matrix_limits.py`.
"""

import asyncio
import gc
import io
import threading
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from aiothrottle import Permit, RateLimiter
from aiothrottle.aiohttp import ThrottleMiddleware
from tests.integrations.clients import ONCE, SESSION, Clock, Integration, Scene, sessions
from tests.support.misbehaving_server import LARGE, MisbehavingServer
from tests.support.serving import until
from tests.support.virtually import turns

# aiohttp warns of a connection that is collected in one cycle with its response.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")


class Back(Enum):
    """When the slot has to be back."""

    END = "at the end of the case, though its response is still there"
    LATE = "when the response is dropped"
    NEVER = "never by aiohttp, so after max_hold"


Use = Callable[["Place", str], Awaitable[None]]


class Place:
    """A session with one slot, in front of a misbehaving server."""

    def __init__(self, server: MisbehavingServer, scene: Scene, clock: Clock) -> None:
        self.server = server
        self.session: Any = scene.client.raw
        self.clock = clock
        #: References to the responses.
        self.kept: list[Any] = []
        self._scene = scene
        self._connector: Any = self.session.connector

    def assert_held(self, slots: int) -> None:
        """Check how many slots are held; aiohttp has so many connections in use."""
        assert self._scene.held == slots
        assert len(self._connector._acquired) == (0 if self.session.closed else slots)

    async def begin(self, path: str, *, connect: str = "get", **timeout: float) -> Any:
        """Get the headers alone, and check that they hold the slot; then have the body sent."""
        self.server.go.clear()
        options = {"timeout": ClientTimeout(**timeout)} if timeout else {}
        self.kept = [await getattr(self.session, connect)(self.server.url / path, **options)]
        self.assert_held(1)
        self.server.go.set()
        return self.kept[0]

    async def fail(self, work: Awaitable[object], error: Any) -> None:
        """Check that something fails, if necessary by a timeout of a minute."""
        task = asyncio.ensure_future(work)
        await turns(100)
        await self.clock.skip(61)
        with pytest.raises(error):
            await task


# ---- what is done ------------------------------------------------------------------------------


async def iterated(response: ClientResponse) -> None:
    async for _ in response.content.iter_any():
        pass


async def read(at: Place, path: str) -> None:
    assert await (await at.begin(path)).read()


async def fail_to_iterate(at: Place, path: str) -> None:
    await at.fail(iterated(await at.begin(path, sock_read=60)), BROKEN)


async def upload(at: Place, path: str) -> None:
    for is_read in (False, True):
        response = await at.session.post(at.server.url / path, data=io.BytesIO(bytes(LARGE)))
        assert response.status == 413
        if is_read:
            await response.read()
        response.release()
        at.kept.append(response)


async def close_the_session(at: Place, path: str) -> None:
    await at.begin(path)
    await at.session.close()


async def drop_in_a_cycle(at: Place, path: str) -> None:
    at.kept.append([at.kept, await at.begin(path)])
    at.kept = []


async def receive(at: Place, path: str) -> None:
    await (await at.begin(path, connect="ws_connect")).receive()


async def open_websocket(at: Place, path: str) -> None:
    await at.begin(path, connect="ws_connect")
    at.server.go.clear()


def fail_to_get(error: type[Exception], **options: Any) -> Use:
    async def fail(at: Place, path: str) -> None:
        await at.fail(at.session.get(at.server.url / path, **options), error)

    return fail


BROKEN = (aiohttp.ClientPayloadError, aiohttp.ServerTimeoutError)
READ_TIMEOUT, TOTAL_TIMEOUT = ClientTimeout(sock_read=60), ClientTimeout(total=60)
CASES: list[tuple[str, Use, Back]] = [
    ("redirect-large", read, Back.END),
    ("error", fail_to_get(aiohttp.ClientResponseError, raise_for_status=True), Back.END),
    ("redirect-loop", fail_to_get(aiohttp.TooManyRedirects, max_redirects=3), Back.END),
    ("silent", fail_to_get(aiohttp.ServerTimeoutError, timeout=READ_TIMEOUT), Back.END),
    ("trickle-headers", fail_to_get(TimeoutError, timeout=TOTAL_TIMEOUT), Back.END),
    *((path, upload, Back.END) for path in ("too-large", "half-closed-amid-upload")),
    *((path, receive, Back.END) for path in ("websocket", "websocket-abort")),
    ("cut", fail_to_iterate, Back.LATE),
    ("large", close_the_session, Back.LATE),
    ("websocket", open_websocket, Back.LATE),
    ("websocket", open_websocket, Back.NEVER),
    ("stall", fail_to_iterate, Back.NEVER),
    ("stall", drop_in_a_cycle, Back.NEVER),
]


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{path} {use.__name__} {back.name}" for path, use, back in CASES]
)
@sessions
async def test_slot_is_returned_in_time(
    integration: Integration, case: tuple[str, Use, Back], clock: Clock
) -> None:
    path, use, back = case
    max_hold = 3600 if back is Back.NEVER or integration is SESSION else None
    options: dict[str, Any] = {"hold_websockets": True, "retry": ONCE, "max_hold": max_hold}
    async with integration.misbehave(clock.limiter(), **options) as (server, scene):
        at = Place(server, scene, clock)
        await use(at, path)
        if back in (Back.LATE, Back.NEVER):
            await turns()
            at.assert_held(1)
        if back is Back.LATE:
            at.kept.clear()
            gc.collect(0)
        if back is Back.NEVER:
            gc.collect(0)
            await turns()
            at.assert_held(1)
            await clock.skip(3600)
            await until(lambda: not server.connected)
        await until(lambda: not scene.held)
        at.assert_held(0)


async def test_ended_response_is_forgotten_and_its_connection_kept(clock: Clock) -> None:
    async with SESSION.misbehave(clock.limiter(), max_hold=60) as (server, at):
        gc.collect(0)
        before = permits()
        for _ in range(2):
            server.go.clear()
            async with await at.open("later") as stream:
                assert permits() == before + 1
                server.go.set()
                await stream.read()
            assert permits() == before
            await clock.skip(100)
        assert server.connections == 1


def permits() -> int:
    # Not by `isinstance`, which asks a proxy for the class of what is dead.
    return sum(issubclass(type(it), Permit) for it in gc.get_objects())


# ---- garbage -----------------------------------------------------------------------------------


def collect_soon() -> None:
    time.sleep(0.05)  # the loop is asleep by then
    gc.enable()
    gc.collect()


@pytest.mark.uvloop
@pytest.mark.parametrize("max_hold", [None, 60.0])
async def test_response_collected_in_a_thread_wakes_a_waiter(max_hold: float | None) -> None:
    async with SESSION.misbehave(max_hold=max_hold) as (server, at):
        gc.disable()
        cycle: list[Any] = [await at.client.raw.get(server.url / "cut")]
        await until(cycle[0].content.exception)
        cycle.append(cycle)
        del cycle
        thread = threading.Thread(target=collect_soon)
        start = time.monotonic()
        thread.start()
        (await at.limiter.acquire()).release()
        thread.join()
        assert time.monotonic() - start < 4  # and not when the timeout wakes the loop


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
def test_response_of_an_ended_loop_disturbs_no_other() -> None:
    limiter = RateLimiter(concurrency_limit=2)
    throttle = ThrottleMiddleware(limiter, max_hold=0.05)

    async def stall(*, wait: bool) -> None:
        async with MisbehavingServer() as server:
            session = ClientSession(middlewares=[throttle])
            await session.get(server.url / "stall")
            if wait:
                await until(lambda: not limiter.statistics().in_flight)
                await session.close()

    asyncio.run(stall(wait=False))
    asyncio.run(stall(wait=True))
