import asyncio
import gc
import math
import re
import time
import warnings
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate, parsedate_to_datetime
from fractions import Fraction
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.rate import Rate
from aiothrottle.testing import (
    Audit,
    RateLimitedServer,
    RecordedRequest,
    greatest_count,
    linked_pages,
)
from aiothrottle.testing.algorithms import (
    FixedWindow,
    ServerAlgorithm,
    SlidingWindowLog,
    TokenBucket,
)
from aiothrottle.testing.server import (
    Refusal,
    _retry_after,  # pyright: ignore[reportPrivateUsage]
)

# --- the algorithms: time is an argument -----------------------------------------------------

# Binary fractions, so that the sums and differences below are exact.
TIMES = st.lists(st.integers(0, 200).map(lambda n: n / 8), max_size=40).map(sorted)


def admitted(algorithm: ServerAlgorithm, times: list[float]) -> list[float]:
    granted_at: list[float] = []
    for now in times:
        if algorithm.ready_at() <= now:
            algorithm.count(now)
            granted_at.append(now)
    return granted_at


@pytest.mark.parametrize(
    ("algorithm", "times", "expected"),
    [
        # A full period after the first, not after the last.
        (SlidingWindowLog(2, 1.0), [0, 0.5, 0.875, 1, 1.25, 1.5], [0, 0.5, 1, 1.5]),
        # A rejected request costs nothing.
        (SlidingWindowLog(1, 1.0), [0, 0.9, 0.95, 1.0], [0, 1.0]),
        # Twice the limit around an edge.
        (FixedWindow(2, 1.0), [0.8, 0.9, 0.95, 1.0, 1.1, 1.2], [0.8, 0.9, 1.0, 1.1]),
        (FixedWindow(1, 1.0, phase=0.75), [0, 0.125, 0.25, 0.5, 1.25], [0, 0.25, 1.25]),
        (FixedWindow(1, 1.0), [0.5, 7.25, 7.5, 8.0], [0.5, 7.25, 8.0]),
        # A burst, then the rate; a long pause fills no more than the burst.
        (TokenBucket(2, 1.0, 2), [0, 0, 0, 0.25, 0.5, 0.5, 9, 9, 9], [0, 0, 0.5, 9, 9]),
        (TokenBucket(1, 1.0, 1), [0, 0.75, 1.75, 2.0, 2.75], [0, 1.75, 2.75]),
    ],
)
def test_algorithm_admits_and_rejects(
    algorithm: ServerAlgorithm, times: list[float], expected: list[float]
) -> None:
    assert admitted(algorithm, times) == expected


@given(limit=st.integers(1, 5), period=st.sampled_from([0.125, 1.0, 2.5]), times=TIMES)
def test_rolling_window_is_its_definition(limit: int, period: float, times: list[float]) -> None:
    expected: list[float] = []
    for now in times:
        if sum(now - period < before <= now for before in expected) < limit:
            expected.append(now)
    assert admitted(SlidingWindowLog(limit, period), times) == expected


@given(
    limit=st.integers(1, 5),
    period=st.sampled_from([0.125, 1.0, 2.5]),
    phase=st.sampled_from([0.0, 0.0625]),
    times=TIMES,
)
def test_fixed_window_is_its_definition(
    limit: int, period: float, phase: float, times: list[float]
) -> None:
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


@given(
    rate=st.sampled_from([0.25, 1.0, 4.0]),
    burst=st.sampled_from([1.0, 1.5, 4.0]),
    times=TIMES,
)
def test_token_bucket_is_its_definition(rate: float, burst: float, times: list[float]) -> None:
    expected: list[float] = []
    for now in times:
        windows = [now, *expected]
        counts = [1, *range(len(expected) + 1, 1, -1)]  # with this one, those since each before
        if all(
            count <= burst + rate * (now - since)
            for since, count in zip(windows, counts, strict=True)
        ):
            expected.append(now)
    assert admitted(TokenBucket(rate, 1.0, burst), times) == expected


# --- the audit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instants", "period", "expected"),
    [
        ([], 1.0, 0),
        ([5.0], 1.0, 1),
        ([0.0, 1.0, 2.0], 1.0, 1),  # exactly a period apart: not in one window
        ([0.0, math.nextafter(1.0, 0.0)], 1.0, 2),
        ([0.0, 0.5, 1.0, 1.25], 1.0, 3),
        ([1.25, 0.0, 1.0, 0.5], 1.0, 3),
        ([3.0, 3.0, 3.0], 1e-300, 3),
        ([0.0, 1e9], math.inf, 2),
    ],
)
def test_greatest_count(instants: list[float], period: float, expected: int) -> None:
    assert greatest_count(instants, period) == expected


@given(instants=st.lists(st.integers(0, 60).map(lambda n: n / 4)), period=st.integers(1, 9))
def test_greatest_count_is_its_definition(instants: list[float], period: float) -> None:
    windows = [sum(a <= b < a + period for b in instants) for a in instants]
    assert greatest_count(instants, period) == max(windows, default=0)


@pytest.mark.parametrize("period", [0, -1.0, math.nan])
def test_greatest_count_rejects_an_invalid_period(period: float) -> None:
    with pytest.raises(ValueError, match="period must be greater than 0"):
        greatest_count([1.0], period)
    with pytest.raises(ValueError, match="period must be greater than 0"):
        Audit().greatest_count(period)


def test_audit_counts_arrivals_and_admitted_requests() -> None:
    audit = Audit()
    for arrived_at, refused in [(0.0, False), (0.5, True), (0.9, False), (1.0, False)]:
        audit.record(RecordedRequest(arrived_at, "GET", "/", refused), open_exchanges=2)
    assert (audit.sent, audit.refused, audit.admitted) == (4, 1, 3)
    assert audit.greatest_count(1.0) == 3
    assert audit.greatest_count(1.0, admitted_only=True) == 2
    assert audit.greatest_concurrency == 2
    assert repr(audit) == "<Audit: 4 sent, 1 throttled, at most 2 at once>"
    audit.clear()
    assert (audit.sent, audit.requests, audit.greatest_concurrency) == (0, [], 0)


# --- the server, with a real client ----------------------------------------------------------


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def statuses(
    session: aiohttp.ClientSession, server: RateLimitedServer, count: int
) -> list[int]:
    """Send `count` requests, one after the other."""
    result: list[int] = []
    for _ in range(count):
        async with session.get(server.url) as response:
            await response.read()
            result.append(response.status)
    return result


async def test_server_without_limits_admits_all(session: aiohttp.ClientSession) -> None:
    before = time.monotonic()
    async with RateLimitedServer() as server:
        async with session.put(server.url / "a b" % {"c": "d"}, data=b"body") as response:
            assert (response.status, await response.text()) == (200, "Here you are.\n")
        [request] = server.audit.requests
    assert before < request.arrived_at < time.monotonic()
    assert (request.method, request.path) == ("PUT", "/a b")
    assert (request.status, request.refused) == (200, False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"rate": Rate(3, 3600)}, 3),
        ({"rate": "3/h", "algorithm": "fixed-window"}, 3),
        ({"rate": "3/h", "algorithm": "token-bucket"}, 3),
        ({"rate": "3/h", "algorithm": "token-bucket", "burst": 4.5}, 4),
        ({"rate": "3.5/h"}, 3),
        ({"rate": "0.5/h"}, 1),
        ({"rate": 1e6}, 6),
    ],
)
async def test_rate_is_enforced_by_the_algorithm(
    session: aiohttp.ClientSession, arguments: dict[str, Any], expected: int
) -> None:
    async with RateLimitedServer(**arguments) as server:
        assert await statuses(session, server, 6) == [200] * expected + [429] * (6 - expected)
    assert (server.audit.sent, server.audit.admitted) == (6, expected)
    assert [request.refused for request in server.audit.requests].count(True) == 6 - expected


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ({"rate": "1/h"}, 3600),
        ({"rate": "0.5/h"}, 7200),
        ({"rate": "1/h", "algorithm": "fixed-window", "phase": 3000}, 600),
        ({"rate": "60/h", "algorithm": "token-bucket", "burst": 1}, 60),
    ],
)
async def test_retry_after_is_when_the_algorithm_admits(
    session: aiohttp.ClientSession, arguments: dict[str, Any], seconds: int
) -> None:
    async with RateLimitedServer(**arguments) as server:
        await statuses(session, server, 1)
        async with session.get(server.url) as response:
            seconds_to_wait = int(response.headers["Retry-After"])
        # The time between the two requests has passed, and the rest is rounded up.
        assert seconds - 30 <= seconds_to_wait <= seconds


@pytest.mark.parametrize(
    ("refusal", "wait", "now", "expected"),
    [
        ("429-seconds", 0.001, 0.0, "1"),
        ("429-seconds", 1.0, 0.0, "1"),
        ("503", 1.001, 0.0, "2"),
        ("429-date", 0.5, 1e9 + 0.5, "Sun, 09 Sep 2001 01:46:41 GMT"),
        ("429-date", 0.75, 1e9 + 0.5, "Sun, 09 Sep 2001 01:46:42 GMT"),
        ("429", 5.0, 0.0, None),
    ],
)
def test_retry_after_is_rounded_up(
    refusal: Refusal, wait: float, now: float, expected: str | None
) -> None:
    assert _retry_after(refusal, wait, now) == expected


@pytest.mark.parametrize(
    ("refusal", "status"), [("429-seconds", 429), ("429-date", 429), ("429", 429), ("503", 503)]
)
async def test_throttled_response_has_the_chosen_form(
    session: aiohttp.ClientSession, refusal: Refusal, status: int
) -> None:
    async with RateLimitedServer("1/h", refusal=refusal) as server:
        assert await statuses(session, server, 2) == [200, status]
        async with session.get(server.url) as response:
            retry_after = response.headers.get("Retry-After")
        assert server.audit.requests[-1].status == status
        assert server.audit.requests[-1].refused
    if refusal == "429":
        assert retry_after is None
    elif refusal == "429-date":
        assert retry_after is not None
        assert retry_after == formatdate(
            parsedate_to_datetime(retry_after).timestamp(), usegmt=True
        )
        assert 3500 < parsedate_to_datetime(retry_after).timestamp() - time.time() <= 3601
    else:
        assert retry_after is not None
        assert 3500 < int(retry_after) <= 3600


async def test_silence_is_no_answer_until_closing(session: aiohttp.ClientSession) -> None:
    async with RateLimitedServer("1/h", refusal="silence") as server:
        assert await statuses(session, server, 1) == [200]
        with pytest.raises(TimeoutError):
            await session.get(server.url, timeout=aiohttp.ClientTimeout(total=0.05))
        waiting = asyncio.create_task(statuses(session, server, 1))
        await until(lambda: server.audit.sent == 3)
    with pytest.raises(aiohttp.ClientError):
        await waiting
    assert [request.status for request in server.audit.requests] == [200, None, None]
    assert server.audit.refused == 2


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.001)


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


async def test_exchange_is_open_until_its_body_is_written(
    session: aiohttp.ClientSession,
) -> None:
    gate = Gate()
    async with RateLimitedServer(concurrency_limit=2, handler=gate) as server:
        first, second = await session.get(server.url), await session.get(server.url)
        assert (first.status, second.status) == (200, 200)
        async with session.get(server.url) as third:
            assert (third.status, third.headers["Retry-After"]) == (429, "1")
        gate.opened.set()
        assert await first.read() == await second.read() == b"halfhalf"
        assert await statuses(session, server, 1) == [200]
        assert server.audit.greatest_concurrency == 3
        assert server.audit.admitted == 3


async def test_throttled_request_takes_no_slot(session: aiohttp.ClientSession) -> None:
    gate = Gate()
    async with RateLimitedServer(concurrency_limit=1, refusal="silence", handler=gate) as server:
        first = await session.get(server.url)
        throttled = asyncio.create_task(statuses(session, server, 1))
        await until(lambda: server.audit.refused == 1)
        gate.opened.set()
        await first.read()
        assert await statuses(session, server, 1) == [200]
        assert not throttled.done()
        throttled.cancel()
        assert (server.audit.refused, server.audit.greatest_concurrency) == (1, 2)


async def test_unread_large_body_keeps_its_exchange_open(
    session: aiohttp.ClientSession,
) -> None:
    size = 2**26

    async def large(request: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(size if request.path == "/large" else 1))

    async with RateLimitedServer(concurrency_limit=1, handler=large) as server:
        response = await session.get(server.url / "large")
        assert await statuses(session, server, 1) == [429]
        assert len(await response.read()) == size
        assert await statuses(session, server, 1) == [200]


async def test_slot_of_disconnected_client_is_free_at_once(
    session: aiohttp.ClientSession,
) -> None:
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
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def stubborn(request: web.Request) -> web.StreamResponse:
        try:
            await gate(request)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return web.Response(body=b"Are you still there?")

    async with RateLimitedServer(handler=stubborn) as server:
        (await session.get(server.url)).close()
        await until(lambda: server.audit.requests[0].status is not None)
    assert server.audit.requests[0].status == 200
    assert caplog.records == []


async def test_client_within_the_concurrency_limit_is_never_throttled(
    session: aiohttp.ClientSession,
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.001)
        return web.Response(body=bytes(int(request.path[1:])))

    places = asyncio.Semaphore(5)

    async def fetch(number: int) -> None:
        async with places, session.get(server.url / str(number * 997 % 300_000)) as response:
            await response.read()

    async with RateLimitedServer(concurrency_limit=5, handler=answer) as server:
        await asyncio.gather(*map(fetch, range(200)))
        assert (server.audit.sent, server.audit.refused) == (200, 0)
        assert server.audit.greatest_concurrency == 5


async def test_error_of_the_handler_is_recorded(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        if request.path == "/missing":
            raise web.HTTPGone
        raise ZeroDivisionError

    async with RateLimitedServer(concurrency_limit=1, handler=fail) as server:
        for path in ("missing", "bug", "missing"):
            async with session.get(server.url / path):
                pass
    assert [request.status for request in server.audit.requests] == [410, 500, 410]
    assert server.audit.refused == 0
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_request_arrives_after_the_latency(session: aiohttp.ClientSession) -> None:
    async with RateLimitedServer(latency=0.05) as server:
        sent_at = time.monotonic()
        await statuses(session, server, 1)
    # uvloop's timers fire up to a millisecond and a half early.
    assert server.audit.requests[0].arrived_at >= sent_at + 0.048


async def test_jittered_request_can_be_overtaken(session: aiohttp.ClientSession) -> None:
    # The first delays of this seed are 0.97 and 0.01 times the jitter.
    async with RateLimitedServer(jitter=0.3, seed=15) as server:

        async def fetch(path: str) -> None:
            async with session.get(server.url / path):
                pass

        async with asyncio.TaskGroup() as group:
            group.create_task(fetch("first"))
            await asyncio.sleep(0.02)
            group.create_task(fetch("second"))
    assert [request.path for request in server.audit.requests] == ["/second", "/first"]


def delays(server: RateLimitedServer) -> list[float]:
    return [server._delay() for _ in range(100)]  # pyright: ignore[reportPrivateUsage]


def test_delays_depend_only_on_the_seed() -> None:
    first = delays(RateLimitedServer(latency=1.0, jitter=0.5, seed=1))
    assert first == delays(RateLimitedServer(latency=1.0, jitter=0.5, seed=1))
    assert first != delays(RateLimitedServer(latency=1.0, jitter=0.5, seed=2))
    assert 1.0 <= min(first) < 1.1
    assert 1.4 < max(first) <= 1.5
    assert set(delays(RateLimitedServer(latency=1.0))) == {1.0}


# --- starting and closing --------------------------------------------------------------------


async def test_closing_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    server = RateLimitedServer(handler=Gate())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.url.port)
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", server.url.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: server.audit.sent == 1)
    assert asyncio.all_tasks() != before
    closing_at = time.monotonic()
    await server.close()
    assert asyncio.all_tasks() == before
    assert time.monotonic() - closing_at < 5
    await server.close()
    assert b"half" in await reader.read()
    assert await idle_reader.read() == b""
    for each in (writer, idle_writer):
        each.close()
        await each.wait_closed()


def test_start_cancelled_at_any_step_leaves_no_socket() -> None:
    async def start_and_cancel(steps: int) -> bool:
        """Cancel the start after `turns` turns of the loop; return whether it had ended by then."""
        server = RateLimitedServer()
        starting = asyncio.create_task(server.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        if not starting.cancel():
            await server.close()
            return True
        with pytest.raises(asyncio.CancelledError):
            await starting
        return False

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        steps = 0
        while not asyncio.run(start_and_cancel(steps)):
            steps += 1
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert steps > 1


async def test_closing_does_not_wait_for_a_throttled_upload() -> None:
    before = asyncio.all_tasks()
    async with RateLimitedServer("1/h") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.url.port)
        request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        writer.write(request % 0 + request % 1000 + b"not all of it")
        await until(lambda: server.audit.sent == 2)
        assert b" 200 OK" in await reader.readuntil(b"Here you are.\n")
        assert b" 429 " in await reader.readuntil(b"\r\n")
        closing_at = time.monotonic()
    assert time.monotonic() - closing_at < 5
    assert asyncio.all_tasks() == before
    writer.close()


async def test_server_can_be_started_only_once(session: aiohttp.ClientSession) -> None:
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
        ({"rate": 0}, ValueError, "0"),
        ({"rate": b"5/s"}, TypeError, "5/s"),
        (
            {"rate": 5, "algorithm": "leaky"},
            ValueError,
            "algorithm must be one of 'sliding-window-log', .*'leaky'",
        ),
        ({"refusal": "418"}, ValueError, "refusal must be one of '429-seconds', .*'418'"),
        ({"rate": 5, "burst": 5}, ValueError, "burst belongs to .*token-bucket"),
        ({"algorithm": "token-bucket", "burst": 5}, ValueError, "burst belongs to a rate"),
        (
            {"rate": 5, "algorithm": "token-bucket", "burst": 0.5},
            ValueError,
            "burst must be .*, 1 or more",
        ),
        (
            {"rate": 5, "algorithm": "token-bucket", "burst": "5"},
            TypeError,
            "burst must be a finite number",
        ),
        ({"rate": 0.5, "algorithm": "token-bucket"}, ValueError, "burst must be .*, 1 or more"),
        ({"rate": 5, "phase": 0.5}, ValueError, "phase belongs to .*fixed-window"),
        ({"algorithm": "fixed-window", "phase": 0.5}, ValueError, "phase belongs to a rate"),
        (
            {"rate": 5, "algorithm": "fixed-window", "phase": 1},
            ValueError,
            "less than the period of 1",
        ),
        (
            {"rate": 5, "algorithm": "fixed-window", "phase": -1},
            ValueError,
            "phase must be .*, 0 or more",
        ),
        ({"concurrency_limit": 0}, ValueError, "concurrency_limit must be .*1 or more, .*got 0"),
        ({"concurrency_limit": 1.5}, TypeError, "concurrency_limit must be a whole .*, got 1.5"),
        ({"concurrency_limit": True}, TypeError, "concurrency_limit must be a whole number"),
        ({"latency": -0.1}, ValueError, "latency must be .*seconds, 0 or more"),
        ({"latency": "1s"}, TypeError, "latency must be .* of seconds, .*got '1s'"),
        ({"jitter": math.inf}, ValueError, "jitter must be a finite .*got inf"),
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


@pytest.mark.parametrize("count", [1, 2, 3, 40])
async def test_all_linked_pages_can_be_found(session: aiohttp.ClientSession, count: int) -> None:
    async with RateLimitedServer(handler=linked_pages(count)) as server:
        found, todo = {"/"}, ["/"]
        while todo:
            async with session.get(server.url.join(type(server.url)(todo.pop()))) as response:
                assert (response.status, response.content_type) == (200, "text/html")
                links = re.findall('href="([^"]+)"', await response.text())
            assert len(links) == len(set(links)) <= 5
            todo += set(links) - found
            found |= set(links)
        assert found == {"/", *(f"/{number}" for number in range(1, count))}
        async with session.get(server.url / str(count)) as response:
            assert response.status == 404


@pytest.mark.parametrize(("count", "error"), [(0, ValueError), (2.0, TypeError)])
def test_site_has_a_whole_number_of_pages(count: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="count must be a whole number of pages, 1 or more"):
        linked_pages(count)
