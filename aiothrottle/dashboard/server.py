"""The server of the live page: a few files, and a stream of server-sent events.

The page shows the hosts that a program talks to. So it is served on loopback, and to a browser only
if the address bar names this machine: the Host header rejects another site whose name points here
(DNS rebinding), and the Origin header rejects scripts of other sites.

Invariant: connections are limited in number, and in the time that each may be idle, as each takes a
file descriptor, of which the program has a limited number. If there are too many, the one that has
been idle longest is closed for the new one.
"""

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import Any, NoReturn, TypeAlias, cast

from aiohttp import web
from yarl import URL

from aiothrottle.dashboard.feed import Feed, address_of
from aiothrottle.keyed import AnyLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.metrics import gauges

Facts: TypeAlias = Callable[[], Mapping[str, str]]
_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BACKLOG = 32

_logger = logging.getLogger("aiothrottle")

# Seconds between two events, and seconds in which a page has to read an event.
_TICK, _PATIENCE = 0.5, 10.0
# Seconds in which the streams may send their last event when the server ends.
_LAST_WORDS = 0.5
_MOST_STREAMS = 20
# Connections, and seconds in which each has to complete its first or its next request.
_MOST_CONNECTIONS, _IDLE = 100, 5.0
# Bytes of an unread stream that the kernel buffers. By default it buffers megabytes, and writes
# stall only after hours.
_UNREAD = 1 << 16

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@asynccontextmanager
async def serve(
    limiters: AnyLimiter | Mapping[str, AnyLimiter],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    facts: Facts | None = None,
    label: Callable[[Hashable], str] | None = None,
) -> AsyncGenerator[str]:
    """Serve a live page of a limiter, or of several by name, until the end of the block.

    Yields the URL of the page. The page shows the rate of the last two minutes beside the limit,
    the queue, the requests in flight, rejected and throttled requests, pauses, a table of the most
    recently active keys, and with a store how much of the limit all processes use.

    Args:
        limiters: The limiter, or limiters by name.
        host: The address to listen on. Anything but loopback lets others read the page.
        port: The port; 0: a free one.
        facts: Returns further texts for the page, by name.
        label: Returns the name of a key of a `KeyedRateLimiter` on the page. By default hosts are
            shown, and other keys, which may be secrets, are numbered.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: The port is out of range.
        OSError: The port is taken, or the address is not of this machine.

    >>> from aiothrottle import RateLimiter
    >>> async def main():
    ...     github, shop = RateLimiter("5000/h", concurrency_limit=10), RateLimiter("2/s")
    ...     async with serve({"GitHub": github, "shop": shop}, port=8321) as url:
    ...         print(f"see {url}")
    """
    default = limiters.name if isinstance(limiters, RateLimiter) else "limiter"
    named = limiters if isinstance(limiters, Mapping) else {default: limiters}
    for name, limiter in named.items():
        gauges.check(limiter, name)
    _check(host, port, facts=facts, label=label)
    feeds = [Feed(name, limiter, label, time.monotonic) for name, limiter in named.items()]
    connections = _Connections()
    page = _Page(feeds, facts, connections)
    runner = web.AppRunner(page.app, shutdown_timeout=_LAST_WORDS)
    async with AsyncExitStack() as stack:
        for feed in feeds:
            stack.callback(feed.stop)
        stack.callback(connections.abort)
        stack.push_async_callback(runner.cleanup)  # which cancels unread streams
        stack.callback(page.ending.set)
        for repeated in (page.sample, page.ask_stores):
            stack.push_async_callback(_cancel, asyncio.create_task(repeated()))
        await runner.setup()
        assert runner.server is not None  # from setup to cleanup
        # asyncio accepts as many connections in one turn before the excess ones are closed: with
        # its default of 100, a burst takes all descriptors, and then it accepts none for a second.
        server = await asyncio.get_running_loop().create_server(
            partial(_Connection, runner.server, connections), host, port, backlog=_BACKLOG
        )
        stack.callback(server.close)
        if not _is_loopback(host):
            _logger.warning("the live page is open to others, on %s", host)
        number = server.sockets[0].getsockname()[1]
        yield str(URL.build(scheme="http", host=host, port=number, path="/"))


def _check(host: object, port: object, **functions: object) -> None:
    if not isinstance(host, str) or not host:
        raise TypeError(f"host must be an address such as '127.0.0.1', got {host!r}")
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"port must be a number such as 8321, got {port!r}")
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 (any free port) to 65535, got {port!r}")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function or None, got {function!r}")


class _Page:
    """The page and its streams, for any number of browsers."""

    def __init__(self, feeds: list[Feed], facts: Facts | None, connections: "_Connections") -> None:
        self._feeds = feeds
        self._facts = facts
        # In the order in which they were opened.
        self._streams = dict[asyncio.Transport, None]()
        #: Set before the server ends: all streams end.
        self.ending = asyncio.Event()
        self.app = web.Application(middlewares=[connections.counted, _guarded])
        folder = files("aiothrottle.dashboard")
        for path, (name, kind) in _FILES.items():
            text = (folder / name).read_text(encoding="utf-8")
            self.app.router.add_get(path, _always(text, kind))
        # A HEAD request would open a stream that nobody reads.
        self.app.router.add_get("/events", self._stream, allow_head=False)

    async def sample(self) -> NoReturn:
        """Sample all rates twice a second, so that a page that is opened late shows the past."""
        while True:
            for feed in self._feeds:
                feed.sample()
            await asyncio.sleep(_TICK)

    async def ask_stores(self) -> NoReturn:
        """Ask the stores of shared limits, while a page is open."""
        while True:
            if self._streams:
                await asyncio.gather(*(feed.ask_store() for feed in self._feeds))
            await asyncio.sleep(_TICK)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send the present state every half second, until the page or the server ends."""
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        transport = request.transport
        if transport is None:  # closed already
            return response
        self._make_room()
        self._streams[transport] = None
        try:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)
            await response.prepare(request)
            await self._send_events(response, transport)
        except (ConnectionError, TimeoutError):
            # The page no longer reads; an orderly close would wait until it does.
            transport.abort()
        finally:
            self._streams.pop(transport, None)
        return response

    async def _send_events(
        self, response: web.StreamResponse, transport: asyncio.Transport
    ) -> None:
        """Write an event to the stream every half second, until the server ends.

        Raises:
            ConnectionError: The stream was closed.
            TimeoutError: The page does not read it.
        """
        history = [{"name": feed.name, "points": [*feed.history]} for feed in self._feeds]
        await _write(response, f"event: history\ndata: {json.dumps(history)}\n\n")
        taken_at = time.monotonic()
        while not self.ending.is_set():
            # No event is sent before the kernel has taken the last one: they would pile up.
            if not transport.get_write_buffer_size():
                await _write(response, f"data: {self._now()}\n\n")
                taken_at = time.monotonic()
            elif time.monotonic() - taken_at > _PATIENCE:
                raise TimeoutError
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self.ending.wait()
        # The final state; and the end, as otherwise the page would reconnect again and again.
        await _write(response, f"data: {self._now()}\n\nevent: end\ndata:\n\n")

    def _make_room(self) -> None:
        """Close a stream if there are too many: an unread one, or else the oldest.

        A browser opens the stream of its page again after some seconds.
        """
        if len(self._streams) < _MOST_STREAMS:
            return
        unread = (s for s in self._streams if s.is_closing() or s.get_write_buffer_size())
        stream = next(unread, None) or next(iter(self._streams))
        del self._streams[stream]
        stream.abort()

    def _now(self) -> str:
        facts = dict(self._facts()) if self._facts else {}
        limiters = [feed.snapshot() for feed in self._feeds]
        return json.dumps({"facts": facts, "limiters": limiters})


def _always(text: str, kind: str) -> _Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=_HEADERS)

    return answer


async def _cancel(task: asyncio.Task[NoReturn]) -> None:
    """End a task that repeats. An error that ended it before is raised."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _write(response: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(_PATIENCE):
        await response.write(text.encode())


@web.middleware
async def _guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Reject requests other than those of this page, or of a user who opens it."""
    origin = request.headers.get("Origin")
    fetched = request.headers.get("Sec-Fetch-Site", "none")
    followed = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"
    if (
        not _is_here(request.headers.get("Host", ""))
        or (origin is not None and origin != f"http://{request.headers['Host']}")
        or (fetched not in {"none", "same-origin"} and not followed)
    ):
        raise web.HTTPForbidden(text="this page is served to this machine only", headers=_HEADERS)
    return await handler(request)


def _is_here(host: str) -> bool:
    """Return whether a Host header is an address or localhost: no name that DNS can point here."""
    try:
        name = URL(f"http://{host}/").host or ""
    except (ValueError, IndexError, OverflowError):
        # yarl 1.25 raises them for "[::1]:8.@", Python for punycode: "xn--le99999999999999es".
        return False
    return name == "localhost" or address_of(name) is not None


def _is_loopback(host: str) -> bool:
    address = address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


# ---- connections ---------------------------------------------------------------------------------


class _Connections:
    """The connections of a server: closes those that are idle for long, and excess ones."""

    def __init__(self) -> None:
        # With the timer of an idle one; in the order in which they became idle or busy.
        self._timers = dict[asyncio.Transport, asyncio.TimerHandle | None]()

    def abort(self) -> None:
        """Close all connections; unsent data is lost."""
        for transport in [*self._timers]:
            transport.abort()

    def add(self, transport: asyncio.Transport) -> None:
        """Add a new connection, which has no request yet."""
        if len(self._timers) >= _MOST_CONNECTIONS:
            idle = (known for known, timer in self._timers.items() if timer)
            oldest = next(idle, None) or next(iter(self._timers))
            self.remove(oldest)  # now: connection_lost is called later
            oldest.abort()
        self._rest(transport)

    def remove(self, transport: asyncio.Transport) -> None:
        """Remove a closed connection."""
        if timer := self._timers.pop(transport, None):
            timer.cancel()

    @web.middleware
    async def counted(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Keep the connection from being idle until the request is answered."""
        transport = request.transport
        if transport is None:  # it was closed
            return await handler(request)
        self.remove(transport)
        self._timers[transport] = None
        try:
            return await handler(request)
        finally:
            if transport in self._timers:  # otherwise it was closed
                self.remove(transport)
                self._rest(transport)

    def _rest(self, transport: asyncio.Transport) -> None:
        self._timers[transport] = asyncio.get_running_loop().call_later(_IDLE, transport.abort)


class _Connection(web.RequestHandler):
    """The protocol of one connection."""

    def __init__(self, server: web.Server, connections: _Connections) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=cast("Any", None))
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.add(cast("asyncio.Transport", transport))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.transport is not None:
            self._connections.remove(self.transport)
        super().connection_lost(exc)
