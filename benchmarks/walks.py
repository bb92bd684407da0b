"""Counts what a request walks through: `uv run benchmarks/walks.py [--write]`.

Counts the files of the package that a request passes and the calls of functions in them, for the
walks that docs/project/code.md draws; `--write` puts the counts there. They are those of one Python
minor version and of one version of aiohttp. The store is a Valkey on loopback.
"""

import argparse
import asyncio
import importlib.metadata
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from measure import Rows, machine, markdown, put_into
from redis.asyncio import Redis
from server import valkey

import aiothrottle
from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.stores.redis import RedisStore

PACKAGE = str(Path(aiothrottle.__file__).parent)
PAGE = Path(__file__).parents[1] / "docs" / "project" / "code.md"

# The counts of each walk.
rows: Rows = [["a request", "files", "calls"]]


@contextmanager
def counted(walk: str) -> Generator[None]:
    """Count the files and the calls inside the block."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - of the event
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
    rows.append([walk, str(len(set(calls))), str(len(calls))])


async def enter(limiter: RateLimiter) -> None:
    """Enter a block, and leave it."""
    async with limiter.throttle():
        pass


async def entries() -> None:
    """Count entries that do not wait."""
    limiter = RateLimiter("1000/s", concurrency_limit=10)
    with counted("the first entry of a limiter"):
        await enter(limiter)
    await enter(limiter)
    with counted("on credit"):
        await enter(limiter)


async def wait() -> None:
    """Count a wait for a slot, with the release for which it waits."""
    limiter = RateLimiter("10/s", concurrency_limit=1)
    await enter(limiter)
    permit = await limiter.acquire()
    asyncio.get_running_loop().call_later(0.05, permit.release)
    with counted("a wait for a slot"):
        await enter(limiter)
        await asyncio.sleep(0.02)  # the consumer ends


async def session() -> None:
    """Count a request that is throttled once, and one that follows a while later."""
    sent = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal sent
        sent += 1
        if sent == 2:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", answer)
    async with (
        TestServer(app) as server,
        ThrottledSession(RateLimiter(100, concurrency_limit=10)) as client,
    ):

        async def get() -> None:
            async with client.get(server.make_url("/")) as response:
                await response.read()

        await get()
        with counted("429 with Retry-After, then 200"):
            await get()
        for _ in range(30):
            await get()
            await asyncio.sleep(0.03)
        with counted("a GET of that session, 30 requests later"):
            await get()


async def store() -> None:
    """Count an entry with a store."""
    with valkey() as port:
        async with (
            Redis(port=port) as client,
            RateLimiter(
                "1000/s", concurrency_limit=10, store=RedisStore(client), key="walk"
            ) as limiter,
        ):
            for _ in range(2):  # connects first, which takes longer
                await enter(limiter)
                await asyncio.sleep(0.1)
            with counted("an entry with a RedisStore"):
                await enter(limiter)
                await asyncio.sleep(0.1)  # the caller ends


def main() -> None:
    """Count all walks, and print or write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the counts into {PAGE.name}")
    options = parser.parse_args()
    for walk in (entries, wait, session, store):
        asyncio.run(walk())
    aiohttp = importlib.metadata.version("aiohttp")
    text = (
        f"*Counted by `python benchmarks/walks.py --write`: {machine()}, aiohttp {aiohttp}.*\n\n"
        f"{markdown(rows)}"
    )
    print(text)
    if options.write:
        put_into(PAGE, "walks.py", text)


if __name__ == "__main__":
    main()
