"""httpx2, throttled: a transport for `httpx2.AsyncClient` that waits, holds its slot and retries.

It is the one of `aiothrottle.httpx`, for httpx2.
"""

from typing import ClassVar

try:
    import httpx2
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "httpx2 is not there: pip install 'aiothrottle-client[httpx2]'", name="httpx2"
    ) from _error

from aiothrottle._http.options import ClientOptions
from aiothrottle.retry import Retry, RetryBudget
from aiothrottle.transport import HeldStream, Transport

__all__ = ["ClientOptions", "Retry", "RetryBudget", "ThrottledTransport"]


class _HeldStream(HeldStream, httpx2.AsyncByteStream):
    """The body of a response."""


class ThrottledTransport(Transport[httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport):
    """Has each request of an `httpx2.AsyncClient` wait its turn, hold its slot, and try again.

    As `aiothrottle.httpx.ThrottledTransport`, argument for argument, with the classes of httpx2 in
    place of those of httpx.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     transport = ThrottledTransport(RateLimiter(20, concurrency_limit=10))
    ...     async with httpx2.AsyncClient(transport=transport) as client:
    ...         response = await client.get("https://example.org/")
    ...         print(response.status_code, response.text)
    """

    _library: ClassVar = httpx2
    _held_stream: ClassVar = _HeldStream
