"""`on_store_error="local"`: the share of each process, given by the user or counted."""

import asyncio
from typing import Any

import pytest

from aiothrottle import RateLimiter
from aiothrottle.algorithms import amounts
from aiothrottle.stores.health import Health, ProcessCount, ProcessCounter
from aiothrottle.testing import greatest_count
from aiothrottle.testing.store_contract import ManualClock
from tests.outages.processes import OUTAGES, Workers, back, fall, limiter_on, process
from tests.support.failing import Client, Server
from tests.support.stored import DictStore
from tests.support.virtually import now, visit


@pytest.mark.parametrize("mode", OUTAGES)
@pytest.mark.parametrize("rate", ["20/s", ["20/s", "60/5s"]])
async def test_local_shares_the_limit_without_bursts(mode: str, rate: str | list[str]) -> None:
    server = Server()
    server.latency = 0.002
    workers = Workers(*(limiter_on(server, "local", rate) for _ in range(4)), tasks=8)
    await asyncio.sleep(5.0)
    server.mode = mode
    await asyncio.sleep(5.0)
    await back(server, 10.0)
    # A reservation may be used 20 ms late.
    assert greatest_count(workers.granted_at, 0.98) <= 20
    if rate == "20/s":
        # At most a second is spent waiting for the first call without an answer.
        assert workers.count(6.1, 10.0) >= 0.9 * 60
        assert workers.count(12.0, 20.0) >= 0.9 * 8 * 20
    else:
        assert greatest_count(workers.granted_at, 4.98) <= 60
        assert workers.count(10.0, 20.0) >= 0.9 * 120 - 60


@pytest.mark.parametrize(("rate", "cost"), [(["2/s", "20/h"], 2), ({"x": "2/s,20/h"}, {"x": 2})])
async def test_each_of_several_rates_counts_an_outage(rate: Any, cost: Any) -> None:
    server, limiter = process("local", rate, local_share=1.0, guard=0.0)
    server.mode = "refuses"
    for _ in range(8):
        await visit(limiter, cost)
    await back(server)
    (recorded,) = server.recorded
    assert recorded in (16.0, amounts({"requests": 8, "x": 16}))


async def test_what_the_store_rejects_after_its_return_is_not_spent_here() -> None:
    server, limiter = process("local", "10/min", local_share=0.5, guard=0.0)
    other = limiter_on(server, "local", "10/min", guard=0.0)
    await fall(limiter, server)
    await back(server, 1.0)
    await limiter.peek()  # has it find out
    await asyncio.sleep(0.1)
    assert limiter.statistics().store_up
    assert all([await other.try_acquire() for _ in range(10)])
    assert not any([await limiter.try_acquire() for _ in range(9)])
    await other.reset()
    await other.record(4)
    await limiter.record(0)  # the share, half of the limit, does not count what the store has
    assert all([await limiter.try_acquire() for _ in range(5)])
    assert not await limiter.peek(), "the share holds as well as the store, for two seconds"


async def test_processes_are_counted_by_any_store() -> None:
    server = Server()
    stores = [Client(server) for _ in range(4)]
    limiters = [
        RateLimiter("20/s", store=store, key="k", on_store_error="local") for store in stores
    ]
    workers = Workers(*limiters, limiter_on(server, "local", local_share=0.25), tasks=4)
    await asyncio.sleep(15.0)
    assert [Health.of(store, "key", None).counter.processes for store in stores] == [4] * 4
    for task in workers.tasks[0::5]:
        task.cancel()
    await asyncio.sleep(45.0)
    assert [Health.of(store, "key", None).counter.processes for store in stores[1:]] == [3] * 3
    store = DictStore({}, clock := ManualClock())
    counters = [ProcessCounter() for _ in range(3)]
    for counter in counters:
        await counter.register(store)
        clock.advance(10.0)
    assert [counter.processes for counter in counters] == [1, 2, 3]
    clock.advance(15.0)
    await counters[2].register(store)
    assert counters[2].processes == 1
    count = ProcessCount("ann", seconds=30.0)
    state = count.start()
    assert count.reset_after(state, 0.0) == 0.0
    for at in (20.0, 10.0):  # the clock is set back
        count.take(state, at, 1)
    assert (count.remaining(state, 49.0), count.remaining(state, 50.0)) == (1, 0)
    counter, due = ProcessCounter(), list[float]()
    for _ in range(200):
        if counter.is_due():
            due.append(now())
        await asyncio.sleep(1.0)
    assert 16 <= len(due) <= 30, "each ten seconds, while a registration counts for thirty"


async def test_limiters_with_different_clocks_count_one_process() -> None:
    client, other = Client(server := Server()), Client(server)
    loop = asyncio.get_running_loop()
    ahead, plain, alone = (
        RateLimiter("20/s", store=store, key=key, on_store_error="local", clock=clock)
        for store, key, clock in (
            (client, "a", lambda: 1e9 + loop.time()),
            (client, "b", loop.time),
            (other, "c", loop.time),
        )
    )
    await visit(ahead)
    Workers(plain, alone, tasks=1)
    await asyncio.sleep(25.0)
    assert Health.of(other, "c", None).counter.processes == 2


async def test_heavy_cost_is_granted_when_shares_cover_it() -> None:
    server, limiter = process("local", "10/s", local_share=0.25, guard=0.0)
    server.mode = "refuses"
    assert (await limiter.peek()).remaining == 2.5
    assert await limiter.try_acquire(5)  # twenty, so two seconds' worth
    assert await visit(limiter) == 2.0
    server, limiter = process("local", "2/s", local_share=5e-324, guard=0.0)
    server.mode = "refuses"
    assert [bool(await limiter.try_acquire(cost)) for cost in (0, 1, 1)] == [True, True, False]
