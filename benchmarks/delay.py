"""A TCP proxy on loopback that delays: a store that is far away, for the benchmarks of stores.

Each direction is late by half of the round trip, and the throughput is not limited: every chunk of
bytes is passed on that long after it was read, however many are under way.
"""

import asyncio
import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["delayed"]

_CHUNK = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: float) -> None:
    """Pass on what is read, each chunk `way` seconds later."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            loop.call_later(way, writer.write, chunk)
    loop.call_later(2 * way, writer.close)


async def _serve(port: int, round_trip: float, pipe: "Connection[Any, Any]") -> None:
    copies: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            copy = asyncio.create_task(_copy(source, target, round_trip / 2))
            copies.add(copy)
            copy.add_done_callback(copies.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def _run(port: int, round_trip: float, pipe: "Connection[Any, Any]") -> None:
    asyncio.run(_serve(port, round_trip, pipe))


@contextmanager
def delayed(port: int, round_trip: float) -> Generator[int]:
    """Run the proxy before a port of loopback in a process of its own, and yield its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(port, round_trip, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
