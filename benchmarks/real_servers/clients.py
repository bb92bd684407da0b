"""The clients of the table: each makes the limiter that a user would write for such a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, RateLimiter
from real_servers.server import Server

__all__ = ["CLIENTS", "Client", "clients_of"]

SLOTS = 8


@dataclass(frozen=True)
class Client:
    """A client: its heading in the table, and its limiter for a server."""

    heading: str
    limiter: Callable[[Server], RateLimiter]
    suits: Callable[[Server], bool]


def _limits_rate(server: Server) -> bool:
    return server.slots is None


def _adaptive_rate(server: Server) -> RateLimiter:
    return RateLimiter(AdaptiveRate(5 * server.limit, 1, 1000), concurrency_limit=SLOTS)


CLIENTS: Mapping[str, Client] = {
    "known": Client(
        "known limit",
        lambda server: RateLimiter(server.limit, concurrency_limit=SLOTS),
        _limits_rate,
    ),
    "adaptive": Client("AdaptiveRate", _adaptive_rate, _limits_rate),
    "retry-after": Client(
        "no rate limit", lambda _: RateLimiter(concurrency_limit=SLOTS), _limits_rate
    ),
    "server": Client(
        'rate_limit="server"',
        lambda _: RateLimiter("server", concurrency_limit=SLOTS),
        lambda server: server.reports,
    ),
    "slots": Client(
        "known slots",
        lambda server: RateLimiter(concurrency_limit=server.slots),
        lambda server: server.slots is not None,
    ),
    "adaptive-slots": Client(
        "AdaptiveConcurrency",
        lambda _: RateLimiter(concurrency_limit=AdaptiveConcurrency(4, 1, 64)),
        lambda server: server.slots is not None,
    ),
}


def clients_of(server: Server) -> dict[str, Client]:
    """Return the clients that make sense in front of a server, by name."""
    return {name: client for name, client in CLIENTS.items() if client.suits(server)}
