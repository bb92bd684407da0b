"""An HTTP/1.1 server on bare sockets that misbehaves on purpose, each path in its own way.

Where a response comes in two parts, `go` is between them: a test that clears it has the headers,
and no more, until it is set.
"""

import asyncio
import base64
import gzip
import hashlib
import random
import re
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self, TypeAlias, cast

from multidict import CIMultiDict
from yarl import URL

__all__ = ["BOMB", "LARGE", "UNREAD", "Exchange", "MisbehavingServer"]

#: More than all buffers on the way hold, and less than aiohttp accepts without being read.
LARGE, UNREAD = 8 << 20, 200_000
#: Short only while it is packed.
BOMB = gzip.compress(bytes(24 << 20))

_REASONS = {100: "Continue", 101: "Switching Protocols", 200: "OK", 302: "Found", 429: "Too Many"}
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE_FRAME = b"\x88\x02\x03\xe8"


class Exchange(NamedTuple):
    """One request, as received, and the connection for its response."""

    connection: "_Connection"
    method: str
    url: URL
    headers: CIMultiDict[str]

    @property
    def server(self) -> "MisbehavingServer":
        return self.connection.server

    async def body(self) -> bytes:
        """Read the body of the request."""
        reader = self.connection.reader
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return await reader.readexactly(int(self.headers.get("Content-Length", 0)))
        chunks: list[bytes] = []
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(chunks)

    async def answer(self, status: int = 200, body: bytes = b"body", headers: str = "") -> None:
        """Send a response in one go."""
        head = self.head(status, f"Content-Length: {len(body)}\r\n{headers}")
        await self.connection.write(head if self.method == "HEAD" else head + body)

    async def answer_in_parts(self, size: int, status: int = 200, headers: str = "") -> None:
        """Send the headers of a response, and later its body."""
        await self.connection.write(self.head(status, f"Content-Length: {size}\r\n{headers}"))
        await self.server.go.wait()
        await self.connection.write(b"x" * size)

    async def begin(self, headers: str, body: bytes, version: str = "1.1") -> None:
        """Send the headers, and some of the body; wait in between."""
        await self.connection.write(self.head(200, headers, version))
        await self.server.go.wait()
        await self.connection.write(body)

    def head(self, status: int, headers: str = "", version: str = "1.1") -> bytes:
        reason = _REASONS.get(status, "Whatever")
        return f"HTTP/{version} {status} {reason}\r\n{headers}\r\n".encode("latin-1")

    async def stop_writing(self) -> None:
        """Close the half of the connection that the client reads, and read on."""
        self.connection.transport.write_eof()
        while await self.connection.reader.read(65536):
            pass

    def cut(self) -> None:
        self.connection.transport.abort()

    def reset(self) -> None:
        self.connection.reset()


Behaviour: TypeAlias = Callable[[Exchange], Awaitable[None]]


class MisbehavingServer:
    """Serves on a free port of 127.0.0.1 while the block runs.

    Attributes:
        go: Set unless a test clears it; everything after the headers waits for it.
        connections: How many were ever made; `connected` holds the open ones.
        hits: Requests per path.
        seen: Requests, in order.
        open: Exchanges that have begun and are not over; `peak` is the most there ever were. One is
            over when the system has taken the last byte, or the client has disconnected.
        retry_after: The header lines of the 429s of `/throttled` and `/moody`.
        throttled_times: How many requests `/throttled` answers with 429.
        chance: The randomness of `/moody`.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.connections = 0
        self.connected: set[_Connection] = set()
        self.hits: Counter[str] = Counter()
        self.seen: list[Exchange] = []
        self.open = self.peak = 0
        self.retry_after = "Retry-After: 0.05\r\n"
        self.throttled_times = 1 << 30
        self.chance = random.Random(1)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        self.url = URL(f"http://127.0.0.1:{port}")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        tasks = [connection.task for connection in self.connected]
        for connection in list(self.connected):
            connection.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self.connected:  # noqa: ASYNC110 - the transports have yet to be closed
            await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """Serves one request after the other, until the client disconnects."""

    transport: asyncio.Transport
    task: asyncio.Task[None]

    def __init__(self, server: MisbehavingServer) -> None:
        self.server = server
        self.reader = asyncio.StreamReader()
        self._writable = asyncio.Event()
        self._writable.set()
        self._exchanging = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)
        # So that written bytes are with the system, and an exchange is not over before that.
        transport.set_write_buffer_limits(high=0)
        self.reader.set_transport(transport)
        self.server.connections += 1
        self.server.connected.add(self)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self.reader.feed_data(data)

    def eof_received(self) -> None:
        self._end()
        self.task.cancel()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end()
        self.task.cancel()
        self.server.connected.discard(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, data: bytes) -> None:
        self.transport.write(data)
        await self._writable.wait()

    def reset(self) -> None:
        """Close so that the client gets "connection reset"."""
        plug: socket.socket = self.transport.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def _serve(self) -> None:
        while not self.transport.is_closing():
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            exchange = self._parse(head.decode("latin-1"))
            self._begin(exchange)
            await _BEHAVIOURS[exchange.url.path](exchange)
            self._end()

    def _parse(self, head: str) -> Exchange:
        method, target, _ = head.split(" ", 2)
        headers = CIMultiDict(re.findall(r"\r\n([^:\r\n]+): *([^\r\n]*)", head))
        return Exchange(self, method, self.server.url.join(URL(target)), headers)

    def _begin(self, exchange: Exchange) -> None:
        self._exchanging = True
        server = self.server
        server.hits[exchange.url.path] += 1
        server.seen.append(exchange)
        server.open += 1
        server.peak = max(server.peak, server.open)

    def _end(self) -> None:
        if self._exchanging:
            self._exchanging = False
            self.server.open -= 1


# ---- whole responses ---------------------------------------------------------------------------


async def whole(exchange: Exchange) -> None:
    """The body with the headers."""
    await exchange.body()
    await exchange.answer()


async def empty(exchange: Exchange) -> None:
    await exchange.answer(body=b"")


async def no_content(exchange: Exchange) -> None:
    await exchange.connection.write(exchange.head(204))


async def not_modified(exchange: Exchange) -> None:
    await exchange.connection.write(exchange.head(304, f"Content-Length: {LARGE}\r\n"))


async def later(exchange: Exchange) -> None:
    """The headers, and then a short body."""
    await exchange.answer_in_parts(4)


async def large(exchange: Exchange) -> None:
    await exchange.answer_in_parts(LARGE)


async def unread(exchange: Exchange) -> None:
    await exchange.answer_in_parts(UNREAD)


async def error(exchange: Exchange) -> None:
    await exchange.answer_in_parts(LARGE, 500)


async def chunked(exchange: Exchange) -> None:
    await exchange.begin("Transfer-Encoding: chunked\r\n", b"4\r\nbody\r\n" * 3 + b"0\r\n\r\n")


async def gzipped(exchange: Exchange) -> None:
    body = gzip.compress(b"body" * 1000)
    await exchange.begin(f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n", body)


async def deflated(exchange: Exchange) -> None:
    body = zlib.compress(b"body" * 1000)
    await exchange.begin(f"Content-Encoding: deflate\r\nContent-Length: {len(body)}\r\n", body)


async def until_eof(exchange: Exchange) -> None:
    """As in HTTP/1.0: the body ends where the connection does."""
    await exchange.begin("", b"body", "1.0")
    exchange.connection.transport.close()


# ---- broken responses --------------------------------------------------------------------------


async def bad_chunk(exchange: Exchange) -> None:
    await exchange.begin("Transfer-Encoding: chunked\r\n", b"4\r\nbody\r\nnonsense\r\nbody\r\n")
    await asyncio.Event().wait()


async def broken_gzip(exchange: Exchange) -> None:
    body = gzip.compress(b"body" * 1000)[:10] + b"nonsense" * 100
    await exchange.begin(f"Content-Encoding: gzip\r\nContent-Length: {LARGE}\r\n", body)
    await asyncio.Event().wait()


async def cut(exchange: Exchange) -> None:
    await exchange.begin(f"Content-Length: {LARGE}\r\n", b"x" * 100)
    exchange.cut()


async def reset(exchange: Exchange) -> None:
    await exchange.begin(f"Content-Length: {LARGE}\r\n", b"x" * 100)
    exchange.reset()


async def stall(exchange: Exchange) -> None:
    """The headers, some of the body, and nothing more."""
    await exchange.begin(f"Content-Length: {LARGE}\r\n", b"x" * 100)
    await asyncio.Event().wait()


async def stall_chunked(exchange: Exchange) -> None:
    await exchange.begin("Transfer-Encoding: chunked\r\n", b"4\r\nbody\r\n")
    await asyncio.Event().wait()


async def endless(exchange: Exchange) -> None:
    """As in HTTP/1.0, a body whose end is to come with that of the connection, and never does."""
    await exchange.begin("", b"x" * 100, "1.0")
    await asyncio.Event().wait()


async def _trickle(exchange: Exchange) -> None:
    """A byte at a time, always in time for a timeout of reading, and without end."""
    while True:
        await exchange.connection.write(b"x")
        await asyncio.sleep(0.002)


async def trickle(exchange: Exchange) -> None:
    await exchange.connection.write(exchange.head(200, f"Content-Length: {LARGE}\r\n"))
    await _trickle(exchange)


async def trickle_headers(exchange: Exchange) -> None:
    await exchange.connection.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    await _trickle(exchange)


async def throttled_and_trickling(exchange: Exchange) -> None:
    """The first time 429 and a short body that never comes to its end."""
    if exchange.server.hits[exchange.url.path] == 1:
        headers = "Content-Length: 60000\r\nRetry-After: 0.01\r\n"
        await exchange.connection.write(exchange.head(429, headers))
        await _trickle(exchange)
    await exchange.answer()


# ---- half-closed: nothing more comes, but the server reads on ----------------------------------


async def half_closed(exchange: Exchange) -> None:
    """After the whole response, of which the body comes later."""
    await exchange.answer_in_parts(4)
    await exchange.stop_writing()


async def half_closed_amid(exchange: Exchange) -> None:
    await exchange.begin(f"Content-Length: {LARGE}\r\n", b"x" * 100)
    await exchange.stop_writing()


async def half_closed_early(exchange: Exchange) -> None:
    """The first time before there is any response."""
    if exchange.server.hits[exchange.url.path] == 1:
        await exchange.stop_writing()
    await exchange.answer()


async def half_closed_amid_upload(exchange: Exchange) -> None:
    """Answered after a part of the upload; the rest is read as well, and ignored."""
    await exchange.connection.reader.readexactly(1000)
    await exchange.answer(413)
    await exchange.stop_writing()


async def silent(_: Exchange) -> None:
    """Never any headers."""
    await asyncio.Event().wait()


async def drop(exchange: Exchange) -> None:
    """The connection is closed before the headers."""
    exchange.cut()


async def reset_early(exchange: Exchange) -> None:
    exchange.reset()


async def babble(exchange: Exchange) -> None:
    await exchange.connection.write(b"no HTTP\r\n\r\n")
    exchange.connection.transport.close()


# ---- redirects and 429s ------------------------------------------------------------------------


async def redirect(exchange: Exchange) -> None:
    await exchange.answer(302, b"", "Location: /whole\r\n")


async def redirect_large(exchange: Exchange) -> None:
    await exchange.answer_in_parts(LARGE, 302, "Location: /later\r\n")


async def redirect_loop(exchange: Exchange) -> None:
    await exchange.answer_in_parts(LARGE, 302, "Location: /redirect-loop\r\n")


async def redirect_away(exchange: Exchange) -> None:
    """To the address in the query."""
    await exchange.answer(302, b"", f"Location: {exchange.url.query['to']}\r\n")


async def throttled(exchange: Exchange) -> None:
    """429 for the first `throttled_times` requests; then 200."""
    await exchange.body()
    server = exchange.server
    if server.hits[exchange.url.path] <= server.throttled_times:
        await exchange.answer(429, b"", server.retry_after)
    else:
        await exchange.answer()


async def moody(exchange: Exchange) -> None:
    """429 for three in ten, by chance."""
    server = exchange.server
    if server.chance.random() < 0.3:
        await exchange.answer(429, b"", server.retry_after)
    else:
        await exchange.answer()


async def throttled_with_a_bomb(exchange: Exchange) -> None:
    """The first time 429 with a body a thousand times longer when unpacked."""
    if exchange.server.hits[exchange.url.path] == 1:
        headers = f"Content-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n"
        await exchange.connection.write(exchange.head(429, headers + "Retry-After: 0.01\r\n"))
        await exchange.server.go.wait()
        await exchange.connection.write(BOMB)
    else:
        await exchange.answer()


async def throttled_and_stalled(exchange: Exchange) -> None:
    """The first time 429 and a short body that never comes."""
    if exchange.server.hits[exchange.url.path] == 1:
        headers = "Content-Length: 4\r\nRetry-After: 0.01\r\n"
        await exchange.connection.write(exchange.head(429, headers))
        await asyncio.Event().wait()
    else:
        await exchange.answer()


async def throttled_once(exchange: Exchange) -> None:
    """429 with a cookie and 300 kB; then 200."""
    await exchange.body()
    if exchange.server.hits[exchange.url.path] == 1:
        await exchange.answer_in_parts(300_000, 429, "Set-Cookie: a=b\r\nRetry-After: 0.05\r\n")
    else:
        await exchange.answer()


async def throttled_large(exchange: Exchange) -> None:
    """The same with 8 MB."""
    if exchange.server.hits[exchange.url.path] == 1:
        await exchange.answer_in_parts(LARGE, 429, "Retry-After: 0.01\r\n")
    else:
        await exchange.answer()


async def too_large(exchange: Exchange) -> None:
    """413 before the upload is read, which then never is."""
    await exchange.answer(413)
    await asyncio.Event().wait()


async def throttled_early(exchange: Exchange) -> None:
    """429 before the upload is read, and closed; the second time it is read."""
    if exchange.server.hits[exchange.url.path] == 1:
        await exchange.answer(429, headers="Retry-After: 0.01\r\nConnection: close\r\n")
        exchange.connection.transport.close()
    else:
        await exchange.answer(body=str(len(await exchange.body())).encode())


async def throttled_expectation(exchange: Exchange) -> None:
    """429 in place of 100 Continue; the second time 100 and 200."""
    if exchange.server.hits[exchange.url.path] == 1:
        await exchange.answer(429, headers="Retry-After: 0.01\r\n")
    else:
        await exchange.connection.write(exchange.head(100))
        await exchange.answer(body=await exchange.body())


async def digest(exchange: Exchange) -> None:
    """401 with 8 MB without authorization."""
    if "Authorization" in exchange.headers:
        await exchange.answer()
    else:
        challenge = 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth", algorithm=MD5\r\n'
        await exchange.answer_in_parts(LARGE, 401, challenge)


# ---- websockets --------------------------------------------------------------------------------


async def _shake_hands(exchange: Exchange) -> None:
    key = exchange.headers["Sec-WebSocket-Key"].encode()
    accept = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
    upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n"
    await exchange.connection.write(exchange.head(101, upgrade))
    await exchange.server.go.wait()


async def websocket(exchange: Exchange) -> None:
    """Opened, and closed as it should be."""
    await _shake_hands(exchange)
    await exchange.connection.write(_CLOSE_FRAME)
    await exchange.connection.reader.readexactly(len(_CLOSE_FRAME))
    exchange.connection.transport.close()


async def websocket_abort(exchange: Exchange) -> None:
    await _shake_hands(exchange)
    exchange.reset()


async def websocket_throttled_once(exchange: Exchange) -> None:
    if exchange.server.hits[exchange.url.path] == 1:
        await exchange.answer(429, b"", "Retry-After: 0.01\r\n")
    else:
        await websocket(exchange)


_ALL: list[Behaviour] = [
    *(trickle, trickle_headers, throttled_and_trickling),
    *(half_closed, half_closed_amid, half_closed_early, half_closed_amid_upload),
    *(whole, empty, no_content, not_modified, later, large, unread, error, chunked, gzipped),
    *(deflated, until_eof, bad_chunk, broken_gzip, cut, reset, stall, stall_chunked, endless),
    *(
        silent,
        drop,
        reset_early,
        babble,
        redirect,
        redirect_large,
        redirect_loop,
        redirect_away,
        throttled,
    ),
    *(
        moody,
        throttled_with_a_bomb,
        throttled_and_stalled,
        throttled_once,
        throttled_large,
        too_large,
        throttled_early,
        throttled_expectation,
        digest,
    ),
    *(websocket, websocket_abort, websocket_throttled_once),
]
_BEHAVIOURS = {"/" + each.__name__.replace("_", "-"): each for each in _ALL}
