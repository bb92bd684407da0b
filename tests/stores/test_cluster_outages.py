"""A cluster of three masters, one of which is down: the keys of the others notice nothing.

Twelve limiters share one store, four for each master. Limits are counted by the client's clock,
with a guard; rates are compared with those before the fault.
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterator

import pytest
import redis

from aiothrottle import RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.share_size import OnStoreError
from aiothrottle.testing.audit import greatest_count
from tests.servers import Cluster, Valkey

pytestmark = [
    pytest.mark.slow,
    # redis-py before 6 closes the connections of all nodes when it looks for them anew.
    pytest.mark.skipif(redis.__version__ < "6", reason="healthy nodes need redis-py 6 or later"),
]

LIMIT, KEYS_PER_NODE = 25, 4
SECONDS = 3.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(full_coverage=False)
    yield cluster
    cluster.stop()


class Workers:
    """Tasks that acquire from limiters on all nodes, as often as they can."""

    def __init__(self, store: RedisStore, nodes: list[Valkey], choice: OnStoreError) -> None:
        self.choice = choice
        self.granted_at: dict[tuple[int, str], list[float]] = {}
        self.limiters: list[RateLimiter] = []
        self.tasks: list[asyncio.Task[None]] = []
        ports = {f"127.0.0.1:{node.port}": place for place, node in enumerate(nodes)}
        missing = dict.fromkeys(ports.values(), KEYS_PER_NODE)
        number = 0
        while any(missing.values()):
            key = f"key {number}"
            number += 1
            place = ports[store.node_of(key)]
            if missing[place]:
                missing[place] -= 1
                limiter = RateLimiter(
                    f"{LIMIT}/s", guard=0.5, store=store, key=key, on_store_error=choice
                )
                self.limiters.append(limiter)
                self.granted_at[place, key] = []
                work = self.work(limiter, self.granted_at[place, key])
                self.tasks.append(asyncio.create_task(work))

    async def work(self, limiter: RateLimiter, granted_at: list[float]) -> None:
        while True:
            try:
                async with limiter.throttle():
                    granted_at.append(time.monotonic())
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.005)

    async def paces(self) -> list[int]:
        """Grants of each node within some seconds."""
        before = self.counts()
        await asyncio.sleep(SECONDS)
        return [after - count for after, count in zip(self.counts(), before, strict=True)]

    def counts(self) -> list[int]:
        return [
            sum(len(found) for (place, _), found in self.granted_at.items() if place == node)
            for node in range(3)
        ]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for limiter in self.limiters:
            await limiter.aclose()


@pytest.mark.parametrize(
    ("choice", "fault"), [("raise", "kill"), ("open", "kill"), ("open", "pause")]
)
async def test_dead_master_harms_no_other_keys(
    cluster: Cluster, choice: OnStoreError, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    dead = cluster.nodes[0]
    async with cluster.connect() as client:
        workers = Workers(RedisStore(client), cluster.nodes, choice)
        await workers.paces()
        usual = await workers.paces()
        await asyncio.to_thread(dead.kill if fault == "kill" else dead.pause)
        harmed = await workers.paces()
        for _ in range(2):  # a busy machine has three attempts
            if min(harmed[1:]) < 0.8 * max(usual):
                harmed = await workers.paces()
        await asyncio.to_thread(dead.restart if fault == "kill" else dead.go_on)
        async with asyncio.timeout(30.0):
            while len(caplog.messages) < 2:  # noqa: ASYNC110 - the log sets no event
                await asyncio.sleep(0.05)
        await workers.stop()
    for node in (1, 2):
        assert harmed[node] >= 0.8 * usual[node]
    for (node, _), granted_at in workers.granted_at.items():
        if node:
            assert greatest_count(granted_at, 1.0) <= LIMIT
    down, up = caplog.messages
    assert re.match(rf"RedisStore 127\.0\.0\.1:{dead.port} fails, on_store_error='{choice}'", down)
    assert re.match(rf"RedisStore 127\.0\.0\.1:{dead.port} is back after ", up)


async def test_slots_of_healthy_masters_are_granted(cluster: Cluster) -> None:
    async with cluster.connect() as client:
        store = RedisStore(client)
        nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
        keys = {store.node_of(f"{place}"): f"{place}" for place in range(50)}
        limiters = [
            RateLimiter(concurrency_limit=SharedConcurrency(1), store=store, key=keys[node])
            for node in nodes
        ]
        cluster.nodes[0].kill()
        with pytest.raises(StoreUnavailable, match=nodes[0]):
            await limiters[0].acquire()
        for limiter in limiters[1:]:
            for _ in range(5):
                async with limiter.throttle():
                    assert limiter.statistics().store_up
        for limiter in limiters:
            await limiter.aclose()
