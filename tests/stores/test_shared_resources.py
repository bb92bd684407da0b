"""Specifies limiters of several resources that share their limits through a store."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import Permit, RateLimiter, StoreUnavailable, ThrottleTimeout
from aiothrottle.algorithms import PerResource, SlidingWindowLog
from aiothrottle.events import Granted
from aiothrottle.resource import Resource
from aiothrottle.stores import MemoryStore, Store
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing.audit import greatest_count
from tests.failing import Client, Server
from tests.servers import Valkey, connect_memcached, memcached, mongodb
from tests.stores.test_shared import Watched, rest
from tests.virtually import now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # an argument of a caller that does not check its types

RATES = {"requests": "20/s", "tokens": "100/s"}


def limiter_on(store: Store, rates: Any = RATES, **options: Any) -> RateLimiter:  # noqa: ANN401
    return RateLimiter(rates, store=store, key="k", guard=0, **options)


async def remaining(limiter: RateLimiter) -> dict[str, float]:
    decision = await limiter.peek()
    return {name: resource.remaining for name, resource in decision.resources.items()}


# ---- calls ---------------------------------------------------------------------------------------


@virtual
async def test_waiters_are_served_in_order_with_one_call() -> None:
    store = Watched(latency=0.01)
    limiter = limiter_on(store, {"requests": "500/s", "tokens": "100/s"})
    tasks = [visits(limiter, 1, {"tokens": tokens})[0] for tokens in (5, 40, 1, 20, 34)]
    assert await asyncio.gather(*tasks) == pytest.approx([0.01] * 5)
    assert store.calls["reserve"] == 1
    assert await remaining(limiter) == {"requests": 495, "tokens": 0}


@virtual
async def test_heavy_waiter_is_not_overtaken_by_another_process() -> None:
    store = Watched()
    one, other = limiter_on(store), limiter_on(store)
    assert await visit(one, {"tokens": 80}) == 0
    heavy = visits(one, 1, {"tokens": 80})
    await asyncio.sleep(0.1)
    light = [*visits(other, 1, {"tokens": 1}), *visits(one, 2)]
    assert await asyncio.gather(*heavy, *light) == pytest.approx([1.0] * 4)


@virtual
async def test_cancelled_waiter_returns_its_reservation() -> None:
    store = Watched()
    limiter = limiter_on(store)
    await visit(limiter, {"tokens": 80})
    first, second = visits(limiter, 2, {"tokens": 50})
    await asyncio.sleep(0.1)
    first.cancel()
    second.cancel()
    await rest()
    assert store.refunds
    await asyncio.sleep(0.9)  # nothing is granted before the latest instant that the store gave
    assert await remaining(limiter) == {"requests": 20, "tokens": 100}


@virtual
async def test_reservation_serves_the_next_waiter() -> None:
    store = Watched()
    limiter = limiter_on(store)
    await visit(limiter, {"tokens": 80})
    first, *others = visits(limiter, 3, {"tokens": 30})
    await asyncio.sleep(0.1)
    first.cancel()
    assert await asyncio.gather(*others) == pytest.approx([1.0, 1.0])
    await rest()
    assert await remaining(limiter) == {"requests": 18, "tokens": 40}


@virtual
async def test_settled_cost_reaches_the_store() -> None:
    store = Watched(latency=0.01)
    one, other = limiter_on(store), limiter_on(store)
    async with one.throttle({"tokens": 60}) as permit:
        permit.settle({"tokens": 10})
        await rest()
        assert await remaining(other) == {"requests": 19, "tokens": 90}
        permit.settle({"requests": 3, "tokens": 120})
        await rest()
        assert await remaining(other) == {"requests": 17, "tokens": 0}
        permit.settle({"tokens": 1})
        await rest()
        assert await remaining(other) == {"requests": 17, "tokens": 99}
        assert permit.costs == {"requests": 3, "tokens": 1}


@virtual
async def test_requests_that_do_not_wait_name_each_resource() -> None:
    limiter = limiter_on(Watched())
    seen: list[object] = []
    limiter.observe(seen.append)
    decision = await limiter.try_acquire({"tokens": 90})
    assert decision.resources == {"requests": Resource(20, 19), "tokens": Resource(100, 10)}
    assert isinstance(decision.permit, Permit)
    assert decision.permit.costs == {"requests": 1, "tokens": 90}
    assert seen == [Granted(None, 1.0, 0.0, {"requests": 1, "tokens": 90})]
    rejected = await limiter.try_acquire({"tokens": 11})
    assert (bool(rejected), rejected.retry_after) == (False, 1.0)
    await limiter.record({"tokens": 50})
    assert await remaining(limiter) == {"requests": 18, "tokens": 0}
    stats = limiter.statistics()
    assert stats.resources == {"requests": Resource(20, 18), "tokens": Resource(100, 0)}
    assert stats.utilisation == 1
    await limiter.reset()
    assert await remaining(limiter) == {"requests": 20, "tokens": 100}


@virtual
async def test_quota_of_the_server_leaves_other_resources() -> None:
    limiter = limiter_on(Watched())
    async with limiter.throttle({"tokens": 30}) as permit:
        permit.update_quota(5, reset_after=60)
    assert await visit(limiter, {"tokens": 10}) == 0
    stats = limiter.statistics()
    assert stats.resources == {"requests": Resource(20, 4), "tokens": Resource(100, 60)}
    assert (type(stats.quota_remaining), stats.quota_remaining) == (float, 4)


@virtual
async def test_quota_of_a_resource_delays_the_next_call() -> None:
    store = Watched()
    limiter = limiter_on(store)
    async with limiter.throttle({"tokens": 30}) as permit:
        permit.update_quota(8, reset_after=60, resource="tokens")
    assert limiter.statistics().resources == {
        "requests": Resource(20, 19),
        "tokens": Resource(100, 8),
    }
    assert await visit(limiter, {"tokens": 7}) == 0
    asked = store.calls["reserve"]
    waiting = asyncio.create_task(visit(limiter, {"tokens": 2}))
    await asyncio.sleep(59)
    assert store.calls["reserve"] == asked
    assert await waiting == 60


@virtual
async def test_known_wait_rejects_at_once() -> None:
    limiter = limiter_on(Watched(), {"requests": "20/s", "tokens": "100/min"})
    await visit(limiter, {"tokens": 90})
    (waiting,) = visits(limiter, 1, {"tokens": 20})
    await turns(50)
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, {"tokens": 20}, timeout=30)
    assert now() < 1
    waiting.cancel()


@virtual
async def test_other_costs_are_asked_for_after_a_rejection() -> None:
    limiter = limiter_on(Watched(), {"requests": "20/s", "tokens": "100/h"})
    await visit(limiter, {"tokens": 90})
    (waiting,) = visits(limiter, 1, {"tokens": 20})
    await asyncio.sleep(0.5)
    waiting.cancel()
    # The store has rejected 20 tokens: 10 are there, and so are requests.
    assert await visit(limiter, {"requests": 2, "tokens": 10}) == 0.5
    assert await visit(limiter) == 0.5


@virtual
async def test_update_changes_the_rates_in_the_store() -> None:
    limiter = limiter_on(Watched())
    await visit(limiter, {"tokens": 90})
    limiter.update(rate_limit={"requests": "20/s", "tokens": "200/s"})
    assert await visit(limiter, {"tokens": 110}) == 0
    assert await remaining(limiter) == {"requests": 18, "tokens": 0}


@virtual
async def test_far_store_serves_many_waiters() -> None:
    store = Watched(latency=0.2)
    limiter = limiter_on(store, {"requests": "500/s", "tokens": "5000/s"})
    starts = await asyncio.gather(*visits(limiter, 1000, {"tokens": 20}))
    assert starts == sorted(starts)
    assert 3.2 <= starts[-1] <= 3.8
    assert greatest_count(store.instants, 1.0) <= 250


# ---- any sequence --------------------------------------------------------------------------------

COSTS = st.tuples(
    *(st.integers(0, 1), st.sampled_from([0, 0.1, 0.5])),
    *(st.integers(0, 3), st.sampled_from([0, 0, 1, 10, 33.3, 60])),
)


@given(st.lists(COSTS, max_size=20), st.sampled_from([0.0, 0.05]), st.sampled_from(["20/s", "5/s"]))
def test_processes_together_keep_each_limit(
    planned: Sequence[tuple[int, float, int, float]], latency: float, requests: str
) -> None:
    @virtual
    async def run() -> None:
        store = Watched(latency=latency)
        rates = {"requests": requests, "tokens": "100/s"}
        limiters = [limiter_on(store, rates) for _ in range(2)]
        starts: list[tuple[float, int, float]] = []
        order: list[list[int]] = [[], []]

        async def one(number: int, process: int, count: int, tokens: float) -> None:
            async with limiters[process].throttle({"requests": count, "tokens": tokens}):
                starts.append((now(), count, tokens))
                order[process].append(number)

        tasks: list[asyncio.Task[None]] = []
        for number, (process, pause, count, tokens) in enumerate(planned):
            await asyncio.sleep(pause)
            tasks.append(asyncio.create_task(one(number, process, count, tokens)))
            await turns(2)
            if number % 5 == 4:
                tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await rest()
        for begin, *_ in starts:
            # A reservation may be used up to 20 ms late, and then counts as of its instant.
            window = [each for each in starts if begin <= each[0] < begin + 1 - 0.03]
            assert sum(count for _, count, _ in window) <= int(requests.partition("/")[0])
            assert sum(tokens for *_, tokens in window) <= 100 + 1e-6
        assert order == [sorted(each) for each in order]
        await asyncio.sleep(1.1)
        free = await store.peek("k", PerResource(*_parts(rates)))
        assert free.retry_after == 0
        assert await remaining(limiters[0]) == {
            "requests": int(requests.partition("/")[0]),
            "tokens": 100,
        }

    run()


def _parts(rates: dict[str, str]) -> list[tuple[str, SlidingWindowLog]]:
    return [(name, SlidingWindowLog(rate)) for name, rate in rates.items()]


# ---- a store that fails --------------------------------------------------------------------------


PER_MINUTE = {"requests": "20/min", "tokens": "100/min"}


@pytest.mark.parametrize(
    ("choice", "granted", "waiting"), [("local", 4, 4), ("open", 12, 0), ("closed", 0, 8)]
)
@virtual
async def test_fallback_serves_while_the_store_fails(
    choice: Unchecked, granted: int, waiting: int
) -> None:
    server = Server()
    share = 0.5 if choice == "local" else None
    one, other = (
        limiter_on(Client(server), PER_MINUTE, on_store_error=choice, local_share=share)
        for _ in range(2)
    )
    await asyncio.gather(visit(one, {"tokens": 10}), visit(other, {"tokens": 10}))
    await asyncio.sleep(1.5)
    server.mode = "refuses"
    tasks = visits(one, granted + waiting, {"tokens": 10})
    await asyncio.sleep(0.4)
    # Half of the 80 tokens that are left is for this process alone.
    assert sum(task.done() for task in tasks) == granted
    server.mode = "up"
    await asyncio.gather(*tasks)
    assert now() < 10
    await asyncio.sleep(10)
    assert await remaining(other) == {"requests": 18 - len(tasks), "tokens": 0}
    await asyncio.sleep(120)
    assert await remaining(one) == await remaining(other) == {"requests": 20, "tokens": 100}
    await one.aclose()
    await other.aclose()


@virtual
async def test_fallback_serves_where_requests_have_no_limit() -> None:
    server = Server()
    limiter = limiter_on(
        Client(server), {"tokens": "100/min"}, on_store_error="local", local_share=0.5
    )
    await visit(limiter, {"tokens": 10})
    server.mode = "refuses"
    tasks = visits(limiter, 50)
    assert all(start < 1 for start in await asyncio.gather(*tasks))
    assert await visit(limiter, {"tokens": 45}) < 1
    (waiting,) = visits(limiter, 1, {"tokens": 10})
    await asyncio.sleep(10)
    assert not waiting.done()
    server.mode = "up"
    assert await waiting < 20
    await asyncio.sleep(0.1)
    assert await remaining(limiter) == {"tokens": 35}
    await limiter.aclose()


@virtual
async def test_failing_store_raises_for_all_waiters() -> None:
    server = Server()
    limiter = limiter_on(Client(server))
    server.mode = "refuses"
    for task in visits(limiter, 3, {"tokens": 10}):
        with pytest.raises(StoreUnavailable):
            await task
    server.mode = "up"
    await visit(limiter, {"tokens": 10})
    assert await remaining(limiter) == {"requests": 19, "tokens": 90}


def test_resources_are_not_prefetched() -> None:
    with pytest.raises(ValueError, match="prefetch is for limiters without resources"):
        limiter_on(MemoryStore(), prefetch="5/s")


# ---- servers -------------------------------------------------------------------------------------


@asynccontextmanager
async def store_of(kind: str) -> AsyncGenerator[Store]:
    """Yield a store on a server of its own."""
    if kind == "valkey":
        valkey = Valkey()
        try:
            async with valkey.connect() as client:
                yield RedisStore(client, timeout=5)
        finally:
            valkey.stop()
    elif kind == "memcached":
        server = memcached()
        from aiothrottle.stores.memcached import MemcachedStore

        try:
            async with connect_memcached(server.port, timeout=5) as cache:
                yield MemcachedStore(cache)
        finally:
            server.stop()
    else:
        server = mongodb()
        from pymongo import AsyncMongoClient

        from aiothrottle.stores.mongo import MongoStore

        try:
            uri = f"mongodb://127.0.0.1:{server.port}"
            async with AsyncMongoClient[Any](uri, retryWrites=False) as mongo:
                yield MongoStore(mongo, "aiothrottle_test", timeout=5)
        finally:
            server.stop()


@pytest.mark.parametrize("kind", ["valkey", "memcached", "mongodb"])
async def test_limit_holds_on_servers_under_concurrency(kind: str) -> None:
    rates = {"requests": "50/h", "tokens": ["100/h", "1000/day"]}
    async with store_of(kind) as store:
        limiters = [limiter_on(store, rates) for _ in range(4)]
        decisions = await asyncio.gather(
            *(limiters[place % 4].try_acquire({"tokens": 7}) for place in range(40))
        )
        assert sum(map(bool, decisions)) == 14
        assert await remaining(limiters[0]) == {"requests": 36, "tokens": 2}
        entered = await asyncio.gather(
            *(visit(limiters[place % 4], {"tokens": 0.5}) for place in range(4))
        )
        assert len(entered) == 4
        for decision in decisions:
            if decision.permit:
                decision.permit.settle({"tokens": 2})
        for limiter in limiters:
            await limiter.aclose()  # when all is settled
        assert await remaining(limiter_on(store, rates)) == {"requests": 32, "tokens": 70}


async def test_batch_is_one_call_of_redis(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        rates = {"requests": "1000/s", "tokens": "10000/s"}
        limiter = limiter_on(RedisStore(client, "one", timeout=5), rates)
        await visit(limiter, {"tokens": 1})
        await client.config_resetstat()
        await asyncio.gather(*visits(limiter, 15, {"tokens": 3}))
        stats = await client.info("commandstats")
        assert sum(stats[name]["calls"] for name in stats if "eval" in name) == 1
        await limiter.aclose()
