"""An HTTP/1.1 server on bare sockets that misbehaves on purpose, each path in its own way.

Where a response comes in two parts, `go` is between them: a test that clears it has the headers,
and no more, until it is set.
"""

import asyncio
import base64
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self, TypeAlias, cast

from multidict import CIMultiDict
from yarl import URL

from tests.support.servers import reset

#: More than all buffers on the way hold.
LARGE = 8 << 20
#: Short only while it is packed.
BOMB = gzip.compress(bytes(24 << 20))

_REASONS = {100: "Continue", 101: "Switching Protocols", 200: "OK", 302: "Found", 429: "Too Many"}
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE_FRAME = b"\x88\x02\x03\xe8"
_CHUNKED, _LONG = "Transfer-Encoding: chunked\r\n", f"Content-Length: {LARGE}\r\n"
_AGAIN = "Retry-After: 0.01\r\n"


class MisbehavingServer:
    """Serves on a free port of 127.0.0.1 while the block runs.

    Attributes:
        go: Set unless a test clears it; everything after the headers waits for it.
        connections: How many were ever made; `connected` holds the open ones.
        hits: Requests per path.
        seen: Requests, in order.
        open: Exchanges that have begun and are not over; `peak` is the most there ever were. One is
            over when the system has taken the last byte, or the client has disconnected.
        retry_after: The header lines of the 429s of `/throttled`.
        throttled_times: How many requests `/throttled` answers with 429.
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

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> None:
        self._end()
        self.task.cancel()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.eof_received()
        self.server.connected.discard(self)

    async def write(self, data: bytes) -> None:
        self.transport.write(data)
        await self._writable.wait()

    async def _serve(self) -> None:
        server = self.server
        while not self.transport.is_closing():
            try:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except asyncio.IncompleteReadError:
                return
            method, target, _ = head.split(" ", 2)
            headers = CIMultiDict(re.findall(r"\r\n([^:\r\n]+): *([^\r\n]*)", head))
            path = URL(target).path
            server.hits[path] += 1
            exchange = Exchange(self, method, headers, is_first=server.hits[path] == 1)
            server.seen.append(exchange)
            self._exchanging = True
            server.open += 1
            server.peak = max(server.peak, server.open)
            await _BEHAVIOURS[path](exchange)
            self._end()

    def _end(self) -> None:
        if self._exchanging:
            self._exchanging = False
            self.server.open -= 1


class Exchange(NamedTuple):
    connection: _Connection
    method: str
    headers: CIMultiDict[str]
    is_first: bool  # of those to this path

    @property
    def server(self) -> MisbehavingServer:
        return self.connection.server

    @property
    def transport(self) -> asyncio.Transport:
        return self.connection.transport

    async def body(self) -> bytes:
        reader = self.connection.reader
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return await reader.readexactly(int(self.headers.get("Content-Length", 0)))
        chunks: list[bytes] = []
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(chunks)

    async def write(self, data: bytes) -> None:
        await self.connection.write(data)

    async def head(
        self, status: int, headers: str = "", version: str = "1.1", body: bytes = b""
    ) -> None:
        """Send headers, and a body in one go with them."""
        head = f"HTTP/{version} {status} {_REASONS.get(status, 'Whatever')}\r\n{headers}\r\n"
        await self.write(head.encode("latin-1") + body)

    async def answer(self, status: int = 200, body: bytes = b"body", headers: str = "") -> None:
        headers = f"Content-Length: {len(body)}\r\n{headers}"
        await self.head(status, headers, body=b"" if self.method == "HEAD" else body)

    async def in_parts(self, size: int, status: int = 200, headers: str = "") -> None:
        headers = f"Content-Length: {size}\r\n{headers}"
        await self.begin(headers, b"x" * size, status=status)

    async def begin(
        self, headers: str, body: bytes, version: str = "1.1", *, status: int = 200
    ) -> None:
        """Send the headers, and some of the body; wait in between."""
        await self.head(status, headers, version)
        await self.server.go.wait()
        await self.write(body)

    async def trickle(self) -> None:
        """Send a byte at a time, always in time for a timeout of reading, and without end."""
        while True:
            await self.write(b"x")
            await asyncio.sleep(0.002)

    async def stop_writing(self) -> None:
        """Close the half of the connection that the client reads, and read on."""
        self.transport.write_eof()
        while await self.connection.reader.read(65536):
            pass


Behaviour: TypeAlias = Callable[[Exchange], Awaitable[object]]


async def _whole(it: Exchange) -> None:
    await it.body()
    await it.answer()


async def _drop(it: Exchange) -> None:
    it.transport.abort()


async def _reset(it: Exchange) -> None:
    reset(it.transport)


async def _close(it: Exchange) -> None:
    it.transport.close()


async def _silent(_: Exchange) -> None:
    await asyncio.Event().wait()


async def _throttled(it: Exchange) -> None:
    await it.body()
    if it.server.hits["/throttled"] <= it.server.throttled_times:
        await it.answer(429, b"", it.server.retry_after)
    else:
        await it.answer()


async def _digest(it: Exchange) -> None:
    if "Authorization" in it.headers:
        await it.answer()
    else:
        challenge = 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth", algorithm=MD5\r\n'
        await it.in_parts(LARGE, 401, challenge)


async def _read_upload(it: Exchange) -> None:
    await it.answer(body=str(len(await it.body())).encode())


async def _continue(it: Exchange) -> None:
    await it.head(100)
    await it.answer(body=await it.body())


async def _shake_hands(it: Exchange) -> None:
    key = it.headers["Sec-WebSocket-Key"].encode()
    accept = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
    await it.head(
        101, f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n"
    )
    await it.server.go.wait()


async def _close_websocket(it: Exchange) -> None:
    await it.write(_CLOSE_FRAME)
    await it.connection.reader.readexactly(len(_CLOSE_FRAME))
    it.transport.close()


def _steps(*steps: Behaviour) -> Behaviour:
    async def behave(it: Exchange) -> None:
        for step in steps:
            await step(it)

    return behave


def _first(*steps: Behaviour, then: Behaviour = _whole) -> Behaviour:
    """These for the first request, and something else for the others."""
    first = _steps(*steps)
    return lambda it: first(it) if it.is_first else then(it)


def _some(headers: str, body: bytes = b"x" * 100, version: str = "1.1") -> Behaviour:
    return lambda it: it.begin(headers, body, version)


_GZIPPED = gzip.compress(b"body" * 1000)
_WEBSOCKET = _steps(_shake_hands, _close_websocket)
_BEHAVIOURS: dict[str, Behaviour] = {
    # Whole responses; of those in parts the body comes after `go`.
    "/whole": _whole,
    "/no-content": lambda it: it.head(204),
    "/later": lambda it: it.in_parts(4),
    "/forbidden-later": lambda it: it.in_parts(4, 403),
    "/large": lambda it: it.in_parts(LARGE),
    "/error": lambda it: it.in_parts(LARGE, 500),
    "/chunked": _some(_CHUNKED, b"4\r\nbody\r\n" * 3 + b"0\r\n\r\n"),
    "/until-eof": _steps(_some("", b"body", "1.0"), _close),  # as in HTTP/1.0
    "/redirect-large": lambda it: it.in_parts(LARGE, 302, "Location: /later\r\n"),
    "/redirect-loop": lambda it: it.in_parts(LARGE, 302, "Location: /redirect-loop\r\n"),
    "/digest": _digest,
    # Broken ones. The body of an endless one is to end with the connection, as in HTTP/1.0.
    "/silent": _silent,
    "/drop": _drop,
    "/reset-early": _reset,
    "/cut": _steps(_some(_LONG), _drop),
    "/reset": _steps(_some(_LONG), _reset),
    "/stall": _steps(_some(_LONG), _silent),
    "/stall-chunked": _steps(_some(_CHUNKED, b"4\r\nbody\r\n"), _silent),
    "/broken-gzip": _steps(
        _some(f"Content-Encoding: gzip\r\n{_LONG}", _GZIPPED[:10] + b"nonsense" * 100), _silent
    ),
    "/endless": _steps(_some("", version="1.0"), _silent),
    "/trickle-headers": _steps(
        lambda it: it.write(b"HTTP/1.1 200 OK\r\nX-Long: "), Exchange.trickle
    ),
    # Half-closed: nothing more comes, but the server reads on.
    "/half-closed": _steps(lambda it: it.in_parts(4), Exchange.stop_writing),
    "/half-closed-amid": _steps(_some(_LONG), Exchange.stop_writing),
    "/half-closed-early": _first(Exchange.stop_writing),
    "/half-closed-amid-upload": _steps(
        lambda it: it.connection.reader.readexactly(1000),
        lambda it: it.answer(413),
        Exchange.stop_writing,
    ),
    "/too-large": _steps(lambda it: it.answer(413), _silent),  # the upload is never read
    # 429, most of them the first time only.
    "/throttled": _throttled,
    "/throttled-once": _first(
        Exchange.body,
        lambda it: it.in_parts(300_000, 429, "Set-Cookie: a=b\r\nRetry-After: 0.05\r\n"),
    ),
    "/throttled-large": _first(lambda it: it.in_parts(LARGE, 429, _AGAIN)),
    "/throttled-and-stalled": _first(
        lambda it: it.head(429, f"Content-Length: 4\r\n{_AGAIN}"), _silent
    ),
    "/throttled-and-trickling": _first(
        lambda it: it.head(429, f"Content-Length: 60000\r\n{_AGAIN}"), Exchange.trickle
    ),
    "/throttled-with-a-bomb": _first(
        lambda it: it.begin(
            f"Content-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n{_AGAIN}", BOMB, status=429
        )
    ),
    # Before the upload is read, and closed; the second time it is read.
    "/throttled-early": _first(
        lambda it: it.answer(429, headers=f"{_AGAIN}Connection: close\r\n"),
        _close,
        then=_read_upload,
    ),
    # In place of 100 Continue; the second time 100 and 200.
    "/throttled-expectation": _first(lambda it: it.answer(429, headers=_AGAIN), then=_continue),
    "443": lambda it: it.answer(429, b"", _AGAIN),  # CONNECT host:443, to a proxy
    "/websocket": _WEBSOCKET,
    "/websocket-idle": _steps(_shake_hands, _silent),
    "/websocket-abort": _steps(_shake_hands, _reset),
    "/websocket-throttled-once": _first(lambda it: it.answer(429, b"", _AGAIN), then=_WEBSOCKET),
}
