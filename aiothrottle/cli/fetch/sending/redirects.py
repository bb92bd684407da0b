"""Follows redirects, and decides what may be sent to their target. Pure.

Each step of a chain is a request of its own, and takes a token of its host. So redirects are
followed here and not by aiohttp, which treats a chain as one request.
"""

from collections.abc import Mapping

from yarl import URL

from aiothrottle.cli.fetch.reading.addresses import url_of
from aiothrottle.cli.fetch.reading.jobs import Request

__all__ = ["headers_for", "redirected"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# The only headers that are sent to another origin. Any other may be a secret, under any name
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
_OF_CREDENTIALS = frozenset({"authorization"})
_OF_A_BODY = frozenset({"content-type", "content-length", "transfer-encoding"})


def headers_for(url: URL, headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers for a URL: credentials of its own precede an Authorization."""
    return _without(headers, _OF_CREDENTIALS) if _has_credentials(url) else headers


def redirected(request: Request, status: int, location: str | None) -> Request | None:
    """Return the request for the target of a redirect; None if the response is no redirect.

    Another origin (scheme, host or port) gets no body, and only harmless headers.

    Raises:
        ValueError: The target is no HTTP URL, or the body would be sent to another origin.
    """
    if status not in _REDIRECTS or not location:
        return None
    url = request.url.join(url_of(location))
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError("redirected to what is no HTTP URL")
    becomes_get = (status == 303 and request.method != "HEAD") or (
        status in {301, 302} and request.method == "POST"
    )
    # RFC 9110 (15.4), and the practice of all clients
    method, data = ("GET", None) if becomes_get else (request.method, request.data)
    headers = request.headers
    if _origin(url) != _origin(request.url):
        if data is not None:
            # Without its body it would be a different request, possibly a harmful one.
            place = f"{url.origin()}, another origin"
            raise ValueError(f"redirected ({status}) to {place}: the body is not sent there")
        return Request(method, url, _only(headers, _HARMLESS))
    if not _has_credentials(request.url):
        headers = headers_for(url, headers)
    elif not _has_credentials(url):
        url = url.with_user(request.url.user or "").with_password(request.url.password)
    if becomes_get:
        headers = _without(headers, _OF_A_BODY)
    return Request(method, url, headers, data)


def _has_credentials(url: URL) -> bool:
    return url.raw_user is not None or url.raw_password is not None  # a token may have no user


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port; `URL.origin()` treats an explicit default port as another."""
    return url.scheme, url.host, url.port


def _only(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in names}


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}
