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
from aiohttp import ClientTimeout

from aiothrottle import Permit
from tests.integrations.clients import ONCE, SESSION, Clock, Integration, Scene, pair, sessions
from tests.support.misbehaving_server import LARGE
from tests.support.serving import until
from tests.support.virtually import turns

# aiohttp warns of a connection that is collected in one cycle with its response.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")


def assert_held(at: Scene, slots: int) -> None:
    """Check how many slots are held; aiohttp has so many connections in use."""
    assert (at.held, len(at.client.raw.connector._acquired)) == (slots, slots)


#: The error in place of a response, at the latest after a minute, and options of the request.
FAILURES: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "error": (aiohttp.ClientResponseError, {"raise_for_status": True}),
    "redirect-loop": (aiohttp.TooManyRedirects, {"max_redirects": 3}),
    "silent": (aiohttp.ServerTimeoutError, {"timeout": ClientTimeout(sock_read=60)}),
    "trickle-headers": (TimeoutError, {"timeout": ClientTimeout(total=60)}),
}


@pytest.mark.parametrize("path", FAILURES)
@sessions
async def test_failed_request_holds_no_slot(
    integration: Integration, path: str, clock: Clock
) -> None:
    error, options = FAILURES[path]
    async with integration.misbehave(clock.limiter(), retry=ONCE) as (server, at):
        task = asyncio.ensure_future(at.client.raw.get(server.url / path, **options))
        await turns(100)
        await clock.skip(61)
        with pytest.raises(error):
            await task
        assert_held(at, 0)


@pytest.mark.parametrize("path", ["too-large", "half-closed-amid-upload"])
@sessions
async def test_upload_that_is_not_read_holds_no_slot(integration: Integration, path: str) -> None:
    async with integration.misbehave(retry=ONCE) as (server, at):
        for is_read in (False, True):
            data = io.BytesIO(bytes(LARGE))
            response = await at.client.raw.post(server.url / path, data=data)
            assert response.status == 413
            if is_read:
                await response.read()
            response.release()
        await until(lambda: not at.held)
        assert_held(at, 0)


class Back(Enum):
    END = "at the end of the response, though it is still there"
    LATE = "when the response is dropped"
    NEVER = "never by aiohttp, so after max_hold"


async def read(kept: list[Any], _: Clock) -> None:
    assert await (kept[0].receive() if hasattr(kept[0], "receive") else kept[0].read())


async def fail_to_read_on(kept: list[Any], clock: Clock) -> None:
    task = asyncio.ensure_future(kept[0].content.readexactly(LARGE))
    await turns(100)
    await clock.skip(61)
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerTimeoutError)):
        await task


async def drop_in_a_cycle(kept: list[Any], _: Clock) -> None:
    cycle: list[Any] = [kept.pop()]
    cycle.append(cycle)


async def leave(_: list[Any], __: Clock) -> None:
    pass


CASES: list[tuple[str, Callable[[list[Any], Clock], Awaitable[None]], Back]] = [
    *((path, read, Back.END) for path in ("redirect-large", "websocket", "websocket-abort")),
    ("cut", fail_to_read_on, Back.LATE),
    ("websocket-idle", leave, Back.NEVER),
    ("stall", fail_to_read_on, Back.NEVER),
    ("stall", drop_in_a_cycle, Back.NEVER),
]


@pytest.mark.parametrize(
    ("path", "use", "back"),
    CASES,
    ids=[f"{path} {use.__name__} {b.name}" for path, use, b in CASES],
)
@sessions
async def test_slot_is_returned_in_time(
    integration: Integration, path: str, use: Any, back: Back, clock: Clock
) -> None:
    max_hold = 3600 if back is Back.NEVER or integration is SESSION else None
    options: dict[str, Any] = {"hold_websockets": True, "retry": ONCE, "max_hold": max_hold}
    timeout = ClientTimeout(sock_read=60)
    async with integration.misbehave(clock.limiter(), timeout=timeout, **options) as (server, at):
        server.go.clear()
        connect = at.client.raw.ws_connect if "websocket" in path else at.client.raw.get
        kept = [await connect(server.url / path)]
        assert_held(at, 1)
        server.go.set()
        await use(kept, clock)
        if back is not Back.END:
            gc.collect(0)
            await turns()
            assert_held(at, 1)
        if back is Back.LATE:
            kept.clear()
            gc.collect(0)
        if back is Back.NEVER:
            await clock.skip(3600)
            await until(lambda: not server.connected)
        await until(lambda: not at.held)
        assert_held(at, 0)


async def test_websocket_outlives_the_timeout_of_its_session(clock: Clock) -> None:
    options: dict[str, Any] = {"hold_websockets": True, "timeout": ClientTimeout(60)}
    async with SESSION.misbehave(clock.limiter(), **options) as (server, at):
        websocket = await at.client.raw.ws_connect(server.url / "websocket-idle")
        await clock.skip(100)
        assert_held(at, 1)
        await at.client.close()
        del websocket


@pair
async def test_ended_response_is_forgotten_and_its_connection_kept(
    integration: Integration, clock: Clock
) -> None:
    async with integration.misbehave(clock.limiter(), max_hold=60) as (server, at):
        gc.collect()  # those of other tests
        before = permits()
        for _ in range(2):
            server.go.clear()
            async with await at.open("later") as stream:
                assert permits() == before + 1
                server.go.set()
                await stream.read()
            if integration is not SESSION:  # the stream of httpx knows its permit, in a cycle
                del stream
                gc.collect()
            assert permits() == before
            await clock.skip(100)
        # By itself httpx closes one that was idle for so long.
        assert server.connections == (1 if integration is SESSION else 2)


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
