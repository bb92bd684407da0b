"""`RedisStore` when the server or the network fails: clear errors, and no token spent twice."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiothrottle import SlidingWindowLog, StoreUnavailable
from aiothrottle.stores.redis import RedisStore
from tests.support.servers import Cluster, FaultProxy, Sentinels, Valkey

WINDOW = SlidingWindowLog("10/min")
# Seconds: compared with "never" only, since a busy machine may take its time.
PATIENCE = 20.0


Fault = tuple[Callable[[Valkey], object], Callable[[Valkey], object], str, set[float]]
# What breaks the server, what repairs it, the words of the error, the tokens left.
SERVER_FAULTS: dict[str, Fault] = {
    "stalled": (Valkey.pause, Valkey.go_on, "", {8.0, 9.0}),
    "killed": (Valkey.kill, Valkey.restart, "", {10.0}),  # it starts empty
    "full": (
        lambda it: it.command("CONFIG", "SET", "maxmemory", 1),
        lambda it: it.command("CONFIG", "SET", "maxmemory", 0),
        "maxmemory",
        {9.0},
    ),
    "replica": (
        lambda it: it.command("REPLICAOF", "127.0.0.1", it.port + 1),
        lambda it: it.command("REPLICAOF", "NO", "ONE"),
        "read only replica",
        {9.0},
    ),
}


@pytest.mark.parametrize("fault", SERVER_FAULTS)
async def test_failing_server_raises_and_recovers(own_valkey: Valkey, fault: str) -> None:
    harm, mend, words, left = SERVER_FAULTS[fault]
    async with own_valkey.connect() as client:
        store = RedisStore(client, timeout=0.5)
        await store.reserve("key", WINDOW, [1])
        harm(own_valkey)
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable, match=words or None) as caught:
            await store.reserve("key", WINDOW, [1])
        assert time.monotonic() - begin < PATIENCE
        assert isinstance(caught.value.__cause__, ResponseError) or not words
        mend(own_valkey)
        store = RedisStore(client, timeout=PATIENCE)
        assert (await store.peek("key", WINDOW)).remaining in left


async def test_failover_keeps_the_spent_tokens(own_sentinel: Sentinels) -> None:
    async with own_sentinel.connect() as client:
        store = RedisStore(client, timeout=0.3)
        await store.reserve("key", WINDOW, [1] * 4)
        await client.execute_command("WAIT", 1, 1000)
        own_sentinel.master.kill()
        async with asyncio.timeout(15):
            while True:  # every failure until then is one of our errors
                try:
                    assert (await store.peek("key", WINDOW)).remaining == 6.0
                    await store.reserve("key", WINDOW, [1])
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)


async def test_migrated_hash_slot_keeps_its_records(cluster: Cluster) -> None:
    async with cluster.connect() as client:
        store = RedisStore(client)
        remaining = (await store.reserve("key", WINDOW, [1])).remaining
        slot = client.keyslot("{aiothrottle:key}")
        source = cluster.nodes[next(p for p in range(3) if slot < (p + 1) * 16384 // 3)]
        target = next(node for node in cluster.nodes if node is not source)
        cluster.move(slot, source, target)
        # A script of several keys, one of them new, gets TRYAGAIN until the hash slot is
        # wholly there; redis-py retries for a while.
        with pytest.raises(StoreUnavailable):
            await store.reserve("key", WINDOW, [1])
        cluster.moved(slot, target)
        assert (await store.reserve("key", WINDOW, [1])).remaining == remaining - 1
    # The client has closed all its connections: an open one would be reported here.
    del client, store
    gc.collect()


@pytest.mark.parametrize("as_made", [True, False], ids=["the client's own retries", "many retries"])
async def test_resending_driver_spends_once(valkey: Valkey, *, as_made: bool) -> None:
    """Its own timeout is shorter than the stall, and it retries by itself."""
    options: dict[str, Any] = {"socket_timeout": 0.05}
    if as_made and signature(Redis).parameters["retry"].default is None:
        pytest.skip("this redis-py does not retry by default: it does from 6.0 on")
    if not as_made:
        options["retry"] = Retry(ConstantBackoff(0.01), 10)
        options["retry_on_error"] = [RedisTimeoutError]
    async with FaultProxy(valkey.port) as proxy, Redis(port=proxy.port, **options) as client:
        store = RedisStore(client, timeout=PATIENCE)
        await store.peek("key", WINDOW)

        async def through_faults(call: Awaitable[Any]) -> Any:
            sent = proxy.dropped
            proxy.mode = "drop reply"
            calling = asyncio.ensure_future(call)
            async with asyncio.timeout(PATIENCE):
                # The server executed it, and it was sent twice. The proxy sets no event.
                while proxy.dropped < sent + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            proxy.mode = "pass"
            return await calling

        answer = await through_faults(store.reserve("key", WINDOW, [1, 1]))
        assert len(answer.instants) == 2
        assert (await store.peek("key", WINDOW)).remaining == 8.0
        await through_faults(store.record("key", WINDOW, 3))
        assert (await store.peek("key", WINDOW)).remaining == 5.0
        await through_faults(store.refund("key", WINDOW, 1, answer.instants[0]))
        assert (await store.peek("key", WINDOW)).remaining == 6.0
