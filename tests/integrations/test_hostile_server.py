"""What a server sends to do harm: no crash, no sleep without bound, no busy loop, no memory.

Any other server gets what it asks for. Bodies that never end or unpack to gigabytes are in
`test_matrix_retries.py`.
"""

import asyncio

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry
from tests.integrations.clients import Integration, every
from tests.integrations.scripted import Script
from tests.support.virtually import virtual

LONGEST_PAUSE = 40.0
RETRY = Retry(
    backoff=0.001, max_backoff=0.01, max_retry_after=30, max_pause=LONGEST_PAUSE, pause_jitter=0
)
FAR = ["1000000000000", "9" * 60, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT", "31"]
DATES = ["x" * 5000, "", "Thu, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 1 00:00:00 -9999"]


@every()
async def test_distant_retry_after_ends_the_attempts(integration: Integration) -> None:
    for value in [*FAR, *(f"{FAR[3]}\r\nDate: {date}" for date in DATES)]:
        async with asyncio.timeout(20), integration.misbehave(retry=RETRY) as (server, at):
            server.retry_after = f"Retry-After: {value}\r\n"
            assert (await at.send("throttled")).status == 429
            assert server.hits["/throttled"] == 1, value
            longest = 31 if value == "31" else LONGEST_PAUSE
            assert longest - 1 < at.paused_for <= longest, value


@virtual
async def test_reported_window_is_bounded() -> None:
    limiter = RateLimiter(rate_limit="server", concurrency_limit=2)
    policy = {"RateLimit-Policy": '"a";q=1;w=2678400'}
    async with Script((200, policy)).client(limiter) as client:
        await client.get("http://a/")
    assert 3000.0 < (await limiter.peek()).retry_after <= 3700.0
