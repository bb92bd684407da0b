"""`RedisStore` when the server or the network fails: clear errors, and no token spent twice."""

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiothrottle.algorithms import SlidingWindowLog, TokenBucket
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores import Answer
from aiothrottle.stores.redis import RedisStore
from tests.servers import Cluster, FaultProxy, Sentinels, Valkey, need

pytestmark = pytest.mark.slow

WINDOW = SlidingWindowLog("10/min")
# Seconds: compared with "never" only, since a busy machine may take its time.
PATIENCE = 20.0
LIBFAKETIME = "vendor/libfaketime/src/libfaketime.so.1"


@asynccontextmanager
async def through_proxy(
    valkey: Valkey,
    **options: Any,  # noqa: ANN401 - the driver's
) -> AsyncGenerator[tuple[FaultProxy, RedisStore], None]:
    async with FaultProxy(valkey.port) as proxy, Redis(port=proxy.port, **options) as client:
        store = RedisStore(client, timeout=0.3)
        await store.reserve("key", WINDOW, [1])
        yield proxy, store


async def remaining(valkey: Valkey) -> float:
    async with valkey.connect() as client:
        return (await RedisStore(client).peek("key", WINDOW)).remaining


async def cancel_in_the_midst(proxy: FaultProxy, store: RedisStore) -> None:
    """Cancel calls whose reply is under way: no other call gets it, and none is spent twice."""
    proxy.delay = 0.005
    for _ in range(5):
        proxy.replying.clear()
        task = asyncio.create_task(store.reserve("key", WINDOW, [1]))
        await proxy.replying.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    proxy.delay = 0.0
    assert (await store.peek("another", TokenBucket("7/s"))).remaining == 7.0
    assert 4 <= (await store.peek("key", WINDOW)).remaining <= 9


@pytest.mark.parametrize("mode", ["blackhole", "drop reply", "cut", "reset"])
async def test_failed_call_raises_in_time_next_call_works(valkey: Valkey, mode: str) -> None:
    async with through_proxy(valkey) as (proxy, store):
        proxy.mode = mode
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            await store.reserve("key", WINDOW, [1])
        assert time.monotonic() - begin < PATIENCE
        assert caught.value.__cause__ is not None
        proxy.mode = "pass"
        answer = await store.reserve("key", WINDOW, [1] * 20)
        # The failed call may have been counted, once.
        assert len(answer.instants) in {8, 9}
        if mode == "drop reply":
            assert len(answer.instants) == 8


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
        store = RedisStore(client, timeout=20.0)
        await store.peek("key", WINDOW)

        async def through_faults(call: Awaitable[Any]) -> Any:  # noqa: ANN401 - of any method
            sent = proxy.dropped
            proxy.mode = "drop reply"
            calling = asyncio.ensure_future(call)
            async with asyncio.timeout(20.0):
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


async def test_stalled_server_is_given_up_in_time(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (_, store):
        valkey.pause()
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            await store.reserve("key", WINDOW, [1])
        assert time.monotonic() - begin < PATIENCE
        assert isinstance(caught.value.__cause__, TimeoutError)
        valkey.go_on()
        assert len((await store.reserve("key", WINDOW, [1] * 20)).instants) in {8, 9}


async def test_cancellation_during_a_call_harms_nobody(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, store):
        await cancel_in_the_midst(proxy, store)


async def test_refused_connection_raises_and_recovers(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, store):
        proxy.stop()
        with pytest.raises(StoreUnavailable):
            await store.peek("key", WINDOW)
        await proxy.start()
        assert (await store.peek("key", WINDOW)).remaining == 9.0


async def test_slow_network_is_no_failure(valkey: Valkey) -> None:
    async with FaultProxy(valkey.port) as proxy, Redis(port=proxy.port) as client:
        store = RedisStore(client)
        await store.peek("key", WINDOW)
        proxy.delay = 0.2
        assert len((await store.reserve("key", WINDOW, [1] * 20)).instants) == 10


async def test_restarted_server_starts_empty(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client, timeout=0.3)
        await store.record("key", WINDOW, 10)
        valkey.kill()
        with pytest.raises(StoreUnavailable):
            await store.peek("key", WINDOW)
        valkey.restart()
        assert (await store.peek("key", WINDOW)).remaining == 10.0


async def test_server_out_of_memory_changes_nothing(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client)
        await store.reserve("key", WINDOW, [1])
        await client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailable, match="maxmemory") as caught:
            await store.reserve("key", WINDOW, [1])
        assert isinstance(caught.value.__cause__, ResponseError)
        await client.config_set("maxmemory", 0)
        assert (await store.peek("key", WINDOW)).remaining == 9.0


async def test_read_only_replica_raises(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client)
        await store.reserve("key", WINDOW, [1])
        await client.replicaof("127.0.0.1", str(valkey.port + 1))
        with pytest.raises(StoreUnavailable, match="read only replica") as caught:
            await store.reserve("key", WINDOW, [1])
        assert isinstance(caught.value.__cause__, ResponseError)
        await client.replicaof("NO", "ONE")
        assert (await store.peek("key", WINDOW)).remaining == 9.0


async def test_failover_keeps_the_spent_tokens() -> None:
    servers = Sentinels()
    try:
        async with servers.connect() as client:
            store = RedisStore(client, timeout=0.3)
            await store.reserve("key", WINDOW, [1] * 4)
            await client.execute_command("WAIT", 1, 1000)
            servers.master.kill()
            answer = await eventually(store)
            assert answer.remaining == 6.0
    finally:
        servers.stop()


async def eventually(store: RedisStore) -> Answer:
    """Call until there is an answer. Every failure until then is one of our errors."""
    async with asyncio.timeout(15):
        while True:
            try:
                return await store.reserve("key", WINDOW, [])
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def test_migrated_hash_slot_keeps_its_records() -> None:
    cluster = Cluster()
    try:
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
    finally:
        cluster.stop()


async def test_server_clock_jump_grants_one_more_limit() -> None:
    """Back by 20 s: nobody waits for it, nothing is minted. On by 30 s: that much has passed."""
    clock = FakedClock()
    try:
        async with clock.valkey.connect() as client:
            store, window = RedisStore(client), SlidingWindowLog("10/5s")
            assert len((await store.reserve("key", window, [1] * 20)).instants) == 10
            clock.jump("-20s")
            answer = await store.reserve("key", window, [1] * 20)
            assert not answer.instants
            assert answer.retry_after <= 5.0
            clock.jump("+30s")
            assert len((await store.reserve("key", window, [1] * 20)).instants) == 10
            assert not (await store.reserve("key", window, [1] * 20)).instants
    finally:
        clock.stop()


class FakedClock:
    """A server whose clock the test sets."""

    def __init__(self) -> None:
        spec = find_spec("libfaketime")
        need("libfaketime", "" if spec else "the package libfaketime is not installed")
        assert spec is not None
        assert spec.origin is not None
        self.file = Path(tempfile.mkstemp(prefix="aiothrottle-clock-")[1])
        self.jump("+0s")
        self.valkey = Valkey(
            environment={
                "LD_PRELOAD": str(Path(spec.origin).parent / LIBFAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.file),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        )

    def jump(self, offset: str) -> None:
        """Set the time of the server, `seconds` from the true one."""
        self.file.write_text(offset)
        time.sleep(0.2)  # the server reads its clock ten times a second

    def stop(self) -> None:
        self.valkey.stop()
        self.file.unlink()
