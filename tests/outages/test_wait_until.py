"""`WaitUntil` through a failing store: granted instants hold, `on_store_error` decides the rest."""

import asyncio

import pytest

from aiothrottle import RateLimiter, StoreUnavailable, WaitUntil
from aiothrottle.stores.store import OnStoreError
from tests.outages import processes
from tests.support.failing import Server
from tests.support.virtually import now, outcomes, visit, visits


def limiter_on(server: Server, choice: OnStoreError = "local") -> RateLimiter:
    return processes.limiter_on(server, choice, None, algorithm=WaitUntil(1, 5, 10))


async def outage_after_one() -> tuple[Server, RateLimiter]:
    """Grant one request, stop the store, and let the local share of this process serve."""
    server = Server()
    limiter = limiter_on(server)
    assert await visit(limiter) == 0
    server.mode = "refuses"
    return server, limiter


async def test_raise_fails_new_requests_and_keeps_granted_ones() -> None:
    server = Server()
    limiter = limiter_on(server, "raise")
    tasks = visits(limiter, 3)
    await asyncio.sleep(0.01)
    server.mode = "drops"
    assert {type(each) for each in await outcomes(visits(limiter, 3))} == {StoreUnavailable}
    assert await outcomes(tasks) == [0, 1, 2]
    server.mode = "up"
    # The three requests without an answer were counted.
    assert await visit(limiter) == pytest.approx(6, abs=0.02)


async def test_local_share_knows_the_last_reported_instant() -> None:
    server = Server()
    limiter, other = limiter_on(server), limiter_on(server, "raise")
    assert await outcomes(visits(other, 3)) == [0, 1, 2]
    assert await visit(limiter) == 3
    (of_other,) = visits(other, 1)
    await asyncio.sleep(0.1)
    assert not await limiter.try_acquire()  # the next instant is 5
    server.mode = "refuses"
    assert await visit(limiter) == 5
    assert await of_other == 4


async def test_local_share_of_two_is_every_second_interval() -> None:
    server = Server()
    limiters = [limiter_on(server) for _ in range(2)]
    for limiter in limiters * 2:
        await visit(limiter)
        await asyncio.sleep(0.5)
    await asyncio.sleep(5)
    server.mode = "refuses"
    for limiter in limiters:
        begin = now()
        *granted, rejected = await outcomes(visits(limiter, 4))
        assert granted == [begin, begin + 2, begin + 4]
        assert isinstance(rejected, str)
    for _ in range(8):
        await visit(limiters[0])
    server.recorded.clear()
    server.mode = "up"
    await visit(limiters[0])
    # Of its grants in the last ten seconds only those after the reported instant count.
    assert 0 < server.recorded[0] <= 2


async def test_local_share_rejects_and_reports_only_the_current_instant() -> None:
    server, limiter = await outage_after_one()
    assert await outcomes(visits(limiter, 9)) == [1, 2, 3, 4, 5, "6", "7", "8", "9"]
    for instant in range(10, 40):
        assert await visit(limiter) == instant
    server.mode = "up"
    assert await outcomes(visits(limiter, 2)) == [40, 41]
    (recorded,) = server.recorded
    assert 2 <= recorded <= 3


async def test_local_grants_count_when_the_store_recovers() -> None:
    server, limiter = await outage_after_one()
    tasks = visits(limiter, 3)
    await asyncio.sleep(0.5)
    server.mode = "up"
    tasks += visits(limiter, 2)
    await asyncio.sleep(0.4)
    assert limiter.statistics().store_up
    assert server.recorded == [5]
    # Five more hits, from 1.0 on.
    assert (await limiter_on(server).peek()).retry_after == pytest.approx(5.1)
    assert await outcomes(tasks) == [1, 2, 3, 4, 5]
