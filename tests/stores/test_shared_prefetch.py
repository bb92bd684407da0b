"""One task that returns within the turn: more tokens are prefetched, and none is used late."""

import asyncio

import pytest

from aiothrottle import RateLimiter, SlidingWindowLog, StoreUnavailable
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.stores.test_shared import Watched, cancel, others, rest
from tests.virtually import now, turns, virtual, visit, visits

# At most so many are prefetched in one call: those of 30 ms.
ALGORITHM, MOST = "1000/s", 30
# Seconds. Of a store that is further away more is prefetched: see `test_far_store`.
NEAR = 0.004


async def hurry(limiter: RateLimiter, count: int) -> None:
    """Pass the limiter `count` times in a row, without a rest."""
    for _ in range(count):
        async with limiter.throttle():
            pass


async def asked(store: Watched, times: int) -> None:
    """Wait until the store was called `times` times. It sets no event."""
    while len(store.costs) < times:  # noqa: ASYNC110
        await asyncio.sleep(store.latency / 10)


async def has_spent(limiter: RateLimiter, store: Watched, tokens: int) -> None:
    """Fail unless, after a rest, `tokens` are spent and no prefetched token is kept."""
    await rest()
    assert not limiter._engine.bucket.state.ready
    assert await store.remaining(ALGORITHM) == 1000 - tokens


@virtual
async def test_prefetch_doubles_while_all_of_it_is_used() -> None:
    store = Watched(latency=NEAR)
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 100)
    assert [len(costs) for costs in store.costs] == [1, 2, 4, 8, 16, MOST, MOST, MOST]
    assert store.most_open == 1
    await has_spent(limiter, store, 100)
    assert limiter.statistics().granted == 100


@virtual
async def test_resting_task_gets_one_token_per_call() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    for _ in range(5):
        await visit(limiter)
        await turns(3)
    assert store.costs == [[1.0]] * 5
    assert not store.refunds


@virtual
async def test_prefetch_unused_within_the_turn_is_refunded() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 4)  # one, two, and the first of four
    await has_spent(limiter, store, 4)
    assert [len(costs) for costs in store.costs] == [1, 2, 4]
    assert store.refunds == [(store.instants[-1], 3.0)]
    await hurry(limiter, 1)
    assert len(store.costs[-1]) == 1


@virtual
async def test_small_limit_is_not_prefetched() -> None:
    store = Watched()
    await hurry(RateLimiter("20/s", store=store, key="k"), 20)
    assert store.costs == [[1.0]] * 20


@virtual
async def test_adaptive_prefetch_is_bounded_by_the_remaining_tokens() -> None:
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
async def test_tokens_taken_by_others_are_waited_for() -> None:
    """They were not known here: so some prefetched tokens may be ready only later."""
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
    assert await store.remaining(ALGORITHM) == 1000


def test_prefetched_token_is_not_used_after_its_time() -> None:
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
        assert await store.remaining(ALGORITHM) == 990
        # The second of each four at the most: the third would be later than 20 ms.
        assert sum(cost for _, cost in store.refunds) > 0
        assert len(store.costs) >= 5

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(work())


@virtual
async def test_concurrent_tasks_share_the_prefetched_tokens() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    granted: list[int] = []

    async def come(name: int) -> None:
        for _ in range(20):
            async with limiter.throttle():
                granted.append(name)

    await asyncio.gather(*(come(name) for name in range(3)))
    assert sorted(granted) == sorted([0, 1, 2] * 20)
    await has_spent(limiter, store, 60)


@virtual
async def test_heavy_request_refunds_the_prefetched_tokens() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 2)
    await visit(limiter, 5)
    await has_spent(limiter, store, 7)


@pytest.mark.parametrize("step", range(12))
@virtual
async def test_cancellation_at_any_step_leaves_nothing(step: int) -> None:
    store = Watched(latency=NEAR)
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
async def test_swept_store_task_leaves_nothing_for_later(step: int) -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 4)  # three of four are unused
    await turns(step)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("aiothrottle"):
            task.cancel()
    await turns()
    assert not limiter._engine.bucket.state.ready
    await visit(limiter)
    await rest()
    # A refund that was under way in the swept task stays spent.
    assert await store.remaining(ALGORITHM) in {995, 992}


@virtual
async def test_store_error_is_raised_and_resets_the_prefetch() -> None:
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
async def test_pause_holds_tasks_with_prefetched_tokens() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    await hurry(limiter, 6)
    limiter.pause(0.5)
    assert await visit(limiter) == 0.5
    await has_spent(limiter, store, 7)


@virtual
async def test_prefetch_keeps_timeout_and_full_queue() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k", max_queue=1)
    for _ in range(20):
        async with limiter.throttle(timeout=0.1):
            pass
    assert max(map(len, store.costs)) == 16
    await has_spent(limiter, store, 20)


@virtual
async def test_observer_gets_an_event_per_prefetched_grant() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k")
    seen: list[object] = []
    limiter.observe(seen.append)
    await hurry(limiter, 50)
    assert len(seen) == 50


@virtual
async def test_prefetched_tokens_hold_no_slots() -> None:
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


def test_second_loop_refunds_the_first_loops_prefetch() -> None:
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
async def test_closing_refunds_the_prefetched_tokens() -> None:
    store = Watched()
    async with RateLimiter(ALGORITHM, store=store, key="k") as limiter:
        hurrying = asyncio.create_task(hurry(limiter, 100))
        await asked(store, 5)
    await asyncio.gather(hurrying, return_exceptions=True)
    assert not others()
    assert await store.remaining(ALGORITHM) == 1000 - limiter.statistics().granted


@virtual
async def test_explicit_prefetch_disables_the_adaptive_one() -> None:
    store = Watched()
    limiter = RateLimiter(ALGORITHM, store=store, key="k", prefetch="50/100ms")
    await hurry(limiter, 1)
    await turns()
    await hurry(limiter, 50)
    assert store.costs == [[1.0, 50.0]]
    await cancel(*visits(limiter, 1))
    await limiter.aclose()
    assert await store.remaining(ALGORITHM) == 949
