"""A server on the loopback that fails by chance, in a process of its own: for `endurance.py`.

    python benchmarks/faulty_server.py 8     prints its port, and at the end its counts

It ignores the contents of requests, and answers on bare sockets, so that most of the
machine is for the client.
"""

import argparse
import asyncio
import json
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self

__all__ = ["FaultyServer"]

# The fates of requests, with their weights.
FATES = {
    "answered": 880,
    "answered and closed": 40,
    "throttled (429)": 15,
    "unavailable (503)": 5,
    "error (500)": 10,
    "reset at once": 10,
    "cut in the body": 10,
    "late": 20,
    "never": 10,
}
LATE = 0.2  # seconds
BODY = b"x" * 1000


def head(status: str, length: int, more: str = "") -> bytes:
    """Return the headers of a response."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n".encode()


class Connection(asyncio.Protocol):
    """One client. Its requests have no body and come one after the other."""

    def __init__(self, lots: random.Random, seen: Counter[str]) -> None:
        self.lots, self.seen = lots, seen
        self.transport: asyncio.Transport
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.seen["connections"] += 1

    def data_received(self, data: bytes) -> None:
        """Answer when the headers are whole."""
        self.received += data
        if self.received.endswith(b"\r\n\r\n"):
            self.received = b""
            self.answer(*self.lots.choices(list(FATES), list(FATES.values())))

    def answer(self, fate: str) -> None:
        """Answer the request by its fate."""
        self.seen[fate] += 1
        match fate:
            case "answered":
                self.transport.write(head("200 OK", len(BODY)) + BODY)
            case "answered and closed":
                self.transport.write(head("200 OK", len(BODY), "Connection: close\r\n") + BODY)
                self.transport.close()
            case "throttled (429)":
                self.transport.write(head("429 Too Many Requests", 0, "Retry-After: 1\r\n"))
            case "unavailable (503)":
                self.transport.write(head("503 Unavailable", 0, "Retry-After: 1\r\n"))
            case "error (500)":
                self.transport.write(head("500 Oh", 0))
            case "reset at once":
                raw: socket.socket = self.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
            case "cut in the body":
                self.transport.write(head("200 OK", len(BODY)) + BODY[:100])
                self.transport.close()
            case "late":
                self.transport.write(head("200 OK", len(BODY)))
                asyncio.get_running_loop().call_later(LATE, self.transport.write, BODY)
            case _:
                pass  # until the client disconnects


async def serve(seed: int) -> None:
    """Serve until the input ends."""
    loop, lots, seen = asyncio.get_running_loop(), random.Random(seed), Counter[str]()
    server = await loop.create_server(lambda: Connection(lots, seen), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(seen), flush=True)


class FaultyServer:
    """The server, as its client sees it.

    Attributes:
        port: The port on which it listens.
        seen: The server's counts, after its end.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.port: int = int(process.stdout.readline())
        self.seen: Counter[str] = Counter()

    @classmethod
    @asynccontextmanager
    async def running(cls, seed: int) -> AsyncGenerator[Self]:
        """Start the server, and end it after the block."""
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - before and after all that is measured
            [sys.executable, __file__, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            server = cls(process)
            yield server
            server.seen.update(json.loads(process.communicate()[0]))
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    asyncio.run(serve(parser.parse_args().seed))
