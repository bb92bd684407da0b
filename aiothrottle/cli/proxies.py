"""The proxies that the environment names, as for curl, and their credentials."""

import base64
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.request import getproxies_environment

from multidict import CIMultiDict
from yarl import URL

from aiothrottle.cli.addresses import has_credentials, url_of
from aiothrottle.cli.output import without_credentials

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


def proxies_of_environment() -> Proxies:
    """Return the proxies that environment variables name, as curl does.

    Raises:
        ValueError: One is no URL of a proxy.
    """
    found = getproxies_environment()
    by_scheme = dict[str, URL]()
    for scheme in ("http", "https"):
        name = scheme if scheme in found else "all"
        if name in found:
            by_scheme[scheme] = _proxy(f"{name}_proxy", found[name])
    suffixes, networks = list[str](), list[_Network]()
    for entry in found.get("no", "").lower().split(","):
        host = entry.strip(" .").removeprefix("*.")
        try:
            networks.append(ipaddress.ip_network(host.strip("[]"), strict=False))
        except ValueError:  # a name, or that of all hosts
            suffixes.append("" if host == "*" else f".{host}")
    return Proxies(by_scheme, tuple(suffixes), networks)


def headers_through(
    proxy: URL | None, url: URL, headers: Mapping[str, str] | Iterable[tuple[str, str]]
) -> CIMultiDict[str]:
    """Return the headers of a request, along with which a proxy gets its credentials.

    A tunnel (https) has them in its CONNECT. Up to 3.12 aiohttp sends them only with the first
    request of a connection.
    """
    found = CIMultiDict(headers)
    if proxy is not None and url.scheme == "http" and has_credentials(proxy):
        credentials = f"{proxy.user or ''}:{proxy.password or ''}".encode()
        found["Proxy-Authorization"] = f"Basic {base64.b64encode(credentials).decode('ascii')}"
    return found


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
