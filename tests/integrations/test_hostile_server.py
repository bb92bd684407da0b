"""What a server sends to do harm: no crash, no sleep without bound, no busy loop, no memory.

Bodies that never end or unpack to gigabytes are in `test_matrix_retries.py`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry
from tests.integrations.clients import Feature, Integration, Scene, every
from tests.misbehaving_server import MisbehavingServer

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES
ATTEMPTS, LONGEST = 3, 30.0
RETRY = Retry(attempts=ATTEMPTS, backoff=0.001, max_backoff=0.01, max_retry_after=LONGEST)

FAR = ["1000000000000", "9" * 60, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT", "31"]
GARBAGE = [
    *("", " ", "-1", "-1000000000000", "NaN", "inf", "-inf", "1e999", "1e3", "0x10", "1_0", "+1"),
    *("x" * 5000, "Fri, 31 Feb 2026 00:00:00 GMT", "Thu, 01 Jan 0000 00:00:00 GMT"),
    *("Thu, 01 Jan 1970 00:00:00 +99999999", "Thu, 01 Jan 99999999999 00:00:00 GMT", ", , , , ,"),
    *("%s%n{0}${x}", "\x1b[31mred", "\xff\xfe", "__import__('os')", "1;q=2", "(" * 4000),
    *("0, 0", "soon"),
]
PAST = ["0", "0.0", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 -0000"]


@asynccontextmanager
async def throttling(
    integration: Integration,
    *headers: str,
    **options: Any,  # noqa: ANN401 - those of a client
) -> AsyncGenerator[tuple[MisbehavingServer, Scene]]:
    """Start a server whose `/throttled` throttles every request with these headers."""
    async with (
        integration.misbehave(retry=RETRY, **options) as (server, at),
        asyncio.timeout(20),
    ):
        server.retry_after = "".join(f"{header}\r\n" for header in headers)
        yield server, at


@pytest.mark.parametrize("value", FAR, ids=lambda value: value[:30])
@every()
async def test_distant_retry_after_ends_the_attempts(integration: Integration, value: str) -> None:
    async with throttling(integration, f"Retry-After: {value}") as (server, at):
        assert (await at.send("throttled")).status == 429
        assert server.hits["/throttled"] == 1
        assert (LONGEST - 1 < at.paused_for <= LONGEST) == integration.has(LIMITS)


@pytest.mark.parametrize("value", [*GARBAGE, *PAST], ids=lambda value: ascii(value)[:30])
@every(RETRIES)
async def test_garbage_in_retry_after_is_ignored(
    integration: Integration, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with throttling(integration, f"Retry-After: {value}") as (server, at):
        assert (await at.send("throttled")).status == 429
        assert server.hits["/throttled"] == ATTEMPTS
        assert at.paused_for < 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@every(RETRIES)
async def test_repeated_retry_after_headers_are_not_summed(integration: Integration) -> None:
    values = ["0.01", "0.02", "x" * 5000, "-1"]
    async with throttling(integration, *(f"Retry-After: {value}" for value in values)) as (
        server,
        at,
    ):
        assert (await at.send("throttled")).status == 429
        assert server.hits["/throttled"] == ATTEMPTS


@pytest.mark.parametrize(
    "date", ["x" * 5000, "", "Thu, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 1 00:00:00 -9999"]
)
@every(RETRIES)
async def test_garbage_in_date_does_no_harm(integration: Integration, date: str) -> None:
    later = "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"
    async with throttling(integration, later, f"Date: {date}") as (server, at):
        assert (await at.send("throttled")).status == 429
        assert server.hits["/throttled"] == 1
        assert at.paused_for <= LONGEST


@every(RETRIES)
async def test_throttling_at_once_makes_no_busy_loop(integration: Integration) -> None:
    async with throttling(integration, "Retry-After: 0") as (server, at):
        replies = await asyncio.gather(*(at.send("throttled") for _ in range(50)))
        assert [reply.status for reply in replies] == [429] * 50
        assert server.hits["/throttled"] <= 50 * ATTEMPTS


@every(LIMITS)
async def test_many_throttled_responses_do_not_lengthen_the_pause(
    integration: Integration,
) -> None:
    far = "Retry-After: 1000000000000"
    options: dict[str, Any] = {"limiter": RateLimiter(concurrency_limit=20), "connections": 20}
    async with throttling(integration, far, **options) as (_, at):
        replies = await asyncio.gather(*(at.send("throttled") for _ in range(20)))
        assert [reply.status for reply in replies] == [429] * 20
        assert at.paused_for <= LONGEST
