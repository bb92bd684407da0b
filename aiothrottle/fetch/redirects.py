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
# What is said to one server only.
_SECRETS = frozenset({"authorization", "cookie", "proxy-authorization"})
_OF_A_BODY = frozenset({"content-type", "content-length", "transfer-encoding"})


class Request(NamedTuple):
    """What is sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    data: bytes | None = None


def redirected(request: Request, status: int, location: str | None) -> Request | None:
    """Give the request that a redirect asks for; None: it is no redirect.

    Raises:
        ValueError: It leads to what is no HTTP URL.
    """
    if status not in _REDIRECTS or not location:
        return None
    url = request.url.join(url_of(location))
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("redirected to what is no HTTP URL")
    headers = request.headers
    if url.origin() != request.url.origin():
        headers = _without(headers, _SECRETS)
    elif url.user is None and request.url.user is not None:
        url = url.with_user(request.url.user).with_password(request.url.password)
    becomes_get = (status == 303 and request.method != "HEAD") or (
        status in {301, 302} and request.method == "POST"
    )
    if becomes_get:  # RFC 9110 (15.4), and as all clients do
        return Request("GET", url, _without(headers, _OF_A_BODY))
    return Request(request.method, url, headers, request.data)


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}
