"""Chooses the proxy of each URL, by the options and the environment, as curl does. Pure."""

import base64
import ipaddress
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from yarl import URL

from aiothrottle.cli.fetch.reading.addresses import url_of
from aiothrottle.cli.terminal import without_credentials

__all__ = ["Proxies", "choose_proxies", "proxy_of"]

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies(NamedTuple):
    """The proxy of each scheme, and the hosts without one."""

    by_scheme: Mapping[str, URL]
    #: Host names, which stand for their subdomains too; "*" is every host.
    names: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()

    def of(self, url: URL) -> URL | None:
        """Return the proxy of a URL; None: it has none."""
        proxy = self.by_scheme.get(url.scheme)
        if proxy is None or self._is_direct(url):
            return None
        return proxy

    def headers_for(self, url: URL, proxy: URL) -> dict[str, str]:
        """Return the headers with which a proxy gets its credentials along with a request.

        A tunnel (https) has them in its CONNECT. Up to 3.12 aiohttp sends them only with the first
        request of a connection.
        """
        if url.scheme != "http" or (proxy.user is None and proxy.password is None):
            return {}
        credentials = f"{proxy.user or ''}:{proxy.password or ''}".encode()
        return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials).decode('ascii')}"}

    def _is_direct(self, url: URL) -> bool:
        if not self.names and not self.networks:
            return False
        host = (url.raw_host or "").rstrip(".")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return not self.names.isdisjoint(_domains(host, url.port))
        named = not self.names.isdisjoint({"*", host, f"{host}:{url.port}"})
        return named or any(address in network for network in self.networks)


def choose_proxies(
    proxy: URL | None, direct: str | None, environment: Mapping[str, str]
) -> Proxies | None:
    """Return the proxies of a run; None: there are none.

    Args:
        proxy: The proxy of all URLs; None: those of the environment.
        direct: The hosts without a proxy, separated by commas; None: those of the environment.
        environment: The environment variables.

    Raises:
        ValueError: A proxy of the environment is no URL of a proxy.
    """
    by_scheme = dict[str, URL]()
    for scheme in ("http", "https"):
        found = proxy or _proxy_in(environment, scheme) or _proxy_in(environment, "all")
        if found is not None:
            by_scheme[scheme] = found
    if not by_scheme:
        return None
    if direct is None:
        direct = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    names, networks = set[str](), list[_Network]()
    for entry in direct.lower().split(","):
        name = entry.strip().strip(".").removeprefix("*.")
        try:
            networks.append(ipaddress.ip_network(name.strip("[]"), strict=False))
        except ValueError:
            names.add(name)
    return Proxies(by_scheme, frozenset(names - {""}), tuple(networks))


def proxy_of(text: str) -> URL:
    """Parse the URL of a proxy; without a scheme it is http.

    Raises:
        ValueError: It is none.
    """
    text = text if "://" in text else f"http://{text}"
    try:
        url = url_of(text)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(
            "must be a proxy such as http://HOST:PORT or https://USER:PASSWORD@HOST:PORT, "
            f"got {without_credentials(text)!r}"
        )
    return url


def _proxy_in(environment: Mapping[str, str], scheme: str) -> URL | None:
    """Return the proxy of a scheme; the variable in small letters precedes, even if it is empty."""
    lower, upper = f"{scheme}_proxy", f"{scheme}_proxy".upper()
    name = lower if lower in environment else upper
    # In a CGI program HTTP_PROXY is the header "Proxy" of a request, and so anybody's choice.
    if not environment.get(name) or (name == "HTTP_PROXY" and "REQUEST_METHOD" in environment):
        return None
    try:
        return proxy_of(environment[name])
    except ValueError as error:
        raise ValueError(f"the environment variable {name} {error}") from None


def _domains(host: str, port: int | None) -> Iterator[str]:
    """Yield the names that an entry for this host may have."""
    yield "*"
    name = host
    while name:
        yield name
        yield f"{name}:{port}"
        name = name.partition(".")[2]
