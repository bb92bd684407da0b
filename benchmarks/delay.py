"""A TCP proxy on loopback that delays: a store that is far away, for the benchmarks of stores.

Each direction is late by half of the round trip, and the throughput is not limited: every chunk of
bytes is passed on that long after it was read, however many are under way. What the server sends
may be later still, each chunk by another delay.
"""

import asyncio
import multiprocessing
import random
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["delayed"]

_CHUNK = 1 << 16


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: float, late: float
) -> None:
    """Pass on what is read, each chunk `way` seconds later, and up to `late` in addition."""
    loop = asyncio.get_running_loop()
    at = 0.0  # when the last chunk is passed on: none overtakes another
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            at = max(at, loop.time() + way + random.uniform(0.0, late))
            loop.call_at(at, writer.write, chunk)
    loop.call_later(2 * (way + late), writer.close)


async def _serve(port: int, round_trip: float, late: float, pipe: "Connection[Any, Any]") -> None:
    copies: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for source, target, more in ((reader, far_writer, 0.0), (far_reader, writer, late)):
            copy = asyncio.create_task(_copy(source, target, round_trip / 2, more))
            copies.add(copy)
            copy.add_done_callback(copies.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def _run(port: int, round_trip: float, late: float, pipe: "Connection[Any, Any]") -> None:
    asyncio.run(_serve(port, round_trip, late, pipe))


@contextmanager
def delayed(port: int, round_trip: float, *, late: float = 0.0) -> Generator[int]:
    """Run the proxy before a port of loopback in a process of its own, and yield its port.

    Args:
        port: The port of the server.
        round_trip: Seconds that both directions together take.
        late: Seconds by which the server's chunks are later, at the most.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(port, round_trip, late, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
