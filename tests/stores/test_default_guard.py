"""The guard of a rate that processes share: without a choice it makes up for late answers."""

import asyncio
import random
from bisect import bisect_left
from typing import Any

import pytest

from aiothrottle import (
    FixedWindow,
    LeakyBucket,
    Rate,
    RateLimiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.reserved import Reserved
from aiothrottle.testing import greatest_count
from tests.failing import Client, Server
from tests.virtually import now, virtual

# Seconds: how late an answer may be, and how long a request takes to the observer.
LATE, WAY = 0.02, 0.004
MEMBERS = 8


class Jittery(Client):
    """A store whose answers come late, each by another delay."""

    async def ask(self, method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        answer = await super().ask(method, *arguments, **options)
        await asyncio.sleep(random.uniform(0.0, LATE))
        return answer


async def observe(rate: int, seconds: float, guard: float | None = None) -> list[float]:
    """Return when the requests of all members arrive at an observer."""
    random.seed(rate)
    server = Server()
    server.latency = 0.001
    seen: list[float] = []

    async def work(limiter: RateLimiter) -> None:
        while now() < seconds:
            async with limiter.throttle():
                seen.append(now() + random.uniform(0.0, WAY))

    members = [
        RateLimiter(f"{rate}/s", guard=guard, store=Jittery(server), key="k")
        for _ in range(MEMBERS)
    ]
    workers = max(2, rate // MEMBERS)
    await asyncio.gather(*(work(member) for member in members for _ in range(workers)))
    return sorted(seen)


@pytest.mark.parametrize("rate", [10, 100, 2000])
@virtual
async def test_observer_of_members_counts_the_limit_and_most_of_it(rate: int) -> None:
    periods = 5
    seen = await observe(rate, periods + 3.0)
    assert greatest_count(seen, 1.0) <= rate
    first = bisect_left(seen, 1.5)
    assert periods / (seen[first + periods * rate] - seen[first]) >= 0.95


@virtual
async def test_observer_without_a_guard_counts_more() -> None:
    assert greatest_count(await observe(10, 8.0, guard=0.0), 1.0) > 10


def decides(limiter: RateLimiter) -> Algorithm[Any]:
    """Return the algorithm that decides in the store."""
    reserved = limiter._engine.bucket.algorithm
    assert isinstance(reserved, Reserved)
    return reserved.algorithm


def rates_of(limiter: RateLimiter) -> list[Rate]:
    algorithm = decides(limiter)
    parts: tuple[Any, ...] = (algorithm,)
    if isinstance(algorithm, AllOf):
        parts = tuple(algorithm.algorithms)
    return [part.rate for part in parts]


def period_of(limiter: RateLimiter) -> float:
    return rates_of(limiter)[0].period


@pytest.mark.parametrize(
    ("rate", "algorithm", "period"),
    [
        ("10/s", SlidingWindowLog, 1.045),
        ("10/s", SlidingWindowCounter, 1.045),
        ("10/s", TokenBucket, 1.045),
        ("10/s", LeakyBucket, 1.045),
        ("10/100ms", SlidingWindowLog, 0.1045),
        ("10/min", SlidingWindowLog, 60.05),
        ("10/s", FixedWindow, 1.0),
    ],
)
def test_default_guard_is_a_part_of_the_period(
    rate: str, algorithm: type[Algorithm[Any]], period: float
) -> None:
    limiter = RateLimiter(rate, algorithm=algorithm, store=Client(Server()), key="k")
    assert period_of(limiter) == pytest.approx(period)
    limiter.update(rate_limit="20/s")
    assert period_of(limiter) == (1.0 if algorithm is FixedWindow else 1.045)


def test_default_guard_of_several_rates_follows_the_shortest() -> None:
    limiter = RateLimiter(["10/s", "100/min"], store=Client(Server()), key="k")
    assert [rate.period for rate in rates_of(limiter)] == [1.045, 60.045]


@pytest.mark.parametrize("store", [Client(Server()), MemoryStore()])
def test_given_guard_is_kept(store: Client | MemoryStore) -> None:
    assert period_of(RateLimiter("10/s", guard=0.0, store=store, key="k")) == 1.0
    assert period_of(RateLimiter("10/s", guard=0.2, store=store, key="k")) == 1.2


def test_store_in_one_process_needs_no_guard() -> None:
    limiter = RateLimiter("10/s", store=MemoryStore(), key="k")
    assert period_of(limiter) == 1.0
    limiter.update(rate_limit="20/s")
    assert period_of(limiter) == 1.0


def test_algorithm_with_its_own_numbers_gets_no_guard() -> None:
    for algorithm in (WaitUntil(1, 5, 10), SlidingWindowLog("10/s")):
        limiter = RateLimiter(algorithm=algorithm, store=Client(Server()), key="k")
        assert decides(limiter) is algorithm
