"""How requests are sent: their options, and what a redirect may get of them.

Each step of a chain of redirects is a request of its own, and takes a token of its host. So
redirects are followed here and not by aiohttp, which treats a chain as one request.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from multidict import CIMultiDict
from yarl import URL

from aiothrottle.cli.addresses import has_credentials, url_of
from aiothrottle.cli.fetch.jobs import Request
from aiothrottle.cli.options import (
    duration,
    flag,
    header,
    method,
    option,
    positive_duration,
    whole_number,
)
from aiothrottle.retry import Retry

# The transient statuses of curl, and those of proxies before a server that fails (520 to 530). Of
# the others a later attempt would have the same.
_RETRIED = frozenset({408, 429, *range(500, 600)} - {501, 505, 510, 511})
_UNSAFE = ("POST", "PATCH")


@dataclass(kw_only=True)
class Sending:
    """What is sent, how often, and how it is connected.

    Attributes:
        method: of all requests (default: GET)
        header: a header to send; may be repeated (default: none)
        location: follow redirects; each step keeps to the limits of its host, and another origin
            gets no body and no header that may be secret (default: a redirect is the result)
        max_redirs: maximum number of redirects for a URL (default: %(default)s)
        retries: maximum number of retries for a URL: after 408, 429, 5xx (but 501, 505, 510 and
            511), a timeout, a lost connection, or a body that was cut off (default: %(default)s)
        retry_all_methods: retry POST and PATCH like all others, although the server may have
            executed them (default: only throttled ones)
        max_retry_after: give up a URL if the server asks for a longer wait (default: %(default)g)
        max_time: timeout of one request with its response, without waits; 0: none (default:
            %(default)g)
        insecure: accept any certificate, also that of an attacker (default: it has to be valid)
    """

    method: str | None = option("-X --request METHOD", method)
    header: list[tuple[str, str]] = option("-H 'NAME: VALUE'", header)
    location: bool = flag("-L")
    max_redirs: int = option("N", whole_number(1000), 50)
    retries: int = option("--retry N", whole_number(1000, least=0), 4)
    retry_all_methods: bool = flag()
    max_retry_after: float = option("SECONDS", positive_duration, 3600.0)
    max_time: float = option("-m SECONDS", duration, 300.0)
    insecure: bool = flag("-k")

    @property
    def retry(self) -> Retry:
        """What is retried."""
        return Retry(
            attempts=self.retries + 1,
            statuses=_RETRIED,
            methods=[*Retry().methods, *(_UNSAFE if self.retry_all_methods else ())],
            max_retry_after=self.max_retry_after,
        )


# ---- redirects -----------------------------------------------------------------------------------

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# The only headers that are sent to another origin. Any other may be a secret, under any name
# (X-Api-Key, Cookie), or is about the first server alone (Host, If-None-Match).
_ACCEPT = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language"})
_HARMLESS = _ACCEPT | {"cache-control", "pragma", "range", "user-agent"}


def headers_for(url: URL, headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers for a URL: credentials of its own precede an Authorization."""
    return _without(headers, "authorization") if has_credentials(url) else headers


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
            raise ValueError(f"redirected ({status}): another origin, {url.origin()}, gets no body")
        harmful = set(map(str.lower, headers)) - _HARMLESS
        return Request(method, url, _without(headers, *harmful))
    if not has_credentials(request.url):
        headers = headers_for(url, headers)
    elif not has_credentials(url):
        url = url.with_user(request.url.user or "").with_password(request.url.password)
    if becomes_get:
        headers = _without(headers, "content-type")  # the only one of a body
    return Request(method, url, headers, data)


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port; `URL.origin()` treats an explicit default port as another."""
    return url.scheme, url.host, url.port


def _without(headers: Mapping[str, str], *names: str) -> CIMultiDict[str]:
    return CIMultiDict((it, value) for it, value in headers.items() if it.lower() not in names)
