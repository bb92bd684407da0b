"""The queue: ordered by arrival less ten seconds a priority step, checked by a sorted list."""

import random
from asyncio import AbstractEventLoop, Future, new_event_loop
from collections.abc import Iterator

import pytest

from aiothrottle._core.wait_queue import AGEING, Waiter, WaitQueue
from tests.support.effort import seeds


@pytest.fixture
def loop() -> Iterator[AbstractEventLoop]:
    loop = new_event_loop()
    yield loop
    loop.close()


def come(at: float, cost: float = 1.0, priority: float = 0) -> Waiter:
    waiter = Waiter(cost, priority)
    waiter.at = at
    return waiter


@pytest.mark.parametrize("priorities", [(0,), (0, 1), (0, 1, -2.5)], ids=str)
@pytest.mark.parametrize("seed", seeds(5))
def test_queue_serves_like_a_sorted_list(
    loop: AbstractEventLoop, priorities: tuple[float, ...], seed: int
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
            queue.add(waiter, Future(loop=loop))
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
            assert list(queue) == listed
    queue.clear()
    assert (queue.count, queue.others, list(queue)) == (0, {}, [])
    assert all(waiter.future is None for waiter in listed)


def test_empty_queue_has_no_cost_left(loop: AbstractEventLoop) -> None:
    queue, waiters = WaitQueue(), [come(0.0, cost) for cost in (0.1, 0.2, 0.3)]
    for waiter in waiters:
        queue.add(waiter, Future(loop=loop))
    for waiter in waiters:
        queue.remove(waiter)
    assert queue.cost == 0.0, "not even a rounding"
