"""The clients of the table: what a user writes between the parentheses of a `ThrottledSession`.

They are texts, so that the page shows what ran, and nothing else. Two are the limiters of peers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession
from real_servers.peers import PEERS, Peer
from real_servers.server import KNOWN, SLOTS, Server

__all__ = ["CLIENTS", "Client", "clients_of", "session_of"]

_NAMES = {
    it.__name__: it
    for it in (
        AdaptiveConcurrency,
        AdaptiveRate,
        RateLimiter,
        Retry,
        ThrottledSession,
    )
}


@dataclass(frozen=True)
class Client:
    """A client: its name and heading, what it gives to the session, and where it makes sense."""

    name: str
    heading: str
    line: str
    suits: Callable[[Server], bool]


def _limits_rate(server: Server) -> bool:
    return server.slots is None


def _limits_slots(server: Server) -> bool:
    return server.slots is not None


CLIENTS = [
    Client("known", "known limit", KNOWN, _limits_rate),
    Client(
        "adaptive",
        "adaptive",
        'RateLimiter(AdaptiveRate("100/s", 1, 1000), concurrency_limit=8)',
        _limits_rate,
    ),
    Client("retry-after", "no rate", SLOTS, _limits_rate),
    Client(
        "server",
        '`"server"`',
        'RateLimiter("server", concurrency_limit=8)',
        lambda server: server.reports,
    ),
    Client("aiolimiter", "aiolimiter", "AsyncLimiter(20, 1)", _limits_rate),
    Client("pyrate", "pyrate-limiter", "Limiter(Rate(20, Duration.SECOND))", _limits_rate),
    Client("slots", "known limit", SLOTS, _limits_slots),
    Client(
        "adaptive-slots",
        "adaptive",
        "RateLimiter(concurrency_limit=AdaptiveConcurrency(4, 1, 64))",
        _limits_slots,
    ),
]


def clients_of(server: Server) -> list[Client]:
    """Return the clients that make sense in front of a server, with the one that it wants."""
    clients = [client for client in CLIENTS if client.suits(server)]
    if all(client.line != server.line for client in clients):
        clients.append(Client("advised", "advised", server.line, _limits_rate))
    return clients


def session_of(line: str) -> ThrottledSession | Peer:
    """Return the session of a line, or the peer."""
    if line in PEERS:
        return Peer(PEERS[line])
    session = eval(f"ThrottledSession({line})", dict(_NAMES))  # noqa: S307 - ours
    assert isinstance(session, ThrottledSession)
    return session
