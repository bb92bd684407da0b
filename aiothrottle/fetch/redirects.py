"""Where a redirect leads, and what may be sent there. Pure.

Each step of a chain is a request like any other: it pays its token, at its own host. So they are
followed here and not by aiohttp, to which a chain is one request.
"""

from collections.abc import Mapping
from typing import NamedTuple

from yarl import URL

from aiothrottle.fetch.addresses import url_of

__all__ = ["Request", "redirected"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# The only headers that another origin is sent. Any other may be a secret, under whatever name
# (X-Api-Key, Cookie), or is about the first server alone (Host, If-None-Match).
_HARMLESS = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "pragma",
        "range",
        "user-agent",
    }
)
_OF_A_BODY = frozenset({"content-type", "content-length", "transfer-encoding"})


class Request(NamedTuple):
    """What is sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    data: bytes | None = None


def redirected(request: Request, status: int, location: str | None) -> Request | None:
    """Give the request that a redirect asks for; None: it is no redirect.

    Another origin (scheme, host or port) is sent no body, and no header but harmless ones.

    Raises:
        ValueError: It leads to what is no HTTP URL, or wants the body to be sent to another origin.
    """
    if status not in _REDIRECTS or not location:
        return None
    url = request.url.join(url_of(location))
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("redirected to what is no HTTP URL")
    becomes_get = (status == 303 and request.method != "HEAD") or (
        status in {301, 302} and request.method == "POST"
    )
    # RFC 9110 (15.4), and as all clients do
    method, data = ("GET", None) if becomes_get else (request.method, request.data)
    headers = request.headers
    if _origin(url) != _origin(request.url):
        if data is not None:
            # Without its body it would be another request, and one that may do harm.
            place = f"{url.origin()}, another origin"
            raise ValueError(f"redirected ({status}) to {place}: the body is not sent there")
        return Request(method, url, _only(headers, _HARMLESS))
    if url.user is None and request.url.user is not None:
        url = url.with_user(request.url.user).with_password(request.url.password)
    if becomes_get:
        headers = _without(headers, _OF_A_BODY)
    return Request(method, url, headers, data)


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """Give what has to be the same; `URL.origin()` takes a port that is named for another one."""
    return url.scheme, url.host, url.port


def _only(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in names}


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}
