"""httpx, throttled: a transport for `httpx.AsyncClient` that waits, holds its slot and retries.

`aiothrottle.httpx2` has the same for httpx2.
"""

from typing import ClassVar

from aiothrottle._lazy import needs

with needs("httpx", extra="httpx"):
    import httpx

from aiothrottle._http.options import ClientOptions
from aiothrottle.retry import Retry, RetryBudget
from aiothrottle.transport import Transport

__all__ = ["ClientOptions", "Retry", "RetryBudget", "ThrottledTransport"]


class ThrottledTransport(
    Transport[httpx.Request, httpx.Response, httpx.AsyncBaseTransport], httpx.AsyncBaseTransport
):
    """Throttles and retries the requests of an `httpx.AsyncClient`.

    A request

    - waits for the limiter first, outside of all timeouts of httpx, `pool` included;
    - holds its slot until its response is closed: httpx does that when the body is read or fails,
      and at the end of ``client.stream()``; or until a dropped response is garbage-collected. A
      websocket holds its slot only for the handshake;
    - is retried by the rules of `retry`, and takes a token for each attempt. A throttled response
      (420, 429, 529, mostly 503) pauses the limiter for all requests that share it. A body that
      cannot be sent twice is not: the throttled response is returned.

    The client follows redirects above its transport: each hop is a request of its own, with its own
    token and its own key.

    A client with a transport ignores its own arguments about connections (`verify`, `cert`,
    `http2`, `limits`), and `proxy` and `mounts` bypass the transport: pass those arguments to an
    `httpx.AsyncHTTPTransport`, and that as `transport`.

    Args:
        limiter: The limiter, which may be shared with other clients and other code. A
            `KeyedRateLimiter` limits each host by itself, or each result of `key`. A rate, such as
            ``"10/s"``: a limiter is made of it.
        transport: The transport to send with; it is closed with this one. By default an
            `httpx.AsyncHTTPTransport`.
        options: See `ClientOptions`. By default `retry` retries these exceptions:
            `httpx.NetworkError`, `httpx.RemoteProtocolError`, and timeouts but
            `httpx.PoolTimeout`.

    Raises:
        TypeError: An argument is of a wrong type, or unknown.
        ValueError: An argument is out of range; or `key` is given, and the limiter has no keys.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     transport = ThrottledTransport(RateLimiter(20, concurrency_limit=10))
    ...     async with httpx.AsyncClient(transport=transport) as client:
    ...         response = await client.get("https://example.org/")
    ...         print(response.status_code, response.text)
    """

    _library: ClassVar = httpx
