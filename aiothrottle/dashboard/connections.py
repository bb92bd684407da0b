"""The connections to the page: limited in number, and in the time that each may be idle.

Each takes a file descriptor, of which the program has a limited number. So if there are too many,
the connection that has been idle longest is closed for the new one.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import cast

_MOST = 100
# Seconds in which a connection has to complete its first or its next request.
_PATIENCE = 5.0


class Connections:
    """Makes a protocol for each connection of a server, and closes excess connections.

    Args:
        make: Makes the protocol that serves one connection.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        # Both in the order of arrival, oldest first.
        self._idle = dict[_Connection, asyncio.TimerHandle]()
        self._busy = dict[_Connection, None]()

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return _Connection(self, self._make())

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def abort(self) -> None:
        """Close all connections; unsent data is lost."""
        for connection in [*self._idle, *self._busy]:
            connection.transport.abort()

    def add(self, connection: "_Connection") -> None:
        """Add a new connection, which has no request yet."""
        if len(self) >= _MOST:
            oldest = next(iter(self._idle or self._busy))
            self.remove(oldest)  # now: connection_lost is called later
            oldest.transport.abort()
        self._rest(connection)

    def remove(self, connection: "_Connection") -> None:
        """Remove a closed connection."""
        self._busy.pop(connection, None)
        if timer := self._idle.pop(connection, None):
            timer.cancel()

    @contextmanager
    def serving(self, connection: "_Connection") -> Generator[None]:
        """Keep a connection from being idle while its request is served."""
        self.remove(connection)
        self._busy[connection] = None
        try:
            yield
        finally:
            if connection in self._busy:  # otherwise it was closed
                self.remove(connection)
                self._rest(connection)

    def _rest(self, connection: "_Connection") -> None:
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.call_later(_PATIENCE, connection.transport.abort)


@contextmanager
def serving(transport: asyncio.BaseTransport | None) -> Generator[None]:
    """Keep the connection from being idle while its request is served; None: it is closed."""
    protocol = None if transport is None else transport.get_protocol()
    if isinstance(protocol, _Connection):
        with protocol.connections.serving(protocol):
            yield
    else:
        yield


class _Connection(asyncio.Protocol):
    """One connection: passes all calls to the protocol that serves it."""

    transport: asyncio.Transport

    def __init__(self, connections: Connections, served: asyncio.Protocol) -> None:
        self.connections = connections
        self._served = served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.connections.add(self)
        self._served.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.remove(self)
        self._served.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._served.data_received(data)

    def eof_received(self) -> bool | None:
        return self._served.eof_received()

    def pause_writing(self) -> None:
        self._served.pause_writing()

    def resume_writing(self) -> None:
        self._served.resume_writing()
