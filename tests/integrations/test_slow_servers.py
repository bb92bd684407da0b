"""A server that trickles, a byte at a time, and one that closes its half and goes on reading."""

import asyncio
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import pytest
from aiohttp import ClientTimeout

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from tests.misbehaving_server import LARGE, MisbehavingServer
from tests.serving import until

pytestmark = pytest.mark.uvloop

Front: TypeAlias = Callable[..., Any]
both_fronts = pytest.mark.parametrize("front", [ThrottledSession, throttled_session])

ONCE = Retry(attempts=1)
# What trickles is never late for this.
READING = ClientTimeout(total=None, sock_read=30.0)


class Scene(NamedTuple):
    server: MisbehavingServer
    limiter: RateLimiter
    session: Any

    async def nothing_is_left(self) -> None:
        """See that the slot is free, and that no connection is in use."""
        async with asyncio.timeout(20), self.limiter.throttle():
            pass
        assert self.limiter.statistics().in_flight == 0
        assert not self.session.connector._acquired


@asynccontextmanager
async def scene(front: Front, **options: object) -> AsyncGenerator[Scene]:
    limiter = RateLimiter(concurrency_limit=1)
    options = {"retry": ONCE, "timeout": READING} | options
    async with (
        MisbehavingServer() as server,
        front(limiter, **options) as session,
        asyncio.timeout(30),
    ):
        yield Scene(server, limiter, session)


# ---- a byte at a time --------------------------------------------------------------------------


@both_fronts
async def test_a_body_that_trickles_holds_its_slot_no_longer_than_max_hold(front: Front) -> None:
    async with scene(front, max_hold=0.05) as at:
        response = await at.session.get(at.server.url / "trickle")
        with pytest.raises(aiohttp.ClientConnectionError):
            await response.read()
        await at.nothing_is_left()
        await until(lambda: not at.server.connected)


@both_fronts
async def test_and_no_longer_if_nobody_reads_it(front: Front) -> None:
    async with scene(front, max_hold=0.05) as at:
        response = await at.session.get(at.server.url / "trickle")
        assert at.limiter.statistics().in_flight == 1
        await at.nothing_is_left()
        await until(lambda: not at.server.connected)
        del response


@both_fronts
async def test_who_reads_it_as_it_trickles_is_told(front: Front) -> None:
    async with scene(front, max_hold=0.05) as at:
        response = await at.session.get(at.server.url / "trickle")
        with pytest.raises(aiohttp.ClientConnectionError):
            async for _ in response.content.iter_any():
                pass
        await at.nothing_is_left()


@both_fronts
@pytest.mark.parametrize("path", ["trickle", "trickle-headers"])
async def test_the_total_time_out_counts_for_what_trickles(front: Front, path: str) -> None:
    async with scene(front, timeout=ClientTimeout(total=0.06)) as at:
        with pytest.raises(TimeoutError):
            async with at.session.get(at.server.url / path) as response:
                await response.read()
        await at.nothing_is_left()
        await until(lambda: not at.server.connected)


@both_fronts
async def test_the_body_of_a_refusal_that_trickles_is_let_go(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiothrottle.aiohttp.adapter.SHORT_TIME", 0.05)
    async with scene(front, retry=Retry(attempts=2, backoff=0.01)) as at:
        async with at.session.get(at.server.url / "throttled-and-trickling") as response:
            assert response.status == 200
        await at.nothing_is_left()


# ---- its half closed ---------------------------------------------------------------------------


@both_fronts
async def test_after_a_whole_response_the_next_one_has_another_connection(front: Front) -> None:
    async with scene(front) as at:
        for connections in (1, 2):
            at.server.go.clear()
            response = await at.session.get(at.server.url / "half-closed")
            assert at.limiter.statistics().in_flight == 1
            at.server.go.set()
            assert await response.read() == b"xxxx"
            await at.nothing_is_left()
            assert at.server.connections == connections
            await until(lambda: not at.server.connected)  # and the old one is closed


@both_fronts
async def test_amid_the_body_it_is_an_error(front: Front) -> None:
    async with scene(front) as at:
        response = await at.session.get(at.server.url / "half-closed-amid")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await at.nothing_is_left()
        await until(lambda: not at.server.connected)


@both_fronts
async def test_before_the_response_it_is_tried_again(front: Front) -> None:
    async with scene(front, retry=Retry(attempts=2, backoff=0.01)) as at:
        async with at.session.get(at.server.url / "half-closed-early") as response:
            assert response.status == 200
        assert at.server.hits["/half-closed-early"] == 2
        await at.nothing_is_left()


@both_fronts
async def test_amid_an_upload_the_answer_is_read_and_the_slot_comes_back(front: Front) -> None:
    async with scene(front) as at:
        body = io.BytesIO(bytes(LARGE))
        response = await at.session.post(at.server.url / "half-closed-amid-upload", data=body)
        assert response.status == 413
        await response.read()
        response.release()
        await at.nothing_is_left()
        await until(lambda: not at.server.connected)
