"""Slots that real processes share through a real Valkey; one process is killed."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.stores.redis import RedisStore
from tests.background import ENVIRONMENT
from tests.servers import Valkey

LIMIT = 5

# Each prints how many are inside, by a counter in the server, beside the limiter.
WORKER = """
import asyncio, sys
from redis.asyncio import Redis
from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.stores.redis import RedisStore

async def main(port, limit, lease, seconds, count):
    slots = SharedConcurrency(limit, lease)
    async with Redis(port=port) as client, RateLimiter(
        concurrency_limit=slots, store=RedisStore(client, timeout=10), key="x"
    ) as limiter:
        async def work():
            async with limiter.throttle():
                print("inside", await client.incr("inside"), flush=True)
                await asyncio.sleep(seconds)
                await client.decr("inside")

        await asyncio.gather(*(work() for _ in range(count)))

port, limit, count = map(int, sys.argv[1:4])
asyncio.run(main(port, limit, float(sys.argv[4]), float(sys.argv[5]), count))
"""


async def start(valkey: Valkey, count: int, *, lease: float, seconds: float) -> Process:
    numbers = (valkey.port, LIMIT, count, lease, seconds)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, *map(str, numbers)), stdout=PIPE, env=ENVIRONMENT
    )


@pytest.fixture
async def limiter(valkey: Valkey) -> AsyncIterator[RateLimiter]:
    async with valkey.connect() as client:
        store = RedisStore(client, timeout=10)
        async with RateLimiter(
            concurrency_limit=SharedConcurrency(LIMIT, lease=0.5), store=store, key="x"
        ) as limiter:
            yield limiter


async def test_four_processes_keep_the_limit_together(valkey: Valkey) -> None:
    """No process has died here, and the lease is longer than any delay of a busy machine."""
    workers = [await start(valkey, 50, lease=60, seconds=0.01) for _ in range(4)]
    outputs = [(await worker.communicate())[0].decode() for worker in workers]
    counts = [int(line.split()[1]) for output in outputs for line in output.splitlines()]
    assert len(counts) == 200
    assert max(counts) <= LIMIT
    assert valkey.command("KEYS", "*:queue") == []
    leases = valkey.command("KEYS", "*:slots")
    assert all(valkey.command("HGET", key, ".taken") == b"0" for key in leases)


async def test_slots_of_killed_process_expire_with_lease(
    valkey: Valkey, limiter: RateLimiter
) -> None:
    worker = await start(valkey, 2 * LIMIT, lease=0.5, seconds=1000)
    assert worker.stdout is not None
    for _ in range(LIMIT):
        assert (await worker.stdout.readline()).startswith(b"inside")
    worker.kill()
    await worker.wait()
    permits = [await limiter.acquire() for _ in range(LIMIT)]  # bounded by the timeout of the test
    for permit in permits:
        permit.release()


async def test_server_restarted_empty_learns_the_held_slots(
    valkey: Valkey, limiter: RateLimiter
) -> None:
    permits = [await limiter.acquire() for _ in range(LIMIT)]
    valkey.restart()
    while True:
        if valkey.command("ZCARD", "{aiothrottle:x}:leases"):
            break
        await asyncio.sleep(0.05)
    assert not await limiter.try_acquire()
    permits.pop().release()
    permits.append(await limiter.acquire())
    for permit in permits:
        permit.release()
