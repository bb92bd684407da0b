"""Limiters on a real server through each fault: see `endure`.

Never more than the limit, counted by the clock of the client, but for the switch with "local",
where a process cannot know what others took since its last answer; no waiter is lost; and when
the server is back so are they. The guard is as long as the period, so a machine would have to stand
still for half a second before a count could be wrong. Deadlines are ten times what it takes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import pytest
from redis.asyncio import Redis

from aiothrottle import RateLimiter
from aiothrottle.stores.health import Health
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.share_size import OnStoreError
from aiothrottle.testing.audit import greatest_count
from tests.servers import Cluster, FaultProxy, Sentinels, Valkey
from tests.stores.test_store_faults import FakedClock

pytestmark = pytest.mark.slow

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
Deed: TypeAlias = Callable[[], Awaitable[object]]

LIMIT, PERIOD = 20, 0.5
DEADLINE = 60.0


class Crew:
    """Two limiters with a client each, as two processes have, and the tasks that use them."""

    def __init__(self, *clients: Redis, choice: OnStoreError, timeout: float) -> None:
        self.stores = [RedisStore(client, timeout=timeout) for client in clients]
        self.limiters = [
            RateLimiter(f"{LIMIT}/500ms", guard=PERIOD, store=store, key="k", on_store_error=choice)
            for store in self.stores
        ]
        self.granted_at: list[float] = []
        self.over = False
        self.tasks = [asyncio.create_task(self.work(limiter)) for limiter in self.limiters * 4]

    async def work(self, limiter: RateLimiter) -> None:
        while not self.over:
            async with limiter.throttle():
                self.granted_at.append(time.monotonic())

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not ready():
                for task in self.tasks:
                    if task.done():
                        await task  # it has failed
                await asyncio.sleep(0.01)

    async def go(self, times: int) -> None:
        """Wait until `times` more are granted."""
        count = len(self.granted_at) + times
        await self.until(lambda: len(self.granted_at) >= count)

    async def know(self, *, up: bool) -> None:
        """Wait until all limiters know the state of the store."""
        await self.until(
            lambda: all(limiter.statistics().store_up is up for limiter in self.limiters)
        )

    async def meet(self) -> None:
        """Wait until each limiter knows how many processes there are."""
        await self.until(
            lambda: all(
                Health.of(store).counter.processes == len(self.stores) for store in self.stores
            )
        )

    async def leave(self) -> None:
        """Have all tasks acquire once more; none is lost."""
        self.over = True
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*self.tasks)
            for limiter in self.limiters:
                await limiter.aclose()


async def endure(
    connect: Connect,
    harm: Deed,
    mend: Deed,
    choice: OnStoreError = "local",
    timeout: float = 1.5,  # what a busy machine makes late is no outage
) -> None:
    """Continue while the store fails, and when it has recovered."""
    async with connect() as one, connect() as other:
        crew = Crew(one, other, choice=choice, timeout=timeout)
        await crew.go(LIMIT)
        if choice == "local":
            await crew.meet()
        before = len(crew.granted_at)
        await harm()
        await crew.know(up=False)
        if choice == "closed":
            await asyncio.sleep(2 * timeout)
        else:
            await crew.go(LIMIT // 2)
        await mend()
        await crew.know(up=True)
        await crew.go(LIMIT // 2)
        await crew.leave()
    assert greatest_count(crew.granted_at[:before], PERIOD) <= LIMIT
    # Half of what the other took unreported may be granted on top, see docs/guides/stores.md.
    assert greatest_count(crew.granted_at, PERIOD) <= (1.5 * LIMIT if choice == "local" else LIMIT)


def deed(act: Callable[[], object]) -> Deed:
    """Do it in a thread: a server takes its time."""

    async def do() -> object:
        return await asyncio.to_thread(act)

    return do


# ---- the way to the server -----------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["local", "closed"])
async def test_every_fault_of_the_network(valkey: Valkey, choice: OnStoreError) -> None:
    """All at the same time, each with a network and a database of its own."""

    async def through(mode: str, database: int) -> None:
        async with FaultProxy(valkey.port) as proxy:

            async def harm() -> None:
                if mode == "refused":
                    proxy.stop()
                else:
                    proxy.mode = mode

            async def mend() -> None:
                proxy.mode = "pass"
                if mode == "refused":
                    await proxy.start()

            await endure(lambda: Redis(port=proxy.port, db=database), harm, mend, choice)

    async with asyncio.TaskGroup() as group:
        modes = ("blackhole", "drop reply", "cut", "reset", "refused")
        for database, mode in enumerate(modes):
            group.create_task(through(mode, database), name=mode)


async def test_slow_network_is_no_outage(valkey: Valkey) -> None:
    async with FaultProxy(valkey.port) as proxy:
        proxy.delay = 0.1
        async with Redis(port=proxy.port) as one, Redis(port=proxy.port) as other:
            crew = Crew(one, other, choice="raise", timeout=DEADLINE)
            await crew.go(LIMIT + 5)
            await crew.leave()
    assert greatest_count(crew.granted_at, PERIOD) <= LIMIT


# ---- the server ----------------------------------------------------------------------------------


async def test_every_fault_of_a_server() -> None:
    """All at the same time, each on a server of its own."""
    servers = [Valkey() for _ in range(5)]
    stands_still, killed, full, replica, open_one = servers

    def demote() -> None:
        replica.command("REPLICAOF", "127.0.0.1", replica.port + 1)

    def promote() -> None:
        replica.command("REPLICAOF", "NO", "ONE")

    deeds: list[tuple[Valkey, Callable[[], object], Callable[[], object]]] = [
        (stands_still, stands_still.pause, stands_still.go_on),
        (killed, killed.kill, killed.restart),
        (
            full,
            lambda: full.command("CONFIG", "SET", "maxmemory", "1"),
            lambda: full.command("CONFIG", "SET", "maxmemory", "0"),
        ),
        (replica, demote, promote),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for server, harm, mend in deeds:
                group.create_task(endure(server.connect, deed(harm), deed(mend)))
            group.create_task(opens(open_one))
    finally:
        for server in servers:
            server.stop()


async def opens(server: Valkey) -> None:
    """Without a limit during the outage, and with it afterwards."""
    async with server.connect() as client:
        store = RedisStore(client, timeout=0.3)
        limiter = RateLimiter("5/h", store=store, key="k", on_store_error="open")
        server.pause()
        async with asyncio.timeout(DEADLINE):
            for _ in range(50):
                assert await limiter.try_acquire()
            server.go_on()
            while await limiter.try_acquire():  # noqa: ASYNC110 - a server sets no event
                await asyncio.sleep(0.01)
        await limiter.aclose()


async def test_flushed_scripts_are_no_outage(valkey: Valkey) -> None:
    async with valkey.connect() as one, valkey.connect() as other:
        crew = Crew(one, other, choice="raise", timeout=DEADLINE)
        for _ in range(5):
            await crew.go(5)
            await one.script_flush()
        await crew.leave()
    assert greatest_count(crew.granted_at, PERIOD) <= LIMIT


async def test_failover_by_sentinel() -> None:
    servers = Sentinels()
    try:

        async def nothing() -> None:
            return

        await endure(servers.connect, deed(servers.master.kill), nothing)
    finally:
        servers.stop()


async def test_hash_slot_that_moves_to_another_node() -> None:
    cluster = Cluster()
    try:
        async with cluster.connect() as client:
            slot = client.keyslot("{aiothrottle:k}")
        source = cluster.nodes[next(p for p in range(3) if slot < (p + 1) * 16384 // 3)]
        target = next(node for node in cluster.nodes if node is not source)
        await endure(
            cluster.connect,
            deed(lambda: cluster.move(slot, source, target)),
            deed(lambda: cluster.moved(slot, target)),
        )
    finally:
        cluster.stop()


async def test_server_clock_that_jumps() -> None:
    """Back: nobody waits for it. On: that much has passed, so there is one limit more."""
    clock = FakedClock()
    try:
        async with clock.valkey.connect() as one, clock.valkey.connect() as other:
            crew = Crew(one, other, choice="raise", timeout=DEADLINE)
            await crew.go(LIMIT)
            clock.jump("-20s")
            back = time.monotonic()
            await crew.go(LIMIT)
            if time.monotonic() - back < 20.0:  # else the result is undefined
                assert greatest_count(crew.granted_at, PERIOD) <= LIMIT
            clock.jump("+30s")
            await crew.go(LIMIT)
            await crew.leave()
        assert greatest_count(crew.granted_at, PERIOD) <= 2 * LIMIT
    finally:
        clock.stop()
