"""Waiting for the limiter, holding a slot, cancellation, and keys: the same everywhere."""

import asyncio
import gc
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from aiothrottle import (
    CostTooHigh,
    KeyedRateLimiter,
    LimiterClosed,
    PerLoop,
    RateLimiter,
    ThrottleTimeout,
)
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottleMiddleware
from tests.integrations.clients import (
    BODY_ERRORS,
    ONCE,
    TIMEOUTS,
    Clock,
    Feature,
    Integration,
    Readers,
    Scene,
    always,
    cancel,
    collected,
    every,
    pair,
)
from tests.support.servers import reset
from tests.support.serving import (
    Handler,
    answer,
    cut,
    ending,
    endless,
    in_chunks,
    never,
    serving,
    until,
)
from tests.support.virtually import turns

Use = Callable[[Scene], Awaitable[object]]


# ---- the slot ----------------------------------------------------------------------------------


async def iterate(at: Scene) -> None:
    async with await at.open() as stream:
        await collected(stream.chunks())


async def leave_unread(at: Scene) -> None:
    async with await at.open():
        assert at.held <= 1  # a short body may have come with the headers


async def leave_early(at: Scene) -> None:
    async with await at.open() as stream:
        chunks = stream.chunks()
        for _ in range(3):
            assert await anext(chunks)
        assert at.held == 1
    await stream.leave()


def failing(use: Use) -> Use:
    async def fail(at: Scene) -> None:
        with pytest.raises(BODY_ERRORS):
            await use(at)

    return fail


async def be_cancelled(at: Scene) -> None:
    begun = asyncio.Event()

    async def consume() -> None:
        async with await at.open() as stream:
            async for _ in stream.chunks():
                begun.set()

    task = asyncio.create_task(consume())
    await begun.wait()
    await cancel(task)


async def drop(at: Scene) -> None:
    stream = await at.open()
    del stream
    gc.collect(0)
    await until(lambda: not at.held)


CUT_OFF = in_chunks(b"x" * 10, then=cut, Content_Length="1000")
COMPRESSED = in_chunks(*(gzip.compress(b"x" * 1000),) * 3, Content_Encoding="gzip")
#: The response, what is done with it, and whether its whole body was read.
ENDINGS: dict[str, tuple[Handler, Use, bool]] = {
    "read": (answer(), Scene.send, True),
    "304": (answer(304), Scene.send, True),
    "head": (answer(Content_Encoding="gzip"), lambda at: at.send(method="HEAD"), True),
    "iterated": (COMPRESSED, iterate, True),
    "short, unread": (answer(), leave_unread, False),
    "unread": (endless, leave_unread, False),
    "left early, twice": (endless, leave_early, False),
    "cut off": (CUT_OFF, failing(Scene.send), False),
    "reset": (in_chunks(b"x" * 10, then=ending(reset)), failing(Scene.send), False),
    "cut off in an iteration": (CUT_OFF, failing(iterate), False),
    "broken compression": (answer(Content_Encoding="gzip"), failing(Scene.send), False),
    "cancelled": (endless, be_cancelled, False),
    "dropped": (answer(), drop, False),
}


@pytest.mark.uvloop
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
@every()
async def test_ended_response_returns_slot_and_connection(
    integration: Integration, ending: str, settled: bool
) -> None:
    """The reader of `settle` has ended once; a part of a body stays charged."""
    handler, use, is_whole = ENDINGS[ending]
    limiter, readers = RateLimiter("100/h", concurrency_limit=1, guard=0.0), Readers()
    options: dict[str, Any] = {"limiter": limiter, "settle": readers if settled else None}
    async with integration.serve(handler, answer(), **options) as at:
        await use(at)
        assert at.held == 0
        if settled:
            await until(lambda: readers.ends == [[is_whole]])
            assert round((await limiter.peek()).remaining, 3) == (95 if is_whole else 99)
        assert await at.send() == (200, b"body")


@pytest.mark.parametrize("handler", [never, in_chunks(b"x", then=never)], ids=["never", "stuck"])
@every()
async def test_client_timeout_returns_slot_and_connection(
    integration: Integration, handler: Handler, clock: Clock
) -> None:
    async with integration.serve(handler, answer(), limiter=clock.limiter(), retry=ONCE) as at:
        task = at.start(timeout=60)
        await until(lambda: at.seen)
        await turns(20)
        await clock.skip(61)
        with pytest.raises(TIMEOUTS):
            await task
        assert at.held == 0
        assert await at.send() == (200, b"body")


@pytest.mark.parametrize("path", ["stall-chunked", "endless"])
@every()
async def test_max_hold_closes_response(integration: Integration, path: str, clock: Clock) -> None:
    options: dict[str, Any] = {"max_hold": 60, "settle": (readers := Readers())}
    async with integration.misbehave(clock.limiter(), **options) as (server, at):
        stream = await at.open(path)
        await clock.skip(59)
        assert at.held == 1
        await clock.skip(2)
        if path != "endless":  # which nobody reads
            with pytest.raises(BODY_ERRORS):
                await collected(stream.chunks())
        await until(lambda: not at.held and not server.connected)
        assert readers.ends == [[False]]
        assert await at.send("whole") == (200, b"body")


@every()
async def test_half_closed_connection_is_not_used_again(integration: Integration) -> None:
    async with integration.misbehave() as (server, at):
        for connections in (1, 2):
            server.go.clear()
            async with await at.open("half-closed") as stream:
                assert at.held == 1
                server.go.set()
                assert await stream.read() == b"xxxx"
            assert (at.held, server.connections) == (0, connections)
            await until(lambda: not server.connected)
        with pytest.raises(BODY_ERRORS):
            await at.send("half-closed-amid")
        assert at.held == 0


# ---- the limit and the wait ----------------------------------------------------------------------


@every()
async def test_server_sees_no_more_requests_than_slots(integration: Integration) -> None:
    limiter = RateLimiter(concurrency_limit=3)
    async with integration.misbehave(limiter, connections=10) as (server, at):

        async def fetch() -> None:
            async with await at.open("large") as stream:
                await anext(stream.chunks())

        await asyncio.gather(*(fetch() for _ in range(10)))
        assert (server.hits["/large"], server.peak) == (10, 3)


@every()
async def test_wait_for_the_limiter_is_timed_by_middlewares_alone(
    integration: Integration, clock: Clock
) -> None:
    """As aiohttp starts its timeout before them."""
    async with integration.serve(answer(), limiter=clock.limiter()) as at:
        async with at.queued(timeout=60) as task:
            await clock.skip(61)
            if integration.has(Feature.UNTIMED_WAIT):
                assert not task.done()
            else:
                with pytest.raises(TimeoutError):
                    await task
                assert at.waiting == 0
        if integration.has(Feature.UNTIMED_WAIT):
            await task
        assert len(at.seen) == integration.has(Feature.UNTIMED_WAIT)


@every()
async def test_client_closed_during_the_wait_sends_nothing(integration: Integration) -> None:
    async with integration.serve(answer()) as at:
        async with at.queued() as task:
            await at.client.close()
        with pytest.raises(RuntimeError, match=r"(Session is|client has been) closed"):
            await task
        assert at.seen == []


@every()
async def test_client_closed_before_a_retry_sends_nothing(integration: Integration) -> None:
    async def close(_: object) -> bool:
        await at.client.close()
        return True

    retry = Retry(backoff=0.001, should_retry=close)
    async with integration.serve(answer(), retry=retry) as at:
        with pytest.raises(RuntimeError, match=r"(Session is|client has been) closed"):
            await at.send()
        assert len(at.seen) == 1


@every()
async def test_queue_timeout_ends_the_wait(integration: Integration, clock: Clock) -> None:
    async with integration.serve(answer(), limiter=clock.limiter(), queue_timeout=60) as at:
        async with at.queued() as task:
            await clock.skip(59)
            assert not task.done()
            await clock.skip(2)
            with pytest.raises(ThrottleTimeout) as caught:
                await task
        assert caught.value.retry_after == 0.0
        assert (at.limiter.statistics().rejected, at.seen) == (1, [])
    async with integration.serve(answer(), limiter=RateLimiter("1/h"), queue_timeout=60) as at:
        await at.send()
        with pytest.raises(ThrottleTimeout) as caught:  # at once
            await at.send()
        assert 3590 < caught.value.retry_after <= 3600
        assert caught.value.__cause__ is None
        await at.limiter.aclose()
        with pytest.raises(LimiterClosed):
            await at.send()


# ---- keys --------------------------------------------------------------------------------------


KEYS = {
    "http://example.org/path?query": "example.org",
    "http://example.org:80/": "example.org",
    "https://EXAMPLE.org.:443/": "example.org",
    "https://example.org:80/": "example.org:80",
    "http://example.org:443/": "example.org:443",
    "wss://example.org/": "example.org",
    "https://bücher.example/": "xn--bcher-kva.example",
    "http://user:secret@example.org/": "example.org",
    "http://127.0.0.1:8080/": "127.0.0.1:8080",
    "http://[::1]/": "::1",
    "http://[0:0::0001]:8080/": "[::1]:8080",
}


@every()
async def test_default_key_is_the_host_in_dns(integration: Integration) -> None:
    found: dict[str, str] = {}
    for url in KEYS:
        limiter = KeyedRateLimiter("1/h")
        async with integration.client(limiter, cost=always(2)) as client:
            with pytest.raises(CostTooHigh):  # before a connection is made
                await client.send(url)
        found[url] = " ".join(map(str, limiter))
    assert found == KEYS


async def redirect(request: web.Request) -> web.Response:
    if request.path == "/":
        raise web.HTTPFound(f"http://localhost:{request.url.port}/there")
    if request.path == "/there":
        raise web.HTTPFound("/end")
    return web.Response(text="end")


@every()
async def test_hops_of_a_redirect_take_tokens_of_their_hosts(integration: Integration) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with integration.serve(redirect, limiter=limiter) as at:
        assert await at.send() == (200, b"end")
        limiters = [limiter[f"{host}:{at.url.port}"] for host in ("127.0.0.1", "localhost")]
    granted = [each.statistics().granted for each in limiters]
    assert granted == ([1, 2] if integration.has(Feature.HOPS) else [1, 0])


@every()
async def test_credentials_are_shown_nowhere(
    integration: Integration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with integration.misbehave(limiter, queue_timeout=0) as (server, at):
        url = str(server.url.with_user("alice").with_password("secret") / "whole")
        assert await at.send(url, headers={"X-Token": "secret"}) == (200, b"body")
        assert server.seen[0].headers["Authorization"].startswith("Basic ")
        (key,) = limiter
        async with limiter[key].throttle() as permit:
            with pytest.raises(ThrottleTimeout) as caught:
                await at.send(url, headers={"X-Token": "secret"})
        shown = [caught.value, limiter[key], limiter[key].statistics(), at.client.raw, limiter]
        shown += [permit, ThrottleMiddleware(limiter), RetryMiddleware()]
    assert not any("secret" in repr(each) + str(each) for each in shown)
    # httpx itself logs whole URLs.
    logged = [it.getMessage() for it in caplog.records if not it.name.startswith("http")]
    assert not any("secret" in message for message in logged)


# ---- a limiter for each loop -------------------------------------------------------------------


@pair
async def test_each_loop_uses_its_own_limiter(integration: Integration) -> None:
    made: list[RateLimiter] = []

    def make() -> RateLimiter:
        made.append(RateLimiter("100/s"))
        return made[-1]

    limiters: Any = PerLoop(make)

    async def send(url: URL) -> None:
        async with integration.client(limiters) as client:
            assert (await client.send(url)).status == 200

    limiters.get()  # it may be made before the session
    async with serving(answer()) as (url, _):
        await send(url)
        await asyncio.to_thread(lambda: asyncio.run(send(url)))
    # All begin small, as their outcomes are reported.
    found = [it.statistics() for it in made]
    assert [(it.burst, it.granted) for it in found] == [(1.0, 1)] * 2
    async with integration.client(limiters, key=always("us")) as client:
        with pytest.raises(ValueError, match="needs a KeyedRateLimiter"):
            await client.send("http://127.0.0.1:9/")
