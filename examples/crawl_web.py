"""Fetch addresses of many hosts, and be polite to each: no host notices the others.

    python examples/crawl_web.py addresses.txt --per-host 2 --total 50 > answers.jsonl

Each host gets 2 requests per second and 2 at once, all hosts together 50 per second and 20 at
once. With no file of addresses it fetches from three servers that it runs itself, one of which is
slow; the other two do not wait for it. Each line is:

    {"url": ..., "status": ..., "bytes": ..., "seconds": ...}

`seconds` is the time from the start to the complete response. An address that cannot be fetched has
the status null. The file is read as its addresses are fetched, by a hundred tasks, whatever its
length.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer

TASKS = 100


class Crawler:
    """Fetches URLs, and writes a line for each."""

    def __init__(self, session: ThrottledSession, addresses: Iterable[str]) -> None:
        self.session = session
        self.addresses = iter(addresses)
        self.started_at = time.monotonic()

    async def run(self) -> None:
        """Fetch all, with many tasks, each of which takes the next address."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(self.fetch_one_after_the_other())

    async def fetch_one_after_the_other(self) -> None:
        """Fetch the next address, until there are none."""
        for address in self.addresses:
            if address.strip():
                await self.fetch(address.strip())

    async def fetch(self, address: str) -> None:
        """Fetch one address. The session waits for the host's limit, and for the limit of all."""
        status, size = None, 0
        try:
            async with self.session.get(address) as response:
                status, size = response.status, len(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            print(f"{address}: {error}", file=sys.stderr)
        seconds = round(time.monotonic() - self.started_at, 3)
        line = {"url": address, "status": status, "bytes": size, "seconds": seconds}
        print(json.dumps(line), flush=True)


def limits(per_host: float, total: float) -> KeyedRateLimiter:
    """Return a limiter with one for each host, below one for all."""
    everything = RateLimiter(total, concurrency_limit=20)
    return KeyedRateLimiter(per_host, concurrency_limit=2, parent=everything)


@contextlib.asynccontextmanager
async def own_hosts(per_host: float) -> AsyncGenerator[list[URL]]:
    """Serve three hosts that throttle requests above their limits, the first of them slowly."""

    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response(text="slowly")

    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                RateLimitedServer(per_host, concurrency_limit=2, handler=handler)
            )
            for handler in (slow, None, None)
        ]
        yield [server.url for server in servers]
        sent = sum(server.audit.sent for server in servers)
        throttled = sum(server.audit.throttled for server in servers)
        print(f"{sent} requests, {throttled} throttled", file=sys.stderr)


async def crawl(addresses: Iterable[str], options: argparse.Namespace) -> None:
    """Fetch all addresses."""
    async with ThrottledSession(limits(options.per_host, options.total)) as session:
        await Crawler(session, addresses).run()


async def crawl_own_hosts(options: argparse.Namespace) -> None:
    """Fetch some pages of each of our own hosts, mixed."""
    async with own_hosts(options.per_host) as hosts:
        pages = range(int(3 * options.per_host))
        await crawl([str(host / str(page)) for page in pages for host in hosts], options)


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fetch addresses, and be polite to each host.")
    parser.add_argument("addresses", nargs="?", type=Path, help="a file of one address a line")
    parser.add_argument("--per-host", type=float, default=2, help="requests per second (2)")
    parser.add_argument("--total", type=float, default=50, help="of all hosts together (50)")
    options = parser.parse_args()
    try:
        limits(options.per_host, options.total)
        if options.addresses is not None:
            options.addresses.open(encoding="utf-8").close()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return options


def main() -> None:
    """Fetch the URLs of the file, or the pages of the local hosts."""
    options = read_options()
    if options.addresses is None:
        asyncio.run(crawl_own_hosts(options))
    else:
        with options.addresses.open(encoding="utf-8") as addresses:
            asyncio.run(crawl(addresses, options))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
