"""Limiters that share slots: which requests get one, which calls the store gets, and the end."""

import asyncio
import logging
import random
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from aiothrottle import LimiterClosed, Permit, RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.stores import MemoryStore, Store
from aiothrottle.testing import VirtualTimeLoop
from aiothrottle.testing.store_contract import ManualClock, Owner
from tests.limiter.common import throttle_one
from tests.support.failing import Client, Server
from tests.support.sharing import Link, Shared, share
from tests.support.virtually import Coarse, cancel, now, turns, visit, work_for
from tests.support.watching import Watched


def started(*coroutines: Coroutine[Any, Any, Permit]) -> list[asyncio.Task[Permit]]:
    return [asyncio.create_task(coroutine) for coroutine in coroutines]


def with_rate(store: Store, rate: str, limit: int) -> RateLimiter:
    return RateLimiter(rate, concurrency_limit=SharedConcurrency(limit), store=store, key="x")


@pytest.mark.parametrize(("rate", "seconds"), [(None, 4.0), ("5/s", 11.2)])
async def test_all_processes_keep_and_use_the_limit(rate: str | None, seconds: float) -> None:
    shared = Shared()
    links = [Link(shared, wakes=place > 0) for place in range(4)]
    # A link has the slots of all processes, but rates of its own.
    limiters = [with_rate(links[1], rate, 3) if rate else share(link) for link in links]

    async def work(limiter: RateLimiter) -> None:
        async with limiter.throttle():
            assert links[0].free(3) >= 0
            await asyncio.sleep(0.2)

    await asyncio.gather(*(work(limiters[place % 4]) for place in range(60)))
    assert now() == pytest.approx(seconds, abs=0.5)
    for limiter in limiters:
        await limiter.aclose()
    assert shared.is_empty
    assert not shared.wakes


async def test_calls_are_few_and_request_a_bounded_number_of_slots() -> None:
    link = Link(Shared())
    link.latency = 0.1
    limiter = share(link, 100)
    permits = await asyncio.gather(*(limiter.acquire() for _ in range(40)))
    assert now() == pytest.approx(0.1)
    for permit in permits:
        permit.release()
    await limiter.aclose()
    assert link.most_under_way == 1
    claims = [(claim.held, claim.wanted, claim.number) for claim in link.claims]
    assert claims == [(0, 40, 1), (0, 0, 2)]  # a late one is known by its number
    link = Link(Shared())
    limiter = share(link, 1000)
    await asyncio.gather(*(limiter.acquire() for _ in range(200)))
    assert max(claim.wanted for claim in link.claims) == 64
    capped = share(link, 1000, per_process=5)
    tasks = started(*(capped.acquire() for _ in range(10)))
    await turns()
    assert sum(task.done() for task in tasks) == 5
    tasks[0].result().release()
    await turns()
    assert sum(task.done() for task in tasks) == 6


async def test_waiters_without_wake_ups_ask_in_growing_pauses() -> None:
    server = Server()
    holder, limiter = (
        RateLimiter(concurrency_limit=SharedConcurrency(1, 3000.0), store=Client(server), key="x")
        for _ in range(2)
    )
    permit = await holder.acquire()
    for ends in ("granted", "cancelled", "granted"):  # they begin anew each time
        await asyncio.sleep(1.0)
        begin = now()
        (waiter,) = started(limiter.acquire())
        await asyncio.sleep(20.0)
        asked_at = [at for at, _ in server.asked if at >= begin]
        pauses = [later - first for first, later in pairwise(asked_at)]
        assert 0.005 <= pauses[0] <= 0.01
        assert all(0.25 <= pause <= 0.5 for pause in pauses[20:])
        if ends == "cancelled":
            await cancel(waiter)
            continue
        permit.release()
        released = now()
        permit = await waiter
        assert now() <= released + 0.5
    permit.release()


# ---- the share of a process ----------------------------------------------------------------------


def processes(count: int, limit: int, *, wakes: bool, latency: float) -> list[tuple[Link, Any]]:
    shared = Shared()
    links = [Link(shared, wakes=wakes) for _ in range(count)]
    for link in links:
        link.latency = latency
    return [(link, share(link, limit, lease=30.0)) for link in links]


async def busy(limiter: RateLimiter, seconds: float, waits: list[float]) -> None:
    """Send one request after the other, which take about so many seconds."""
    while True:
        begin = now()
        async with limiter.throttle():
            waits.append(now() - begin)
            await asyncio.sleep(seconds * random.uniform(0.7, 1.3))


# With a call for each request there are 3,100 calls a second with wake-ups, which wake all here;
# without them 58 % of the slots are idle, and at a far store 78 %.
@pytest.mark.parametrize(
    ("wakes", "latency", "calls"), [(True, 0.002, 1000), (False, 0.002, 150), (False, 0.2, 50)]
)
async def test_share_is_used_again_without_calls(wakes: bool, latency: float, calls: float) -> None:
    pairs = processes(8, 50, wakes=wakes, latency=latency)
    starts: list[list[float]] = [[] for _ in pairs]
    workers = [busy(pairs[place % 8][1], 0.1, starts[place % 8]) for place in range(160)]
    tasks = [asyncio.create_task(worker) for worker in workers]
    await asyncio.sleep(3.0)
    before = [
        (len(link.claims), len(waits)) for (link, _), waits in zip(pairs, starts, strict=True)
    ]
    for _ in range(101):
        await asyncio.sleep(0.0495)
        assert sum(limiter.statistics().in_flight for _, limiter in pairs) <= 50
    served = [len(waits) - was for waits, (_, was) in zip(starts, before, strict=True)]
    assert sum(served) >= 0.95 * 50 * 5.0 / 0.1
    assert max(served) - min(served) <= 0.1 * max(served)
    made = sum(len(link.claims) for link, _ in pairs) - sum(was for was, _ in before)
    assert made <= calls * 5
    await cancel(*tasks)


async def test_slot_that_was_polled_for_is_used_for_half_a_second() -> None:
    pairs = processes(8, 3, wakes=False, latency=0.002)  # no share: fewer slots than processes
    starts: list[list[float]] = [[] for _ in pairs]
    workers = [busy(pairs[place % 8][1], 0.1, starts[place % 8]) for place in range(32)]
    await work_for(20.0, iter(workers))
    served = [len(waits) for waits in starts]
    assert sum(served) >= 0.65 * 3 * 20.0 / 0.1  # a pause behind each request would be 45 %
    assert max(served) <= 2.5 * min(served)


@pytest.mark.parametrize("wakes", [True, False])
async def test_newcomer_has_its_share_soon(wakes: bool) -> None:
    (_, newcomer), *pairs = processes(8, 50, wakes=wakes, latency=0.002)
    first = list[float]()
    workers = [busy(limiter, 3.0, []) for _, limiter in pairs for _ in range(64)]
    tasks = [asyncio.create_task(worker) for worker in workers]
    await asyncio.sleep(5.0)
    tasks += [asyncio.create_task(busy(newcomer, 3.0, first)) for _ in range(6)]
    await asyncio.sleep(1.5)
    assert len(first) == 6  # 448 requests had waited before
    await cancel(*tasks)


@pytest.mark.parametrize("wakes", [True, False])
async def test_process_without_a_share_has_one_soon_after_another_leaves(wakes: bool) -> None:
    pairs = processes(5, 4, wakes=wakes, latency=0.002)
    newcomer, leaving, *others = [limiter for _, limiter in pairs]
    waits = list[float]()
    workers = [busy(limiter, 1.0, []) for limiter in (leaving, *others) for _ in range(64)]
    tasks = [asyncio.create_task(worker) for worker in workers]
    await asyncio.sleep(5.0)
    tasks.append(asyncio.create_task(busy(newcomer, 0.2, waits)))
    await asyncio.sleep(0.5)
    await cancel(*tasks[:64])
    await asyncio.sleep(3.0)
    assert waits  # 192 requests had waited before
    await cancel(*tasks[64:])


async def test_share_is_an_equal_part_for_each_that_holds_or_wants_slots() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    ann, bob, cid = owners = [Owner(lambda: store, name, limit=7) for name in ("a", "b", "c")]
    assert [(await owner.claim(1)).share for owner in owners] == [7, 3, 2]
    assert (await cid.claim(released=1)).share == 2
    assert (await bob.claim()).share == 3
    clock.advance(29.0)
    assert (await ann.claim()).share == 3
    clock.advance(1.5)
    assert (await ann.claim()).share == 7
    # Nothing is used again while more are held, such as by one that was silent for a lease.
    assert (await cid.claim(6)).share == 3
    assert [(await owner.claim()).share for owner in (ann, bob, cid)] == [3, 0, 0]


async def test_one_task_keeps_its_slot_until_others_want_it() -> None:
    (link, limiter), (_, other) = processes(2, 1, wakes=True, latency=0.0)
    for _ in range(100):
        await visit(limiter, stay=0.004)
    assert len(link.claims) == 1
    await asyncio.sleep(0.01)
    assert link.claims[-1].held == 0
    assert await visit(other) == now()


@pytest.mark.parametrize("error", [None, StoreUnavailable("gone")])
async def test_slot_whose_lease_may_have_expired_is_not_used_again(error: Exception | None) -> None:
    link = Link(Shared())
    limiter = share(link, 1, lease=30.0, on_store_error="closed")
    permit = await limiter.acquire()
    (waiter,) = started(limiter.acquire())
    await turns()
    if error is None:
        link.may_answer.clear()
    link.error = error
    await asyncio.sleep(31.0)
    permit.release()
    await turns()
    assert not waiter.done()
    link.may_answer.set()
    link.error = None
    await asyncio.wait_for(waiter, 15.0)


async def test_free_slot_whose_lease_may_have_expired_is_not_used() -> None:
    shared = Shared()
    link = Link(shared)
    limiter, other = share(link, 3), share(Link(shared, wakes=False), 3)
    permits = [await limiter.acquire() for _ in range(3)]
    await asyncio.sleep(0.9)
    link.may_answer.clear()
    await asyncio.sleep(0.2)  # a claim is under way
    for permit in permits:
        permit.release()
    for _ in range(3):
        await visit(limiter, stay=0.1)  # they are used again
    _held = [await other.acquire() for _ in range(3)]
    assert now() == pytest.approx(3.0, abs=0.1)
    (waiter,) = started(limiter.acquire())
    await turns()
    assert not waiter.done()
    assert not limiter.statistics().in_flight
    await cancel(waiter)
    link.may_answer.set()


async def test_only_who_has_its_share_waits_to_say_what_it_wants() -> None:
    (link, limiter), (_, other) = processes(2, 1, wakes=True, latency=0.0)
    _held = await other.acquire()
    tasks = list[asyncio.Task[Permit]]()
    for count in (1, 2, 3):
        tasks += started(limiter.acquire())
        await turns()
        assert link.claims[-1].wanted == count
    await cancel(*tasks)


async def test_lowered_limit_leaves_a_smaller_share_at_once() -> None:
    link = Link(Shared())
    limiter = share(link, 2)
    permits = [await limiter.acquire(), await limiter.acquire()]
    (waiter,) = started(limiter.acquire())
    await turns()
    link.may_answer.clear()
    limiter.update(concurrency_limit=SharedConcurrency(1))
    permits[0].release()
    await turns()
    assert not waiter.done()
    link.may_answer.set()
    permits[1].release()
    await waiter


async def test_slots_of_silent_process_expire_with_lease_and_its_holds_count_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = Shared()
    silent = Link(shared)
    late, other = share(silent, 2), share(Link(shared, wakes=False), 2)
    permits = [await late.acquire(), await late.acquire()]
    silent.may_answer.clear()
    _held = await other.acquire()  # the store has given up the slots of the silent one
    assert 2.0 < now() <= 3.1
    with caplog.at_level(logging.WARNING, "aiothrottle"):
        silent.may_answer.set()
        await asyncio.sleep(2.0)
    (message,) = caplog.messages
    assert "2 of the shared slots of 'x' were not renewed in time" in message
    (waiter,) = started(other.acquire())
    permits[0].release()
    await asyncio.sleep(5.0)
    assert not waiter.done()  # there are two still
    permits[1].release()
    await waiter


# ---- cancelled and closed ------------------------------------------------------------------------


async def test_no_slot_is_used_again_while_the_limit_is_exceeded() -> None:
    (silent, late), (_, other) = processes(2, 4, wakes=True, latency=0.002)
    _held = await asyncio.gather(*(late.acquire() for _ in range(4)))
    silent.may_answer.clear()
    tasks = [asyncio.create_task(busy(other, 0.1, [])) for _ in range(6)]
    await asyncio.sleep(40.0)
    assert other.statistics().in_flight == 4
    silent.may_answer.set()
    await asyncio.sleep(15.0)
    assert other.statistics().in_flight == 0
    await cancel(*tasks)


async def test_cancellation_at_any_point_returns_everything() -> None:
    for after in range(15):
        shared = Shared()
        link = Link(shared)
        link.latency = 0.3 if after >= 12 else 0.0  # it is cancelled while the call is under way
        limiter, trying, other = share(link, 1), share(link, 1), share(Link(shared), 1)
        tasks: list[asyncio.Task[Any]] = [*started(limiter.acquire(), limiter.acquire())]
        tasks += [asyncio.create_task(method()) for method in (trying.try_acquire, trying.peek)]
        await turns(after)
        await asyncio.sleep(0.1 * max(0, after - 12))
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            permit = getattr(result, "permit", result)  # of a decision
            if isinstance(permit, Permit):
                permit.release()
        async with asyncio.timeout(1.0):
            (await other.acquire()).release()
        await asyncio.sleep(1.0)
        assert shared.is_empty, after
        assert limiter.statistics().in_flight == 0


async def test_cancelled_call_is_made_again_for_a_request_that_tries() -> None:
    link = Link(Shared())
    link.latency = 0.1
    trying = asyncio.create_task(share(link, 1).try_acquire())
    await turns()
    for task in asyncio.all_tasks() - {trying, asyncio.current_task()}:
        task.cancel()
    async with asyncio.timeout(1.0):
        assert await trying


async def test_closing_returns_unused_slots() -> None:
    shared = Shared()
    link = Link(shared)
    link.latency = 0.1
    limiter = share(link, 2)
    held = await limiter.acquire()
    (waiter,) = started(limiter.acquire())
    await turns()  # the call is under way
    await limiter.aclose()
    for call in (waiter, limiter.acquire(), limiter.try_acquire()):
        with pytest.raises(LimiterClosed):
            await call
    assert link.free(2) == 1
    # What is held stays held, and is renewed.
    await asyncio.sleep(10)
    assert link.free(2) == 1
    held.release()
    await asyncio.sleep(1)
    assert shared.is_empty


async def test_closing_waits_for_a_request_that_waits_for_its_token_only() -> None:
    server = Server()
    limiter = with_rate(Client(server), "9/s", 9)
    held = await limiter.acquire()
    server.latency = 0.4
    trying = asyncio.create_task(limiter.try_acquire())
    await asyncio.sleep(0.7)  # it has a slot, and the answer with its token is on the way
    server.mode, server.latency = "refuses", 0.0
    held.release()  # which the store does not take
    await asyncio.sleep(0.01)
    await limiter.aclose()  # no busy loop: time passes
    decision = await trying
    assert decision.permit is not None
    decision.permit.release()


# ---- with the rest -------------------------------------------------------------------------------


async def test_peek_and_try_acquire_count_all_slots() -> None:
    shared = Shared()
    limiter, other = share(Link(shared), 1), share(Link(shared), 1)
    assert await limiter.peek()
    await turns()
    assert shared.is_empty
    decision = await limiter.try_acquire()
    assert decision.permit is not None
    assert not await other.peek()
    assert not await other.try_acquire()
    await turns()
    assert len(shared.parts("x")) == 1  # nobody else is in the queue
    decision.permit.release()
    await turns()
    assert await other.peek()
    link = Link(Shared())
    link.latency = 0.1
    limiter = share(link, 2)
    trying = [asyncio.create_task(limiter.try_acquire())]
    await asyncio.sleep(0.05)  # the answer to the first one is none to the second
    trying += [asyncio.create_task(limiter.try_acquire())]
    assert all(await asyncio.gather(*trying))


@pytest.mark.parametrize(("limit", "per_process"), [(2, None), (9, 2)])
async def test_nested_block_is_an_error_only_with_all_slots(
    limit: int, per_process: int | None
) -> None:
    limiter = share(Link(Shared()), limit, per_process=per_process)
    async with limiter.throttle(), limiter.throttle():  # the second slot is leased by then
        with pytest.raises(RuntimeError, match="this task holds a slot"):
            await limiter.acquire()
        limiter.update(concurrency_limit=SharedConcurrency(3))
        (await limiter.acquire()).release()
    await limiter.aclose()


async def test_slots_of_waiters_for_the_rate_are_returned() -> None:
    shared = Shared()
    link = Link(shared)
    limiter, other = with_rate(link, "10/s", 3), share(Link(shared), 3)
    await limiter.record(10)
    tasks = started(*(limiter.acquire() for _ in range(3)))
    await turns(20)
    assert link.free(3) == 0
    for task in tasks[1:]:
        task.cancel()
    await asyncio.sleep(0.09)
    assert link.free(3) == 0, "asyncio.run may have cancelled them, and be joining threads"
    await asyncio.sleep(0.02)
    assert link.free(3) == 2
    limiter.pause(100)
    _held = [await other.acquire() for _ in range(2)]
    (await other.acquire()).release()
    assert now() < 1.0
    await tasks[0]
    assert now() >= 100


async def test_after_a_pause_only_the_first_request_claims_a_slot() -> None:
    link = Link(Shared())
    limiter = share(link, 5)
    await throttle_one(limiter, 1.0, took=0.0)
    tasks = started(*(limiter.acquire() for _ in range(4)))
    await asyncio.sleep(2.5)
    assert [task.done() for task in tasks] == [True, False, False, False]
    assert {claim.wanted for claim in link.claims} == {0, 1}
    await cancel(*tasks)


async def test_updated_limit_applies() -> None:
    limiter = share(Link(Shared()), 1)
    _held = await limiter.acquire()
    (waiter,) = started(limiter.acquire())
    await turns()
    limiter.update(concurrency_limit=SharedConcurrency(2))
    await waiter
    assert now() < 0.1
    assert limiter.statistics().concurrency_limit == 2
    for here, change, error in (
        (limiter, {"concurrency_limit": 3}, "cannot change between"),
        (limiter, {"rate_limit": 3}, "shares only its slots"),
        (
            RateLimiter(1, concurrency_limit=1),
            {"concurrency_limit": SharedConcurrency(2)},
            "cannot change between",
        ),
    ):
        options: dict[str, Any] = change
        with pytest.raises(ValueError, match=error):
            here.update(**options)


# Tokens are being returned; at 0.5 s no call is under way; at 1.25 s the held slots are renewed.
@pytest.mark.parametrize(("what", "seconds"), [("tokens", 0.3), ("slots", 0.5), ("slots", 1.25)])
def test_closed_loop_leaves_no_task(what: str, seconds: float) -> None:
    async def main() -> None:
        link = Link(Shared())
        limiter = share(link, 1)
        if what == "tokens":
            limiter = RateLimiter("2/s", store=Watched(latency=0.1), key="k")
        kept.extend([await limiter.acquire(), *started(*(limiter.acquire() for _ in range(8)))])
        link.latency = 0.1
        await asyncio.sleep(seconds)
        assert link.under_way == (seconds == 1.25)

    kept: list[object] = []
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
        loop = runner.get_loop()
    assert not asyncio.all_tasks(loop)


def test_plain_handle_of_a_coarse_loop_serves_as_a_timer() -> None:
    limiter = share(Link(Shared(), wakes=False), 1)
    dice = random.Random(1)

    async def give_up() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(dice.uniform(0.0, 0.1)):
                await limiter.acquire()

    async def main() -> None:
        async with await limiter.acquire():
            await asyncio.gather(*(give_up() for _ in range(300)))
        await limiter.aclose()

    with asyncio.Runner(loop_factory=Coarse) as runner:
        runner.run(main())
