"""The rate-limited server: its algorithms, its audit, and its answers to a real client."""

import asyncio
import gc
import io
import itertools
import math
import re
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from email.utils import formatdate, parsedate_to_datetime
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout, web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from aiothrottle import Rate
from aiothrottle.testing import RateLimitedServer, greatest_count, linked_pages
from aiothrottle.testing.algorithms import (
    FixedWindow,
    ServerAlgorithm,
    SlidingWindowLog,
    TokenBucket,
)
from aiothrottle.testing.server import Audit, RecordedRequest, ThrottledResponse
from tests.support.serving import until
from tests.support.virtually import turns

# --- the algorithms: time is an argument -----------------------------------------------------

# Binary fractions, so that the sums and differences below are exact.
TIMES = st.lists(st.integers(0, 200).map(lambda n: n / 8), max_size=40).map(sorted)
LIMITS = st.integers(1, 5)
PERIODS = st.sampled_from([0.125, 1.0, 2.5])


def admitted(algorithm: ServerAlgorithm, times: list[float]) -> list[float]:
    granted_at: list[float] = []
    for now in times:
        if algorithm.ready_at() <= now:
            algorithm.count(now)
            granted_at.append(now)
    return granted_at


@given(LIMITS, PERIODS, TIMES)
def test_rolling_window_is_its_definition(limit: int, period: float, times: list[float]) -> None:
    expected: list[float] = []
    for now in times:
        if sum(now - period < before <= now for before in expected) < limit:
            expected.append(now)
    assert admitted(SlidingWindowLog(limit, period), times) == expected


@given(LIMITS, PERIODS, st.sampled_from([0.0, 0.0625]), TIMES)
def test_fixed_window_is_exact(limit: int, period: float, phase: float, times: list[float]) -> None:
    expected: list[float] = []
    windows: list[int] = []
    for now in times:
        window = (Fraction(now) + Fraction(phase)) // Fraction(period)
        if windows.count(window) < limit:
            windows.append(window)
            expected.append(now)
    assert admitted(FixedWindow(limit, period, phase), times) == expected


@pytest.mark.parametrize("phase", [0.0, 0.03])
def test_instant_at_an_edge_starts_a_window(phase: float) -> None:
    edges = [n * 0.1 - phase for n in range(1, 2000)]
    before = [math.nextafter(edge, -math.inf) for edge in edges]
    assert admitted(FixedWindow(1, 0.1, phase), edges) == edges
    assert admitted(FixedWindow(1, 0.1, phase), before) == before
    both = sorted(edges + before)
    assert len(admitted(FixedWindow(1, 0.1, phase), both)) == len(edges) + 1


@given(st.sampled_from([0.25, 1.0, 4.0]), st.sampled_from([1.0, 1.5, 4.0]), TIMES)
def test_token_bucket_is_its_definition(rate: float, burst: float, times: list[float]) -> None:
    expected: list[float] = []
    for now in times:
        since = [*expected, now]  # with this one there are so many since each before
        counts = range(len(since), 0, -1)
        if all(n <= burst + rate * (now - at) for at, n in zip(since, counts, strict=True)):
            expected.append(now)
    assert admitted(TokenBucket(rate, 1.0, burst), times) == expected


# --- the audit -------------------------------------------------------------------------------


def test_audit_counts_by_the_period() -> None:
    assert greatest_count([0.0, 1.0, 2.0], 1.0) == 1
    assert greatest_count([math.nextafter(1.0, 0.0), 0.0], 1.0) == 2
    assert greatest_count([3.0, 3.0, 3.0], 1e-300) == 3
    assert greatest_count([0.0, 1e9], math.inf) == 2
    for period in (0, -1.0, math.nan):
        for count in (partial(greatest_count, [1.0]), Audit().greatest_count):
            with pytest.raises(ValueError, match="period must be greater than 0"):
                count(period)
    audit = Audit()
    for arrived_at, throttled in [(0.0, False), (0.5, True), (0.9, False), (1.0, False)]:
        audit.record(RecordedRequest(arrived_at, "GET", "/", throttled), open_exchanges=2)
    assert (audit.sent, audit.throttled, audit.admitted) == (4, 1, 3)
    assert audit.greatest_count(1.0) == 3
    assert audit.greatest_count(1.0, admitted_only=True) == 2
    assert audit.greatest_concurrency == 2
    assert repr(audit) == "<Audit: 4 sent, 1 throttled, at most 2 at once>"
    audit.clear()
    assert (audit.sent, audit.requests, audit.greatest_concurrency) == (0, [], 0)


@given(instants=st.lists(st.integers(0, 60).map(lambda n: n / 4)), period=st.integers(1, 9))
def test_greatest_count_is_its_definition(instants: list[float], period: float) -> None:
    windows = [sum(a <= b < a + period for b in instants) for a in instants]
    assert greatest_count(instants, period) == max(windows, default=0)


# --- the server, with a real client ----------------------------------------------------------


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(timeout=ClientTimeout(total=30)) as session:
        yield session


async def statuses(session: ClientSession, server: RateLimitedServer, count: int) -> list[int]:
    result: list[int] = []
    for _ in range(count):
        async with session.get(server.url) as response:
            await response.read()
            result.append(response.status)
    return result


async def test_server_without_limits_admits_all(session: ClientSession) -> None:
    before = time.monotonic()
    async with RateLimitedServer() as server:
        async with session.put(server.url / "a b" % {"c": "d"}, data=b"body") as response:
            assert (response.status, await response.text()) == (200, "Here you are.\n")
        [request] = server.audit.requests
    assert before < request.arrived_at < time.monotonic()
    assert (request.method, request.path) == ("PUT", "/a b")
    assert (request.status, request.throttled) == (200, False)


@pytest.mark.parametrize(
    ("arguments", "expected", "seconds"),
    [
        ({"rate": Rate(3, 3600)}, 3, 3600),
        ({"rate": "0.5/h"}, 1, 7200),
        ({"rate": "3/h", "algorithm": "fixed-window", "phase": 3000}, 3, 600),
        ({"rate": "3/h", "algorithm": "token-bucket", "burst": 4.5}, 4, 600),
        ({"rate": "60/h", "algorithm": "token-bucket", "burst": 1}, 1, 60),
    ],
)
async def test_rate_and_retry_after_follow_the_algorithm(
    session: ClientSession, arguments: dict[str, Any], expected: int, seconds: int
) -> None:
    async with RateLimitedServer(**arguments) as server:
        assert await statuses(session, server, 6) == [200] * expected + [429] * (6 - expected)
        async with session.get(server.url) as response:
            # The time between the two requests has passed, and the rest is rounded up.
            assert seconds - 30 <= int(response.headers["Retry-After"]) <= seconds
    assert (server.audit.sent, server.audit.admitted) == (7, expected)
    throttled = [request.throttled for request in server.audit.requests]
    assert throttled == [False] * expected + [True] * (7 - expected)


@pytest.mark.parametrize(
    ("throttled_response", "status"),
    [("429-seconds", 429), ("429-date", 429), ("429", 429), ("503", 503)],
)
async def test_throttled_response_has_the_chosen_form(
    session: ClientSession, throttled_response: ThrottledResponse, status: int
) -> None:
    async with RateLimitedServer("1/h", throttled_response=throttled_response) as server:
        assert await statuses(session, server, 2) == [200, status]
        async with session.get(server.url) as response:
            retry_after = response.headers.get("Retry-After", "none")
        last = server.audit.requests[-1]
        assert (last.status, last.throttled) == (status, True)
    if throttled_response == "429":
        assert retry_after == "none"
    elif throttled_response == "429-date":
        at = parsedate_to_datetime(retry_after).timestamp()
        assert retry_after == formatdate(at, usegmt=True)
        assert 3500 < at - time.time() <= 3601
    else:
        assert 3500 < int(retry_after) <= 3600


async def test_silence_is_no_answer_until_closing(session: ClientSession) -> None:
    async with RateLimitedServer("1/h", throttled_response="silence") as server:
        assert await statuses(session, server, 1) == [200]
        with pytest.raises(TimeoutError):
            await session.get(server.url, timeout=ClientTimeout(total=0.05))
        waiting = asyncio.create_task(statuses(session, server, 1))
        await until(lambda: server.audit.sent == 3)
    with pytest.raises(ClientError):
        await waiting
    assert [request.status for request in server.audit.requests] == [200, None, None]
    assert server.audit.throttled == 2


class Gate:
    """A handler that sends half of the body and waits for a sign before the rest."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await response.write(b"half")
        return response


async def test_exchange_is_open_until_written_unless_throttled(session: ClientSession) -> None:
    gate = Gate()
    async with RateLimitedServer(concurrency_limit=2, handler=gate) as server:
        first, second = await session.get(server.url), await session.get(server.url)
        assert (first.status, second.status) == (200, 200)
        async with session.get(server.url) as third:
            assert (third.status, third.headers["Retry-After"]) == (429, "1")
        gate.opened.set()
        assert await first.read() == await second.read() == b"halfhalf"
        assert await statuses(session, server, 1) == [200]
        assert (server.audit.greatest_concurrency, server.audit.admitted) == (3, 3)
    gate = Gate()
    async with RateLimitedServer(
        concurrency_limit=1, throttled_response="silence", handler=gate
    ) as server:
        first = await session.get(server.url)
        throttled = asyncio.create_task(statuses(session, server, 1))
        await until(lambda: server.audit.throttled == 1)
        gate.opened.set()
        await first.read()
        assert await statuses(session, server, 1) == [200]
        assert not throttled.done()
        throttled.cancel()
        assert (server.audit.throttled, server.audit.greatest_concurrency) == (1, 2)


async def test_slot_of_disconnected_client_is_free_at_once(session: ClientSession) -> None:
    gate = Gate()
    async with RateLimitedServer(concurrency_limit=1, handler=gate) as server:
        for _ in range(20):
            # An idle connection is at hand for the next request, so it is as fast as can be.
            response = await session.get(server.url)
            assert response.status == 200
            assert await statuses(session, server, 1) == [429]
            response.close()
        assert server.audit.greatest_concurrency == 2
        await until(lambda: gate.cancelled == 20)
        gate.opened.set()
        assert await statuses(session, server, 1) == [200]


async def test_answer_to_a_disconnected_client_is_no_error(
    session: ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def stubborn(request: web.Request) -> web.StreamResponse:
        with suppress(asyncio.CancelledError):
            await gate(request)
        await asyncio.sleep(0)
        return web.Response(body=b"Are you still there?")

    async with RateLimitedServer(handler=stubborn) as server:
        (await session.get(server.url)).close()
        await until(lambda: server.audit.requests[0].status is not None)
    assert server.audit.requests[0].status == 200
    assert caplog.records == []


async def test_handler_reads_large_uploads_and_its_errors_are_recorded(
    session: ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/missing":
            raise web.HTTPGone
        return web.Response(text=f"{(1 << 21) // len(await request.read())}")

    async with RateLimitedServer(concurrency_limit=1, handler=handle) as server:
        for path, body, status in (
            ("missing", b"", 410),
            ("bug", b"", 500),  # a division by 0
            ("upload", bytes(1 << 21), 200),
        ):
            async with session.post(server.url / path, data=io.BytesIO(body)) as response:
                assert response.status == status
    assert [request.status for request in server.audit.requests] == [410, 500, 200]
    assert server.audit.throttled == 0
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_jittered_request_can_be_overtaken(session: ClientSession) -> None:
    # The first delays of this seed are 0.97 and 0.01 times the jitter.
    async with RateLimitedServer(latency=0.05, jitter=0.2, seed=15) as server:
        sent_at = time.monotonic()
        first = asyncio.create_task(session.get(server.url / "first"))
        await asyncio.sleep(0.02)
        (await session.get(server.url / "second")).release()
        (await first).release()
    assert [request.path for request in server.audit.requests] == ["/second", "/first"]
    # Timers may fire some milliseconds early.
    assert server.audit.requests[0].arrived_at >= sent_at + 0.065


# --- starting and closing --------------------------------------------------------------------

BUCKET = {"algorithm": "token-bucket"}


async def test_closing_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    server = RateLimitedServer("1/h", handler=Gate())
    await server.start()
    started = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    throttled = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nnot all of it"
    readers: list[asyncio.StreamReader] = []
    writers: list[asyncio.StreamWriter] = []
    for request in (started, throttled, b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.url.port)
        readers.append(reader)
        writers.append(writer)
        writer.write(request)
        await until(lambda: server.audit.sent == min(len(writers), 2))
    assert asyncio.all_tasks() != before
    async with asyncio.timeout(5):
        await server.close()
    assert asyncio.all_tasks() == before
    await server.close()
    half, throttled, nothing = [await reader.read() for reader in readers]
    assert b"half" in half
    assert b" 429 " in throttled
    assert nothing == b""
    for writer in writers:
        writer.close()
        await writer.wait_closed()


def test_start_cancelled_at_any_step_leaves_no_socket() -> None:
    async def start_and_cancel(steps: int) -> bool:
        """Cancel the start after so many turns of the loop; return whether it had ended by then."""
        server = RateLimitedServer()
        starting = asyncio.create_task(server.start())
        await turns(steps)
        if not starting.cancel():
            await server.close()
            return True
        with pytest.raises(asyncio.CancelledError):
            await starting
        return False

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        ended = (asyncio.run(start_and_cancel(steps)) for steps in itertools.count())
        steps = next(number for number, done in enumerate(ended) if done)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert steps > 1


async def test_server_can_be_started_only_once(session: ClientSession) -> None:
    server = RateLimitedServer()
    with pytest.raises(RuntimeError, match="before it is started"):
        _ = server.url
    await server.close()
    async with server:
        assert str(server.url) == f"http://127.0.0.1:{server.url.port}/"
        with pytest.raises(RuntimeError, match="started only once"):
            await server.start()
        assert await statuses(session, server, 1) == [200]
    with pytest.raises(RuntimeError, match="started only once"):
        await server.start()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rate": "fast"}, ValueError, "fast"),
        ({"rate": 5, "algorithm": "leaky"}, ValueError, "algorithm must be one of .*'leaky'"),
        ({"throttled_response": "418"}, ValueError, "must be one of '429-seconds', .*'418'"),
        ({"rate": 5, "burst": 5}, ValueError, "burst belongs to .*token-bucket"),
        ({**BUCKET, "burst": 5}, ValueError, "burst and phase belong to a rate"),
        ({"rate": 5, **BUCKET, "burst": 0.5}, ValueError, "burst must be .*, 1 or more"),
        ({"rate": 5, "phase": 0.5}, ValueError, "phase belongs to .*fixed-window"),
        ({"rate": 5, "algorithm": "fixed-window", "phase": 1}, ValueError, "the period of 1"),
        ({"concurrency_limit": 0}, ValueError, "concurrency_limit must be .*1 or more, .*got 0"),
        ({"latency": "1s"}, TypeError, "latency must be .* of seconds, .*got '1s'"),
        ({"jitter": math.nan}, ValueError, "jitter must be a finite .*got nan"),
        ({"seed": "x"}, TypeError, "seed must be a whole number, got 'x'"),
        ({"handler": "/"}, TypeError, "handler must be an aiohttp handler, not '/'"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        RateLimitedServer(**arguments)


# --- the linked pages ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 40])
async def test_all_linked_pages_can_be_found(session: ClientSession, count: int) -> None:
    async with RateLimitedServer(handler=linked_pages(count)) as server:
        found, todo = {"/"}, ["/"]
        while todo:
            async with session.get(server.url.join(URL(todo.pop()))) as response:
                assert (response.status, response.content_type) == (200, "text/html")
                links = re.findall('href="([^"]+)"', await response.text())
            assert len(links) == len(set(links)) <= 5
            todo += set(links) - found
            found |= set(links)
        assert found == {"/", *(f"/{number}" for number in range(1, count))}
        async with session.get(server.url / str(count)) as response:
            assert response.status == 404
    for wrong, error in ((0, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match="count must be a whole number of pages, 1 or more"):
            linked_pages(wrong)  # type: ignore[arg-type]
