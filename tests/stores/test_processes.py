"""Real processes that share tokens and slots through a real Valkey or a file; some are killed."""

import asyncio
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from aiothrottle import LeakyBucket, RateLimiter, SharedConcurrency
from aiothrottle.testing import greatest_count
from tests.stores.workers import open_store, reserve_tokens, use_slots, use_tokens
from tests.support.background import ENVIRONMENT
from tests.support.servers import Valkey

LIMIT, MAX_RESERVATION = 5, 5.0


def of_server(valkey: Valkey) -> str:
    return f"redis:{valkey.port}"


@pytest.fixture
def addresses(valkey: Valkey, tmp_path: Path) -> list[str]:
    return [of_server(valkey), f"sqlite:{tmp_path}/limits.db"]


def file_of(addresses: list[str]) -> Any:
    return closing(sqlite3.connect(addresses[1].partition(":")[2]))


async def start(
    worker: Callable[..., Coroutine[Any, Any, object]], address: str, *numbers: float
) -> Process:
    """Run the worker in a process, with the address of the store and more arguments."""
    arguments = (worker.__name__, address, *map(str, numbers))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.stores.workers", *arguments),
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


@pytest.mark.parametrize(("place", "killed"), [(0, 0), (1, 1)], ids=["redis", "sqlite"])
async def test_processes_on_a_key_keep_and_use_the_limit(
    addresses: list[str], place: int, killed: int
) -> None:
    """This one and another one; also when a third one is killed, amid whatever it does."""
    processes = [await start(use_tokens, addresses[place], 0.9) for _ in range(1 + killed)]
    for process in processes:
        assert await line_of(process) == b"'ready'\n"
    reading = [asyncio.create_task(process.communicate(b"go\n")) for process in processes]
    using = asyncio.create_task(use_tokens(addresses[place], 0.9, lambda: None))
    await asyncio.sleep(0.2)
    begin = time.time() - 1767225600  # by the clock of stores, which begins with 2026
    for process in processes[1:]:
        process.kill()
    (output, _), *others = await asyncio.gather(*reading)
    assert [printed for printed, _ in others] == [b""] * killed
    instants = [*await using, *map(float, output.split())]
    assert greatest_count(instants, 0.2) <= 100
    begin += 0.21  # what was reserved is past; by the default guard that is a period
    assert sum(begin <= instant < begin + 0.42 for instant in instants) >= 0.85 * 200
    if killed:
        with file_of(addresses) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_killed_process_loses_at_most_its_reservations(addresses: list[str]) -> None:
    """A survivor waits until the reserved tokens are past, and no longer."""

    async def survive(address: str) -> None:
        process = await start(reserve_tokens, address, MAX_RESERVATION)
        assert await line_of(process) == b"'granted'\n"
        limits: dict[str, Any] = {"rate_limit": "60/min", "algorithm": LeakyBucket, "key": "k"}
        async with limiter_on(address, **limits) as survivor:
            await asyncio.sleep(0.3)  # for more calls of the process
            process.kill()
            await process.wait()
            assert 0.0 < (await survivor.peek()).retry_after <= MAX_RESERVATION + 1.0

    await asyncio.gather(*map(survive, addresses))


async def test_processes_keep_the_slot_limit_together(
    valkey: Valkey, addresses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No process has died here, and the lease is longer than any delay of a busy machine."""
    for address in addresses:
        numbers = (valkey.port, LIMIT, 30, 60.0, 0.01)
        worker = await start(use_slots, address, *numbers)
        first = await line_of(worker)
        await use_slots(address, *numbers)
        output, _ = await worker.communicate()
        lines = [first, *output.splitlines(), *capsys.readouterr().out.encode().splitlines()]
        counts = [int(line) for line in lines]
        assert len(counts) == 60
        assert max(counts) <= LIMIT
    with file_of(addresses) as file:
        assert file.execute("SELECT * FROM aiothrottle").fetchall() == []
    assert valkey.command("KEYS", "*:queue") == []
    leases = valkey.command("KEYS", "*:slots")
    assert all(valkey.command("HGET", key, ".taken") == b"0" for key in leases)


async def test_slots_of_dead_process_and_server_are_found(
    valkey: Valkey, own_valkey: Valkey, addresses: list[str]
) -> None:
    async def survive(address: str) -> None:
        worker = await start(use_slots, address, valkey.port, LIMIT, 2 * LIMIT, 0.5, 1000)
        for _ in range(LIMIT):
            assert int(await line_of(worker))
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
