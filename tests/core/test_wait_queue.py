"""The queue: ordered by arrival less ten seconds a priority step, checked by a sorted list."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from aiothrottle._core.wait_queue import AGEING, Waiter, WaitQueue


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def come(at: float, cost: float = 1.0, priority: float = 0) -> Waiter:
    waiter = Waiter(cost, priority)
    waiter.at = at
    return waiter


def alive(queue: WaitQueue) -> list[Waiter]:
    return [waiter for waiter in queue if waiter.future is not None]


def test_empty_queue_keeps_no_rounding_of_costs(loop: asyncio.AbstractEventLoop) -> None:
    queue = WaitQueue()
    waiters = [come(0.0, tokens) for tokens in (0.1, 0.2, 0.3, 0.7)]
    for waiter in waiters:
        queue.add(waiter, loop.create_future())
    for waiter in waiters:
        queue.remove(waiter)
    assert queue.cost_ahead(come(1.0)) == 0.0


@pytest.mark.parametrize("priorities", [(0,), (0, 1), (0, 1, -2.5)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_queue_serves_like_a_sorted_list(
    loop: asyncio.AbstractEventLoop, priorities: tuple[float, ...], seed: int
) -> None:
    chance, queue, now = random.Random(seed), WaitQueue(), 0.0
    listed: list[Waiter] = []

    def place(waiter: Waiter) -> tuple[float, float]:
        return waiter.at - AGEING * waiter.priority, -waiter.priority

    for _ in range(400):
        if chance.random() < (0.6 if len(listed) < 30 else 0.4) or not listed:
            now += chance.choice([0.0, 1.0, 8.0])
            waiter = come(now, chance.choice([0.5, 1.0, 3.0]), chance.choice(priorities))
            if all(place(other)[0] != place(waiter)[0] for other in listed):
                ahead = [other.cost for other in listed if place(other) < place(waiter)]
                assert queue.cost_ahead(waiter) == sum(ahead)
            queue.add(waiter, loop.create_future())
            listed.append(waiter)
            listed.sort(key=place)
        else:
            waiter = chance.choice([listed[0], listed[-1], chance.choice(listed)])
            listed.remove(waiter)
            queue.remove(waiter)
            assert waiter.future is None
        assert queue.count == len(listed)
        assert set(queue.others) == {waiter.priority for waiter in listed} - {0}
        if listed:
            assert queue.head is listed[0]
            assert alive(queue) == listed
    queue.clear()
    assert (queue.count, queue.others, list(queue)) == (0, {}, [])
    assert all(waiter.future is None for waiter in listed)


def test_longer_wait_stands_before_higher_priority(loop: asyncio.AbstractEventLoop) -> None:
    queue = WaitQueue()
    early, removed, late = come(0.0, 2.0), come(0.5, 4.0), come(15.0, 8.0)
    for waiter in (early, removed, late):
        queue.add(waiter, loop.create_future())
    queue.remove(removed)
    assert queue.cost_ahead(come(20.0, priority=1)) == 2.0
    assert queue.cost_ahead(come(20.0)) == 10.0
    assert queue.cost_ahead(come(9.0, priority=1)) == 0.0
    queue.add(come(20.0, 16.0, priority=1), loop.create_future())
    assert queue.cost_ahead(come(20.0)) == 26.0
    assert queue.cost_ahead(come(21.0, priority=2)) == 2.0


def test_gaps_close_when_half_the_queue_left(loop: asyncio.AbstractEventLoop) -> None:
    queue = WaitQueue()
    waiters = [come(float(at)) for at in range(6)]
    for waiter in waiters:
        queue.add(waiter, loop.create_future())
    for which, left in ((2, 6), (3, 6), (4, 6), (1, 2)):
        queue.remove(waiters[which])
        assert len(list(queue)) == left
    assert list(queue) == [waiters[0], waiters[5]]
    # Gaps behind the head are removed with it.
    newcomers = [come(float(at)) for at in range(10, 16)]
    for waiter in newcomers:
        queue.add(waiter, loop.create_future())
    queue.remove(waiters[5])
    queue.remove(newcomers[0])
    queue.remove(waiters[0])
    assert list(queue) == newcomers[1:]
