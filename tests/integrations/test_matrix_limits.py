"""Waiting for the limiter, holding a slot, and keys: the same for every integration.

Clients have one connection, so that a request after a lost connection would wait for ever; and
each scene checks at its end that no slot is held and nothing waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import KeyedRateLimiter, LimiterClosed, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottleMiddleware
from aiothrottle.hooks import Request
from aiothrottle.testing import RateLimitedServer
from tests.integrations.clients import (
    BODY_ERRORS,
    INTEGRATIONS,
    MISSING,
    ONCE,
    TIMEOUTS,
    Clock,
    Feature,
    Integration,
    Scene,
    collected,
    compressed_chunks,
    cut_off,
    every,
    lacking,
    send,
)
from tests.serving import Handler, answer, endless, never, serving, until
from tests.virtually import turns

LIMITS = Feature.LIMITS


def test_table_names_known_integrations() -> None:
    assert {name for name, _ in MISSING} <= {each.name for each in INTEGRATIONS}


# ---- the slot ----------------------------------------------------------------------------------


@pytest.mark.uvloop
@every(LIMITS)
async def test_open_response_holds_its_slot(integration: Integration) -> None:
    async with integration.serve(endless) as at:
        async with await at.open() as stream:
            chunks = stream.chunks()
            for _ in range(3):
                assert await anext(chunks)
            assert at.held == 1
        assert at.held == 0


@lacking(LIMITS)
async def test_without_a_limiter_nothing_is_granted(integration: Integration) -> None:
    async with integration.serve(answer()) as at:
        assert (await at.send()).status == 200
        assert at.limiter.statistics().granted == 0


async def stuck(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x" * 10)
    return await never(request)


async def until_closed(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.force_close()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(b"x" * 1000)
    return response


async def read(at: Scene) -> None:
    await at.send()


async def iterate(at: Scene) -> None:
    async with await at.open() as stream:
        async for _ in stream.chunks():
            pass


async def leave_unread(at: Scene) -> None:
    async with await at.open():
        pass


async def leave_early(at: Scene) -> None:
    async with await at.open() as stream:
        async for _ in stream.chunks():
            break


async def close_twice(at: Scene) -> None:
    stream = await at.open()
    await stream.close()
    await stream.close()


async def raise_in_the_block(at: Scene) -> None:
    with suppress(KeyError):
        async with await at.open():
            raise KeyError


async def fail_to_read(at: Scene) -> None:
    with pytest.raises(BODY_ERRORS):
        await at.send()


async def fail_to_iterate(at: Scene) -> None:
    with pytest.raises(BODY_ERRORS):
        await iterate(at)


async def cancel(at: Scene) -> None:
    begun = asyncio.Event()

    async def consume() -> None:
        async with await at.open() as stream:
            async for _ in stream.chunks():
                begun.set()

    task = asyncio.create_task(consume())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])


ENDINGS: dict[str, tuple[Handler, Callable[[Scene], Awaitable[object]]]] = {
    "read": (answer(), read),
    "compressed chunks": (compressed_chunks, read),
    "closed by the server": (until_closed, read),
    "500": (answer(500), read),
    "304": (answer(304), read),
    "204": (answer(204), read),
    "302": (answer(302, Location="/"), lambda at: at.send(redirects=False)),
    "head": (answer(), lambda at: at.send(method="HEAD")),
    "iterated": (compressed_chunks, iterate),
    "unread": (endless, leave_unread),
    "left early": (endless, leave_early),
    "closed twice": (endless, close_twice),
    "error in the block": (endless, raise_in_the_block),
    "cut off": (cut_off, fail_to_read),
    "cut off in an iteration": (cut_off, fail_to_iterate),
    "broken compression": (answer(Content_Encoding="gzip"), fail_to_read),
    "cancelled": (endless, cancel),
}


@pytest.mark.uvloop
@pytest.mark.parametrize("ending", ENDINGS)
@every(LIMITS)
async def test_ended_response_returns_slot_and_connection(
    integration: Integration, ending: str
) -> None:
    handler, use = ENDINGS[ending]
    async with integration.serve(handler, answer()) as at:
        await use(at)
        assert at.held == 0
        assert await at.send() == (200, b"body")


@pytest.mark.parametrize("handler", [never, stuck])
@every(LIMITS)
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


@pytest.mark.parametrize("use", ["read", "iterate", "ignore"])
@pytest.mark.parametrize("path", ["stall", "stall-chunked", "endless", "trickle"])
@every(LIMITS)
async def test_response_is_closed_after_max_hold(
    integration: Integration, path: str, use: str, clock: Clock
) -> None:
    async with integration.misbehave(clock.limiter(), max_hold=60) as (server, at):
        stream = await at.open(path)
        await clock.skip(59)
        assert at.held == 1
        await clock.skip(2)
        if use == "read":
            with pytest.raises(BODY_ERRORS):
                await stream.read()
        elif use == "iterate":
            with pytest.raises(BODY_ERRORS):
                await collected(stream.chunks())
        await until(lambda: not at.held and not server.connected)
        assert await at.send("whole") == (200, b"body")


@every(LIMITS)
async def test_half_closed_connection_is_not_used_again(integration: Integration) -> None:
    async with integration.misbehave() as (server, at):
        for connections in (1, 2):
            server.go.clear()
            async with await at.open("half-closed") as stream:
                assert at.held == 1
                server.go.set()
                assert await stream.read() == b"xxxx"
            assert at.held == 0
            assert server.connections == connections
            await until(lambda: not server.connected)


@every(LIMITS)
async def test_body_ended_by_half_closing_raises(integration: Integration) -> None:
    async with integration.misbehave() as (server, at):
        with pytest.raises(BODY_ERRORS):
            await at.send("half-closed-amid")
        assert at.held == 0
        await until(lambda: not server.connected)


# ---- the limit ---------------------------------------------------------------------------------


@every(LIMITS)
async def test_crawl_at_the_limit_is_never_throttled(
    integration: Integration, clock: Clock
) -> None:
    async def respond(_: web.Request) -> web.Response:
        await turns(20)
        return web.Response()

    # The clock is real but for what is skipped: a busy machine delays requests.
    limiter = clock.limiter("10/s", concurrency_limit=4, guard=0.5)
    async with (
        RateLimitedServer("10/s", concurrency_limit=4, handler=respond) as server,
        integration.scene(server.url, [], limiter, retry=ONCE, connections=10) as at,
    ):
        crawl = asyncio.gather(*(at.send(str(page)) for page in range(40)))
        while not crawl.done():
            await until(lambda: crawl.done() or not at.held)
            await clock.skip(0.05)
        assert {reply.status for reply in await crawl} == {200}
        assert server.audit.refused == 0
        assert 1 < server.audit.greatest_concurrency <= 4


@every(LIMITS)
async def test_server_sees_no_more_requests_than_slots(integration: Integration) -> None:
    limiter = RateLimiter(concurrency_limit=3)
    async with integration.misbehave(limiter, connections=20) as (server, at):

        async def fetch() -> None:
            async with await at.open("large") as stream:
                await anext(stream.chunks())

        await asyncio.gather(*(fetch() for _ in range(20)))
        assert (server.hits["/large"], server.peak) == (20, 3)


async def test_all_integrations_share_one_limiter() -> None:
    limited = [each for each in INTEGRATIONS if each.has(LIMITS)]
    limiter = RateLimiter("9/h", concurrency_limit=1)
    async with serving(answer()) as (url, _), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(each.client(limiter)) for each in limited]
        await asyncio.gather(*(send(client, url) for client in clients))
    assert (await limiter.peek()).remaining == 9 - len(clients)


# ---- the wait ----------------------------------------------------------------------------------


@every(Feature.UNTIMED_WAIT)
async def test_wait_for_the_limiter_is_not_timed(integration: Integration, clock: Clock) -> None:
    async with integration.serve(answer(), limiter=clock.limiter()) as at:
        async with at.limiter.throttle():
            task = at.start(timeout=60)
            await until(lambda: at.waiting)
            await clock.skip(3600)
            assert not task.done()
        assert (await task).status == 200


@lacking(Feature.UNTIMED_WAIT)
async def test_total_timeout_runs_during_the_wait(integration: Integration, clock: Clock) -> None:
    # Where there is no limiter, the wait before a retry is timed.
    retry = Retry(backoff=3600, max_backoff=3600, jitter="decorrelated")
    handler = answer() if integration.has(LIMITS) else answer(502)
    async with integration.serve(handler, limiter=clock.limiter(), retry=retry) as at:
        async with at.limiter.throttle():
            task = at.start(timeout=60)
            await until(lambda: at.waiting or at.seen)
            await clock.skip(61)
            with pytest.raises(TimeoutError):
                await task
        assert at.waiting == 0
        if integration.has(LIMITS):
            assert not at.seen
            assert (await at.send()).status == 200


@every(LIMITS)
async def test_queue_timeout_raises_at_once_for_a_rate(integration: Integration) -> None:
    async with integration.serve(answer(), limiter=RateLimiter("1/h"), queue_timeout=60) as at:
        await at.send()
        with pytest.raises(ThrottleTimeout) as caught:
            await at.send()
        assert 3590 < caught.value.retry_after <= 3600
        assert len(at.seen) == 1


@every(LIMITS)
async def test_queue_timeout_ends_the_wait_for_a_slot(
    integration: Integration, clock: Clock
) -> None:
    async with integration.misbehave(clock.limiter(), queue_timeout=60) as (server, at):
        async with at.limiter.throttle():
            task = at.start("whole")
            await until(lambda: at.waiting)
            await clock.skip(61)
            with pytest.raises(ThrottleTimeout) as caught:
                await task
        assert caught.value.retry_after == 0.0
        assert at.limiter.statistics().rejected == 1
        assert not server.connections


@pytest.mark.parametrize("closed", [False, True])
@every(LIMITS)
async def test_error_of_the_limiter_is_not_retried(integration: Integration, closed: bool) -> None:
    retry = Retry(attempts=3, backoff=0.001, exceptions=(Exception,))
    async with integration.serve(answer(), retry=retry, queue_timeout=0) as at:
        async with at.limiter.throttle():
            if closed:
                await at.limiter.aclose()
            with pytest.raises(LimiterClosed if closed else ThrottleTimeout):
                await at.send()
        assert at.limiter.statistics().rejected == (0 if closed else 1)
        assert not at.seen


@every(LIMITS)
async def test_closed_limiter_rejects_waiting_and_new_requests(integration: Integration) -> None:
    async with integration.serve(answer()) as at:
        async with at.limiter.throttle():
            task = at.start()
            await until(lambda: at.waiting)
            await at.limiter.aclose()
            with pytest.raises(LimiterClosed):
                await task
            with pytest.raises(LimiterClosed):
                await at.send()
        assert not at.seen


# ---- keys --------------------------------------------------------------------------------------


@every(LIMITS)
async def test_each_host_has_its_limit_below_the_parent(integration: Integration) -> None:
    parent = RateLimiter(concurrency_limit=2)
    limiter = KeyedRateLimiter(concurrency_limit=1, parent=parent)
    async with (
        serving(never) as (two, seen_by_two),
        serving(never) as (three, seen_by_three),
        integration.serve(never, limiter=limiter, connections=9) as at,
    ):
        for url in (at.url, at.url, two, three):
            at.start(str(url))
        await until(lambda: at.seen and seen_by_two)
        await turns(20)
        assert len(at.seen) == len(seen_by_two) == 1  # one at each host
        assert not seen_by_three  # two in all
        assert parent.statistics().in_flight == 2
        assert set(limiter._limiters) == {f"127.0.0.1:{url.port}" for url in (at.url, two, three)}
    assert parent.statistics().in_flight == 0


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.org/path?query", "example.org"),
        ("http://example.org:80/", "example.org"),
        ("https://EXAMPLE.org:443/", "example.org"),
        ("https://example.org./", "example.org"),
        ("https://example.org:80/", "example.org:80"),
        ("http://example.org:443/", "example.org:443"),
        ("http://example.org:8080/", "example.org:8080"),
        ("wss://example.org/", "example.org"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example"),
        ("http://user:secret@example.org/", "example.org"),
        ("http://127.0.0.1:8080/", "127.0.0.1:8080"),
        ("http://[::1]/", "::1"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
@every()
def test_default_key_is_the_host_in_dns(integration: Integration, url: str, key: str) -> None:
    assert integration.origin("GET", integration.url(url)) == key


@every(LIMITS)
async def test_key_is_a_function_of_the_request(integration: Integration) -> None:
    asked: list[tuple[str, Any]] = []

    def key(request: Request) -> str:
        asked.append((request.method, request.url))
        return str(request.url.path).split("/")[1]

    limiter = KeyedRateLimiter("10/s", overrides={"search": {"rate_limit": "1/h"}}, guard=0.0)
    async with integration.serve(answer(), limiter=limiter, key=key) as at:
        await at.send("search/a")
        await at.send("users", "POST")
        expected = [("GET", f"{at.url}search/a"), ("POST", f"{at.url}users")]
    assert asked == [(method, integration.url(url)) for method, url in expected]
    assert not await limiter.peek("search")
    assert await limiter.peek("users")


@pytest.mark.parametrize("unhashable", [False, True])
@every(LIMITS)
async def test_failing_key_raises_and_takes_nothing(
    integration: Integration, unhashable: bool
) -> None:
    def key(request: Request) -> Any:  # noqa: ANN401 - or nonsense
        if unhashable:
            return [request.url]
        raise LookupError(f"no account for {request.method}")

    limiter = KeyedRateLimiter(concurrency_limit=1)
    error, text = (TypeError, "key") if unhashable else (LookupError, "no account for GET")
    async with integration.serve(answer(), limiter=limiter, key=key) as at:
        with pytest.raises(error, match=text):
            await at.send()
        assert (len(limiter), at.seen) == (0, [])


async def redirect(request: web.Request) -> web.Response:
    if request.path == "/":
        raise web.HTTPFound(f"http://localhost:{request.url.port}/there")
    if request.path == "/there":
        raise web.HTTPFound("/end")
    return web.Response(text="end")


async def granted_by_host(integration: Integration) -> list[int]:
    """Follow a redirect to another host, which redirects once more."""
    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with integration.serve(redirect, limiter=limiter) as at:
        assert await at.send() == (200, b"end")
        limiters = [limiter[f"{host}:{at.url.port}"] for host in ("127.0.0.1", "localhost")]
    assert [each.statistics().in_flight for each in limiters] == [0, 0]
    return [each.statistics().granted for each in limiters]


@every(Feature.HOPS)
async def test_each_hop_takes_a_token_of_its_host(integration: Integration) -> None:
    assert await granted_by_host(integration) == [1, 2]


@lacking(Feature.HOPS)
async def test_redirect_chain_takes_one_token(integration: Integration) -> None:
    assert await granted_by_host(integration) == [int(integration.has(LIMITS)), 0]


@every(LIMITS)
async def test_credentials_are_shown_nowhere(
    integration: Integration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with integration.misbehave(limiter, queue_timeout=0) as (server, at):
        url = str(server.url.with_user("alice").with_password("secret") / "whole")
        assert await at.send(url, headers={"X-Token": "secret"}) == (200, b"body")
        assert server.seen[0].headers["Authorization"].startswith("Basic ")
        assert len(limiter) == 1
        of_host = limiter[f"127.0.0.1:{server.url.port}"]
        async with of_host.throttle() as permit:
            with pytest.raises(ThrottleTimeout) as caught:
                await at.send(url, headers={"X-Token": "secret"})
        shown = [caught.value, of_host, of_host.statistics(), at.client.raw, limiter, permit]
        shown += [ThrottleMiddleware(limiter), RetryMiddleware()]
    assert not any("secret" in repr(each) + str(each) for each in shown)
    # httpx itself logs whole URLs.
    logged = [it.getMessage() for it in caplog.records if not it.name.startswith("http")]
    assert not any("secret" in message for message in logged)
