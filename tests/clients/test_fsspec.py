"""The recipe of fsspec: reading keeps the limit, and a 429 pauses all of it."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from tests.clients.limits import assert_idle, assert_limit_is_kept, finish, limited, throttled
from tests.clients.recipes import run_recipe
from tests.integrations.clients import Clock
from tests.serving import serving

fsspec = pytest.importorskip("fsspec")


async def answer(request: web.Request) -> web.Response:
    return web.Response(body=f"body of {request.path}".encode())


async def recipe() -> tuple[dict[str, Any], Any]:
    """Return the names of the recipe, and its file system on the loop of the test."""
    names = await run_recipe("fsspec")
    files = fsspec.filesystem(
        "http", get_client=names["get_client"], asynchronous=True, skip_instance_cache=True
    )
    return names, files


async def test_reads_keep_the_limit(clock: Clock) -> None:
    names, files = await recipe()
    session = await files.set_session()
    async with limited(answer) as server:
        bodies = await assert_limit_is_kept(
            clock, names["limiter"], server, lambda: files._cat_file(f"{server.url}a")
        )
        await session.close()
    assert set(bodies) == {b"body of /a"}
    await assert_idle(names["limiter"])


async def test_throttled_read_pauses_the_limiter_and_is_retried(clock: Clock) -> None:
    names, files = await recipe()
    began = clock.time()
    session = await files.set_session()
    async with serving(throttled(30), answer) as (url, seen):
        bodies = await finish(clock, names["limiter"], files._cat_file(f"{url}a"))
        await session.close()
    assert bodies == [b"body of /a"]
    assert len(seen) == 2
    assert 30 <= clock.time() - began < 60
    await assert_idle(names["limiter"])


async def test_missing_file_releases_its_slot(clock: Clock) -> None:
    async def missing(_: web.Request) -> web.Response:
        return web.Response(status=404, text="no such file")

    names, files = await recipe()
    session = await files.set_session()
    async with serving(missing) as (url, _):
        with pytest.raises(FileNotFoundError):
            await finish(clock, names["limiter"], files._cat_file(f"{url}a"))
        await session.close()
    await assert_idle(names["limiter"])


async def test_file_system_of_a_thread_reads_files() -> None:
    names = await run_recipe("fsspec")
    files, limiter = names["files"], names["limiter"]
    async with serving(answer) as (url, seen):

        def read() -> list[bytes]:
            found: dict[str, bytes] = files.cat([f"{url}a", f"{url}b"])
            with files.open(f"{url}c", block_size=0) as file:
                streamed: bytes = file.read()
            return [*found.values(), streamed]

        bodies = await asyncio.to_thread(read)
        assert bodies == [b"body of /a", b"body of /b", b"body of /c"]
        granted = asyncio.run_coroutine_threadsafe(grants_of(limiter), files.loop)
        assert await asyncio.wrap_future(granted) == len(seen)
        session = asyncio.run_coroutine_threadsafe(files.set_session(), files.loop)
        closing = (await asyncio.wrap_future(session)).close()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, files.loop))


async def grants_of(limiter: RateLimiter) -> int:
    return limiter.statistics().granted
