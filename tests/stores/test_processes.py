"""Real processes that share tokens and slots through a real Valkey or a file; some are killed."""

import asyncio
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from aiothrottle import LeakyBucket, RateLimiter, SharedConcurrency
from aiothrottle.testing import greatest_count
from tests.support.background import ENVIRONMENT
from tests.support.servers import Valkey
from tests.support.shared import open_store

LIMIT, MAX_RESERVATION = 5, 5.0

BEGIN = """
import asyncio, sys
from aiothrottle import LeakyBucket, RateLimiter, SharedConcurrency
from aiothrottle.stores import Store
from tests.support.shared import open_store
"""

# Uses as many tokens as it gets, and prints the instants of the store for which it got them.
TOKENS = """
class Noting(Store):
    instants = []

    async def reserve(self, key, algorithm, costs, *, max_reservation=0.0):
        answer = await super().reserve(key, algorithm, costs, max_reservation=max_reservation)
        self.instants += answer.instants
        return answer

    async def refund(self, key, algorithm, cost, instant):
        await super().refund(key, algorithm, cost, instant)
        for _ in range(round(cost)):
            self.instants.remove(instant)

    async def record(self, key, algorithm, cost=1.0):
        print("granted without a reservation:", cost)
        return await super().record(key, algorithm, cost)

async def main(address, seconds):
    async with open_store(address, Noting) as store:
        async with RateLimiter("100/200ms", store=store, key="k") as limiter:
            await limiter.peek()
            print("ready", flush=True)
            sys.stdin.readline()

            async def work():
                while True:
                    async with limiter.throttle():
                        pass

            workers = [asyncio.create_task(work()) for _ in range(100)]
            await asyncio.sleep(float(seconds))
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        print(*map(repr, store.instants))
"""

# Reserves a token for each second, for many waiters.
RESERVING = """
async def main(address, max_reservation):
    async with open_store(address) as store:
        limiter = RateLimiter(
            "60/min", algorithm=LeakyBucket, store=store, key="k",
            max_reservation=float(max_reservation),
        )
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(100)]
        await waiting[0]
        print("granted", flush=True)
        await asyncio.gather(*waiting)
"""

# Each prints how many are inside, by a counter in a server, beside the limiter.
SLOTS = """
async def main(address, port, limit, count, lease, seconds):
    from redis.asyncio import Redis
    slots = SharedConcurrency(int(limit), float(lease))
    async with Redis(port=int(port)) as client, open_store(address) as store, RateLimiter(
        concurrency_limit=slots, store=store, key="x"
    ) as limiter:
        async def work():
            async with limiter.throttle():
                print("inside", await client.incr("inside"), flush=True)
                await asyncio.sleep(float(seconds))
                await client.decr("inside")

        await asyncio.gather(*(work() for _ in range(int(count))))
"""


def of_server(valkey: Valkey) -> str:
    return f"redis:{valkey.port}"


@pytest.fixture
def addresses(valkey: Valkey, tmp_path: Path) -> list[str]:
    return [of_server(valkey), f"sqlite:{tmp_path}/limits.db"]


@pytest.fixture(params=[0, 1], ids=["redis", "sqlite"])
def address(request: pytest.FixtureRequest, addresses: list[str]) -> str:
    return addresses[int(request.param)]


async def start(worker: str, address: str, *arguments: float) -> Process:
    """Run the `main` of a worker, with the address of the store and more arguments."""
    program = f"{BEGIN}{worker}\nasyncio.run(main(*sys.argv[1:]))"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, address, *map(str, arguments)),
        env=ENVIRONMENT,
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 20,
    )


async def line_of(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


@asynccontextmanager
async def limiter_on(address: str, **limits: Any) -> AsyncGenerator[RateLimiter]:
    async with open_store(address) as store, RateLimiter(store=store, **limits) as limiter:
        yield limiter


async def test_processes_on_a_key_keep_and_use_the_limit(address: str) -> None:
    processes = [await start(TOKENS, address, 0.8) for _ in range(2)]
    for process in processes:
        assert await line_of(process) == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    instants = [float(word) for output, _ in outputs for word in output.split()]
    assert greatest_count(instants, 0.2) <= 100
    used = [instant for instant in instants if instant < min(instants) + 0.6]
    assert len(used) >= 0.85 * 300  # by the default guard, 210 ms are a period


async def test_killed_process_loses_at_most_its_reservations(addresses: list[str]) -> None:
    """A survivor waits until the reserved tokens are past, and no longer."""

    async def survive(address: str) -> None:
        process = await start(RESERVING, address, MAX_RESERVATION)
        assert await line_of(process) == b"granted\n"
        limits: dict[str, Any] = {"rate_limit": "60/min", "algorithm": LeakyBucket, "key": "k"}
        async with limiter_on(address, **limits) as survivor:
            await asyncio.sleep(0.3)  # for more calls of the process
            process.kill()
            await process.wait()
            assert 0.0 < (await survivor.peek()).retry_after <= MAX_RESERVATION + 1.0

    await asyncio.gather(*map(survive, addresses))


async def test_three_processes_keep_the_slot_limit_together(valkey: Valkey, address: str) -> None:
    """No process has died here, and the lease is longer than any delay of a busy machine."""
    workers = [await start(SLOTS, address, valkey.port, LIMIT, 40, 60, 0.01) for _ in range(3)]
    outputs = [(await worker.communicate())[0].decode() for worker in workers]
    counts = [int(line.split()[1]) for output in outputs for line in output.splitlines()]
    assert len(counts) == 120
    assert max(counts) <= LIMIT
    if address.startswith("sqlite"):
        with closing(sqlite3.connect(address.partition(":")[2])) as other:
            assert other.execute("SELECT * FROM aiothrottle").fetchall() == []
        return
    assert valkey.command("KEYS", "*:queue") == []
    leases = valkey.command("KEYS", "*:slots")
    assert all(valkey.command("HGET", key, ".taken") == b"0" for key in leases)


async def test_slots_of_dead_process_and_server_are_found(
    valkey: Valkey, own_valkey: Valkey, addresses: list[str]
) -> None:
    async def survive(address: str) -> None:
        worker = await start(SLOTS, address, valkey.port, LIMIT, 2 * LIMIT, 0.5, 1000)
        for _ in range(LIMIT):
            assert (await line_of(worker)).startswith(b"inside")
        slots = SharedConcurrency(LIMIT, lease=0.5)
        async with limiter_on(address, concurrency_limit=slots, key="x") as limiter:
            assert not await limiter.try_acquire()
            worker.kill()
            await worker.wait()
            # Bounded by the timeout of the test.
            permits = [await limiter.acquire() for _ in range(LIMIT)]
            if address == of_server(own_valkey):
                own_valkey.restart()  # it is empty, and learns the held slots
                while not own_valkey.command("ZCARD", "{workers:x}:leases"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert not await limiter.try_acquire()
                permits.pop().release()
                permits.append(await limiter.acquire())
            for permit in permits:
                permit.release()

    await asyncio.gather(survive(of_server(own_valkey)), survive(addresses[1]))


async def test_killed_processes_leave_a_sound_file(tmp_path: Path) -> None:
    """However they were killed, the others keep the limit, and go on."""
    path = tmp_path / "limits.db"
    processes = [await start(TOKENS, f"sqlite:{path}", 0.9) for _ in range(4)]
    for process in processes:
        assert await line_of(process) == b"ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
    for process in processes[:2]:
        await asyncio.sleep(0.2)
        process.kill()
    killed_at = time.time() - 1767225600  # by the clock of stores, which begins with 2026
    outputs = [(await process.communicate())[0] for process in processes]
    assert outputs[:2] == [b"", b""]
    instants = [[float(word) for word in output.split()] for output in outputs[2:]]
    assert all(each[-1] > killed_at for each in instants)
    assert greatest_count([it for each in instants for it in each], 0.2) <= 100
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
