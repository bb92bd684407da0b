"""A limiter with a parent: a request is granted when both allow it, and spends from both."""

import asyncio

import pytest

from aiothrottle import KeyedRateLimiter, Permit, RateLimiter, WaitUntil, errors
from aiothrottle.keyed import expect_outcomes
from tests.limiter.common import errors_of, order_of, queued, remaining, starts, together
from tests.support.virtually import counts, now, on_virtual_loop, visit, visits


def spent(limiter: RateLimiter, limit: float) -> float:
    return round(limiter.statistics().utilisation * limit, 9)


def all_counts(*limiters: RateLimiter) -> set[tuple[int, int]]:
    return {counts(limiter) for limiter in limiters}


async def test_request_is_granted_when_both_rates_allow_it() -> None:
    for child, parent, expected in (
        ("2/s", "100/s", [0, 0, 1, 1, 2]),
        ("100/s", "2/s", [0, 0, 1, 1, 2]),
        ("2/s", "3/min", [0, 0, 1, 60, 60]),
        (None, "1/s", [0, 1, 2, 3, 4]),
        ("1/s", None, [0, 1, 2, 3, 4]),
    ):
        began = now()
        times = await starts(RateLimiter(child, parent=RateLimiter(parent)), 5)
        assert [at - began for at in times] == expected, (child, parent)


async def test_priority_holds_in_the_parent_queue() -> None:
    parent = RateLimiter("1/s")
    low, high = RateLimiter(parent=parent), RateLimiter(parent=parent)
    await visit(low)
    waiting = await queued(low, 2)
    assert await visit(high, priority=1) == 1
    assert await together(*waiting) == [2, 3]
    # But the head of a child has its place in the queue above.
    (first,) = await queued(low)
    (second,) = visits(low, 1, priority=1)
    assert await asyncio.wait_for(together(first, second), 60) == [4, 5]
    own = await queued(parent, 3)
    urgent = [*await queued(high, priority=1), *await queued(parent, priority=2)]
    assert await together(*urgent, *own) == [7, 6, 8, 9, 10]


async def test_children_take_turns_at_any_queue_length() -> None:
    parent = RateLimiter("1/s")
    children = {name: RateLimiter(parent=parent) for name in "abc"}
    children["s"] = RateLimiter("1/min", parent=parent)
    await visit(children["s"])  # then it waits for itself, and takes no turn
    order = await order_of("s" + "aaaaaaaaaa" + "bbbb" + "c", children)
    assert (order, now()) == ("abcababab" + "aaaaaa" + "s", 60)
    # In each round one of each, and one of the parent's own.
    order = await order_of("aaaabbbbcccc....", {**children, ".": parent})
    assert [sorted(order[at : at + 4]) for at in (1, 5)] == [[*".abc"]] * 2, order


@pytest.mark.parametrize("rate", ["50/s", "10/200ms"])
async def test_own_waiters_of_a_parent_do_not_starve_the_keys(rate: str) -> None:
    parent = RateLimiter(rate)
    own = await queued(parent, 200)
    keyed = visits(KeyedRateLimiter("1000/s", parent=parent)["ann"], 50)
    assert max(await together(*keyed)) == pytest.approx(2.0, abs=1.0)  # every second one at first
    assert max(await together(*own)) == pytest.approx(4.0, abs=1.0)


async def test_own_waiters_count_once_and_leave_no_trace_if_cancelled() -> None:
    parent = RateLimiter("1/s")
    child = RateLimiter("1000/s", parent=parent)
    own = await queued(parent, 100)
    with pytest.raises(errors.ThrottleTimeout):
        await visit(child, timeout=1.5)  # behind the next own waiter
    with pytest.raises(errors.ThrottleTimeout):
        await visit(parent, timeout=90)
    assert await visit(child, timeout=2.5) <= 2.0
    for task in own[5:]:
        task.cancel()
    later = [*visits(child, 3), *own[:5]]
    assert sorted(await together(*later)) == [0, 1, 3, 4, 5, 6, 7, 8]
    assert counts(parent) == (0, 0)


async def test_child_paused_with_queued_head_returns_its_turn_at_each_level() -> None:
    top = RateLimiter("5/min", concurrency_limit=1)
    middle = RateLimiter("1/s", parent=top)
    child, sibling = RateLimiter(concurrency_limit=3, parent=middle), RateLimiter(parent=middle)
    await visit(child)
    (held,) = await queued(child)
    (behind,) = await queued(sibling)
    child.pause(5)
    assert await behind == 1  # the token of that second is not lost
    await asyncio.sleep(2)
    assert (counts(child), all_counts(top, middle)) == ((0, 1), {(0, 0)})
    assert (spent(top, 5), spent(middle, 1)) == (2, 0)
    assert await held == 5
    assert (spent(top, 5), spent(middle, 1)) == (3, 1)
    assert [level.statistics().granted for level in (top, middle, child)] == [3, 3, 2]


async def test_closed_child_leaves_the_queue_and_a_closed_parent_rejects_its_children() -> None:
    parent = RateLimiter("1/s", concurrency_limit=1)
    child, *children = (RateLimiter(concurrency_limit=2, parent=parent) for _ in range(3))
    inside = await children[0].acquire()
    closed = await queued(child, 3)
    waiting = [task for child in children for task in visits(child, 2)]
    await asyncio.sleep(0.5)
    await child.aclose()
    assert await errors_of(closed) == (errors.LimiterClosed,) * 3
    await parent.aclose()
    assert (await errors_of(waiting), now()) == ((errors.LimiterClosed,) * 4, 0.5)
    for ask in (children[0].acquire, children[1].try_acquire, children[1].peek):
        with pytest.raises(errors.LimiterClosed):
            await ask()
    inside.release()
    assert all_counts(parent, child, *children) == {(0, 0)}
    parent = RateLimiter("1/s")
    child = RateLimiter(parent=parent)
    waiting = await queued(child, 2)
    await child.aclose(drain=True)  # serves its waiters through the parent
    assert await together(*waiting) == [0.5, 1.5]
    assert await visit(parent) == 2.5  # which stays open


async def test_long_wait_two_levels_up_is_known() -> None:
    top = RateLimiter("1/s")
    middle = RateLimiter("10/s", parent=top)
    limiter = RateLimiter(None, parent=middle)
    waiting = [*await queued(limiter, 3), *await queued(middle)]
    with pytest.raises(errors.ThrottleTimeout) as caught:
        await limiter.acquire(timeout=3.5)
    assert now() == 0
    assert (await limiter.peek()).retry_after == caught.value.retry_after == 4
    assert await together(*waiting, *visits(limiter, 1, timeout=4)) == [0, 1, 3, 2, 4]


async def test_parent_queue_may_be_full_and_is_left_at_a_timeout() -> None:
    parent = RateLimiter(concurrency_limit=1)
    child = RateLimiter("2/s", concurrency_limit=1, parent=parent)
    inside = await parent.acquire()
    with pytest.raises(errors.ThrottleTimeout):
        await visit(child, timeout=3)
    assert now() == pytest.approx(3, abs=0.01)
    assert (counts(parent), counts(child), await remaining(child)) == ((1, 0), (0, 0), 2)
    inside.release()
    assert await visit(child) == now()
    assert child.statistics().rejected == 1
    full, began = RateLimiter("1/s", max_queue=1), now()
    await visit(full)
    waiting = [*await queued(full), *await queued(RateLimiter(parent=full), 2)]
    with pytest.raises(errors.QueueFull):
        await visit(full)
    assert await together(*waiting) == [began + 1, began + 2, began + 3]


async def test_rejection_by_parent_algorithm_counts_in_the_child() -> None:
    parent = RateLimiter(algorithm=WaitUntil(1, 1, 10))
    child = RateLimiter(None, parent=parent)
    await visit(child)
    # One of the parent's own comes first, two rejected ones count: too long for the child.
    outcomes = await errors_of([*visits(parent, 3), *visits(child, 3)])
    assert outcomes == (float, *[errors.ThrottleTimeout] * 5)
    assert (child.statistics().rejected, child.statistics().granted) == (3, 1)
    assert all_counts(child, parent) == {(0, 0)}


def test_child_and_parent_move_to_the_next_loop() -> None:
    parent, kept = RateLimiter("2/min", clock=lambda: 0.0), list[Permit]()
    child = RateLimiter(concurrency_limit=5, parent=parent, clock=lambda: 0.0)

    async def leave_some_waiting() -> None:
        kept.append(await child.acquire())  # never released: the loop ends while it is held
        await queued(child, 3, stay=10)
        assert (counts(child), counts(parent)) == ((2, 2), (2, 1))

    async def come_again() -> None:
        assert (counts(child), counts(parent)) == ((1, 0), (1, 0))
        waiting = await queued(child, 2)
        assert (await child.peek()).retry_after == 120  # the two of the dead loop do not count
        for task in waiting:
            task.cancel()

    for main in (leave_some_waiting, come_again):
        on_virtual_loop(main())


def test_parent_with_another_clock_learns_by_its_own() -> None:
    time = 0.0
    parent = RateLimiter(100, clock=lambda: time)
    child = RateLimiter(100, parent=parent, clock=lambda: 1000.0 + time)

    async def report() -> None:
        nonlocal time
        early = [await child.acquire() for _ in range(3)]
        time = 1.0
        for permit in early[:2]:
            permit.report_throttled(scope="all")
        assert parent.statistics().paused_for <= 0.55  # they were sent together
        early[2].report_success()  # it was sent before the pause
        time = 20.0
        last = await parent.acquire()
        time = 21.0
        last.report_throttled()
        assert parent.statistics().paused_for >= 1.0  # the second in a row

    asyncio.run(report())


async def test_expected_outcomes_take_no_turn_at_the_parent() -> None:
    parent = RateLimiter("1/s", guard=0)
    first, second = (RateLimiter("9/s", guard=0, parent=parent) for _ in range(2))
    await visit(first)
    waiting = visits(first, 1)
    await asyncio.sleep(0.5)
    expect_outcomes(first)  # a fixed guard: there is nothing to begin small with
    later = [*visits(second, 1), asyncio.create_task(visit(first, priority=0.1))]
    assert await together(*waiting, *later) == [1, 3, 2]  # the priority counts as a second
