"""How requests are sent: their options, and what a redirect or a proxy may get of them.

Each step of a chain of redirects is a request of its own, and takes a token of its host. So
redirects are followed here and not by aiohttp, which treats a chain as one request.
"""

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.request import getproxies_environment

from yarl import URL

from aiothrottle.cli.addresses import url_of
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
from aiothrottle.cli.output import without_credentials
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


# ---- proxies -------------------------------------------------------------------------------------

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies(NamedTuple):
    """The proxy of each scheme, and the hosts without one."""

    by_scheme: Mapping[str, URL]
    #: A host without a proxy ends with one of them, with or without its port.
    suffixes: tuple[str, ...]
    networks: Sequence[_Network]

    def of(self, url: URL) -> URL | None:
        """Return the proxy of a URL; None: it has none."""
        proxy = self.by_scheme.get(url.scheme)
        return None if proxy is None or self._is_direct(url) else proxy

    def _is_direct(self, url: URL) -> bool:
        host = (url.raw_host or "").rstrip(".")
        if any(f".{name}".endswith(self.suffixes) for name in (host, f"{host}:{url.port}")):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self.networks)


def proxies_of_environment() -> Proxies | None:
    """Return the proxies that environment variables name, as curl does; None: there are none.

    Raises:
        ValueError: One is no URL of a proxy.
    """
    found = getproxies_environment()
    by_scheme = dict[str, URL]()
    for scheme in ("http", "https"):
        name = scheme if scheme in found else "all"
        if name in found:
            by_scheme[scheme] = _proxy(f"{name}_proxy", found[name])
    if not by_scheme:
        return None
    suffixes, networks = list[str](), list[_Network]()
    for entry in found.get("no", "").lower().split(","):
        host = entry.strip(" .").removeprefix("*.")
        try:
            networks.append(ipaddress.ip_network(host.strip("[]"), strict=False))
        except ValueError:  # a name, or that of all hosts
            suffixes.append("" if host == "*" else f".{host}")
    return Proxies(by_scheme, tuple(suffixes), networks)


def credentials_for(proxy: URL, url: URL) -> dict[str, str]:
    """Return the headers with which a proxy gets its credentials along with a request.

    A tunnel (https) has them in its CONNECT. Up to 3.12 aiohttp sends them only with the first
    request of a connection.
    """
    if url.scheme != "http" or not _has_credentials(proxy):
        return {}
    credentials = f"{proxy.user or ''}:{proxy.password or ''}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials).decode('ascii')}"}


def _proxy(variable: str, text: str) -> URL:
    try:
        url = url_of(text if "://" in text else f"http://{text}")
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(
            f"the environment variable {variable} must be a proxy such as http://HOST:PORT or "
            f"https://USER:PASSWORD@HOST:PORT, got {without_credentials(text)!r}"
        )
    return url
