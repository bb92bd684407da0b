"""A limiter with a parent: a request is granted when both allow it, and spends from both."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    CostTooHigh,
    LimiterClosed,
    Permit,
    QueueFull,
    RateLimiter,
    ThrottleTimeout,
    WaitUntil,
)
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import counts, now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


async def together(tasks: list[asyncio.Task[float]]) -> list[float]:
    return await asyncio.gather(*tasks)


async def remaining(limiter: RateLimiter) -> float:
    return limiter._engine.bucket.remaining(limiter._engine.now())


# --- Both, or none ---


@pytest.mark.parametrize(
    ("child", "parent", "expected"),
    [
        ("2/s", "100/s", [0, 0, 1, 1, 2]),
        ("100/s", "2/s", [0, 0, 1, 1, 2]),
        ("2/s", "3/min", [0, 0, 1, 60, 60]),
        (None, "1/s", [0, 1, 2, 3, 4]),
        ("1/s", None, [0, 1, 2, 3, 4]),
    ],
)
@virtual
async def test_request_is_granted_when_both_rates_allow_it(
    child: str | None, parent: str | None, expected: list[float]
) -> None:
    limiter = RateLimiter(child, parent=RateLimiter(parent))
    assert await asyncio.gather(*visits(limiter, 5)) == expected


@virtual
async def test_request_is_granted_when_both_have_a_slot() -> None:
    parent = RateLimiter(concurrency_limit=2)
    first, second = (
        RateLimiter(concurrency_limit=1, parent=parent),
        RateLimiter(concurrency_limit=2, parent=parent),
    )
    tasks = [*visits(first, 2, stay=1), *visits(second, 2, stay=1)]
    assert sorted(await asyncio.gather(*tasks)) == [0, 0, 1, 1]
    assert [counts(limiter) for limiter in (parent, first, second)] == [(0, 0)] * 3


@virtual
async def test_no_token_is_taken_while_another_is_missing() -> None:
    parent = RateLimiter("1/h")
    child = RateLimiter("10/s", parent=parent)
    await visit(child)
    (waiter,) = visits(child, 1)
    await asyncio.sleep(100)
    assert await remaining(child) == 10
    # The child's token is as fresh as the request: 10 more would be too many in that second.
    parent.update(rate_limit=None)
    assert await waiter == 100
    assert await remaining(child) == 9


@virtual
async def test_child_takes_no_token_while_parent_is_busy() -> None:
    parent, instants = RateLimiter(concurrency_limit=1), list[float]()
    child = RateLimiter("2/s", parent=parent)
    inside = await parent.acquire()
    waiting = visits(child, 6)
    await asyncio.sleep(10)
    inside.release()
    instants = await asyncio.gather(*waiting)
    # Had they taken tokens while the parent was busy, more than two would be granted now.
    assert instants == [10, 10, 11, 11, 12, 12]


@virtual
async def test_parent_slot_is_held_until_the_block_exits() -> None:
    parent = RateLimiter(concurrency_limit=1)
    child, sibling = (
        RateLimiter(concurrency_limit=5, parent=parent),
        RateLimiter(concurrency_limit=5, parent=parent),
    )
    permit = await child.acquire()
    (waiter,) = visits(sibling, 1)
    await asyncio.sleep(7)
    assert (counts(parent), counts(sibling)) == ((1, 1), (0, 1))
    permit.release()
    permit.release()
    assert await waiter == 7
    assert counts(parent) == (0, 0)


@virtual
async def test_head_in_parent_queue_is_not_in_flight() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter(concurrency_limit=5, parent=parent)
    await visit(child)
    waiting = visits(child, 3)
    await turns()
    assert counts(child) == (0, 3)
    assert counts(parent) == (0, 1)
    assert await asyncio.gather(*waiting) == [1, 2, 3]
    assert child.statistics().waited_total == 6


@virtual
async def test_cost_applies_to_both_limits() -> None:
    parent = RateLimiter("5/s")
    child = RateLimiter("10/s", parent=parent)
    assert await asyncio.gather(*visits(child, 2, cost=3)) == [0, 1]
    with pytest.raises(CostTooHigh) as error:
        child.throttle(6)
    assert error.value.limit == 5


@virtual
async def test_settle_and_record_reach_the_parent() -> None:
    parent = RateLimiter("10/h")
    child = RateLimiter("10/h", parent=parent)
    async with child.throttle(5) as permit:
        permit.settle(2)
        assert (await remaining(child), await remaining(parent)) == (8, 8)
        permit.settle(4)
    await child.record(3)
    assert (await remaining(child), await remaining(parent)) == (3, 3)


@virtual
async def test_peek_and_try_acquire_check_both() -> None:
    parent = RateLimiter("1/min", concurrency_limit=1)
    child = RateLimiter("10/s", concurrency_limit=1, parent=parent)
    decision = await child.try_acquire()
    assert decision.permit is not None
    assert counts(parent) == (1, 0)
    for ask in (child.peek, child.try_acquire):
        assert (await ask()).retry_after == 60
    decision.permit.release()
    assert (counts(parent), await remaining(child)) == ((0, 0), 9)
    await asyncio.sleep(60)
    assert await child.peek()
    assert await child.try_acquire()


@virtual
async def test_priority_holds_in_the_parent_queue() -> None:
    parent = RateLimiter("1/s")
    low, high = RateLimiter(parent=parent), RateLimiter(parent=parent)
    await visit(low)
    waiting = visits(low, 2)
    await turns()
    assert await visit(high, priority=1) == 1
    assert await asyncio.gather(*waiting) == [2, 3]


@virtual
async def test_priority_newcomer_behind_a_queued_head_hangs_nobody() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter(None, parent=parent)
    await visit(child)
    (first,) = visits(child, 1)
    await turns()
    (second,) = visits(child, 1, priority=1)
    ends = await asyncio.wait_for(asyncio.gather(first, second), 60)
    assert list(ends) == [1, 2]


# --- Fair turns ---


@virtual
async def test_children_take_turns_at_any_queue_length() -> None:
    parent, order = RateLimiter("1/s"), list[str]()
    children = {name: RateLimiter(parent=parent) for name in "abc"}

    async def guest(name: str) -> None:
        async with children[name].throttle():
            order.append(name)

    await visit(parent)
    await asyncio.gather(*map(guest, "aaaaaaaaaa" + "bbbb" + "c"))
    assert "".join(order) == "abcababab" + "aaaaaa"


@virtual
async def test_child_waiting_for_itself_takes_no_turn() -> None:
    parent = RateLimiter("1/s")
    slow, quick = RateLimiter("1/min", parent=parent), RateLimiter(parent=parent)
    await visit(slow)
    (slowly,) = visits(slow, 1)
    assert await asyncio.gather(*visits(quick, 5)) == [1, 2, 3, 4, 5]
    assert await slowly == 60


# --- Pauses ---


@virtual
async def test_paused_parent_pauses_all_children() -> None:
    parent = RateLimiter("10/s")
    children = [RateLimiter("10/s", parent=parent) for _ in range(3)]
    await visit(children[0])
    parent.pause(30)
    tasks = [task for child in children for task in visits(child, 2)]
    assert not await children[0].try_acquire()
    assert await asyncio.gather(*tasks) == [30] * 6


@virtual
async def test_parent_paused_with_queued_heads_holds_them() -> None:
    parent = RateLimiter("2/s")
    children = [RateLimiter(parent=parent) for _ in range(2)]
    await parent.acquire(2)
    tasks = [task for child in children for task in visits(child, 1)]
    await asyncio.sleep(0.5)
    parent.pause(9)
    assert await asyncio.gather(*tasks) == [9.5, 9.5]


@virtual
async def test_paused_child_holds_only_its_own_waiters() -> None:
    parent = RateLimiter("10/s", concurrency_limit=1)
    paused, other = RateLimiter(parent=parent), RateLimiter(parent=parent)
    await visit(paused)
    paused.pause(30)
    waiting = visits(paused, 1)
    assert await asyncio.gather(*visits(other, 3)) == [0, 0, 0]
    assert await waiting[0] == 30


@virtual
async def test_child_paused_with_queued_head_returns_its_turn() -> None:
    parent = RateLimiter("1/s", concurrency_limit=1)
    child, sibling = (
        RateLimiter("9/s", concurrency_limit=3, parent=parent),
        RateLimiter(parent=parent),
    )
    await visit(child)
    (held,) = visits(child, 1)
    await turns()
    (behind,) = visits(sibling, 1)
    await turns()
    child.pause(5)
    assert await behind == 1  # the parent's token of that second is not lost
    assert (counts(child), counts(parent)) == ((0, 1), (0, 0))
    assert await held == 5
    assert parent.statistics().granted == 3
    assert child.statistics().granted == 2
    assert counts(child) == (0, 0)


@virtual
async def test_unused_tokens_return_through_three_levels() -> None:
    top = RateLimiter("5/min")
    middle = RateLimiter("1/s", parent=top)
    child = RateLimiter(None, parent=middle)
    await visit(child)
    (waiter,) = visits(child, 1)
    await turns()
    child.pause(5)
    await asyncio.sleep(3)
    assert await remaining(top) == 4
    assert await remaining(middle) == 1
    assert await waiter == 5
    assert await remaining(top) == 3
    assert [level.statistics().granted for level in (top, middle, child)] == [2, 2, 2]


# --- Giving up, and closing ---


@pytest.mark.parametrize("after_turns", range(8))
@pytest.mark.parametrize("at", [0.0, 1.0])
@virtual
async def test_head_cancelled_in_parent_queue_leaves_no_trace(at: float, after_turns: int) -> None:
    parent = RateLimiter("1/s", concurrency_limit=1)
    child, sibling = (
        RateLimiter("9/h", concurrency_limit=1, parent=parent),
        RateLimiter(parent=parent),
    )
    await visit(child)
    victim, follower = visits(child, 2)
    await turns()
    (other,) = visits(sibling, 1)
    await asyncio.sleep(at)
    await turns(after_turns)
    cancelled = int(not victim.done())
    victim.cancel()
    ends = await asyncio.wait_for(asyncio.gather(follower, other), 60)
    assert sorted(ends) == [2 - cancelled, 3 - cancelled]
    assert [counts(limiter) for limiter in (parent, child, sibling)] == [(0, 0)] * 3
    assert await remaining(child) == 7 - (1 - cancelled)
    assert parent.statistics().granted == 4 - cancelled


@virtual
async def test_child_closed_with_queued_head_leaves_no_trace() -> None:
    parent = RateLimiter("1/s", concurrency_limit=1)
    child, sibling = RateLimiter(concurrency_limit=1, parent=parent), RateLimiter(parent=parent)
    await visit(child)
    closed = visits(child, 3)
    await turns()
    (other,) = visits(sibling, 1)
    await asyncio.sleep(0.5)
    await child.aclose()
    outcomes = await asyncio.gather(*closed, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LimiterClosed}
    assert now() == 0.5
    assert await other == 1
    assert [counts(limiter) for limiter in (parent, child)] == [(0, 0)] * 2
    assert parent.statistics().granted == 2


@virtual
async def test_draining_child_serves_its_waiters_through_the_parent() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter(parent=parent)
    waiting = visits(child, 3)
    await turns()
    await child.aclose(drain=True)
    assert [await waiter for waiter in waiting] == [0, 1, 2]
    assert now() == 2
    await visit(parent)  # which stays open


@virtual
async def test_closed_parent_rejects_its_children() -> None:
    parent = RateLimiter("1/s", concurrency_limit=1)
    children = [RateLimiter(concurrency_limit=2, parent=parent) for _ in range(2)]
    inside = await children[0].acquire()
    waiting = [task for child in children for task in visits(child, 2)]
    await asyncio.sleep(0.5)
    await parent.aclose()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LimiterClosed}
    assert now() == 0.5
    for ask in (children[0].acquire, children[1].try_acquire, children[1].peek):
        with pytest.raises(LimiterClosed):
            await ask()
    inside.release()
    assert [counts(limiter) for limiter in (parent, *children)] == [(0, 0)] * 3


# --- Timeouts, queues, and algorithms that reject ---


@virtual
async def test_wait_behind_siblings_in_the_parent_is_known() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter(None, parent=parent)
    await visit(child)
    waiting = visits(child, 10)
    await turns()
    with pytest.raises(ThrottleTimeout) as error:
        await visit(child, timeout=10.5)
    assert (now(), error.value.retry_after) == (0, 11)
    assert await visit(child, timeout=11) == 11
    await asyncio.gather(*waiting)


@virtual
async def test_waiter_timed_out_in_parent_queue_leaves_it() -> None:
    parent = RateLimiter(concurrency_limit=1)
    child = RateLimiter("2/s", concurrency_limit=1, parent=parent)
    inside = await parent.acquire()
    with pytest.raises(ThrottleTimeout):
        await visit(child, timeout=3)
    assert now() == pytest.approx(3, abs=0.01)
    assert (counts(parent), counts(child)) == ((1, 0), (0, 0))
    assert await remaining(child) == 2
    inside.release()
    assert await visit(child) == now()
    assert child.statistics().rejected == 1


@virtual
async def test_child_takes_its_turn_in_full_parent_queue() -> None:
    parent = RateLimiter("1/s", max_queue=1)
    child = RateLimiter(parent=parent)
    await visit(parent)
    waiting = visits(parent, 1)
    await turns()
    waiting += visits(child, 2)
    await turns()
    with pytest.raises(QueueFull):
        await visit(parent)
    assert await asyncio.gather(*waiting) == [1, 2, 3]


@virtual
async def test_rejection_by_parent_algorithm_counts_in_the_child() -> None:
    parent = RateLimiter(algorithm=WaitUntil(1, 1, 10))
    child = RateLimiter(None, parent=parent)
    await visit(child)
    tasks = [*visits(parent, 3), *visits(child, 3)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    # One of the parent's own comes first, two rejected ones count: too long for the child.
    assert [type(outcome) for outcome in outcomes] == [float] + [ThrottleTimeout] * 5
    assert (child.statistics().rejected, child.statistics().granted) == (3, 1)
    assert counts(child) == counts(parent) == (0, 0)


# --- Loops, and invalid parents ---


def test_child_rejected_by_parent_loop_binds_to_none() -> None:
    parent = RateLimiter("100/s")
    child = RateLimiter(None, parent=parent)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as first:
        first.run(visit(parent))
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as second:
            for ask in (visit(child), child.peek(), child.try_acquire()):
                with pytest.raises(RuntimeError, match="still open"):
                    second.run(ask)
        assert first.run(visit(child)) == 0


def test_failed_close_from_another_loop_loses_no_waiter() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter(None, parent=parent)

    async def come() -> list[asyncio.Task[float]]:
        waiting = visits(child, 2)
        await turns()
        return waiting

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as first:
        waiting = first.run(come())
        with (
            asyncio.Runner(loop_factory=VirtualTimeLoop) as second,
            pytest.raises(RuntimeError, match="still open"),
        ):
            second.run(child.aclose())
        assert first.run(together(waiting)) == [0, 1]


def test_child_and_parent_move_to_the_next_loop() -> None:
    parent, kept = RateLimiter(concurrency_limit=2), list[Permit]()
    child = RateLimiter(concurrency_limit=2, parent=parent)

    async def leave_some_waiting() -> Sequence[asyncio.Task[float]]:
        kept.append(await child.acquire())  # never released: the loop ends while it is held
        tasks = visits(child, 3, stay=10)
        await turns()
        assert (counts(child), counts(parent)) == ((2, 2), (2, 0))
        return tasks

    async def come_again() -> None:
        assert await visit(child) == 0
        assert (counts(child), counts(parent)) == ((1, 0), (1, 0))

    for main in (leave_some_waiting, come_again):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())


@pytest.mark.parametrize("bad", ["10/s", 10, RateLimiter])
def test_parent_that_is_no_limiter_raises(bad: Unchecked) -> None:
    with pytest.raises(TypeError, match="parent"):
        RateLimiter("1/s", parent=bad)


@virtual
async def test_decision_includes_the_parent() -> None:
    parent = RateLimiter("10/s")
    child = RateLimiter("100/s", parent=parent)
    await parent.record(8)
    decision = await child.peek()
    assert (decision.limit, decision.remaining, decision.reset_after) == (10, 2, 1)
    await child.record(2)
    await parent.acquire(0)
    assert (await child.peek()).remaining == 0


def test_parent_waiters_of_dead_loop_do_not_count() -> None:
    parent = RateLimiter("1/min", clock=lambda: 0.0)
    child = RateLimiter(None, parent=parent, clock=lambda: 0.0)

    async def first() -> list[asyncio.Task[float]]:
        await visit(child)
        waiting = visits(child, 1)
        await turns()
        return waiting

    async def expected_wait() -> float:
        waiting = visits(child, 2)
        await turns()
        decision = await child.peek()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return decision.retry_after

    loop = asyncio.new_event_loop()
    (dead,) = loop.run_until_complete(first())
    loop.close()
    dead._log_destroy_pending = False  # type: ignore[attr-defined]
    assert asyncio.run(expected_wait()) == pytest.approx(180)


@virtual
async def test_long_wait_two_levels_up_is_rejected() -> None:
    top = RateLimiter("1/s")
    middle = RateLimiter("10/s", parent=top)
    limiter = RateLimiter("100/s", parent=middle)
    waiting = visits(limiter, 3)
    await turns()
    with pytest.raises(ThrottleTimeout) as caught:
        await limiter.acquire(timeout=2.5)
    assert caught.value.retry_after == 3.0
    assert now() == 0.0
    assert await together([*waiting, *visits(limiter, 1, timeout=3.5)]) == [0, 1, 2, 3]
