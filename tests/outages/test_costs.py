"""What an outage costs while many keys wait: one probe for all. In virtual time.

Calls of the store and timers of the loop are counted, as processor time depends on the machine.
"""

import asyncio
import contextlib
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores.store import OnStoreError
from tests.outages.processes import fall, process
from tests.support.failing import Client, Server
from tests.support.sharing import Link, Shared
from tests.support.virtually import now, visits
from tests.support.watching import cancel, others, rest

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


@pytest.mark.parametrize("choice", ["raise", "open"])
async def test_each_key_in_turn_does_not_wait_for_a_silent_store(choice: OnStoreError) -> None:
    server = Server()
    limiter = KeyedRateLimiter("10/h", store=Client(server), key="k", on_store_error=choice)
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


async def test_probe_passes_to_others_when_a_waiter_leaves() -> None:
    """The limiter that tried the server has no waiter any more; another one has."""
    server = Server()
    limiter = KeyedRateLimiter("2/h", store=Client(server), key="k", on_store_error="closed")
    server.mode = "refuses"
    *leaving, staying = all_keys(limiter, 3)
    await asyncio.sleep(10.0)
    await cancel(*leaving)
    await asyncio.sleep(10.0)
    server.mode, back = "up", now()
    assert await staying < back + 1.0


async def test_closed_limiter_without_waiters_makes_no_calls() -> None:
    server, limiter = process("closed")
    await fall(limiter, server)
    await cancel(*visits(limiter, 3))
    await rest()
    calls = len(server.asked)
    await asyncio.sleep(100.0)
    assert len(server.asked) == calls
    assert not others()
