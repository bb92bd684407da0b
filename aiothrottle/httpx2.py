"""httpx2, throttled: a transport for `httpx2.AsyncClient` that waits, holds its slot and retries.

`aiothrottle.httpx` has the same for httpx.
"""

from typing import ClassVar

from aiothrottle._lazy import needs

with needs("httpx2", extra="httpx2"):
    import httpx2

from aiothrottle._http.options import ClientOptions
from aiothrottle.retry import Retry, RetryBudget
from aiothrottle.transport import Transport

__all__ = ["ClientOptions", "Retry", "RetryBudget", "ThrottledTransport"]


class ThrottledTransport(
    Transport[httpx2.Request, httpx2.Response, httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport
):
    """Throttles and retries the requests of an `httpx2.AsyncClient`.

    It has the behaviour and the options of `aiothrottle.httpx.ThrottledTransport`, with the
    classes of httpx2.

    Args:
        limiter: A `RateLimiter`; or a `KeyedRateLimiter`, which has a limit for each key.
        transport: The transport that sends. By default an `httpx2.AsyncHTTPTransport`.
        options: See `aiothrottle.httpx.ClientOptions`.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     transport = ThrottledTransport(RateLimiter(20, concurrency_limit=10))
    ...     async with httpx2.AsyncClient(transport=transport) as client:
    ...         response = await client.get("https://example.org/")
    ...         print(response.status_code, response.text)
    """

    _library: ClassVar = httpx2
