"""Shared slots during an outage: each `on_store_error`, in virtual time and on a server.

On the server nobody counts in windows of time: only the slots in use, when all are connected again.
"""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from aiothrottle import (
    KeyedRateLimiter,
    Permit,
    RateLimiter,
    SharedConcurrency,
    StoreUnavailable,
    ThrottleTimeout,
)
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.share_size import OnStoreError
from tests.servers import FaultProxy, Valkey
from tests.sharing import Link, Shared
from tests.virtually import now, turns, virtual

UNREACHABLE = StoreUnavailable("unreachable")


def share(
    link: Link,
    choice: OnStoreError,
    limit: int = 3,
    per_process: int | None = None,
    local_share: float | None = None,
) -> RateLimiter:
    slots = SharedConcurrency(limit, 3.0, per_process)
    options: dict[str, Any] = {"on_store_error": choice, "local_share": local_share}
    return RateLimiter(concurrency_limit=slots, store=link, key="x", **options)


# The tasks that acquire; a permit without a reference would be released.
came: list[asyncio.Task[Permit]] = []


async def inside(limiter: RateLimiter, count: int) -> int:
    """Have `count` requests arrive; return how many are granted soon."""
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(count)]
    came.extend(tasks)
    await asyncio.sleep(0.5)
    return sum(task.done() for task in tasks)


@virtual
async def test_waiters_are_served_when_the_store_returns() -> None:
    link = Link(Shared())
    limiter = share(link, "closed")
    link.error = UNREACHABLE
    assert await inside(limiter, 2) == 0
    with pytest.raises(ThrottleTimeout):
        await limiter.acquire(timeout=5.0)
    assert limiter.statistics().store_up is False
    for method in (limiter.try_acquire, limiter.peek):
        assert not await method()
    link.error = None
    await asyncio.sleep(2.0)
    assert limiter.statistics().in_flight == 2
    assert limiter.statistics().store_up is True


@virtual
async def test_open_has_no_bound_until_the_store_returns() -> None:
    shared = Shared()
    link = Link(shared)
    limiter, other = share(link, "open"), share(Link(shared), "open")
    link.error = UNREACHABLE
    assert await inside(limiter, 100) == 100
    decision = await limiter.try_acquire()
    assert decision.permit is not None
    decision.permit.release()
    link.error = None
    await asyncio.sleep(2.0)
    assert link.shared.parts("x").popitem()[1] == 100  # they count
    assert await inside(other, 1) == 0
    assert not await limiter.try_acquire()


@virtual
async def test_local_keeps_the_slots_of_each_process() -> None:
    shared = Shared()
    links = [Link(shared) for _ in range(3)]
    limiters = [share(link, "local") for link in links]
    permits = [await limiters[0].acquire(), await limiters[0].acquire()]
    for link in links:
        link.error = UNREACHABLE
    assert [await inside(limiter, 3) for limiter in limiters] == [0, 1, 1]
    for permit in permits:
        permit.release()
    await turns()  # waiters need no store for the two slots
    assert limiters[0].statistics().in_flight == 2
    assert limiters[0].statistics().waiting == 1


@virtual
async def test_local_is_bounded_by_slots_per_process() -> None:
    link = Link(Shared())
    limiter = share(link, "local", per_process=2)
    link.error = UNREACHABLE
    assert await inside(limiter, 5) == 2


@pytest.mark.parametrize(
    ("limit", "given", "slots"),
    [
        (100, 0.25, 25),
        (100, 0.5, 50),
        (100, 0.29, 29),  # 0.29 * 100 is below 29
        (7, 0.5, 3),
        (3, 0.125, 1),
        (3, 1, 3),
    ],
)
@virtual
async def test_given_share_of_slots_is_rounded_down(limit: int, given: float, slots: int) -> None:
    shared = Shared()
    links = [Link(shared), Link(shared)]
    limiter, other = (share(link, "local", limit, local_share=given) for link in links)
    permit = await other.acquire()
    for link in links:
        link.error = UNREACHABLE
    assert await inside(limiter, limit + 1) == slots
    assert await inside(other, limit + 1) == slots - 1  # it holds one slot already
    permit.release()
    await turns()
    assert other.statistics().in_flight == slots


@virtual
async def test_per_process_holds_within_a_given_share() -> None:
    link = Link(Shared())
    limiter = share(link, "local", 10, per_process=2, local_share=0.5)
    link.error = UNREACHABLE
    assert await inside(limiter, 5) == 2


@virtual
async def test_request_during_a_known_outage_makes_no_call() -> None:
    link = Link(Shared())
    limiter = share(link, "local")
    link.error = UNREACHABLE
    (await limiter.acquire()).release()
    link.may_answer.clear()  # from now on it hangs
    for _ in range(3):
        await turns()
        (await limiter.acquire()).release()
        assert await limiter.peek()
    assert now() == 0.0


@virtual
async def test_unnoticed_pause_of_the_store_changes_nothing() -> None:
    """A `try_acquire` while the first call hangs is answered with the waiters."""
    link = Link(Shared())
    link.latency = 0.2
    limiter = share(link, "closed")
    link.error = UNREACHABLE
    trying = asyncio.create_task(limiter.try_acquire())
    await asyncio.sleep(0.05)
    peeking = asyncio.create_task(limiter.peek())
    assert not await trying
    assert not await peeking
    assert now() < 0.3


@virtual
async def test_error_names_its_key() -> None:
    link = Link(Shared())
    link.error = UNREACHABLE
    limiters = KeyedRateLimiter(concurrency_limit=SharedConcurrency(3), store=link, key="k")
    for method in (limiters.acquire, limiters.try_acquire, limiters.peek):
        with pytest.raises(StoreUnavailable) as caught:
            await method("a host")
        assert caught.value.key == "a host"


@pytest.mark.parametrize("choice", ["raise", "local", "open", "closed"])
@virtual
async def test_error_that_is_no_outage_is_always_raised(choice: OnStoreError) -> None:
    link = Link(Shared())
    link.error = ValueError("something else has the same key")
    limiter = share(link, choice)
    with pytest.raises(ValueError, match="something else"):
        await limiter.acquire()
    with pytest.raises(ValueError, match="something else"):
        await limiter.try_acquire()


@pytest.mark.parametrize("choice", ["local", "closed"])
async def test_network_that_drops_everything_for_a_while(choice: OnStoreError) -> None:
    """No waiter is lost, and when all are connected again the limit is never exceeded."""
    server, limit = Valkey(), 3
    running, ended, greatest = 0, 0, 0
    try:
        async with (
            FaultProxy(server.port) as proxy,
            Redis(port=proxy.port) as one,
            Redis(port=proxy.port) as other,
        ):
            # No lease ends while the network is away, however slow the machine.
            slots = SharedConcurrency(limit, lease=60.0)
            limiters = [
                RateLimiter(
                    concurrency_limit=slots,
                    store=RedisStore(client, timeout=0.3),
                    key="k",
                    on_store_error=choice,
                )
                for client in (one, other)
            ]

            async def work(limiter: RateLimiter) -> None:
                nonlocal running, ended, greatest
                async with limiter.throttle():
                    running += 1
                    greatest = max(greatest, running)
                    await asyncio.sleep(0.005)
                    running -= 1
                    ended += 1

            async def until(*, up: bool) -> None:
                while any(limiter.statistics().store_up is not up for limiter in limiters):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)

            async def some(count: int) -> None:
                await asyncio.gather(*(work(limiters[place % 2]) for place in range(count)))

            async with asyncio.timeout(50):
                await some(20)
                assert greatest <= limit
                proxy.mode = "blackhole"
                waiting = asyncio.create_task(some(40))
                await until(up=False)
                proxy.mode = "pass"
                await waiting
                await some(2)
                await until(up=True)
                assert ended == 62
                greatest = 0
                await some(40)
                assert greatest <= limit
                for limiter in limiters:
                    await limiter.aclose()
        assert server.command("HGET", "{aiothrottle:k}:slots", ".taken") == b"0"
    finally:
        server.stop()
