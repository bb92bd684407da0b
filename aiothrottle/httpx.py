"""httpx, throttled: a transport for `httpx.AsyncClient` that waits, holds its slot and retries.

For httpx2 there is the same in `aiothrottle.httpx2`.
"""

from typing import ClassVar

try:
    import httpx
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "httpx is not there: pip install 'aiothrottle-client[httpx]'", name="httpx"
    ) from _error

from aiothrottle._http.options import ClientOptions
from aiothrottle.retry import Retry, RetryBudget
from aiothrottle.transport import HeldStream, Transport

__all__ = ["ClientOptions", "Retry", "RetryBudget", "ThrottledTransport"]


class _HeldStream(HeldStream, httpx.AsyncByteStream):
    """The body of a response."""


class ThrottledTransport(Transport[httpx.Request, httpx.Response], httpx.AsyncBaseTransport):
    """Has each request of an `httpx.AsyncClient` wait its turn, hold its slot, and try again.

    A request

    - waits for the limiter first, outside of all timeouts of httpx, `pool` included;
    - holds its slot until its response is closed, which httpx does when the body is read, or fails,
      or the block of ``client.stream()`` is left; or until a response that was dropped is
      collected. A websocket holds it only for the handshake;
    - is tried again as `retry` says, and each attempt pays its token. A refusal (429, or 503 with
      Retry-After) pauses the limiter, and so all who share it. A body that cannot be sent twice
      is not: the refusal is given back.

    The client follows redirects above its transport: each hop is a request of its own, pays its
    own token, and has its own key.

    What is said to the client about connections (`verify`, `cert`, `http2`, `limits`) it ignores
    when it is given a transport, and `proxy` and `mounts` lead past it: give those arguments to an
    `httpx.AsyncHTTPTransport`, and that to `transport`.

    Args:
        limiter: Whose limits; may be shared with other clients and other code. A
            `KeyedRateLimiter` has limits for each host, or whatever `key` says.
        transport: The transport to send with; it is closed with this one. By default an
            `httpx.AsyncHTTPTransport`.
        options: See `ClientOptions`. By default `retry` has these exceptions tried again:
            `httpx.NetworkError`, `httpx.RemoteProtocolError`, and timeouts but
            `httpx.PoolTimeout`.

    Raises:
        TypeError: An argument is of a wrong kind, or unknown.
        ValueError: An argument is out of range; or a key is given, and a limiter that has none.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     transport = ThrottledTransport(RateLimiter(20, concurrency_limit=10))
    ...     async with httpx.AsyncClient(transport=transport) as client:
    ...         response = await client.get("https://example.org/")
    ...         print(response.status_code, response.text)
    """

    _library: ClassVar = httpx
    _held_stream: ClassVar = _HeldStream
