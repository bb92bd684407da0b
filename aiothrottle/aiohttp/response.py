"""What the session and the middlewares both do with requests and responses of aiohttp."""

import asyncio
from contextlib import suppress

import aiohttp
from aiohttp import ClientResponse
from yarl import URL

from aiothrottle._http.admission import origin
from aiothrottle._http.announcements import Announcements, may_say_more
from aiothrottle._http.attempts import Outcome, judge
from aiothrottle.aiohttp.replay import replayed
from aiothrottle.errors import ThrottleError
from aiothrottle.headers import ServerLimits
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.retry import Retry

__all__ = [
    "FAILURES",
    "SWITCHING_PROTOCOLS",
    "discard",
    "hear",
    "is_certain",
    "is_failure",
    "is_plain",
    "judged",
    "origin_of",
    "read_limits",
    "trusts_successes",
]

SWITCHING_PROTOCOLS = 101
_LEAST_ERROR = 400

#: What aiohttp raises because a connection failed.
FAILURES = (aiohttp.ClientConnectionError,)

# A short body is read, so that the connection can be used again; a longer one costs more than a
# new connection.
_SHORT_BODY = 1 << 16
_SHORT_TIME = 1.0


def origin_of(_method: str, url: URL) -> str:
    """Give the host of the URL as DNS has it, with the port unless it is the usual one."""
    return origin(url.scheme, url.raw_host or "", url.port)


def is_certain(retry: Retry, error: Exception) -> bool:
    """Tell whether another attempt is of no use: nothing was sent, or the certificate is wrong."""
    if isinstance(error, ThrottleError):  # of the limiter, which has waited for as long as it may
        return True
    return retry.exceptions is None and isinstance(error, aiohttp.ClientSSLError)


def is_failure(error: Exception) -> bool:
    """Tell whether a request has failed for want of an answer: no connection, or none in time."""
    # What a limiter inside of the session raises may be a TimeoutError, and so an OSError, too.
    return isinstance(error, (*FAILURES, OSError)) and not isinstance(error, ThrottleError)


def trusts_successes(retry: Retry) -> bool:
    """Tell whether the policy has nothing to say about any response below 400."""
    return (
        retry.should_retry is None
        and retry.budget is None
        and all(status >= _LEAST_ERROR for status in retry.statuses)
    )


def is_plain(retry: Retry, status: int, limits: ServerLimits) -> bool:
    """Tell whether neither policy nor server have anything to say about a response."""
    return (
        status not in retry.statuses
        and not limits.throttled
        and retry.should_retry is None
        and retry.budget is None
        and not may_say_more(status, limits)
    ) or status == SWITCHING_PROTOCOLS  # an open websocket is no refusal


def read_limits(announcements: Announcements, response: ClientResponse) -> ServerLimits:
    """Read what the headers of a response say."""
    return announcements.read(response.url.raw_host or "", response.status, response.headers)


def hear(
    announcements: Announcements, limiter: RateLimiter, permit: Permit, response: ClientResponse
) -> ServerLimits:
    """Read what the headers of a response say, and tell the limiter."""
    host = response.url.raw_host or ""
    return announcements.hear(limiter, permit, host, response.status, response.headers)


async def judged(
    retry: Retry, announcements: Announcements, response: ClientResponse, limits: ServerLimits
) -> Outcome[ClientResponse]:
    """Tell how the response ends an attempt. Raises what `Retry.should_retry` does.

    Whatever is read of its body for that can still be read by the caller.
    """
    try:
        status = response.status
        if may_say_more(status, limits) and _is_short(response):
            with replayed(response):
                body = await _read(response)
            host = response.url.raw_host or ""
            limits = announcements.read(host, status, response.headers, body)
        if retry.should_retry is None:
            return await judge(retry, response, status, limits)
        with replayed(response):
            return await judge(retry, response, status, limits)
    except BaseException:  # of the user's should_retry, or cancelled
        response.close()
        raise


async def discard(response: ClientResponse) -> None:
    """Let go of a refused response, and of its slot."""
    try:
        if _is_short(response):
            with suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(_SHORT_TIME):
                    await response.read()  # and wait until nothing is uploaded any more
    finally:
        response.release()


def _is_short(response: ClientResponse) -> bool:
    length = response.content_length
    packed = "Content-Encoding" in response.headers  # short only until it is unpacked
    return length is not None and length <= _SHORT_BODY and not packed


async def _read(response: ClientResponse) -> bytes | None:
    """Read a short body; None if it fails. It closes the response then."""
    try:
        async with asyncio.timeout(_SHORT_TIME):
            # Not `response.read()`, which keeps the body: it is to be read anew by the caller.
            return await response.content.read()
    except (aiohttp.ClientError, OSError) as error:
        response.close()
        if isinstance(error, TimeoutError):
            # Who reads it all the same is told why.
            stalled = aiohttp.SocketTimeoutError("the body of the refusal did not come")
            response.content.set_exception(stalled)
        return None  # nobody wanted that body
