"""`WaitUntil` through a failing store: granted instants hold, `on_store_error` decides the rest."""

import asyncio

import pytest

from aiothrottle import RateLimiter, SlidingWindowLog, StoreUnavailable
from aiothrottle.events import StoreUp
from aiothrottle.testing import VirtualTimeLoop
from tests.failing import Client, Server
from tests.limiter.test_timeout import outcomes
from tests.stores.test_shared import Watched
from tests.stores.test_shared_wait_until import TABLE, limiter_on
from tests.virtually import now, turns, virtual, visit, visits


async def outage_after_one() -> tuple[Server, RateLimiter]:
    """Grant one request, stop the store, and have the local share of this process serve."""
    server = Server()
    limiter = limiter_on(Client(server), on_store_error="local")
    assert await visit(limiter) == 0
    server.mode = "refuses"
    return server, limiter


@virtual
async def test_raise_fails_new_requests_and_keeps_granted_ones() -> None:
    store = Watched()
    limiter = limiter_on(store)
    tasks = visits(limiter, 3)
    await turns()
    store.error = StoreUnavailable("away")
    for outcome in await asyncio.gather(*visits(limiter, 3), return_exceptions=True):
        assert isinstance(outcome, StoreUnavailable)
    assert await outcomes(tasks) == [0, 1, 2]
    store.error = None
    # The three requests without an answer may have been counted.
    assert 3 <= await visit(limiter) <= 6


@virtual
async def test_local_share_rejects_as_the_algorithm_does() -> None:
    _, limiter = await outage_after_one()
    tasks = visits(limiter, 9)
    answers = await outcomes(tasks)
    assert answers[:5] == [1, 2, 3, 4, 5]
    assert answers[5:] == ["6", "7", "8", "9"]
    assert await visit(limiter) == 10
    await limiter.aclose()


@virtual
async def test_local_share_knows_the_last_reported_instant() -> None:
    server = Server()
    limiter = limiter_on(Client(server), on_store_error="local")
    other = limiter_on(Client(server))
    assert await outcomes(visits(other, 3)) == [0, 1, 2]
    assert await visit(limiter) == 3
    (await_other,) = visits(other, 1)
    await asyncio.sleep(0.1)
    assert not await limiter.try_acquire()  # the next instant is 5
    server.mode = "refuses"
    assert await visit(limiter) == 5
    assert await await_other == 4
    await limiter.aclose()


@virtual
async def test_local_share_of_two_is_every_second_interval() -> None:
    server = Server()
    limiters = [limiter_on(Client(server), on_store_error="local") for _ in range(2)]
    for _ in range(2):
        for limiter in limiters:
            await visit(limiter)
        await asyncio.sleep(1)
    await asyncio.sleep(5)
    server.mode = "refuses"
    begin = now()
    for limiter in limiters:
        answers = await outcomes(visits(limiter, 4))
        assert [each - begin for each in answers[:3] if isinstance(each, float)] == [0, 2, 4]
        assert isinstance(answers[3], str)
        begin = now()
    for _ in range(8):
        await visit(limiters[0])
    server.recorded.clear()
    server.mode = "up"
    await visit(limiters[0])
    # Of its grants in the last ten seconds only those after the reported instant count.
    assert 0 < server.recorded[0] <= 2
    for limiter in limiters:
        await limiter.aclose()


@virtual
async def test_recovered_store_serves_all_waiters_in_one_call() -> None:
    server, limiter = await outage_after_one()
    assert await visit(limiter) == 1
    server.mode = "up"
    assert await visit(limiter) == 2
    server.asked.clear()
    first, *behind = [await task for task in visits(limiter, 4)]
    assert 3 <= first < 4
    assert behind == pytest.approx([first + 1, first + 2, first + 3])
    assert server.methods().count("reserve") == 1
    await limiter.aclose()


@virtual
async def test_long_outage_reports_only_the_current_instant() -> None:
    server, limiter = await outage_after_one()
    for _ in range(30):
        await visit(limiter)
    server.mode = "up"
    assert await outcomes(visits(limiter, 2)) == [31, 32]
    (recorded,) = server.recorded
    assert 2 <= recorded <= 3
    await limiter.aclose()


@virtual
async def test_local_grants_count_when_the_store_recovers() -> None:
    server, limiter = await outage_after_one()
    tasks = visits(limiter, 3)
    await asyncio.sleep(0.5)
    server.mode = "up"
    tasks += visits(limiter, 2)
    await asyncio.sleep(0.1)
    assert limiter.statistics().store_up
    assert server.recorded == [5]
    other = limiter_on(Client(server))
    assert (await other.peek()).retry_after == pytest.approx(5.4)  # five more hits, from 1.0 on
    assert await outcomes(tasks) == [1, 2, 3, 4, 5]
    await limiter.aclose()


@virtual
async def test_closed_waiters_are_decided_when_the_store_recovers() -> None:
    server = Server()
    server.mode = "refuses"
    limiter = limiter_on(Client(server), on_store_error="closed")
    up_at = list[float]()
    limiter.observe(lambda event: up_at.append(now()) if isinstance(event, StoreUp) else None)
    tasks = visits(limiter, 8)
    tasks += visits(limiter, 1, timeout=3)
    await asyncio.sleep(20)
    assert limiter.statistics().waiting == 8
    server.mode = "up"
    answers = await outcomes(tasks)
    assert isinstance(answers[8], str)
    granted_at = [each for each in answers[:6] if isinstance(each, float)]
    assert 20 < granted_at[0] < 22
    assert up_at == [granted_at[0]]
    assert [each - granted_at[0] for each in granted_at] == pytest.approx(range(6), abs=0.01)
    assert answers[6:8] == ["6", "7"]
    await limiter.aclose()


@virtual
async def test_open_grants_all() -> None:
    server = Server()
    server.mode = "refuses"
    limiter = limiter_on(Client(server), on_store_error="open")
    answers = await outcomes(visits(limiter, 20))
    assert all(isinstance(each, float) and each < 1 for each in answers)
    await limiter.aclose()


@virtual
async def test_key_of_another_algorithm_is_raised_in_waiters() -> None:
    store = Watched()
    await store.record("k", SlidingWindowLog(5))
    limiter = limiter_on(store)
    for outcome in await asyncio.gather(*visits(limiter, 2), return_exceptions=True):
        assert isinstance(outcome, ValueError)
        assert "another algorithm" in str(outcome)


def test_second_loop_ignores_instants_of_the_first() -> None:
    server = Server()
    limiter = limiter_on(Client(server), on_store_error="closed")

    async def without() -> None:
        await asyncio.sleep(1000)
        server.mode = "refuses"
        waiting = visits(limiter, 3)
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)

    async def second() -> None:
        server.mode = "up"
        assert await outcomes(visits(limiter, 8)) == TABLE[:8]
        await limiter.aclose()

    for main in (without, second):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())
