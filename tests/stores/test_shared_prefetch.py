"""One task that comes again within the turn: more is asked for ahead, and nothing is used late."""

import asyncio

import pytest

from aiothrottle import RateLimiter, SlidingWindowLog, StoreUnavailable
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.stores.test_shared import Watched, cancel, others, rest
from tests.virtually import now, turns, virtual, visit, visits

# Of this so many are asked for in one call at the most: those of 30 ms.
ALGORITHM, MOST = "1000/s", 30


async def hurry(limiter: RateLimiter, count: int) -> None:
    """Go through the limiter again and again, without a rest."""
    for _ in range(count):
        async with limiter.throttle():
            pass


async def asked(store: Watched, times: int) -> None:
    """Wait until the store was asked so often. It sets no event."""
    while len(store.costs) < times:  # noqa: ASYNC110
        await asyncio.sleep(store.latency / 10)


async def has_spent(limiter: RateLimiter, store: Watched, tokens: int) -> None:
    """Fail unless, after a rest, so many are spent and none is left of what was asked ahead."""
    await rest()
    assert not limiter._engine.bucket.state.ready
    assert await store.left(ALGORITHM) == 1000 - tokens


@virtual
async def test_twice_as_much_is_asked_for_each_time_that_all_was_used_at_once() -> None:
    store = Watched(latency=0.01)
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 100)
    assert [len(costs) for costs in store.costs] == [1, 2, 4, 8, 16, MOST, MOST, MOST]
    assert store.most_open == 1
    await has_spent(limiter, store, 100)
    assert limiter.statistics().granted == 100


@virtual
async def test_one_who_rests_between_two_gets_one_at_a_time() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    for _ in range(5):
        await visit(limiter)
        await turns(3)
    assert store.costs == [[1.0]] * 5
    assert not store.refunds


@virtual
async def test_what_was_not_used_within_the_turn_goes_back_and_one_is_asked_for_again() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 4)  # one, two, and the first of four
    await has_spent(limiter, store, 4)
    assert [len(costs) for costs in store.costs] == [1, 2, 4]
    assert store.refunds == [(store.instants[-1], 3.0)]
    await hurry(limiter, 1)
    assert len(store.costs[-1]) == 1


@virtual
async def test_of_a_small_limit_nothing_is_asked_for_ahead() -> None:
    store = Watched()
    await hurry(RateLimiter("20/s", store=store, key="k"), 20)
    assert store.costs == [[1.0]] * 20


@virtual
async def test_no_more_is_asked_for_ahead_than_is_left() -> None:
    store = Watched()
    limiter = RateLimiter("100/s", store=store, key="k")
    assert limiter._engine.is_forgettable()
    await hurry(limiter, 99)
    assert [len(costs) for costs in store.costs][:4] == [1, 2, 3, 3]
    begin = now()
    await hurry(limiter, 2)
    assert now() - begin == pytest.approx(1.0)
    assert [len(costs) for costs in store.costs][-2:] == [1, 1]
    assert max(store.instants) <= now()


@virtual
async def test_what_others_have_taken_meanwhile_is_waited_for() -> None:
    """It was not known here: so some of what is asked for ahead may go only later."""
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 3)
    await MemoryStore.record(store, "k", SlidingWindowLog(ALGORITHM), 995)
    await hurry(limiter, 3)
    assert now() == pytest.approx(1.0)
    assert [len(costs) for costs in store.costs] == [1, 2, 4]
    await rest()
    assert len(store.refunds) == 1
    assert not limiter._engine.bucket.state.ready
    await asyncio.sleep(2)
    assert await store.left(ALGORITHM) == 1000


def test_what_was_reserved_ahead_is_not_used_after_its_time() -> None:
    """Within one turn, which was a long one."""
    time = 0.0

    async def work() -> None:
        nonlocal time
        store = Watched()
        limiter = RateLimiter(ALGORITHM, store=store, key="k", clock=lambda: time)
        for _ in range(10):
            async with limiter.throttle():
                time += 0.015
        await rest()
        assert await store.left(ALGORITHM) == 990
        # The second of each four at the most: the third would be later than 20 ms.
        assert sum(cost for _, cost in store.refunds) > 0
        assert len(store.costs) >= 5

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(work())


@virtual
async def test_others_who_come_meanwhile_share_what_was_asked_for_ahead() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    went: list[int] = []

    async def come(name: int) -> None:
        for _ in range(20):
            async with limiter.throttle():
                went.append(name)

    await asyncio.gather(*(come(name) for name in range(3)))
    assert sorted(went) == sorted([0, 1, 2] * 20)
    await has_spent(limiter, store, 60)


@virtual
async def test_a_heavy_one_gives_back_what_was_asked_for_ahead() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 2)
    await visit(limiter, 5)
    await has_spent(limiter, store, 7)


@pytest.mark.parametrize("step", range(12))
@virtual
async def test_who_is_cancelled_at_any_step_leaves_nothing(step: int) -> None:
    store = Watched(latency=0.01)
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    hurrying = asyncio.create_task(hurry(limiter, 100))
    await asked(store, 4)
    await turns(step)
    await asyncio.sleep(0.001 * step)
    await turns(step)
    hurrying.cancel()
    await asyncio.gather(hurrying, return_exceptions=True)
    await has_spent(limiter, store, limiter.statistics().granted)
    assert limiter.statistics().in_flight == 0


@pytest.mark.parametrize("step", range(8))
@virtual
async def test_a_talk_that_is_swept_up_leaves_nothing_for_later(step: int) -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 4)  # three are left of four
    await turns(step)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("aiothrottle"):
            task.cancel()
    await turns()
    assert not limiter._engine.bucket.state.ready
    await visit(limiter)
    await rest()
    # What the task was just giving back stays spent.
    assert await store.left(ALGORITHM) in {995, 992}


@virtual
async def test_a_store_that_fails_meanwhile_is_told_and_one_is_asked_for_again() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    hurrying = asyncio.create_task(hurry(limiter, 100))
    await asked(store, 5)
    store.error = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await hurrying
    store.error = None
    await rest()
    for _ in range(3):
        await hurry(limiter, 1)
        assert len(store.costs[-1]) == 1
        await rest()
        assert not limiter._engine.bucket.state.ready


@virtual
async def test_a_pause_stops_those_for_whom_it_was_asked_ahead() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 6)
    limiter.pause(0.5)
    assert await visit(limiter) == 0.5
    await has_spent(limiter, store, 7)


@virtual
async def test_a_time_out_and_a_full_queue_are_as_ever() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k", max_queue=1)
    for _ in range(20):
        async with limiter.throttle(timeout=0.1):
            pass
    assert max(map(len, store.costs)) == 16
    await has_spent(limiter, store, 20)


@virtual
async def test_each_is_seen_by_who_observes() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    seen: list[object] = []
    limiter.observe(seen.append)
    await hurry(limiter, 50)
    assert len(seen) == 50


@virtual
async def test_slots_are_held_by_those_who_go_not_by_what_was_asked_for_ahead() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, concurrency_limit=1, store=store, key="k")
    await hurry(limiter, 5)
    async with limiter.throttle():
        (waiting,) = visits(limiter, 1)
        await turns()
        assert not waiting.done()
        assert not limiter._engine.bucket.state.ready
    await waiting
    await has_spent(limiter, store, 7)


def test_a_second_loop_gives_back_what_the_first_had_asked_for_ahead() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    first = VirtualTimeLoop()
    hurrying = first.create_task(hurry(limiter, 100))
    while len(store.costs) < 5:
        first.call_soon(first.stop)
        first.run_forever()
    hurrying.cancel()
    first.run_until_complete(asyncio.gather(hurrying, return_exceptions=True))
    first.close()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(hurry(limiter, 1))
        runner.run(has_spent(limiter, store, limiter.statistics().granted))
    assert len(store.costs[-1]) == 1


@virtual
async def test_closing_leaves_nothing() -> None:
    store = Watched()
    async with RateLimiter(ALGORITHM, store=store, key="k") as limiter:
        hurrying = asyncio.create_task(hurry(limiter, 100))
        await asked(store, 5)
    await asyncio.gather(hurrying, return_exceptions=True)
    assert not others()
    assert await store.left(ALGORITHM) == 1000 - limiter.statistics().granted


@virtual
async def test_a_lease_is_what_it_was() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k", prefetch="50/100ms")
    await hurry(limiter, 1)
    await turns()
    await hurry(limiter, 50)
    assert store.costs == [[1.0, 50.0]]
    await cancel(*visits(limiter, 1))
    await limiter.aclose()
    assert await store.left(ALGORITHM) == 949
