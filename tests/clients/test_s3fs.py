"""The recipe of s3fs: reading and writing keep the limit, with the retries of s3fs."""

import asyncio
from typing import Any

import pytest

from tests.clients.limits import assert_idle, assert_limit_is_kept, finish, limited
from tests.clients.recipes import run_recipe
from tests.clients.s3 import CREDENTIALS, s3, slow_down
from tests.integrations.clients import Clock
from tests.serving import serving

s3fs = pytest.importorskip("s3fs")


async def recipe(url: object, **options: Any) -> tuple[dict[str, Any], Any]:
    names = await run_recipe("s3fs")
    files = s3fs.S3FileSystem(
        session=names["session"],
        endpoint_url=str(url),
        key=CREDENTIALS["aws_access_key_id"],
        secret=CREDENTIALS["aws_secret_access_key"],
        client_kwargs={"region_name": CREDENTIALS["region_name"]},
        skip_instance_cache=True,
        **options,
    )
    return names, files


async def test_reads_keep_the_limit(clock: Clock) -> None:
    async with limited(s3) as server:
        names, files = await recipe(server.url, asynchronous=True)
        session = await files.set_session()
        bodies = await assert_limit_is_kept(
            clock, names["limiter"], server, lambda: files._cat_file("bucket/key", start=0, end=99)
        )
        await session.close()
    assert set(bodies) == {b"object /bucket/key"}
    await assert_idle(names["limiter"])


async def test_retries_of_s3fs_take_tokens(clock: Clock) -> None:
    # aiobotocore gives up after five attempts, and s3fs begins anew.
    async with serving(slow_down(7)) as (url, seen):
        names, files = await recipe(url, asynchronous=True)
        session = await files.set_session()
        bodies = await finish(
            clock, names["limiter"], files._cat_file("bucket/key", start=0, end=99)
        )
        await session.close()
    assert bodies == [b"object /bucket/key"]
    assert names["limiter"].statistics().granted == len(seen) == 8
    await assert_idle(names["limiter"])


async def test_file_system_of_a_thread_reads_and_writes() -> None:
    async with serving(s3) as (url, seen):
        names, files = await recipe(url)

        def use() -> bytes:
            files.pipe("bucket/new", b"text")
            found: bytes = files.cat("bucket/key")
            return found

        assert await asyncio.to_thread(use) == b"object /bucket/key"

        async def end() -> int:
            await (await files.set_session()).close()
            granted: int = names["limiter"].statistics().granted
            return granted

        granted = asyncio.run_coroutine_threadsafe(end(), files.loop)
        assert await asyncio.wrap_future(granted) == len(seen)
