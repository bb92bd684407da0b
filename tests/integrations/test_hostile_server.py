"""What a server sends to do harm: no crash, no sleep without bound, no busy loop, no memory.

Any other server gets what it asks for. Bodies that never end or unpack to gigabytes are in
`test_matrix_retries.py`.
"""

import asyncio
import logging

import pytest

from aiothrottle import RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry
from aiothrottle.events import Paused
from tests.integrations.clients import Feature, Integration, every
from tests.integrations.scripted import Script
from tests.support.virtually import now, virtual

ATTEMPTS, LONGEST, LONGEST_PAUSE = 3, 30.0, 40.0
RETRY = Retry(
    attempts=ATTEMPTS,
    backoff=0.001,
    max_backoff=0.01,
    max_retry_after=LONGEST,
    max_pause=LONGEST_PAUSE,
    pause_jitter=0,
)

FAR = ["1000000000000", "9" * 60, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT", "31"]
DATES = ["x" * 5000, "", "Thu, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 1 00:00:00 -9999"]


async def attempts_and_pause(integration: Integration, retry_after: str) -> tuple[int, float]:
    """Be throttled with this header; return the attempts and the seconds of the pause."""
    async with asyncio.timeout(20), integration.misbehave(retry=RETRY) as (server, at):
        server.retry_after = f"Retry-After: {retry_after}\r\n"
        assert (await at.send("throttled")).status == 429
        return server.hits["/throttled"], at.paused_for


@every()
async def test_distant_retry_after_ends_the_attempts(integration: Integration) -> None:
    for value in [*FAR, *(f"{FAR[3]}\r\nDate: {date}" for date in DATES)]:
        attempts, pause = await attempts_and_pause(integration, value)
        longest = 31 if value == "31" else LONGEST_PAUSE
        assert attempts == 1, value
        assert (longest - 1 < pause <= longest) == integration.has(Feature.LIMITS), value


# ---- what other servers ask for ------------------------------------------------------------------

SPENT = {"RateLimit-Limit": "100", "RateLimit-Remaining": "0", "RateLimit-Reset": "2400"}


@pytest.mark.parametrize(
    ("status", "headers", "seconds", "reason"),
    [
        (200, SPENT, 2400, "quota"),
        (429, SPENT, 2400, "quota"),
        (429, {"Retry-After": "600"}, 600, "retry-after"),
        (503, {"Retry-After": "600"}, 600, "retry-after"),
        (429, {"Retry-After": "90000"}, 3600, "retry-after"),
        (200, {**SPENT, "RateLimit-Reset": "90000"}, 3600, "quota"),
    ],
    ids=str,
)
@virtual
async def test_limiter_stops_for_as_long_as_the_server_asked(
    status: int,
    headers: dict[str, str],
    seconds: float,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    limiter = RateLimiter("1000/s")
    paused: list[Paused] = []
    limiter.observe(lambda event: paused.append(event) if isinstance(event, Paused) else None)
    async with Script((status, headers)).client(limiter, retry=Retry(pause_jitter=0)) as client:
        assert (await client.get("http://a/")).status_code == status
        with pytest.raises(ThrottleTimeout) as caught:
            await client.get("http://a/", extensions={"aiothrottle": {"timeout": 1}})
    assert now() == 0  # the request itself does not wait for the reset
    assert caught.value.retry_after == pytest.approx(seconds, abs=2)
    (event,) = paused
    assert event.reason == reason
    assert event.seconds == pytest.approx(seconds, abs=2)
    (message,) = caplog.messages
    assert "until" in message
    assert "the server" in message


@virtual
async def test_reported_window_is_bounded() -> None:
    limiter = RateLimiter(rate_limit="server", concurrency_limit=2)
    policy = {"RateLimit-Policy": '"a";q=1;w=2678400'}
    async with Script((200, policy)).client(limiter) as client:
        await client.get("http://a/")
    assert 3000.0 < (await limiter.peek()).retry_after <= 3700.0
