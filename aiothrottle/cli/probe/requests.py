"""Probes the limits of a server, with a bounded number of requests: ``aiothrottle probe``."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
from yarl import URL

from aiothrottle._checks import number
from aiothrottle.aiohttp.adapter import without_resending
from aiothrottle.cli.suggestion import Sighting
from aiothrottle.headers import Profile, ServerLimits, parse_rate_limit, profile_for

__all__ = ["Answer", "Inquiry", "NoResponse", "Sender", "find_burst", "is_throttled", "opened"]

# The statuses with which servers throttle.
_THROTTLED = frozenset({403, 420, 429, 503, 529})
# Seconds. After a rest the server may just be closing an idle connection.
_KEEPALIVE = 1.0
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
            connector=aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE),
        )
    )


class NoResponse(Exception):  # noqa: N818 - what happened
    """A request had no response; the text says why."""


class Sender:
    """Sends the request of a probe, and counts the responses.

    Args:
        inquiry: The request.
        session: What `opened` returned.

    Attributes:
        inquiry: The request.
        answered: The number of responses.
    """

    def __init__(self, inquiry: Inquiry, session: aiohttp.ClientSession) -> None:
        self.inquiry = inquiry
        self.answered: int = 0
        self._session = session

    async def send(self) -> Answer:
        """Send the request once, and parse the limits in the response.

        Raises:
            NoResponse: There is no response, or none in time.
        """
        inquiry = self.inquiry
        try:
            async with self._session.request(
                inquiry.method, inquiry.url, allow_redirects=False
            ) as response:
                body = await response.content.read(_LONGEST_BODY)
        except TimeoutError:
            raise NoResponse(f"no response within {number(inquiry.max_time)} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoResponse(str(error) or type(error).__name__) from error
        self.answered += 1
        limits = parse_rate_limit(
            response.status,
            response.headers,
            datetime.now(UTC),
            body if response.status >= 400 else None,
            inquiry.profile,
        )
        return Answer(response.status, limits, response.headers.get("Location"))


def is_throttled(answer: Answer, usual: int) -> bool:
    """Return whether a response is that of a throttled request.

    Args:
        answer: The response.
        usual: The status of the first request. nginx, Apache and Django throttle with 503 or 403,
            which mean it if the same request was answered otherwise before.
    """
    return answer.limits.throttled or (answer.status in _THROTTLED and answer.status != usual)


async def find_burst(sender: Sender, began_at: float, usual: int) -> Sighting:
    """Send requests until one is throttled, or `inquiry.most` are sent.

    Args:
        sender: The sender, whose first request was admitted.
        began_at: The time of the first request, by `time.monotonic`.
        usual: The status of the first request.

    Raises:
        ExceptionGroup: Of `NoResponse`.
    """
    inquiry = sender.inquiry
    sent = 0
    while sent < inquiry.most:
        batch = min(inquiry.at_once, inquiry.most - sent)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sender.send()) for _ in range(batch)]
        sent += batch
        answers = [task.result() for task in tasks]
        throttled = [answer for answer in answers if is_throttled(answer, usual)]
        if throttled:
            limits = throttled[0].limits
            named = [answer.limits.retry_after for answer in throttled]
            waits = [wait for wait in named if wait is not None]
            admitted = 1 + sent - len(throttled)
            seconds = time.monotonic() - began_at
            return Sighting(
                admitted,
                seconds,
                max(waits, default=None),
                throttled=True,
                sent=sent,
                status=None if limits.throttled else throttled[0].status,
            )
    return Sighting(1 + sent, time.monotonic() - began_at, None, throttled=False, sent=sent)
