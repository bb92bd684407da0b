"""A connector of aiohttp that answers in this process, for counts that repeat."""

import asyncio
from typing import TYPE_CHECKING

from aiohttp import BaseConnector
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.tracing import Trace

__all__ = ["OK", "THROTTLED", "AnsweringConnector"]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
THROTTLED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that answers each request without a body, `delay` seconds later."""

    def __init__(
        self, protocol: ResponseHandler, answer: "Callable[[], bytes]", delay: float
    ) -> None:
        super().__init__()
        self.protocol, self.answer, self.delay = protocol, answer, delay
        self.loop = asyncio.get_running_loop()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Answer: a small request comes in one piece."""
        del data
        self.loop.call_later(self.delay, self.protocol.data_received, self.answer())

    def writelines(self, list_of_data: "Iterable[bytes | bytearray | memoryview]") -> None:
        """Answer once: the pieces are one request."""
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.closed

    def close(self) -> None:
        """Close the connection at the end of the session."""
        self.closed = True
        self.protocol.connection_lost(None)

    abort = close

    def pause_reading(self) -> None:
        """Do nothing: all was read."""

    def resume_reading(self) -> None:
        """Do nothing: all was read."""


class AnsweringConnector(BaseConnector):
    """Connects to a server in this process, whose answers are `next` of the list, then `OK`.

    Args:
        delay: Seconds that each answer takes, by the clock of the loop.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay
        #: The answers to the next requests.
        self.next: list[bytes] = []

    def answer(self) -> bytes:
        """Return the answer to the next request."""
        return self.next.pop(0) if self.next else OK

    async def _create_connection(
        self,
        req: "ClientRequest",
        traces: "list[Trace]",
        timeout: "ClientTimeout",
    ) -> ResponseHandler:
        del req, traces, timeout
        protocol = ResponseHandler(asyncio.get_running_loop())
        protocol.connection_made(Wire(protocol, self.answer, self.delay))
        return protocol
