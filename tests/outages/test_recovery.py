"""The way back of a store that failed: probes and their costs, cancellation, other loops."""

import asyncio
import contextlib
import gc
import logging
import weakref
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.health import Health
from aiothrottle.stores.store import CHOICES, OnStoreError
from tests.outages.processes import back, fall, process
from tests.support.failing import Client, Server
from tests.support.sharing import Link, Shared
from tests.support.virtually import cancel, now, turns, visit, visits
from tests.support.watching import others, rest


async def test_retry_intervals_grow_up_to_a_bound() -> None:
    server, limiter = process("closed")
    server.mode = "refuses"
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(600.0)
    tries = [at for at, method in server.asked if method == "peek"]
    pauses = [later - first for first, later in pairwise(tries)]
    assert len(tries) == len(server.asked) - 1
    assert pauses[0] < 0.2
    assert all(0.37 <= pause <= 0.7 for pause in pauses[4:])
    server.mode = "up"
    assert await waiting <= 601.0


async def test_retries_of_processes_have_jitter() -> None:
    pauses: set[float] = set()
    for _ in range(20):
        health = Health.of(MemoryStore(), "key", None)
        for _ in range(3):  # calls that fail together are one failure
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


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "limit", [{"rate_limit": "20/s"}, {"concurrency_limit": SharedConcurrency(2)}]
)
async def test_answer_to_another_limiter_ends_the_outage(
    choice: OnStoreError, closes: bool, limit: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    client = Client(server := Server())
    make = partial(RateLimiter, store=client, on_store_error=choice, **limit)
    first, other = (make(key=key) for key in "ab")
    await ask(other)
    for _ in range(2):
        server.mode = "refuses"
        await ask(first)
        if closes:
            await first.aclose()
        await back(server, 5.0)
        await visit(other)
        await rest()
        if closes:
            first = make(key="a")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2


@pytest.mark.parametrize("keys", ["ab", "aa"])
async def test_answer_to_an_earlier_call_does_not_end_the_outage(keys: str) -> None:
    client = Client(server := Server())
    limiters = {key: limiter_of(client, key, "closed") for key in keys}
    early, other = (limiters[key] for key in keys)
    server.latency = 1.0
    (answered,) = visits(early, 1)
    await asyncio.sleep(0.49)
    server.mode, server.latency = "refuses", 0.0
    await other.try_acquire()
    assert await answered == 0.5
    await turns()
    assert other.statistics().store_up is False


async def test_requests_fail_at_once_while_a_probe_waits_for_its_answer() -> None:
    client = Client(server := Server())
    probing, failing = limiter_of(client, "a", "closed"), limiter_of(client, "b", "raise")
    server.mode = "stalls"
    waiting = visits(probing, 1)
    await ask(failing, 3.0)
    for _ in range(50):
        begin = now()
        with pytest.raises(StoreUnavailable):
            await failing.try_acquire()
        assert now() == begin
        await asyncio.sleep(0.1)
    await cancel(*waiting)


async def test_closing_gives_up_slots_if_another_limiter_found_the_store_down() -> None:
    client = Client(server := Server())
    finder, closed = (
        RateLimiter(concurrency_limit=SharedConcurrency(2), store=client, key=key) for key in "ab"
    )
    held = await closed.acquire()
    server.mode = "refuses"
    await ask(finder, 1.0)
    while server.asked[-1][0] != now():  # until it is not to be tried for some time
        await asyncio.sleep(0.1)
        with contextlib.suppress(StoreUnavailable):
            await finder.try_acquire()
    await finder.aclose()
    held.release()
    closing, calls = asyncio.create_task(closed.aclose()), len(server.asked)
    await turns(50)
    assert closing.done()
    await asyncio.sleep(60.0)  # the lease ends without a call
    assert len(server.asked) == calls


@pytest.mark.parametrize("choice", ["raise", "local"])
@pytest.mark.parametrize("slots", [None, SharedConcurrency(3)])
@pytest.mark.parametrize("method", ["acquire", "try_acquire", "peek", "record"])
async def test_outage_keeps_no_limiter_alive(
    method: str, slots: SharedConcurrency | None, choice: OnStoreError
) -> None:
    client = Client(server := Server())
    limiter = RateLimiter(
        "20/s", concurrency_limit=slots, store=client, key="k", on_store_error=choice
    )
    server.mode = "refuses"
    gc.disable()
    try:
        for _ in range(4):  # some without a call
            with contextlib.suppress(StoreUnavailable):
                await getattr(limiter, method)()
            await asyncio.sleep(0.06)
        assert limiter.statistics().store_up is False
        engine = weakref.ref(limiter._engine)
        del limiter
        await asyncio.sleep(1.0)
        assert engine() is None
        await asyncio.sleep(30.0)  # a slot is returned until its lease ends
        health = Health.of(client, "k", asyncio.get_running_loop())
        assert not health.followers, "nor what it knows of the outage"
    finally:
        gc.enable()


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


async def test_key_that_always_fails_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Client.ask

    async def fail(client: Client, method: str, key: str, *call: Any, **options: Any) -> Any:
        if key == "a":
            raise StoreUnavailable("no")
        return await ask(client, method, key, *call, **options)

    monkeypatch.setattr(Client, "ask", fail)
    client = Client(server := Server())
    server.mode = "refuses"
    waiting = [task for key in "ab" for task in visits(limiter_of(client, key, "closed"), 1)]
    await asyncio.sleep(5.0)
    await back(server)
    assert [task.done() for task in waiting] == [False, True]
    await cancel(*waiting)


# ---- many keys: calls and timers are counted, as processor time depends on the machine -----------

KEYS = 200
SECONDS = 50.0


def timers() -> int:
    loop: Any = asyncio.get_running_loop()
    return sum(not timer.cancelled() for timer in loop._scheduled)


async def grant_twice(limiter: KeyedRateLimiter, key: int) -> float:
    for _ in range(2):
        async with limiter.throttle(key):
            pass
    return now()


def all_keys(limiter: KeyedRateLimiter, count: int = KEYS) -> list[asyncio.Task[float]]:
    return [asyncio.create_task(grant_twice(limiter, key)) for key in range(count)]


@pytest.mark.parametrize(
    ("choice", "rates", "options"),
    [("closed", ["2/h", "3/h"], {}), ("local", ["1/h", "2/h"], {"local_share": 0.5})],
    ids=["closed", "local"],
)
async def test_waiting_keys_cost_one_probe(
    choice: OnStoreError, rates: list[str], options: dict[str, Any]
) -> None:
    server = Server()
    limiter = KeyedRateLimiter(
        rates, store=Client(server), key="k", on_store_error=choice, **options
    )
    server.mode = "refuses"
    tasks = all_keys(limiter)
    await asyncio.sleep(10.0)
    assert not any(task.done() for task in tasks)
    calls = len(server.asked)
    await asyncio.sleep(SECONDS)
    assert SECONDS <= len(server.asked) - calls <= 3 * SECONDS
    if choice == "closed":  # all learn of the return; a local share has a timer for its next token
        assert timers() < 10
        server.mode, back = "up", now()
        assert max(await asyncio.gather(*tasks)) < back + 1.0


async def test_store_that_fails_again_at_once_is_not_asked_for_each_key() -> None:
    class Relapsing(Client):
        async def ask(self, method: str, *call: Any, **options: Any) -> Any:
            answer = await super().ask(method, *call, **options)
            if method == "refund":  # the end of a probe
                self.server.mode = "refuses"
            return answer

    server = Server()
    limiter = KeyedRateLimiter("2/h", store=Relapsing(server), key="k", on_store_error="closed")
    server.mode = "refuses"
    tasks = all_keys(limiter, 3 * KEYS)
    await asyncio.sleep(10.0)
    calls, server.mode = len(server.asked), "up"
    await asyncio.sleep(1.0)
    assert len(server.asked) - calls < 2 * KEYS
    await cancel(*tasks)


@pytest.mark.parametrize("choice", ["raise", "open"])
@pytest.mark.parametrize(
    "limit", [{"rate_limit": "10/h"}, {"concurrency_limit": SharedConcurrency(2)}]
)
async def test_each_key_in_turn_does_not_wait_for_a_silent_store(
    choice: OnStoreError, limit: dict[str, Any]
) -> None:
    server = Server()
    limiter = KeyedRateLimiter(**limit, store=Client(server), key="k", on_store_error=choice)
    for key in range(20):
        await grant_twice(limiter, key)
    server.mode, start = "stalls", now()
    for key in range(20):
        with contextlib.suppress(StoreUnavailable):
            await grant_twice(limiter, key)
    assert now() - start < 4.0  # of the first two keys, a second each


@pytest.mark.parametrize("choice", ["closed", "open"])
async def test_waiting_slots_cost_few_calls(choice: OnStoreError) -> None:
    link = Link(Shared())
    limiter = KeyedRateLimiter(
        concurrency_limit=SharedConcurrency(1), store=link, key="k", on_store_error=choice
    )
    link.error = StoreUnavailable("unreachable")
    keys = range(KEYS if choice == "open" else 0)
    held = [await asyncio.wait_for(limiter.acquire(key), 5.0) for key in keys]
    tasks = all_keys(limiter)
    await asyncio.sleep(30.0)
    calls = len(link.claims)
    await asyncio.sleep(SECONDS)
    assert len(link.claims) - calls <= 40 * SECONDS
    link.error, back = None, now()
    for permit in held:
        permit.release()
    assert max(await asyncio.gather(*tasks)) < back + 2.0


@pytest.mark.parametrize("closes", [True, False])
async def test_limiter_that_nobody_uses_makes_no_calls(closes: bool) -> None:
    server, limiter = process("closed")
    await fall(limiter, server)
    if closes:
        assert not await limiter.try_acquire()
        await limiter.aclose()
    else:
        await cancel(*visits(limiter, 3))
    await rest()
    calls = len(server.asked)
    await asyncio.sleep(100.0)
    assert len(server.asked) == calls
    assert not others()
