"""Probes the limits of a server, with a bounded number of requests: ``aiothrottle probe``."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
from yarl import URL

from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.cli.suggestion import Sighting
from aiothrottle.headers import Profile, ServerLimits, parse_rate_limit, profile_for

__all__ = ["Answer", "Inquiry", "ask", "find_limit", "opened"]

# Limits in the body of an error are at its beginning.
_LONGEST_BODY = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """The request of a probe, and how often it may be sent.

    Attributes:
        most: The most requests after the first one, to find the limit.
        at_once: The number of concurrent requests.
        max_time: Seconds for each request.
    """

    url: URL
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    user_agent: str
    most: int = 100
    at_once: int = 1
    max_time: float = 30.0

    @property
    def profile(self) -> Profile | None:
        """The profile of the host's vendor, if there is one."""
        return profile_for(self.url.host or "")


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to one request."""

    status: int
    limits: ServerLimits
    location: str | None = None


def opened(inquiry: Inquiry) -> aiohttp.ClientSession:
    """Make the session of a probe, which sends no request twice."""
    return without_resending(
        aiohttp.ClientSession(
            headers={"User-Agent": inquiry.user_agent, **inquiry.headers},
            timeout=aiohttp.ClientTimeout(total=inquiry.max_time),
        )
    )


async def ask(inquiry: Inquiry, session: aiohttp.ClientSession) -> Answer:
    """Send one request, and parse the limits in its response.

    Raises:
        aiohttp.ClientError: There is no response.
        TimeoutError: There is no response in time.
    """
    async with session.request(inquiry.method, inquiry.url, allow_redirects=False) as response:
        body = await response.content.read(_LONGEST_BODY)
        limits = parse_rate_limit(
            response.status,
            response.headers,
            datetime.now(UTC),
            body if response.status >= 400 else None,
            inquiry.profile,
        )
        return Answer(response.status, limits, response.headers.get("Location"))


async def find_limit(inquiry: Inquiry, session: aiohttp.ClientSession, began_at: float) -> Sighting:
    """Send requests until one is throttled, or `inquiry.most` are sent. Raises the errors of `ask`.

    Args:
        inquiry: The probe, whose first request was sent and admitted.
        session: The session of the probe.
        began_at: The time of the first request, by `time.monotonic`.
    """
    sent = 0
    while sent < inquiry.most:
        batch = min(inquiry.at_once, inquiry.most - sent)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(inquiry, session)) for _ in range(batch)]
        sent += batch
        answers = [task.result().limits for task in tasks]
        refusals = [limits for limits in answers if limits.throttled]
        if refusals:
            waits = [limits.retry_after for limits in refusals if limits.retry_after is not None]
            admitted = 1 + sent - len(refusals)
            seconds = time.monotonic() - began_at
            return Sighting(admitted, seconds, max(waits, default=None), refused=True)
    return Sighting(1 + sent, time.monotonic() - began_at, None, refused=False)
