"""Real processes that share tokens and slots through a real Valkey; some are killed."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

from aiothrottle import LeakyBucket, RateLimiter, SharedConcurrency
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import greatest_count
from tests.support.background import ENVIRONMENT
from tests.support.servers import Valkey

LIMIT, MAX_RESERVATION = 5, 5.0

BEGIN = """
import asyncio, sys
from redis.asyncio import Redis
from aiothrottle import LeakyBucket, RateLimiter, SharedConcurrency
from aiothrottle.stores.redis import RedisStore
"""

# Uses as many tokens as it gets, and prints the instants of the store for which it got them.
TOKENS = """
class Noting(RedisStore):
    instants = []

    async def reserve(self, key, algorithm, costs, *, horizon=0.0):
        answer = await super().reserve(key, algorithm, costs, horizon=horizon)
        self.instants += answer.instants
        return answer

    async def refund(self, key, algorithm, cost, instant):
        await super().refund(key, algorithm, cost, instant)
        for _ in range(round(cost)):
            self.instants.remove(instant)

    async def record(self, key, algorithm, cost=1.0):
        print("granted without a reservation:", cost)
        return await super().record(key, algorithm, cost)

async def main(port):
    async with Redis(port=int(port)) as client:
        store = Noting(client, "workers", timeout=5)
        async with RateLimiter("100/200ms", store=store, key="k") as limiter:
            await limiter.peek()
            print("ready", flush=True)
            sys.stdin.readline()

            async def work():
                while True:
                    async with limiter.throttle():
                        pass

            workers = [asyncio.create_task(work()) for _ in range(100)]
            await asyncio.sleep(1.2)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        print(*map(repr, store.instants))
"""

# Reserves a token for each second, for many waiters.
RESERVING = """
async def main(port, max_reservation):
    async with Redis(port=int(port)) as client:
        limiter = RateLimiter(
            "60/min", algorithm=LeakyBucket, store=RedisStore(client, timeout=10), key="k",
            max_reservation=float(max_reservation),
        )
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(100)]
        await waiting[0]
        print("granted", flush=True)
        await asyncio.gather(*waiting)
"""

# Each prints how many are inside, by a counter in the server, beside the limiter.
SLOTS = """
async def main(port, limit, count, lease, seconds):
    slots = SharedConcurrency(int(limit), float(lease))
    async with Redis(port=int(port)) as client, RateLimiter(
        concurrency_limit=slots, store=RedisStore(client, timeout=10), key="x"
    ) as limiter:
        async def work():
            async with limiter.throttle():
                print("inside", await client.incr("inside"), flush=True)
                await asyncio.sleep(float(seconds))
                await client.decr("inside")

        await asyncio.gather(*(work() for _ in range(int(count))))
"""


async def start(worker: str, valkey: Valkey, *arguments: float) -> Process:
    """Run the `main` of a worker, with the port of the server and more arguments."""
    program = f"{BEGIN}{worker}\nasyncio.run(main(*sys.argv[1:]))"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *map(str, (valkey.port, *arguments))),
        env=ENVIRONMENT,
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 20,
    )


async def line_of(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


# ---- tokens --------------------------------------------------------------------------------------


async def test_processes_on_a_server_key_keep_and_use_the_limit(valkey: Valkey) -> None:
    processes = [await start(TOKENS, valkey) for _ in range(2)]
    for process in processes:
        assert await line_of(process) == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    instants = [float(word) for output, _ in outputs for word in output.split()]
    assert greatest_count(instants, 0.2) <= 100
    used = [instant for instant in instants if instant < min(instants) + 1.0]
    assert len(used) >= 0.85 * 500  # by the default guard, 210 ms are a period


async def test_killed_process_loses_at_most_its_reservations(valkey: Valkey) -> None:
    """A survivor waits until the reserved tokens are past, and no longer."""
    process = await start(RESERVING, valkey, MAX_RESERVATION)
    assert await line_of(process) == b"granted\n"
    async with valkey.connect() as client:
        store: Any = RedisStore(client, timeout=10)
        limits: dict[str, Any] = {"algorithm": LeakyBucket, "key": "k"}
        async with RateLimiter("60/min", store=store, **limits) as survivor:
            await asyncio.sleep(0.3)  # for more calls of the process
            process.kill()
            await process.wait()
            assert 0.0 < (await survivor.peek()).retry_after <= MAX_RESERVATION + 1.0


# ---- slots ---------------------------------------------------------------------------------------


async def test_three_processes_keep_the_slot_limit_together(valkey: Valkey) -> None:
    """No process has died here, and the lease is longer than any delay of a busy machine."""
    workers = [await start(SLOTS, valkey, LIMIT, 40, 60, 0.01) for _ in range(3)]
    outputs = [(await worker.communicate())[0].decode() for worker in workers]
    counts = [int(line.split()[1]) for output in outputs for line in output.splitlines()]
    assert len(counts) == 120
    assert max(counts) <= LIMIT
    assert valkey.command("KEYS", "*:queue") == []
    leases = valkey.command("KEYS", "*:slots")
    assert all(valkey.command("HGET", key, ".taken") == b"0" for key in leases)


async def test_slots_of_dead_process_and_server_are_found(own_valkey: Valkey) -> None:
    worker = await start(SLOTS, own_valkey, LIMIT, 2 * LIMIT, 0.5, 1000)
    for _ in range(LIMIT):
        assert (await line_of(worker)).startswith(b"inside")
    worker.kill()
    await worker.wait()
    async with own_valkey.connect() as client:
        limits: dict[str, Any] = {
            "concurrency_limit": SharedConcurrency(LIMIT, lease=0.5),
            "key": "x",
        }
        store: Any = RedisStore(client, timeout=10)
        async with RateLimiter(store=store, **limits) as limiter:
            # Bounded by the timeout of the test.
            permits = [await limiter.acquire() for _ in range(LIMIT)]
            own_valkey.restart()  # it is empty, and learns the held slots
            while not own_valkey.command("ZCARD", "{aiothrottle:x}:leases"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert not await limiter.try_acquire()
            permits.pop().release()
            permits.append(await limiter.acquire())
            for permit in permits:
                permit.release()
