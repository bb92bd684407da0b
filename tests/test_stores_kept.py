"""The connection that `RedisStore` keeps while one call follows another, on real servers."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from aiothrottle import RateLimiter, SlidingWindowLog, StoreUnavailable, TokenBucket
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock
from tests.servers import Cluster, FaultProxy, Sentinels, Valkey
from tests.test_store_faults import cancel_in_the_midst

Server = Valkey | Cluster | Sentinels

WINDOW = SlidingWindowLog("10/min")
PLENTY = SlidingWindowLog("1000000/s")


@pytest.fixture(scope="module", params=["single", "cluster", "sentinel"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kinds: dict[str, type[Server]] = {"single": Valkey, "cluster": Cluster, "sentinel": Sentinels}
    server = kinds[request.param]()
    yield server
    server.stop()


class Keeping(RedisStore):
    """Makes each call on a kept connection."""

    __slots__ = ()

    async def _decide(
        self, verb: str, key: Key, algorithm: Algorithm[Any], *numbers: float
    ) -> Answer | None:
        async with self.keep():
            return await super()._decide(verb, key, algorithm, *numbers)


def counted(client: Any) -> Any:  # noqa: ANN401 - the driver's types are half unknown
    """Count in `client.sent` what is sent by the driver's own ways."""
    send = client.execute_command
    client.sent = 0

    async def execute_command(*command: object, **options: object) -> object:
        client.sent += 1
        return await send(*command, **options)

    client.execute_command = execute_command
    return client


@asynccontextmanager
async def one_connection(port: int, **options: Any) -> AsyncGenerator[Any]:  # noqa: ANN401 - the driver's
    """Give a client with one connection, for which the others wait."""
    pool = BlockingConnectionPool(
        host="127.0.0.1", port=port, max_connections=1, timeout=20, **options
    )
    async with Redis.from_pool(pool) as client:
        yield counted(client)


@asynccontextmanager
async def through_proxy(
    valkey: Valkey,
    *,
    timeout: float = 0.3,
    **options: Any,  # noqa: ANN401
) -> AsyncGenerator[tuple[FaultProxy, Any, RedisStore]]:
    """Give a store whose server may be asked on a kept connection, which it has."""
    async with FaultProxy(valkey.port) as proxy, one_connection(proxy.port, **options) as client:
        store = RedisStore(client, timeout=timeout)
        async with store.keep():
            await store.reserve("key", WINDOW, [1])
            await store.reserve("other", WINDOW, [1])
            yield proxy, client, store
        proxy.mode, proxy.delay = "pass", 0.0
        await is_given_back(client)


async def is_given_back(client: Any) -> None:  # noqa: ANN401
    """Fail if the only connection is kept from others."""
    async with asyncio.timeout(10):
        await client.ping()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_contract(server: Server, check: Check) -> None:
    async with server.connect() as client:
        clock = ManualClock()
        prefix = f"kept {check.__name__}"
        await check(lambda: Keeping(client, prefix, clock=clock, timeout=5), clock)


@pytest.mark.parametrize("check", CHECKS[:4], ids=lambda check: check.__name__)
async def test_a_client_of_valkey_py_lends_one_too(valkey: Valkey, check: Check) -> None:
    from valkey.asyncio import Valkey as Client

    clock: Any = ManualClock()
    client: Any = Client(port=valkey.port)
    async with client:
        await check(lambda: Keeping(client, check.__name__, clock=clock, timeout=5), clock)


async def test_a_client_with_one_connection_for_all_lends_none(valkey: Valkey) -> None:
    async with Redis(port=valkey.port, single_connection_client=True) as one:
        client = counted(one)
        store = Keeping(client)
        await store.peek("key", WINDOW)
        before = client.sent
        await store.peek("key", WINDOW)
        assert client.sent == before + 1


async def test_calls_that_follow_each_other_are_sent_past_the_driver(valkey: Valkey) -> None:
    async with one_connection(valkey.port) as client:
        store = RedisStore(client)
        async with RateLimiter(algorithm=PLENTY, store=store, key="k") as limiter:
            for _ in range(5):
                async with limiter.throttle():
                    pass
            before = client.sent
            for _ in range(100):
                async with limiter.throttle():
                    pass
            assert client.sent == before
        await is_given_back(client)
        assert (await store.peek("default", PLENTY)).remaining <= 1_000_000


async def test_who_waits_for_a_connection_gets_one_while_calls_follow_each_other(
    valkey: Valkey,
) -> None:
    async with one_connection(valkey.port) as client:
        limiter = RateLimiter(algorithm=PLENTY, store=RedisStore(client), key="k")
        stop, begun = False, asyncio.Event()

        async def work() -> None:
            gone = 0
            while not stop:
                async with limiter.throttle():
                    gone += 1
                if gone == 50:
                    begun.set()

        working = asyncio.create_task(work())
        await begun.wait()
        before = client.sent
        for _ in range(3):
            await is_given_back(client)
        assert client.sent == before + 3
        stop = True
        await working
        await limiter.aclose()


async def test_two_at_once_do_not_share_a_connection(valkey: Valkey) -> None:
    async with Redis(port=valkey.port) as client:
        store = RedisStore(client)
        await store.peek("key", WINDOW)
        async with store.keep():
            asking = [store.reserve(f"{place}", WINDOW, [1] * place) for place in range(1, 9)]
            answers = await asyncio.gather(*asking)
        assert [len(answer.instants) for answer in answers] == list(range(1, 9))


@pytest.mark.parametrize("mode", ["blackhole", "drop reply", "cut", "reset", "refuse"])
async def test_a_call_that_fails_is_told_and_the_next_one_works(valkey: Valkey, mode: str) -> None:
    async with through_proxy(valkey) as (proxy, client, store):
        before = client.sent
        if mode == "refuse":
            proxy.stop()
        proxy.mode = mode
        with pytest.raises(StoreUnavailable) as caught:
            await store.reserve("key", WINDOW, [1])
        assert caught.value.__cause__ is not None
        if mode in {"blackhole", "drop reply"}:  # who is silent is not asked for as long again
            assert client.sent == before
        if mode == "refuse":
            await proxy.start()
        proxy.mode = "pass"
        answer = await store.reserve("key", WINDOW, [1] * 20)
        assert len(answer.instants) in {8, 9}  # what failed may have been spent, once
        if mode == "drop reply":
            assert len(answer.instants) == 8


async def test_a_connection_that_was_cut_is_no_failure(valkey: Valkey) -> None:
    """The driver asks the same again, on another one, and it counts once."""
    async with through_proxy(valkey) as (proxy, client, store):
        before = client.sent
        for writer in list(proxy._writers):
            writer.transport.abort()
        assert (await store.reserve("key", WINDOW, [1])).remaining == 8.0
        assert client.sent == before + 1


async def test_a_reply_that_comes_too_late_is_taken_for_no_other(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, _, store):
        proxy.delay = 0.5
        with pytest.raises(StoreUnavailable):
            await store.reserve("key", WINDOW, [1])
        proxy.delay = 0.0
        for place in range(20):
            algorithm = TokenBucket(f"{100 + place}/s")
            assert (await store.peek(f"another {place}", algorithm)).remaining == 100 + place


async def test_the_drivers_own_time_out_is_heeded(valkey: Valkey) -> None:
    """It is shorter than the store's: the driver then tries again, and it counts once."""
    options: dict[str, Any] = {"socket_timeout": 0.05, "retry": Retry(ConstantBackoff(0.01), 1000)}
    async with through_proxy(valkey, timeout=20.0, **options) as (proxy, client, store):
        before, dropped = client.sent, proxy.dropped
        proxy.mode = "drop reply"
        asking = asyncio.create_task(store.reserve("key", WINDOW, [1]))
        async with asyncio.timeout(20):
            while proxy.dropped < dropped + 1:  # noqa: ASYNC110 - the proxy sets no event
                await asyncio.sleep(0.005)
        proxy.mode = "pass"
        assert (await asking).remaining == 8.0
        assert client.sent == before + 1


async def test_a_script_that_the_server_has_lost_is_sent_again(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (_, client, store):
        async with valkey.connect() as other:
            await other.script_flush()
        assert (await store.reserve("key", WINDOW, [1])).remaining == 8.0
        before = client.sent
        assert (await store.reserve("key", WINDOW, [1])).remaining == 7.0
        assert client.sent == before


async def test_who_is_cancelled_in_the_midst_of_a_call_harms_nobody(valkey: Valkey) -> None:
    async with through_proxy(valkey) as (proxy, _, store):
        await cancel_in_the_midst(proxy, store)


@pytest.mark.parametrize("step", range(12))
async def test_who_is_cancelled_at_any_step_gives_the_connection_back(
    valkey: Valkey, step: int
) -> None:
    async with one_connection(valkey.port) as client:
        store = Keeping(client)
        await store.peek("key", WINDOW)
        task = asyncio.create_task(store.reserve("key", WINDOW, [1]))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await is_given_back(client)
        assert (await store.reserve("key", WINDOW, [1] * 20)).remaining == 0.0


def test_a_second_loop_keeps_one_of_its_own(valkey: Valkey) -> None:
    """Also if the first was closed while a connection was kept."""
    stores: list[RedisStore] = []

    async def first() -> None:
        client = Redis(port=valkey.port)
        stores.append(store := RedisStore(client))
        await store.peek("key", WINDOW)
        await store.keep().__aenter__()
        assert (await store.reserve("key", WINDOW, [1])).remaining == 9.0
        await client.connection_pool.disconnect()

    async def second() -> None:
        store = stores[0]
        assert not store._kept.is_free
        async with store.keep():
            assert (await store.reserve("key", WINDOW, [1])).remaining == 8.0
            assert store._kept._connection is not None
        assert store._kept._connection is None
        await store._driver.aclose()

    asyncio.run(first())
    asyncio.run(second())
