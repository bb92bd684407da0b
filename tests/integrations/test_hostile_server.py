"""What a server says to do harm: no crash, no sleep without bound, no busy loop, no memory."""

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import pytest
from aiohttp import ClientTimeout

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from tests.misbehaving_server import BOMB, MisbehavingServer

Front: TypeAlias = Callable[..., Any]

ATTEMPTS, LONGEST = 3, 30.0
QUICK = Retry(attempts=ATTEMPTS, backoff=0.01, max_retry_after=LONGEST)
both_fronts = pytest.mark.parametrize("front", [ThrottledSession, throttled_session])

FAR = ["1000000000000", "9" * 60, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT", "31"]
GARBAGE = [
    *("", " ", "-1", "-1000000000000", "NaN", "inf", "-inf", "1e999", "1e3", "0x10", "1_0", "+1"),
    *("x" * 5000, "Fri, 31 Feb 2026 00:00:00 GMT", "Thu, 01 Jan 0000 00:00:00 GMT"),
    *("Thu, 01 Jan 1970 00:00:00 +99999999", "Thu, 01 Jan 99999999999 00:00:00 GMT", ", , , , ,"),
    *("%s%n{0}${x}", "\x1b[31mred", "\xff\xfe", "__import__('os')", "1;q=2", "(" * 4000),
]
PAST = ["0", "0.0", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 -0000"]


class Scene(NamedTuple):
    server: MisbehavingServer
    limiter: RateLimiter
    session: Any

    async def status(self, path: str = "throttled") -> int:
        # A connection each: a parser that gives up on a header closes it.
        async with self.session.get(self.server.url / path) as response:
            return int(response.status)


@asynccontextmanager
async def scene(front: Front, *headers: str) -> AsyncGenerator[Scene]:
    limiter = RateLimiter(concurrency_limit=1)
    timeout = ClientTimeout(total=5)
    async with (
        MisbehavingServer() as server,
        front(limiter, retry=QUICK, timeout=timeout) as session,
        asyncio.timeout(4),
    ):
        server.retry_after = "".join(f"{header}\r\n" for header in headers)
        yield Scene(server, limiter, session)
    assert limiter.statistics().in_flight == 0


@both_fronts
@pytest.mark.parametrize("value", FAR, ids=lambda value: value[:30])
async def test_who_is_told_to_wait_for_too_long_gives_up_at_once(front: Front, value: str) -> None:
    async with scene(front, f"Retry-After: {value}") as at:
        assert await at.status() == 429
        assert at.server.hits["/throttled"] == 1
        assert LONGEST - 1 < at.limiter.statistics().paused_for <= LONGEST


@both_fronts
@pytest.mark.parametrize("value", [*GARBAGE, *PAST], ids=lambda value: ascii(value)[:30])
async def test_what_is_no_duration_is_as_good_as_none(
    front: Front, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(front, f"Retry-After: {value}") as at:
        assert await at.status() == 429
        assert at.server.hits["/throttled"] == ATTEMPTS
        assert at.limiter.statistics().paused_for < 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@both_fronts
async def test_of_repeated_headers_the_longest_counts_and_no_sum_is_made(front: Front) -> None:
    values = ["0.01", "0.02", "x" * 5000, "-1"]
    async with scene(front, *(f"Retry-After: {value}" for value in values)) as at:
        assert await at.status() == 429
        assert at.server.hits["/throttled"] == ATTEMPTS


@both_fronts
@pytest.mark.parametrize(
    "date", ["x" * 5000, "", "Thu, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 1 00:00:00 -9999"]
)
async def test_a_date_of_the_server_that_is_none_does_no_harm(front: Front, date: str) -> None:
    later = "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"
    async with scene(front, later, f"Date: {date}") as at:
        assert await at.status() == 429
        assert at.server.hits["/throttled"] == 1
        assert at.limiter.statistics().paused_for <= LONGEST


@both_fronts
async def test_to_be_refused_always_and_at_once_is_no_busy_loop(front: Front) -> None:
    async with scene(front, "Retry-After: 0") as at:
        statuses = await asyncio.gather(*(at.status() for _ in range(50)))
        assert statuses == [429] * 50
        assert at.server.hits["/throttled"] <= 50 * ATTEMPTS


@both_fronts
async def test_many_refusals_do_not_add_up_to_a_longer_pause(front: Front) -> None:
    limiter = RateLimiter(concurrency_limit=20)
    async with MisbehavingServer() as server, front(limiter, retry=QUICK) as session:
        server.retry_after = "Retry-After: 1000000000000\r\n"
        server.go.clear()
        url = server.url / "throttled"
        responses = await asyncio.gather(*(session.get(url) for _ in range(20)))
        assert [response.status for response in responses] == [429] * 20
        assert limiter.statistics().paused_for <= LONGEST


@both_fronts
async def test_a_refusal_whose_body_never_comes_is_let_go(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiothrottle.aiohttp.adapter.SHORT_TIME", 0.05)
    async with scene(front) as at:
        assert await at.status("throttled-and-stalled") == 200


@both_fronts
async def test_a_refusal_is_not_unpacked(front: Front) -> None:
    assert len(BOMB) < 1 << 16  # else it were not read anyhow
    async with scene(front) as at:
        at.server.go.clear()
        asyncio.get_running_loop().call_later(0.02, at.server.go.set)
        tracemalloc.start()
        try:
            assert await at.status("throttled-with-a-bomb") == 200
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 << 20
