"""The way back of a store that failed: probes, cancellation, other loops. In virtual time."""

import asyncio
import contextlib
import gc
import logging
import weakref
from itertools import pairwise
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, LimiterClosed, RateLimiter, StoreUnavailable, WaitUntil
from aiothrottle.events import Event, StoreDown, StoreUp
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.health import Health
from aiothrottle.stores.store import CHOICES, OnStoreError
from aiothrottle.testing import VirtualTimeLoop
from tests.outages.processes import back, fall, outcomes, process
from tests.support.failing import Client, Server
from tests.support.virtually import now, turns, visit, visits
from tests.support.watching import cancel, others, rest, sweep


async def test_retry_intervals_grow_up_to_a_bound() -> None:
    """Also after thousands of failures; a waiter is granted soon after the return."""
    server, limiter = process("closed")
    server.mode = "refuses"
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(3600.0)
    tries = [at for at, method in server.asked if method == "peek"]
    pauses = [later - first for first, later in pairwise(tries)]
    assert len(tries) == len(server.asked) - 1
    assert pauses[0] < 0.2
    assert all(0.37 <= pause <= 0.7 for pause in pauses[4:])
    server.mode = "up"
    assert await waiting <= 3601.0


async def test_retries_of_processes_have_jitter() -> None:
    pauses: set[float] = set()
    for _ in range(20):
        health = Health(MemoryStore())
        health.call_failed(StoreUnavailable("no"))
        pauses.add(health.pause())
    assert len(pauses) == 20
    assert 0.0375 <= min(pauses) <= max(pauses) <= 0.0625


async def test_keys_of_one_store_share_retries_and_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    server = Server()
    limiter = KeyedRateLimiter("5/s", store=Client(server), key="k", on_store_error="local")

    async def try_all(count: int, pause: float = 0.0) -> None:
        await asyncio.gather(*(limiter.try_acquire(str(key)) for key in range(count)))
        await asyncio.sleep(pause)

    await try_all(10)
    server.mode = "stalls"
    await try_all(10)
    begin = now()
    await try_all(50)  # a new key need not find out by itself
    assert now() == begin
    for _ in range(20):
        await try_all(50, pause=0.5)
    assert len(server.methods(since=begin)) <= 11
    (line,) = caplog.messages
    assert line.startswith("Client fails, on_store_error='local': 'late'; requests with key ('k', ")
    assert line.endswith(") get this process's share of the limit until it answers")
    server.mode = "up"
    for _ in range(8):
        await try_all(50, pause=0.25)
    assert all(limiter.statistics(str(key)).store_up for key in range(50))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "is back after 1" in caplog.messages[1]


async def ask(limiter: RateLimiter, seconds: float = 0.1) -> None:
    """Send requests for so long, whether the store answers or not."""
    for _ in range(round(10 * seconds)):
        with contextlib.suppress(StoreUnavailable):
            await limiter.try_acquire()
        await asyncio.sleep(0.1)


def limiter_of(client: Client, key: str, choice: OnStoreError) -> RateLimiter:
    return RateLimiter("20/s", store=client, key=key, on_store_error=choice)


async def test_limiter_made_during_an_outage_reports_its_reason() -> None:
    client, events = Client(server := Server()), list[Event]()
    first, second = (limiter_of(client, key, "open") for key in "ab")
    second.observe(events.append)
    server.mode = "stalls"
    await ask(first)
    await ask(second)
    (down,) = (event for event in events if isinstance(event, StoreDown))
    assert "late" in str(down.error)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("choice", CHOICES)
async def test_answer_to_another_limiter_ends_the_outage(
    choice: OnStoreError, closes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    client = Client(server := Server())
    first, other = (limiter_of(client, key, choice) for key in "ab")
    await ask(other)
    for _ in range(2):
        server.mode = "refuses"
        await ask(first)
        if closes:
            await first.aclose()
        await back(server, 5.0)
        await visit(other)
        if closes:
            first = limiter_of(client, "a", choice)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2


async def test_limiter_that_is_closed_while_it_tries_the_server_reports_nothing_more() -> None:
    client, events = Client(server := Server()), list[Event]()
    closed, other = (limiter_of(client, key, "local") for key in "ab")
    closed.observe(events.append)
    server.mode = "refuses"
    await ask(closed)
    server.mode = "stalls"
    await ask(closed, 0.5)  # it tries the server
    await closed.aclose()
    server.mode = "up"
    await ask(other, 3.0)
    assert [type(it) for it in events if isinstance(it, StoreDown | StoreUp)] == [StoreDown]


async def test_cancellation_during_the_recovery_loses_nothing() -> None:
    server, limiter = process("local", "2/10s")
    await fall(limiter, server)
    await visit(limiter)
    server.mode, server.latency = "up", 0.5
    while "record" not in server.methods():  # noqa: ASYNC110 - this call reports the spent tokens
        await asyncio.sleep(0.01)
    asking = asyncio.create_task(limiter.try_acquire())
    first, second = visits(limiter, 2)
    await turns()
    assert not asking.done()
    assert not first.done()
    await cancel(asking, first)
    await second
    assert server.recorded == [1.0]
    await rest()
    assert limiter.statistics().in_flight == 0


async def test_closing_during_the_recovery_leaves_no_task() -> None:
    running = set[str]()
    for step in range(12):
        server, limiter = process("local", "2/min")
        server.latency = 0.3
        await fall(limiter, server)
        waiting = visits(limiter, 4)
        await asyncio.sleep(1.0)
        await back(server, step * 0.1)
        running |= others()
        await limiter.aclose()
        assert not others()
        for result in await outcomes(*waiting):
            assert isinstance(result, float | LimiterClosed)
        with pytest.raises(LimiterClosed):
            await limiter.try_acquire()
    assert running


async def test_task_sweep_does_not_stop_the_recovery() -> None:
    server, limiter = process("closed")
    server.mode = "stalls"
    waiting = visits(limiter, 2)
    await asyncio.sleep(3.2)
    sweep()
    server.mode = "up"
    async with asyncio.timeout(3.0):
        await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    "limit", [{"rate": "2/s"}, {"rate": None, "algorithm": WaitUntil(1, 5, 10)}]
)
def test_second_loop_starts_with_the_store(limit: dict[str, Any]) -> None:
    server, limiter = process("closed", **limit)

    async def first() -> None:
        await asyncio.sleep(50.0)
        server.mode = "stalls"
        waiting = visits(limiter, 2)
        await asyncio.sleep(4.0)
        assert not any(task.done() for task in waiting)

    async def second() -> None:
        server.mode = "up"
        assert await asyncio.gather(*visits(limiter, 2)) == [0, 0 if limit["rate"] else 1]

    for main in (first, second):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())


class Listener(list[Event]):
    """Has weak references."""


async def test_limiter_in_an_outage_can_be_collected() -> None:
    (server, limiter), listener = process("local"), Listener()
    limiter.observe(listener.append)
    await fall(limiter, server)
    await visit(limiter)
    await asyncio.sleep(0.5)
    assert listener
    reference = weakref.ref(listener)
    del limiter, listener
    gc.collect()
    assert reference() is None
    await asyncio.sleep(2.0)  # its timer does no harm


@pytest.mark.parametrize("choice", CHOICES)
async def test_limiters_with_different_clocks_find_the_store_back(choice: OnStoreError) -> None:
    client, loop = Client(server := Server()), asyncio.get_running_loop()
    plain, ahead = (
        RateLimiter("20/s", store=client, key=key, on_store_error=choice, clock=clock)
        for key, clock in (("a", loop.time), ("b", lambda: 1e9 + loop.time()))
    )
    server.mode = "refuses"
    for limiter in (ahead, plain) * 3:
        with contextlib.suppress(StoreUnavailable):
            await limiter.peek()
        await asyncio.sleep(0.3)
    await back(server)
    await plain.peek()
    await turns()
    assert plain.statistics().store_up is True


@pytest.mark.parametrize("choice", CHOICES[1:])
async def test_call_of_a_closed_limiter_is_taken_to_the_store(choice: OnStoreError) -> None:
    server, limiter = process(choice)
    await visit(limiter)
    server.mode = "refuses"
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(1.0)
    await limiter.aclose()
    await asyncio.gather(waiting, return_exceptions=True)
    await limiter.record(3.0)
    assert limiter.statistics().store_up is False
    server.mode = "up"
    await asyncio.sleep(10.0)
    assert limiter.statistics().store_up is True
    assert server.recorded == [3.0]
