"""What an outage costs while many keys wait: one probe for all. In virtual time.

Calls of the store and callbacks of the loop are counted, as processor time depends on the machine.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple

import pytest

from aiothrottle import KeyedRateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores.share_size import OnStoreError
from aiothrottle.testing import VirtualTimeLoop
from tests.failing import Client, Server
from tests.sharing import Link, Shared
from tests.stores.test_shared import cancel
from tests.virtually import now

KEYS = 200
SECONDS = 100.0


Arguments = TypeVarTuple("Arguments")
Story = Callable[["CountingLoop"], Coroutine[Any, Any, None]]


class CountingLoop(VirtualTimeLoop):
    """Counts the callbacks that are scheduled."""

    scheduled = 0

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.scheduled += 1
        return super().call_at(when, callback, *args, context=context)


def counted(story: Story) -> None:
    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story(loop))


async def grant_twice(limiter: KeyedRateLimiter, key: int) -> float:
    for _ in range(2):
        async with limiter.throttle(key):
            pass
    return now()


@pytest.mark.parametrize(
    ("choice", "options"),
    [("closed", {}), ("local", {"local_share": 0.5})],
    ids=["closed", "local"],
)
def test_waiting_keys_cost_one_probe(choice: OnStoreError, options: dict[str, Any]) -> None:
    async def story(loop: CountingLoop) -> None:
        server = Server()
        limiter = KeyedRateLimiter(
            ["1/h", "2/h"], store=Client(server), key="k", on_store_error=choice, **options
        )
        server.mode = "refuses"
        tasks = [asyncio.create_task(grant_twice(limiter, key)) for key in range(KEYS)]
        await asyncio.sleep(10.0)
        assert not any(task.done() for task in tasks)
        calls, scheduled = len(server.asked), loop.scheduled
        await asyncio.sleep(SECONDS)
        assert SECONDS <= len(server.asked) - calls <= 3 * SECONDS
        assert loop.scheduled - scheduled < 30 * SECONDS
        await cancel(*tasks)
        await limiter.aclose()

    counted(story)


@pytest.mark.parametrize("choice", ["closed", "open"])
def test_waiting_slots_cost_few_calls(choice: OnStoreError) -> None:
    async def story(loop: CountingLoop) -> None:
        link = Link(Shared())
        limiter = KeyedRateLimiter(
            concurrency_limit=SharedConcurrency(1), store=link, key="k", on_store_error=choice
        )
        link.error = StoreUnavailable("unreachable")
        held = (
            [await asyncio.wait_for(limiter.acquire(key), 5.0) for key in range(KEYS)]
            if (choice == "open")
            else []
        )
        tasks = [asyncio.create_task(grant_twice(limiter, key)) for key in range(KEYS)]
        await asyncio.sleep(30.0)
        calls, scheduled = len(link.claims), loop.scheduled
        await asyncio.sleep(SECONDS)
        assert len(link.claims) - calls <= 40 * SECONDS
        assert loop.scheduled - scheduled < 400 * SECONDS
        link.error = None
        back = now()
        for permit in held:
            permit.release()
        await asyncio.gather(*tasks)
        assert now() < back + 2.0
        await limiter.aclose()

    counted(story)


def test_wakes_in_an_outage_start_nothing() -> None:
    """A subscription in doubt wakes all owners again and again, but the store cannot answer."""

    async def story(loop: CountingLoop) -> None:
        link = Link(Shared())
        limiter = KeyedRateLimiter(
            concurrency_limit=SharedConcurrency(1, lease=3),
            store=link,
            key="k",
            on_store_error="closed",
        )
        held = [await limiter.acquire(key) for key in range(KEYS)]
        tasks = [asyncio.create_task(grant_twice(limiter, key)) for key in range(KEYS)]
        await asyncio.sleep(0.5)
        assert len(link.shared.wakes) == KEYS
        link.error = StoreUnavailable("unreachable")
        await asyncio.sleep(10.0)
        scheduled = loop.scheduled
        for wake in link.shared.wakes.values():
            wake()
        assert loop.scheduled == scheduled
        link.error = None
        for permit in held:
            permit.release()
        await asyncio.gather(*tasks)
        await limiter.aclose()

    counted(story)


def test_all_waiting_keys_learn_of_the_return() -> None:
    async def story(loop: CountingLoop) -> None:
        server = Server()
        limiter = KeyedRateLimiter("2/h", store=Client(server), key="k", on_store_error="closed")
        server.mode = "refuses"
        tasks = [asyncio.create_task(grant_twice(limiter, key)) for key in range(KEYS)]
        await asyncio.sleep(10.0)
        server.mode = "up"
        back = now()
        assert max(await asyncio.gather(*tasks)) < back + 1.0
        assert loop.scheduled < 150 * KEYS
        await limiter.aclose()

    counted(story)


def test_probe_passes_to_others_when_a_waiter_leaves() -> None:
    """The limiter that tried the server has no waiter any more; another one has."""

    async def story(_: CountingLoop) -> None:
        server = Server()
        limiter = KeyedRateLimiter("2/h", store=Client(server), key="k", on_store_error="closed")
        server.mode = "refuses"
        tasks = [asyncio.create_task(grant_twice(limiter, key)) for key in range(3)]
        await asyncio.sleep(10.0)
        await cancel(*tasks[:2])
        await asyncio.sleep(10.0)
        server.mode = "up"
        back = now()
        assert await tasks[2] < back + 1.0
        await limiter.aclose()

    counted(story)
