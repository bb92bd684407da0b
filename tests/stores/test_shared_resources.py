"""Limiters of several resources that share their limits through a store."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import RateLimiter, ThrottleTimeout
from aiothrottle.algorithms import PerResource, SlidingWindowLog
from aiothrottle.stores import Store
from tests.limiter.common import left_of_each
from tests.support.effort import examples
from tests.support.failing import Client, Server
from tests.support.virtually import now, turns, virtual, visit, visits
from tests.support.watching import Watched, rest

RATES = {"requests": "20/s", "tokens": "100/s"}


def limiter_on(store: Store, rates: Any = RATES, **options: Any) -> RateLimiter:
    return RateLimiter(rates, store=store, key="k", guard=0, **options)


async def test_settled_cost_reaches_the_store() -> None:
    store = Watched(latency=0.01)
    one, other = limiter_on(store), limiter_on(store)
    async with one.throttle({"tokens": 60}) as permit:
        for costs, left in (
            ({"tokens": 10}, {"requests": 19, "tokens": 90}),
            ({"requests": 3, "tokens": 120}, {"requests": 17, "tokens": 0}),
            ({"tokens": 1}, {"requests": 17, "tokens": 99}),
        ):
            permit.settle(costs)
            await rest()
            assert await left_of_each(other) == left
        assert permit.costs == {"requests": 3, "tokens": 1}


async def test_known_wait_rejects_at_once_and_other_costs_are_asked_for() -> None:
    limiter = limiter_on(Watched(), {"requests": "20/s", "tokens": "100/h"})
    await visit(limiter, {"tokens": 90})
    (waiting,) = visits(limiter, 1, {"tokens": 20})
    await turns(50)
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, {"tokens": 20}, timeout=30)
    await asyncio.sleep(0.5)
    waiting.cancel()
    # The store has rejected 20 tokens: 10 are there, and so are requests.
    assert await visit(limiter, {"requests": 2, "tokens": 10}) == 0.5
    assert await visit(limiter) == 0.5
    limiter.update(rate_limit={"requests": "20/s", "tokens": "200/h"})
    assert await visit(limiter, {"tokens": 100}) == 0.5
    assert (await left_of_each(limiter))["tokens"] == 0


COSTS = st.tuples(
    *(st.integers(0, 1), st.sampled_from([0, 0.1, 0.5])),
    *(st.integers(0, 3), st.sampled_from([0, 0, 1, 10, 33.3, 60])),
)


@examples(40)
@given(st.lists(COSTS, max_size=20), st.sampled_from([0.0, 0.05]), st.sampled_from([20, 5]))
@virtual
async def test_processes_together_keep_each_limit(
    planned: Sequence[tuple[int, float, int, float]], latency: float, requests: int
) -> None:
    store = Watched(latency=latency)
    rates = {"requests": f"{requests}/s", "tokens": "100/s"}
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
        assert sum(count for _, count, _ in window) <= requests
        assert sum(tokens for *_, tokens in window) <= 100 + 1e-6
    assert order == [sorted(each) for each in order]
    await asyncio.sleep(1.1)
    windows = [(name, SlidingWindowLog(rate)) for name, rate in rates.items()]
    assert (await store.peek("k", PerResource(*windows))).retry_after == 0
    assert await left_of_each(limiters[0]) == {"requests": requests, "tokens": 100}


@pytest.mark.parametrize(
    ("choice", "granted", "waiting"), [("local", 4, 4), ("open", 12, 0), ("closed", 0, 8)]
)
async def test_fallback_serves_during_an_outage(choice: str, granted: int, waiting: int) -> None:
    server = Server()
    rates = {"requests": "20/min", "tokens": "100/min"}
    share = 0.5 if choice == "local" else None
    one, other = (
        limiter_on(Client(server), rates, on_store_error=choice, local_share=share)
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
    assert await left_of_each(other) == {"requests": 18 - len(tasks), "tokens": 0}
    await asyncio.sleep(120)
    assert await left_of_each(one) == await left_of_each(other) == {"requests": 20, "tokens": 100}
    await one.aclose()
    await other.aclose()
